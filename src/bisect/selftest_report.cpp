// What a self-test came to, for people and for programs.
#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "bisect/selftest.h"

namespace faultline {
namespace {

constexpr std::array<const char*, 8> kColumns = {"fault", "class", "checks",      "verdict",
                                                 "found", "named", "named right", "runs"};

// Why an entry is no success; empty for one.
std::string trouble(const SelftestEntry& entry) {
  if (!entry.triggered) return "the fault never triggered: an error of this test";
  if (!entry.found) return fmt::format("expected {}", fmt::join(entry.verdicts, " or "));
  if (entry.localized == Naming::kWrong) return fmt::format("expected {}", entry.expected);
  return entry.explanation;
}

std::array<std::string, kColumns.size()> cells(const SelftestEntry& entry) {
  const std::string right(entry.expected.empty() ? "-" : naming_name(entry.localized));
  return {entry.name,
          entry.fault_class,
          entry.checks,
          entry.verdict,
          entry.found ? "yes" : "NO",
          entry.named.empty() ? "-" : entry.named,
          entry.localized == Naming::kWrong ? "WRONG" : right,
          fmt::format("{} ({:.1f} s)", entry.runs, entry.seconds)};
}

std::vector<std::string> totals(const SelftestReport& report) {
  const auto all = static_cast<int64_t>(report.entries.size());
  const int64_t right = report.named(Naming::kRight);
  std::vector<std::string> lines;
  lines.push_back(fmt::format("{} of {} faults found; {} named right ({:.1f} %), {} not localized, {} named wrong.",
                              report.found(), all, right,
                              all == 0 ? 0.0 : 100.0 * static_cast<double>(right) / static_cast<double>(all),
                              report.named(Naming::kNone), report.named(Naming::kWrong)));
  lines.push_back(fmt::format("{} rows without a fault: {}.", report.clean.rows,
                              report.clean.alarms.empty()
                                  ? std::string("no false alarm")
                                  : fmt::format("{} FALSE ALARMS", report.clean.alarms.size())));
  for (const std::string& alarm : report.clean.alarms) lines.push_back("  " + alarm);
  int64_t runs = 0;
  for (const SelftestEntry& entry : report.entries) runs += entry.runs;
  lines.push_back(fmt::format("{} on {}: {} worker runs for the faults, {:.0f} s in all.", report.model, report.device,
                              runs, report.seconds));
  if (!report.left_out.empty())
    lines.push_back(
        fmt::format("Left out, since this model or device cannot have them: {}.", fmt::join(report.left_out, "; ")));
  if (report.interrupted) lines.push_back("Interrupted: not all of it was run.");
  return lines;
}

}  // namespace

std::string selftest_table(const SelftestReport& report) {
  std::array<size_t, kColumns.size()> widths{};
  std::vector<std::array<std::string, kColumns.size()>> rows;
  for (const SelftestEntry& entry : report.entries) rows.push_back(cells(entry));
  for (size_t c = 0; c < widths.size(); ++c) {
    widths[c] = std::string_view(kColumns[c]).size();
    for (const auto& row : rows) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  const auto line = [&](const auto& row) {
    for (size_t c = 0; c < widths.size(); ++c)
      text += c + 1 == widths.size() ? fmt::format("{}\n", row[c]) : fmt::format("{:<{}}  ", row[c], widths[c]);
  };
  line(kColumns);
  for (size_t i = 0; i < rows.size(); ++i) {
    line(rows[i]);
    if (const std::string why = trouble(report.entries[i]); !why.empty()) text += fmt::format("    {}\n", why);
  }
  text += "\n";
  for (const std::string& total : totals(report)) text += total + "\n";
  return text;
}

std::string selftest_markdown(const SelftestReport& report) {
  std::string text = fmt::format("| {} |\n|", fmt::join(kColumns, " | "));
  for (size_t c = 0; c < kColumns.size(); ++c) text += "---|";
  text += "\n";
  for (const SelftestEntry& entry : report.entries) {
    auto row = cells(entry);
    row[0] = "`" + row[0] + "`";
    if (!entry.named.empty()) row[5] = "`" + row[5] + "`";
    if (const std::string why = trouble(entry); !why.empty()) row[6] += ": " + why;
    text += fmt::format("| {} |\n", fmt::join(row, " | "));
  }
  text += "\n";
  for (const std::string& total : totals(report)) text += total + "\n";
  return text;
}

std::string selftest_json(const SelftestReport& report) {
  nlohmann::json entries = nlohmann::json::array();
  for (const SelftestEntry& entry : report.entries)
    entries.push_back({{"name", entry.name},
                       {"class", entry.fault_class},
                       {"expected", entry.expected},
                       {"expected_verdicts", entry.verdicts},
                       {"checks", entry.checks},
                       {"triggered", entry.triggered},
                       {"found", entry.found},
                       {"verdict", entry.verdict},
                       {"named", entry.named},
                       {"localized", naming_name(entry.localized)},
                       {"explanation", entry.explanation},
                       {"runs", entry.runs},
                       {"seconds", entry.seconds}});
  const nlohmann::json summary = {{"entries", report.entries.size()},
                                  {"found", report.found()},
                                  {"right", report.named(Naming::kRight)},
                                  {"wrong", report.named(Naming::kWrong)},
                                  {"none", report.named(Naming::kNone)},
                                  {"clean_rows", report.clean.rows},
                                  {"false_alarms", report.clean.alarms},
                                  {"left_out", report.left_out},
                                  {"model", report.model},
                                  {"device", report.device},
                                  {"seconds", report.seconds},
                                  {"interrupted", report.interrupted},
                                  {"passed", report.passed()}};
  return dump_json({{"schema", 1}, {"entries", entries}, {"summary", summary}}, 2);
}

}  // namespace faultline
