// `faultline selftest`: plants known faults and shows which were found and who was blamed.
#pragma once

namespace CLI {
class App;
}

namespace faultline {

void add_selftest_command(CLI::App& app, int& exit_code);

}  // namespace faultline
