#include "cli/replay.h"

#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "base/file.h"
#include "base/text.h"
#include "bisect/capsule_run.h"
#include "bisect/driver.h"
#include "bisect/sanitize.h"
#include "cli/failure.h"
#include "cli/json_path.h"
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

// The smallest case in which an op breaks that does not break alone: its configuration, by the run that the capsule
// lies in (RUN/capsules/…).
std::string in_place_case(const CapsuleOutcome& outcome, const std::string& path) {
  std::error_code error;
  const auto run = std::filesystem::absolute(path, error).parent_path().parent_path();
  const bool there = std::filesystem::exists(run / "experiment.yaml", error);
  const Violation& v = outcome.recorded;
  const std::string probe = v.probe < 0 ? "" : fmt::format(", probe {}", v.probe);
  return fmt::format("faultline replay {} --id {} ({} step {}{})", there ? shell_word(run.string()) : "RUN",
                     outcome.configuration, v.phase, v.step, probe);
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
  if (!result.failed() && outcome->alone) {
    fmt::print("  alone it broke in {} of {} runs when the capsule was written: that it passes proves nothing\n",
               outcome->alone->broken, outcome->alone->runs);
    fmt::print("  it breaks in its run: {}\n", in_place_case(*outcome, capsule.path));
  }
  if (!result.failed())
    fmt::print("  it was {} when the capsule was written: {}\n", outcome->recorded.kind, outcome->recorded.detail);
  return static_cast<int>(outcome->exit_code);
}

nlohmann::json replay_json(const ReplayOutcome& outcome, const std::string& tool) {
  const ConfigurationResult& result = outcome.result;
  nlohmann::json json = {{"id", result.id},
                         {"verdict", result.verdict},
                         {"reason", result.reason},
                         {"notes", result.notes},
                         {"repeats", result.repeats},
                         {"failures", result.failures},
                         {"resolved", result.resolved},
                         {"first_violation", nullptr}};
  if (result.first_violation) json["first_violation"] = to_json(*result.first_violation);
  if (outcome.sanitizer) json["sanitizer"] = to_json(tool, *outcome.sanitizer);
  return json;
}

int run(const BisectOptions& options, const std::string& id, const std::string& json) {
  if (const Status status = check_json_path(json); !status) return fail(status.error());
  const auto outcome = run_replay(options, id);
  if (!outcome) return fail_replay(outcome.error());
  const ConfigurationResult& result = outcome->result;
  if (json == "-") {
    fmt::print("{}\n", replay_json(*outcome, options.sanitize).dump(2));
    return static_cast<int>(outcome->exit_code);
  }
  if (!json.empty()) {
    const auto written = write_file(json, replay_json(*outcome, options.sanitize).dump(2) + "\n");
    if (!written) return fail(written.error());
  }
  fmt::print("{}: {}\n", result.id, result.verdict);
  if (!result.reason.empty()) fmt::print("  {}\n", result.reason);
  if (result.first_violation) {
    const Violation& v = *result.first_violation;
    fmt::print("  first in {} ({}), {} step {}: {} {} = {}\n", v.op, v.kernel, v.phase, v.step, v.kind, v.tensor,
               v.value);
  }
  if (outcome->sanitizer) fmt::print("  {}\n", sanitizer_sentence(options.sanitize, *outcome->sanitizer));
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
  command->add_option("--sanitize", options->sanitize,
                      "of a case, on a GPU: run it under compute-sanitizer (memcheck, racecheck, initcheck, synccheck) "
                      "and add its first error to what is found");
  auto json = std::make_shared<std::string>();
  command->add_option("--json", *json, "of a case: what came of it as JSON to this file ('-': stdout)");
  add_run_options(*command, *options);
  command->callback([options, id, no_plant, json, &exit_code] {
    if (is_capsule(options->experiment)) {
      if (!options->sanitize.empty() || !json->empty()) {
        exit_code = fail(Error{ErrorKind::kBadInput,
                               "--sanitize and --json are for cases (RUN/cases/…yaml, or a run with --id), not for "
                               "capsules"});
        return;
      }
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
    exit_code = run(*options, *id, *json);
  });
}

}  // namespace faultline
