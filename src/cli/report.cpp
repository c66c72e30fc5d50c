#include "cli/report.h"

#include <CLI/CLI.hpp>

#include "bisect/driver.h"
#include "cli/failure.h"
#include "report/answer.h"

namespace faultline {

void add_report_command(CLI::App& app, int& exit_code) {
  auto run = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("report", "Write a run's reports again from its journal");
  command->add_option("run", *run, "run directory")->required();
  command->callback([run, &exit_code] {
    const auto outcome = rewrite_reports(*run);
    if (!outcome) {
      exit_code = fail(outcome.error());
      return;
    }
    for (const std::string& line : five_line_answer(outcome->findings)) fmt::print("{}\n", line);
    fmt::print("Report: {}/FINDINGS.md\n", outcome->directory);
    exit_code = static_cast<int>(ExitCode::kGood);
  });
}

}  // namespace faultline
