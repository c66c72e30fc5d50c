// `faultline synth NAME --out DIR`: writes a checkpoint with random weights.
#pragma once

namespace CLI {
class App;
}

namespace faultline {

// Registers the subcommand; its callback does the work and sets `exit_code`: 0 written, 2 bad input.
void add_synth_command(CLI::App& app, int& exit_code);

}  // namespace faultline
