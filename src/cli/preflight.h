// `faultline preflight EXPERIMENT.yaml [--model M] [--arch A] [--profile P] [--json FILE|-]`: what each configuration
// resolves to for a server version and a target, and which cannot run, with reasons, without running anything.
#pragma once

#include <string>
#include <vector>

#include "grid/expand.h"
#include "grid/resolved.h"

namespace CLI {
class App;
}

namespace faultline {

// Registers the subcommand; its callback does the work and sets `exit_code`: 0 all can run, 1 some cannot or conflict,
// 2 bad input.
void add_preflight_command(CLI::App& app, int& exit_code);

struct PreflightRow {
  GridRow row;
  ResolvedConfiguration configuration;
};
// The table for people: one line a row with the axes that vary, reasons and notes below.
std::string preflight_table(const Experiment& experiment, const std::vector<PreflightRow>& rows);
// `rows[]` {id, axes, resolved, status, reason, source, notes, settings, command}, with schema, experiment, profile,
// arch.
std::string preflight_json(const Experiment& experiment, const std::vector<PreflightRow>& rows);

}  // namespace faultline
