// `faultline preflight EXPERIMENT.yaml [--model M] [--arch A] [--profile P] [--gpus N] [--gpu-memory GB]
// [--json FILE|-]`: what each configuration resolves to for a server version and a target, and which cannot run, with
// reasons, without running anything.
#pragma once

#include <string>
#include <vector>

#include "grid/experiment.h"
#include "grid/preflight.h"

namespace CLI {
class App;
}

namespace faultline {

// Registers the subcommand; its callback does the work and sets `exit_code`: 0 all can run, 1 some cannot or conflict,
// 2 bad input.
void add_preflight_command(CLI::App& app, int& exit_code);

// The table for people: one line a row with the axes that vary, the kernels and the cache that it resolves to and its
// status; reasons, axes without effect and notes below.
std::string preflight_table(const Experiment& experiment, const std::vector<PreflightRow>& rows);
// `rows[]` {id, axes, resolved, status, reason, source, notes, settings, command} and `inert[]` {axis, condition,
// rows}, with schema, experiment, profile, arch.
std::string preflight_json(const Experiment& experiment, const std::vector<PreflightRow>& rows);

}  // namespace faultline
