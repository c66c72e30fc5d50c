#include "report/junit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/escape.h"
#include "report/phrases.h"
#include "report/verdict.h"

namespace faultline {
namespace {

struct Counts {
  size_t tests = 0;
  size_t failures = 0;
  size_t errors = 0;
  size_t skipped = 0;
  double seconds = 0;
};

double seconds_of(const ConfigurationResult& configuration) {
  return std::isfinite(configuration.seconds) ? std::max(configuration.seconds, 0.0) : 0.0;
}

Counts count(const std::vector<const ConfigurationResult*>& rows) {
  Counts counts;
  for (const ConfigurationResult* row : rows) {
    ++counts.tests;
    counts.seconds += seconds_of(*row);
    switch (verdict_class(row->verdict)) {
      case VerdictClass::kPass:
        break;
      case VerdictClass::kViolation:
        ++counts.failures;
        break;
      case VerdictClass::kDeath:
      case VerdictClass::kUnknown:
        ++counts.errors;
        break;
      case VerdictClass::kNotRun:
        ++counts.skipped;
        break;
    }
  }
  return counts;
}

std::string attributes(const Counts& counts) {
  return fmt::format(R"(tests="{}" failures="{}" errors="{}" skipped="{}" time="{:.3f}")", counts.tests,
                     counts.failures, counts.errors, counts.skipped, counts.seconds);
}

std::string case_xml(const ConfigurationResult& row, const std::string& suite) {
  const std::string name = row.id + " " + plain(settings_text(row.axes));
  std::string xml = fmt::format("    <testcase classname=\"{}\" name=\"{}\" time=\"{:.3f}\"", xml_text(suite),
                                xml_text(name), seconds_of(row));
  const char* element = nullptr;
  switch (verdict_class(row.verdict)) {
    case VerdictClass::kPass:
      return xml + "/>\n";
    case VerdictClass::kViolation:
      element = "failure";
      break;
    case VerdictClass::kDeath:
    case VerdictClass::kUnknown:
      element = "error";
      break;
    case VerdictClass::kNotRun:
      return xml + fmt::format(">\n      <skipped message=\"{}\"/>\n    </testcase>\n",
                               xml_text(row.reason.empty() ? row.verdict : row.verdict + ": " + row.reason));
  }
  const std::string reason =
      row.reason.empty() && row.first_violation ? plain(place_text(*row.first_violation)) : row.reason;
  const std::string detail = row.first_violation ? plain(place_text(*row.first_violation)) : row.reason;
  return xml + fmt::format(">\n      <{0} type=\"{1}\" message=\"{2}\">{3}</{0}>\n    </testcase>\n", element,
                           xml_text(row.verdict), xml_text(row.verdict + ": " + reason), xml_text(detail));
}

}  // namespace

std::string findings_junit(const Findings& findings) {
  std::vector<const ConfigurationResult*> all;
  for (const ConfigurationResult& row : findings.configurations) all.push_back(&row);
  const std::string experiment = findings.experiment.empty() ? "faultline" : findings.experiment;

  std::string xml = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
  xml += fmt::format("<testsuites name=\"{}\" {}>\n", xml_text(experiment), attributes(count(all)));
  for (const std::string& plant : plants_of(findings)) {
    std::vector<const ConfigurationResult*> rows;
    for (const ConfigurationResult* row : all) {
      if (row->plant == plant) rows.push_back(row);
    }
    const std::string suite = plant.empty() ? experiment : fmt::format("{} (planted: {})", experiment, plant);
    xml += fmt::format("  <testsuite name=\"{}\" {}>\n", xml_text(suite), attributes(count(rows)));
    for (const ConfigurationResult* row : rows) xml += case_xml(*row, suite);
    xml += "  </testsuite>\n";
  }
  return xml + "</testsuites>\n";
}

}  // namespace faultline
