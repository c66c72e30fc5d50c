#include "cli/selftest.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "base/file.h"
#include "bisect/plant.h"
#include "bisect/selftest.h"
#include "cli/failure.h"
#include "cli/json_path.h"

namespace faultline {
namespace {

struct Arguments {
  SelftestOptions options;
  std::string json;
  bool list = false;
  bool markdown = false;
};

int run(const Arguments& arguments) {
  if (arguments.list) {
    fmt::print("{}", plant_table());
    return static_cast<int>(ExitCode::kGood);
  }
  if (const Status status = check_json_path(arguments.json); !status) return fail(status.error());
  const auto report = run_selftest(arguments.options);
  if (!report) return fail(report.error());
  const std::string json = selftest_json(*report) + "\n";
  if (!arguments.json.empty() && arguments.json != "-") {
    if (const auto written = write_file(arguments.json, json); !written) return fail(written.error());
  }
  fmt::print("{}", arguments.json == "-" ? json
                   : arguments.markdown  ? selftest_markdown(*report)
                                         : selftest_table(*report));
  if (report->interrupted) return static_cast<int>(ExitCode::kInterrupted);
  return report->passed() ? 0 : 1;
}

}  // namespace

void add_selftest_command(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<Arguments>();
  SelftestOptions& options = arguments->options;
  CLI::App* command = app.add_subcommand(
      "selftest", "Plant known faults, one at a time, and show which were found and what was blamed for each");
  command->footer("Exit codes: 0 every fault was found and none blamed on the wrong thing; 1 not so; 2 bad input.");
  command->add_option("--model", options.model, "checkpoint folder, or synth:NAME?key=value&…")->capture_default_str();
  command->add_option("--device", options.device, "where kernels run: auto, cpu, cuda, cuda:N")->capture_default_str();
  command->add_option("--only", options.only, "faults by name; * any characters, ? any one");
  command->add_flag("--quick", options.quick, "one fault of each class and culprit");
  command->add_option("--json", arguments->json, "the results as JSON to this file ('-': stdout)");
  command->add_flag("--markdown", arguments->markdown, "the table as Markdown");
  command->add_option("--out", options.out, "keep the runs with their reports in this folder");
  command->add_option("--jobs", options.jobs, "workers at once (0: one a core)")->check(CLI::Range(0, 1024));
  command->add_flag("--quiet", options.quiet, "no status line");
  command->add_flag("--list", arguments->list, "the catalogue of faults as Markdown; runs nothing");
  command->callback([arguments, &exit_code] { exit_code = run(*arguments); });
}

}  // namespace faultline
