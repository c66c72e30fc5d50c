#include "cli/bisect.h"

#include <CLI/CLI.hpp>

#include "base/file.h"
#include "bisect/driver.h"
#include "bisect/plant.h"
#include "cli/failure.h"
#include "cli/json_path.h"
#include "cli/run_options.h"
#include "grid/neighbourhood.h"
#include "report/answer.h"
#include "report/json.h"

namespace faultline {
namespace {

std::string plants_help() {
  std::string text = "Faults to plant (--plant NAME[@selector]; docs/planted-faults.md):\n";
  for (const PlantInfo& plant : plant_catalogue()) text += fmt::format("  {:<22} {}\n", plant.name, plant.summary);
  return text;
}

int run(const BisectOptions& options, const std::string& json) {
  if (const Status status = check_json_path(json); !status) return fail(status.error());
  const auto outcome = run_bisect(options);
  if (!outcome) return fail(outcome.error());
  if (!json.empty() && json != "-") {
    if (const auto written = write_file(json, findings_json(outcome->findings)); !written) return fail(written.error());
  }
  if (json == "-") {
    fmt::print("{}\n", findings_json(outcome->findings));
  } else {
    for (const std::string& line : five_line_answer(outcome->findings)) fmt::print("{}\n", line);
    fmt::print("Report: {}/FINDINGS.md\n", outcome->directory);
  }
  return static_cast<int>(outcome->exit_code);
}

}  // namespace

void add_bisect_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<BisectOptions>();
  auto json = std::make_shared<std::string>();
  CLI::App* command =
      app.add_subcommand("bisect", "Walk a grid of settings, find what breaks, convict it, write a report");
  command->footer(plants_help());
  auto* experiment = command->add_option("experiment", options->experiment, "experiment file (YAML)");
  auto* resume = command->add_option("--resume", options->resume, "go on with the run in this directory");
  resume->excludes(experiment);
  auto* line = command->add_option_function<std::string>(
      "--server-args", [options](const std::string& text) { options->server_args = text; },
      "a failing server's command line, quoted, instead of a file: walks the settings around it");
  line->excludes(experiment)->excludes(resume);
  command
      ->add_option(
          "--max-rows", options->max_rows,
          fmt::format("configurations around --server-args, the line's included (default {})", kDefaultNeighbours))
      ->needs(line)
      ->check(CLI::Range(size_t{1}, kMaxNeighbours));
  command->add_option("--out", options->out, "where run directories are made")->capture_default_str();
  command->add_option("--json", *json, "findings as JSON to this file ('-': stdout)");
  add_run_options(*command, *options);
  command->callback([options, json, &exit_code] {
    if (options->experiment.empty() && options->resume.empty() && !options->server_args) {
      exit_code = fail(Error{ErrorKind::kBadInput,
                             "bisect: name an experiment file, a run to --resume, or a command line by --server-args"});
      return;
    }
    options->arguments = process_arguments();
    exit_code = run(*options, *json);
  });
}

}  // namespace faultline
