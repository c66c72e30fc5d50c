#include "cli/replay.h"

#include <sys/stat.h>

#include <CLI/CLI.hpp>

#include "bisect/capsule_run.h"
#include "bisect/driver.h"
#include "cli/failure.h"
#include "cli/run_options.h"

namespace faultline {
namespace {

bool is_directory(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

// For `git bisect run`: a case that cannot be tried here is to be skipped, not called bad.
int fail_replay(const Error& error) {
  const int code = fail(error);
  return error.kind == ErrorKind::kCannotRun ? static_cast<int>(ExitCode::kCannotRunHere) : code;
}

bool is_capsule(const std::string& path) {
  return path.ends_with(".safetensors");
}

int run_one_capsule(const BisectOptions& options, bool with_plant) {
  CapsuleOptions capsule;
  capsule.path = options.experiment;
  capsule.model = options.model;
  capsule.with_plant = with_plant;
  capsule.device = options.device;
  capsule.timeout_s = options.timeout.value_or(capsule.timeout_s);
  capsule.memory_limit = static_cast<uint64_t>(options.memory_limit.value_or(0));
  const auto outcome = run_capsule(capsule);
  if (!outcome) return fail_replay(outcome.error());
  const TaskResult& result = outcome->result;
  fmt::print("{} ({}): {}\n", outcome->op, outcome->kernel, result.verdict);
  if (!outcome->plant.empty()) fmt::print("  planted: {}\n", outcome->plant);
  if (result.violation) {
    const Violation& v = *result.violation;
    if (!v.tensor.empty()) fmt::print("  {} [{}] = {}\n", v.tensor, fmt::join(v.index, ", "), v.value);
    fmt::print("  {}\n", v.detail);
  }
  if (!result.message.empty()) fmt::print("  {}\n", result.message);
  if (!result.failed())
    fmt::print("  it was {} when the capsule was written: {}\n", outcome->recorded.kind, outcome->recorded.detail);
  return static_cast<int>(outcome->exit_code);
}

int run(const BisectOptions& options, const std::string& id) {
  const auto outcome = run_replay(options, id);
  if (!outcome) return fail_replay(outcome.error());
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
  CLI::App* command =
      app.add_subcommand("replay",
                         "Run one configuration or one capsule of a report again: exit code 0 good, 1 fails, 125 "
                         "cannot run here (fit for git bisect run)");
  command
      ->add_option(
          "case", options->experiment,
          "a case file (RUN/cases/c017.yaml), a capsule (RUN/capsules/c017.safetensors), or a run directory with --id")
      ->required();
  command->add_option("--id", *id, "configuration of the run: c017, or c017+late_tile");
  auto no_plant = std::make_shared<bool>(false);
  command->add_flag("--no-plant", *no_plant, "of a capsule: without the fault that was planted when it was written");
  add_run_options(*command, *options);
  command->callback([options, id, no_plant, &exit_code] {
    if (is_capsule(options->experiment)) {
      exit_code = run_one_capsule(*options, !*no_plant);
      return;
    }
    if (*no_plant) {
      exit_code = fail(
          Error{ErrorKind::kBadInput, "--no-plant is for capsules; name the unplanted configuration by --id (c017)"});
      return;
    }
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
