#include "report/write.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "report/json.h"
#include "report/sample.h"
#include "report/verdict.h"
#include "testing.h"

using namespace faultline;

TEST_CASE("all reports are written, and findings.json reads back") {
  std::string directory = (std::filesystem::temp_directory_path() / "faultline-report-XXXXXX").string();
  REQUIRE(::mkdtemp(directory.data()) != nullptr);
  REQUIRE(write_reports(sample_planted(), directory).has_value());
  for (const char* name : {"FINDINGS.md", "findings.html", "findings.json", "junit.xml"}) {
    INFO(name);
    CHECK(std::filesystem::file_size(directory + "/" + name) > 1000);
  }
  const Result<std::string> text = read_file(directory + "/findings.json");
  REQUIRE(text.has_value());
  CHECK(parse_findings(*text, "findings.json").has_value());
  // Written again over the old ones, with nothing left beside them.
  REQUIRE(write_reports(sample_findings(), directory).has_value());
  size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory)) ++files;
  CHECK(files == 4);
  std::filesystem::remove_all(directory);
}

TEST_CASE("a directory that is not there is bad input with its name") {
  const Status status = write_reports(sample_findings(), "/nonexistent/run");
  REQUIRE_FALSE(status.has_value());
  CHECK(status.error().kind == ErrorKind::kBadInput);
  CHECK(status.error().message.find("/nonexistent/run") != std::string::npos);
}

TEST_CASE("an unknown verdict counts as a failure") {
  CHECK(verdict_is_failure("never-heard-of"));
  CHECK(verdict_is_failure("layout"));
  CHECK(verdict_is_failure("oom"));
  CHECK_FALSE(verdict_is_failure("pass"));
  CHECK_FALSE(verdict_is_failure("guard"));
}
