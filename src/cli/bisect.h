#pragma once

namespace CLI {
class App;
}

namespace faultline {

// Adds `faultline bisect`. Its callback does the work and sets `exit_code`.
void add_bisect_command(CLI::App& app, int& exit_code);

}  // namespace faultline
