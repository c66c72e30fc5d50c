#include "report/html.h"

#include <vector>

#include "report/sample.h"
#include "testing.h"

using namespace faultline;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// True when every element that is opened is closed in order.
bool balanced(const std::string& html) {
  std::vector<std::string> open;
  for (size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    const size_t end = html.find('>', at);
    if (end == std::string::npos) return false;
    const bool closing = html[at + 1] == '/';
    const size_t begin = at + (closing ? 2 : 1);
    const std::string name = html.substr(begin, html.find_first_of(" >", begin) - begin);
    if (name == "!doctype" || name == "meta") continue;
    if (!closing) {
      open.push_back(name);
    } else if (open.empty() || open.back() != name) {
      UNSCOPED_INFO("closes " << name);
      return false;
    } else {
      open.pop_back();
    }
  }
  return open.empty();
}

}  // namespace

TEST_CASE("the page is self-contained: no script, no address, nothing to load") {
  const std::string html = findings_html(sample_planted());
  CHECK(html.rfind("<!doctype html>", 0) == 0);
  for (const char* part : {"<script", "http:", "https:", " src=", "<link", "url(", "@import"}) {
    INFO(part);
    CHECK_FALSE(contains(html, part));
  }
  CHECK(contains(html, "prefers-color-scheme: dark"));
  CHECK(balanced(html));
}

TEST_CASE("the page holds what FINDINGS.md holds") {
  const std::string html = findings_html(sample_planted());
  for (const char* part : {"Smallest combination:", "The grid", "<span class=\"badge bad\">layout</span>",
                           "Inputs clean", "c004/c007", "Work-around", "Planted: <code>late_tile</code>",
                           "Limits of the evidence", "faultline replay reports/incident-1/cases/c004.yaml"}) {
    INFO(part);
    CHECK(contains(html, part));
  }
}

TEST_CASE("hostile values are text on the page") {
  Findings findings = sample_planted();
  const std::string hostile = "\"><script>alert('x')</script><img onerror=1>";
  findings.experiment = hostile;
  findings.configurations[0].axes["kv_cache_dtype"] = hostile;
  findings.configurations[5].reason = hostile;
  findings.localized[0].signature = hostile;
  findings.configurations[6].plant = hostile;
  findings.environment[hostile] = hostile;
  findings.workarounds[0].launch_command = hostile;
  const std::string html = findings_html(findings);
  CHECK_FALSE(contains(html, "<script"));
  CHECK_FALSE(contains(html, "<img"));
  CHECK(contains(html, "&lt;script&gt;"));
  CHECK(balanced(html));
}
