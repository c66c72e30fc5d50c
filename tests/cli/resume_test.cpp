// Runs that are killed, interrupted or out of time, and what becomes of them.
#include <csignal>
#include <map>
#include <set>
#include <thread>

#include "base/json.h"
#include "bisect/journal.h"
#include "program.h"
#include "testing.h"

namespace faultline {
namespace {

using nlohmann::json;

// Enough rows for a run to be killed in the middle; fails and passes among them.
std::string grid(const std::string& more = "") {
  return std::string(
             "name: long\n"
             "model: synth:tiny\n"
             "axes:\n"
             "  attention_backend: [nsa, flashinfer]\n"
             "  nsa_decode_backend: [flashmla_kv]\n"
             "  kv_cache_dtype: [bf16, fp8_e4m3]\n"
             "  rope_mode: [checkpoint, theta_10000, half_split]\n"
             "  cuda_graph: [off]\n") +
         more + kQuickProbes;
}

// How often the journal holds a result of each task.
std::map<std::string, int> results_by_key(const std::string& journal) {
  std::map<std::string, int> counts;
  const auto contents = load_journal(journal);
  if (!contents) return counts;
  for (const json& entry : contents->entries)
    if (entry.value("event", "") == "result") ++counts[entry.at("key").get<std::string>()];
  return counts;
}

bool wait_for_results(const std::string& parent, size_t wanted) {
  constexpr int kTries = 6000;
  for (int i = 0; i < kTries; ++i) {
    const std::string run = run_directory_in(parent);
    if (!run.empty() && results_by_key(run + "/journal.jsonl").size() >= wanted) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

// What must not depend on how often a run was cut: everything but times and names of folders.
json essence(json findings) {
  findings.erase("environment");
  findings.erase("run_directory");
  for (json& row : findings.at("configurations")) row.erase("seconds");
  return findings;
}

json findings_of(const std::string& run) {
  return json::parse(read_text(run + "/findings.json"));
}

}  // namespace

TEST_CASE("a driver killed by SIGKILL leaves no orphan; --resume repeats nothing, loses nothing and finds the same") {
  const TempDir whole_folder;
  const Bisection whole = bisect(whole_folder, grid());
  REQUIRE(whole.outcome.code == 1);

  const TempDir folder;
  const std::string parent = folder.file("reports");
  Running driver(FAULTLINE_PROGRAM, {"bisect", folder.write("case.yaml", grid()), "--out", parent, "--jobs", "1"});
  REQUIRE(wait_for_results(parent, 3));
  driver.kill(SIGKILL);
  CHECK(driver.wait().signal == SIGKILL);
  CHECK(Running::nothing_left());
  const std::string run = run_directory_in(parent);
  const std::map<std::string, int> before = results_by_key(run + "/journal.jsonl");
  CHECK(before.size() >= 3);
  CHECK_FALSE(exists(run + "/findings.json"));  // it was cut in the middle

  const Outcome resumed = faultline({"bisect", "--resume", run});
  INFO(resumed.err);
  CHECK(resumed.code == whole.outcome.code);
  const std::map<std::string, int> after = results_by_key(run + "/journal.jsonl");
  for (const auto& [key, count] : after) {
    INFO(key);
    CHECK(count == 1);
  }
  for (const auto& [key, count] : before) CHECK(after.count(key) == 1);
  CHECK(after.size() == results_by_key(whole.directory + "/journal.jsonl").size());
  CHECK(essence(findings_of(run)) == essence(whole.findings));
  CHECK(files_in(run) == files_in(whole.directory));

  // A finished run resumes to the same, running nothing.
  CHECK(faultline({"bisect", "--resume", run}).code == whole.outcome.code);
  CHECK(results_by_key(run + "/journal.jsonl") == after);
}

TEST_CASE("a second driver on a run that is going on is refused") {
  const TempDir folder;
  const std::string parent = folder.file("reports");
  Running driver(FAULTLINE_PROGRAM, {"bisect", folder.write("case.yaml", grid()), "--out", parent, "--jobs", "1",
                                     "--plant", "hang", "--timeout", "30"});
  REQUIRE(wait_for_results(parent, 1));
  const Outcome second = faultline({"bisect", "--resume", run_directory_in(parent)});
  CHECK(second.code == 2);
  CHECK(second.err.find("another run of Faultline is writing it") != std::string::npos);
  driver.kill(SIGKILL);
  driver.wait();
  CHECK(Running::nothing_left());
}

TEST_CASE("SIGINT ends a run with code 130, without orphans, and leaves a directory that can be read and resumed") {
  const TempDir folder;
  const std::string parent = folder.file("reports");
  Running driver(FAULTLINE_PROGRAM, {"bisect", folder.write("case.yaml", grid()), "--out", parent, "--jobs", "1"});
  REQUIRE(wait_for_results(parent, 2));
  driver.kill(SIGINT);
  const Outcome outcome = driver.wait();
  CHECK(outcome.code == 130);
  CHECK(Running::nothing_left());
  const std::string run = run_directory_in(parent);
  const json findings = findings_of(run);
  CHECK(findings.at("exit_code") == 130);
  CHECK(findings.at("configurations").size() == 12);
  int skipped = 0;
  for (const json& row : findings.at("configurations")) skipped += row.at("verdict") == "skipped" ? 1 : 0;
  CHECK(skipped > 0);
  CHECK_FALSE(read_text(run + "/FINDINGS.md").empty());
  CHECK(load_journal(run + "/journal.jsonl"));

  CHECK(faultline({"bisect", "--resume", run}).code == 1);
  const json resumed = findings_of(run);
  for (const json& row : resumed.at("configurations")) CHECK(row.at("verdict") != "skipped");
}

TEST_CASE("--time-limit ends a run cleanly: what there was no time for is skipped, and no orphan stays") {
  const TempDir folder;
  // The planted hang keeps the run busy until the limit.
  const Bisection run =
      bisect(folder, grid("exclude:\n  - {attention_backend: flashinfer, kv_cache_dtype: fp8_e4m3}\n"),
             {"--plant", "hang", "--timeout", "60", "--time-limit", "3", "--jobs", "1"});
  INFO(run.outcome.err);
  CHECK(run.outcome.signal == 0);
  int skipped = 0;
  for (const json& row : run.findings.at("configurations"))
    if (row.at("verdict") == "skipped") {
      ++skipped;
      CHECK_FALSE(row.at("reason").get<std::string>().empty());
    }
  CHECK(skipped > 0);
  CHECK(Running::nothing_left());
  CHECK(exists(run.directory + "/FINDINGS.md"));
}

TEST_CASE("a corrupt journal line is named with its number, and nothing is run or written") {
  const TempDir folder;
  const Bisection run = bisect(folder, grid());
  const std::string path = run.directory + "/journal.jsonl";
  std::string text = read_text(path);
  const size_t second = text.find('\n') + 1;
  const size_t third = text.find('\n', second) + 1;
  const size_t digit = text.find("\"seconds\":", third);
  REQUIRE(digit != std::string::npos);
  text[digit + std::string("\"seconds\":").size()] ^= 1;
  folder.write("reports/" + files_in(folder.file("reports")).front() + "/journal.jsonl", text);
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"bisect", "--resume", run.directory}, {"report", run.directory}}) {
    const Outcome outcome = faultline(command);
    INFO(outcome.err);
    CHECK(outcome.code == 2);
    CHECK(outcome.err.find("journal.jsonl:3") != std::string::npos);
    CHECK(read_text(path) == text);
  }
}

TEST_CASE("a torn last journal line is dropped with a warning; its work alone is done again") {
  const TempDir folder;
  const Bisection run = bisect(folder, grid());
  const std::string path = run.directory + "/journal.jsonl";
  const std::map<std::string, int> before = results_by_key(path);
  std::string text = read_text(path);
  text.resize(text.size() - 10);
  folder.write("reports/" + files_in(folder.file("reports")).front() + "/journal.jsonl", text);
  const Outcome outcome = faultline({"bisect", "--resume", run.directory});
  CHECK(outcome.code == run.outcome.code);
  CHECK(outcome.err.find("the last line was cut") != std::string::npos);
  CHECK(results_by_key(path) == before);
  CHECK(essence(findings_of(run.directory)) == essence(run.findings));
}

TEST_CASE("--resume refuses a folder that is no run, and flags that make another experiment of it") {
  const TempDir folder;
  CHECK(faultline({"bisect", "--resume", folder.path()}).code == 2);
  CHECK(faultline({"bisect", "--resume", folder.file("nowhere")}).code == 2);
  const Bisection run = bisect(folder, grid("exclude:\n  - {attention_backend: flashinfer}\n"));
  const Outcome outcome = faultline({"bisect", "--resume", run.directory, "--seed", "8"});
  CHECK(outcome.code == 2);
  CHECK(outcome.err.find("another one than these flags make of it") != std::string::npos);
}

}  // namespace faultline
