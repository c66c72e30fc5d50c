// `faultline inspect MODEL [--json FILE|-]`: what a checkpoint holds, and what is wrong with it.
#pragma once

namespace CLI {
class App;
}

namespace faultline {

// Registers the subcommand; its callback does the work and sets `exit_code`: 0 sound, 1 readable but faulty, 2
// unreadable.
void add_inspect_command(CLI::App& app, int& exit_code);

}  // namespace faultline
