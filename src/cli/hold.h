// `faultline hold`: keeps a model's weights in device memory for later commands.
#pragma once

namespace CLI {
class App;
}

namespace faultline {

void add_hold_command(CLI::App& app, int& exit_code);

}  // namespace faultline
