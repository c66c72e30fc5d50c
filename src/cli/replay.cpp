#include "cli/replay.h"

#include <sys/stat.h>

#include <CLI/CLI.hpp>

#include "bisect/driver.h"
#include "cli/failure.h"
#include "cli/run_options.h"

namespace faultline {
namespace {

bool is_directory(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

int run(const BisectOptions& options, const std::string& id) {
  const auto outcome = run_replay(options, id);
  // For `git bisect run`: a case that cannot be tried here is to be skipped, not called bad.
  if (!outcome) {
    const int code = fail(outcome.error());
    return outcome.error().kind == ErrorKind::kCannotRun ? static_cast<int>(ExitCode::kCannotRunHere) : code;
  }
  const ConfigurationResult& result = outcome->result;
  fmt::print("{}: {}\n", result.id, result.verdict);
  if (!result.reason.empty()) fmt::print("  {}\n", result.reason);
  if (result.first_violation) {
    const Violation& v = *result.first_violation;
    fmt::print("  first in {} ({}), {} step {}: {} {} = {}\n", v.op, v.kernel, v.phase, v.step, v.kind, v.tensor,
               v.value);
  }
  if (result.repeats > 1) fmt::print("  failed in {} of {} runs\n", result.failures, result.repeats);
  return static_cast<int>(outcome->exit_code);
}

}  // namespace

void add_replay_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<BisectOptions>();
  auto id = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("replay",
                                         "Run one configuration of a report again: exit code 0 good, 1 fails, 125 "
                                         "cannot run here (fit for git bisect run)");
  command->add_option("case", options->experiment, "a case file (RUN/cases/c017.yaml), or a run directory with --id")
      ->required();
  command->add_option("--id", *id, "configuration of the run: c017, or c017+late_tile");
  add_run_options(*command, *options);
  command->callback([options, id, &exit_code] {
    if (is_directory(options->experiment)) {
      if (id->empty()) {
        exit_code =
            fail(Error{ErrorKind::kBadInput, options->experiment + " is a run: name a configuration of it by --id"});
        return;
      }
      options->experiment += "/experiment.yaml";
    }
    exit_code = run(*options, *id);
  });
}

}  // namespace faultline
