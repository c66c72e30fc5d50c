#include "program.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "testing.h"

namespace faultline {
namespace {

constexpr std::chrono::milliseconds kPoll{5};
constexpr std::chrono::seconds kOrphanPatience{5};

}  // namespace

TempDir::TempDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "faultline-cli-XXXXXX").string();
  REQUIRE(::mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TempDir::write(const std::string& name, const std::string& content) const {
  std::ofstream(file(name), std::ios::binary) << content;
  return file(name);
}

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

bool exists(const std::string& path) {
  return std::filesystem::exists(path);
}

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  if (!exists(folder)) return names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

Running::Running(const std::string& program, const std::vector<std::string>& arguments,
                 const std::vector<std::string>& environment) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const std::string out = folder_.file("out");
  const std::string err = folder_.file("err");
  std::vector<std::string> texts{program};
  texts.insert(texts.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& text : texts) argv.push_back(text.data());
  argv.push_back(nullptr);
  std::vector<std::string> settings = environment;
  pid_ = ::fork();
  REQUIRE(pid_ >= 0);
  if (pid_ > 0) return;
  const int mode = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
  ::dup2(::open(out.c_str(), mode, 0600), STDOUT_FILENO);
  ::dup2(::open(err.c_str(), mode, 0600), STDERR_FILENO);
  ::dup2(::open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
  for (std::string& setting : settings) ::putenv(setting.data());
  ::execvp(program.c_str(), argv.data());
  ::_exit(127);
}

Running::~Running() {
  if (outcome_) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Running::kill(int signal) const {
  REQUIRE(::kill(pid_, signal) == 0);
}

Outcome Running::wait(std::chrono::seconds patience) {
  if (outcome_) return *outcome_;
  Outcome outcome;
  const auto end = std::chrono::steady_clock::now() + patience;
  int status = 0;
  while (::waitpid(pid_, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > end) {
      outcome.timed_out = true;
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, &status, 0);
      break;
    }
    std::this_thread::sleep_for(kPoll);
  }
  if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  outcome.out = read_text(folder_.file("out"));
  outcome.err = read_text(folder_.file("err"));
  outcome_ = outcome;
  return outcome;
}

bool Running::nothing_left() {
  const auto end = std::chrono::steady_clock::now() + kOrphanPatience;
  while (std::chrono::steady_clock::now() < end) {
    const pid_t reaped = ::waitpid(-1, nullptr, WNOHANG);
    if (reaped < 0) return true;  // no children
    if (reaped == 0) std::this_thread::sleep_for(kPoll);
  }
  return false;
}

Outcome run_program(const std::string& program, const std::vector<std::string>& arguments,
                    const std::vector<std::string>& environment) {
  Running running(program, arguments, environment);
  Outcome outcome = running.wait();
  CHECK_FALSE(outcome.timed_out);
  return outcome;
}

Outcome faultline(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  return run_program(FAULTLINE_PROGRAM, arguments, environment);
}

std::string run_directory_in(const std::string& parent) {
  const std::vector<std::string> names = files_in(parent);
  return names.size() == 1 ? parent + "/" + names.front() : "";
}

Bisection bisect(const TempDir& folder, const std::string& experiment, std::vector<std::string> arguments,
                 const std::string& program) {
  const std::string reports = folder.file("reports");
  arguments.insert(arguments.begin(), {"bisect", folder.write("case.yaml", experiment), "--out", reports});
  Bisection run;
  run.outcome = run_program(program.empty() ? FAULTLINE_PROGRAM : program, arguments);
  INFO(run.outcome.err);
  run.directory = run_directory_in(reports);
  const std::string text = read_text(run.directory + "/findings.json");
  REQUIRE_FALSE(text.empty());
  run.findings = nlohmann::json::parse(text);
  return run;
}

const nlohmann::json& Bisection::row(const std::vector<std::pair<std::string, std::string>>& axes,
                                     const std::string& plant) const {
  const nlohmann::json* found = nullptr;
  int count = 0;
  for (const nlohmann::json& row : findings.at("configurations")) {
    const bool same = std::all_of(axes.begin(), axes.end(),
                                  [&](const auto& axis) { return row.at("axes").at(axis.first) == axis.second; });
    const std::string planted = row.at("plant").is_null() ? "" : row.at("plant").get<std::string>();
    if (!same || planted != plant) continue;
    found = &row;
    ++count;
  }
  REQUIRE(count == 1);
  return *found;
}

std::vector<std::string> Bisection::verdicts() const {
  std::vector<std::string> verdicts;
  for (const nlohmann::json& row : findings.at("configurations")) verdicts.push_back(row.at("verdict"));
  return verdicts;
}

TEST_CASE("without a command the program says where to read on, and fails") {
  const Outcome outcome = faultline({});
  CHECK(outcome.code != 0);
  CHECK((outcome.out + outcome.err).find("--help") != std::string::npos);
}

TEST_CASE("--help of the program and of each command names the exit codes or the options, and ends well") {
  CHECK(faultline({"--help"}).out.find("130 interrupted") != std::string::npos);
  for (const char* command : {"bisect", "replay", "report", "preflight", "inspect", "synth", "forward"}) {
    INFO(command);
    const Outcome outcome = faultline({command, "--help"});
    CHECK(outcome.code == 0);
    CHECK(outcome.out.find("--") != std::string::npos);
  }
}

TEST_CASE("an unknown command or option is a usage error: exit code 2") {
  CHECK(faultline({"bisekt", "x.yaml"}).code == 2);
  CHECK(faultline({"bisect", "x.yaml", "--nonsense"}).code == 2);
  CHECK(faultline({"bisect"}).code == 2);
}

}  // namespace faultline
