#include "report/junit.h"

#include "report/sample.h"
#include "testing.h"

using namespace faultline;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string with_verdict(const std::string& verdict) {
  Findings findings;
  findings.configurations = {sample_row("c001", "nsa", "bf16", verdict)};
  return findings_junit(findings);
}

}  // namespace

TEST_CASE("a failed check is a failure, a death an error, what did not run is skipped, a pass is none of them") {
  for (const char* verdict :
       {"nonfinite", "bounds", "unwritten", "canary", "mismatch", "probability", "layout", "flaky"}) {
    INFO(verdict);
    CHECK(contains(with_verdict(verdict), "<failure type=\"" + std::string(verdict) + "\""));
    CHECK(contains(with_verdict(verdict), R"(tests="1" failures="1" errors="0" skipped="0")"));
  }
  for (const char* verdict :
       {"crash", "abort", "hang", "oom", "device-assert", "illegal-access", "launch-failure", "unheard-of"}) {
    INFO(verdict);
    CHECK(contains(with_verdict(verdict), "<error type=\"" + std::string(verdict) + "\""));
    CHECK(contains(with_verdict(verdict), R"(failures="0" errors="1" skipped="0")"));
  }
  for (const char* verdict : {"guard", "unsupported", "skipped"}) {
    INFO(verdict);
    CHECK(contains(with_verdict(verdict), "<skipped message=\"" + std::string(verdict)));
    CHECK(contains(with_verdict(verdict), R"(failures="0" errors="0" skipped="1")"));
  }
  const std::string pass = with_verdict("pass");
  CHECK(contains(pass, R"(failures="0" errors="0" skipped="0")"));
  for (const char* element : {"<failure", "<error", "<skipped"}) CHECK_FALSE(contains(pass, element));
}

TEST_CASE("each pass is a suite of its own, and the totals add up") {
  const std::string xml = findings_junit(sample_planted());
  CHECK(contains(xml, R"(<testsuites name="incident" tests="12" failures="3" errors="0" skipped="2" time="3.000">)"));
  CHECK(contains(xml, R"(<testsuite name="incident" tests="6" failures="1" errors="0" skipped="1")"));
  CHECK(contains(xml, R"xml(<testsuite name="incident (planted: late_tile)" tests="6" failures="2")xml"));
  CHECK(contains(xml, "kv_cache[12, 540] is nan"));
}

TEST_CASE("JUnit text is escaped and without control characters") {
  Findings findings = sample_findings();
  findings.experiment = "a<b>&\"'\x01";
  findings.configurations[5].reason = "]]></skipped>\x1B[31m";
  const std::string xml = findings_junit(findings);
  CHECK(contains(xml, "a&lt;b&gt;&amp;&quot;&#39; "));
  CHECK_FALSE(contains(xml, "]]></skipped>"));
  for (const char c : xml) CHECK((c == '\n' || static_cast<unsigned char>(c) >= 0x20));
  CHECK(contains(findings_junit({}), R"(<testsuites name="faultline" tests="0")"));
}
