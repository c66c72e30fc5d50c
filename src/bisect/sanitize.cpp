#include "bisect/sanitize.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "base/temporary_folder.h"
#include "base/text.h"
#include "bisect/core_dump.h"
#include "bisect/core_dump_report.h"

namespace faultline {
namespace {

constexpr std::string_view kMark = "=========";
constexpr size_t kLongest = 400;

std::string printable(std::string_view text) {
  std::string result(text.substr(0, kLongest));
  for (char& c : result)
    if (static_cast<unsigned char>(c) < ' ' || static_cast<unsigned char>(c) > '~') c = '?';
  return result;
}

// The digits at the beginning of `text`, "4,096" too; 0 without any.
int64_t leading_number(std::string_view text) {
  constexpr int64_t kMost = INT64_MAX / 10 - 1;
  int64_t value = 0;
  for (const char c : text) {
    if (c == ',') continue;
    if (c < '0' || c > '9' || value > kMost) break;
    value = value * 10 + (c - '0');
  }
  return value;
}

// "(1,0,0)" after `word`.
std::string triple_after(std::string_view text, std::string_view word) {
  const size_t at = text.find(word);
  if (at == std::string_view::npos) return "";
  const size_t open = text.find('(', at + word.size());
  if (open == std::string_view::npos) return "";
  const size_t close = text.find(')', open);
  return close == std::string_view::npos ? "" : printable(text.substr(open, close - open + 1));
}

std::string address_in(std::string_view text) {
  const size_t at = text.find("0x");
  if (at == std::string_view::npos) return "";
  size_t end = at + 2;
  while (end < text.size() && std::isxdigit(static_cast<unsigned char>(text[end])) != 0) ++end;
  return printable(text.substr(at, end - at));
}

// "NAME+0x70 in FILE:LINE", "NAME+0x70", "FILE:LINE:NAME+0x70".
void take_place(std::string_view text, SanitizerError& out) {
  std::string_view name = trimmed(text);
  std::string_view file;
  if (const size_t in = name.rfind(" in "); in != std::string_view::npos) {
    file = trimmed(name.substr(in + 4));
    name = name.substr(0, in);
  } else if (const size_t colon = name.find(".cu"); colon != std::string_view::npos) {
    // Older versions: the place first.
    const size_t number = name.find(':', colon);
    const size_t rest = number == std::string_view::npos ? number : name.find(':', number + 1);
    if (rest != std::string_view::npos) {
      file = name.substr(0, rest);
      name = name.substr(rest + 1);
    }
  }
  if (const size_t offset = name.rfind("+0x"); offset != std::string_view::npos) name = name.substr(0, offset);
  out.kernel = printable(plain_kernel_name(name));
  if (const size_t colon = file.rfind(':'); colon != std::string_view::npos) {
    out.line = leading_number(file.substr(colon + 1));
    if (out.line != 0) out.source = printable(project_path(file.substr(0, colon)));
  }
}

bool begins_error(std::string_view text) {
  static constexpr std::string_view kNot[] = {"COMPUTE-SANITIZER", "ERROR SUMMARY",      "RACECHECK SUMMARY",
                                              "LEAK SUMMARY",      "Target application", "Warning"};
  return !text.empty() &&
         std::none_of(std::begin(kNot), std::end(kNot), [&](std::string_view word) { return text.starts_with(word); });
}

void take_summary(std::string_view text, SanitizerReport& report) {
  const size_t colon = text.find(": ");
  if (colon == std::string_view::npos) return;
  report.complete = true;
  report.errors = std::max(report.errors, leading_number(text.substr(colon + 2)));
}

void take_detail(std::string_view text, SanitizerError& error) {
  constexpr std::string_view kFrame = "Device Frame: ";
  if (text.starts_with("at ") && error.kernel.empty()) {
    take_place(text.substr(3), error);
  } else if (text.starts_with(kFrame)) {
    // The callers of inlined code, the kernel last.
    SanitizerError caller;
    take_place(text.substr(kFrame.size()), caller);
    if (!caller.kernel.empty()) error.kernel = caller.kernel;
    if (error.line == 0) {
      error.source = caller.source;
      error.line = caller.line;
    }
  } else if (const size_t at = text.find(" at "); error.kernel.empty() && at != std::string_view::npos &&
                                                  (text.starts_with("Write ") || text.starts_with("Read "))) {
    // A hazard: "Write Thread (31,0,0) at NAME+0x… in FILE:LINE", its two sides.
    take_place(text.substr(at + 4), error);
    error.thread = triple_after(text, "Thread");
  } else if (text.starts_with("by thread")) {
    error.thread = triple_after(text, "thread");
    error.block = triple_after(text, "block");
  } else if (text.starts_with("Access ") || text.starts_with("Address ")) {
    if (error.address.empty()) error.address = address_in(text);
    error.detail = printable(text);
  } else if (text.starts_with("and ")) {
    error.detail += (error.detail.empty() ? "" : " ") + printable(text);
  }
}

}  // namespace

SanitizerReport parse_sanitizer_log(std::string_view log) {
  SanitizerReport report;
  bool in_first = false;
  while (!log.empty()) {
    std::string_view line = log.substr(0, log.find('\n'));
    log.remove_prefix(std::min(log.size(), line.size() + 1));
    if (!line.starts_with(kMark)) continue;
    line.remove_prefix(kMark.size());
    const size_t indent = std::min(line.find_first_not_of(' '), line.size());
    const std::string_view text = trimmed(line);
    constexpr size_t kErrorIndent = 1;  // details stand further in
    if (text.find("SUMMARY: ") != std::string_view::npos) take_summary(text, report);
    if (indent > kErrorIndent) {
      if (in_first) take_detail(text, *report.first);
      continue;
    }
    in_first = false;
    if (report.first || !begins_error(text)) continue;
    in_first = true;
    SanitizerError& error = report.first.emplace();
    error.what = printable(text);
    if (const size_t size = text.find("of size "); size != std::string_view::npos)
      error.size = leading_number(text.substr(size + 8));
    // "Error: Race reported between Write access at NAME+0x… in FILE:LINE"
    constexpr std::string_view kRace = " access at ";
    if (const size_t at = text.find(kRace); at != std::string_view::npos) {
      take_place(text.substr(at + kRace.size()), error);
      error.what = printable(text.substr(0, at + kRace.size() - 4));
    }
    error.block = triple_after(text, "in block");
  }
  return report;
}

const std::vector<std::string>& sanitizer_tools() {
  static const std::vector<std::string> kTools = {"memcheck", "racecheck", "initcheck", "synccheck"};
  return kTools;
}

Status check_sanitizer_tool(const std::string& tool) {
  const std::vector<std::string>& tools = sanitizer_tools();
  if (std::find(tools.begin(), tools.end(), tool) != tools.end()) return {};
  return bad_input("--sanitize: there is no tool '{}' among {}{}", quotable(tool), fmt::join(tools, ", "),
                   suggestion(tool, tools));
}

Result<SanitizerRun> SanitizerRun::prepare(const std::string& tool, bool cuda) {
  FAULTLINE_TRY_STATUS(check_sanitizer_tool(tool));
  const std::string program = find_tool("compute-sanitizer", "COMPUTE_SANITIZER");
  if (program.empty())
    return cannot_run(
        "compute-sanitizer was not found (PATH, $COMPUTE_SANITIZER): it comes with the CUDA toolkit; or replay without "
        "--sanitize");
  if (!cuda)
    return cannot_run(
        "--sanitize {}: compute-sanitizer checks the kernels of a GPU, and this replay is on the CPU; it "
        "needs --device cuda",
        tool);
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return internal_error("/proc/self/exe cannot be read: {}", error.message());
  FAULTLINE_TRY(std::string folder, make_temporary_folder());
  SanitizerRun run;
  run.tool_ = tool;
  run.folder_ = std::move(folder);
  // Errors of calls are the engine's own business: it asks for things that may be refused.
  run.command_ = {program, "--tool",     tool, "--log-file", run.folder_ + "/log", "--report-api-errors",
                  "no",    self.string()};
  return run;
}

SanitizerRun::SanitizerRun(SanitizerRun&& other) noexcept
    : tool_(std::move(other.tool_)), folder_(std::exchange(other.folder_, {})), command_(std::move(other.command_)) {}

SanitizerRun::~SanitizerRun() {
  std::error_code error;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, error);
}

SanitizerReport SanitizerRun::report() const {
  const auto log = read_file(folder_ + "/log");
  return log ? parse_sanitizer_log(*log) : SanitizerReport{};
}

std::string verdict_with_sanitizer(const std::string& verdict, const std::string& tool, const SanitizerReport& report) {
  if (!report.first) return verdict;
  const bool vague = verdict == "pass" || verdict == "launch-failure" || verdict == "abort" || verdict == "crash";
  if (!vague) return verdict;
  const std::string& what = report.first->what;
  if (tool == "memcheck") {
    if (what.find("assert") != std::string::npos) return "device-assert";
    if (what.find("trap") != std::string::npos) return "launch-failure";
    return "illegal-access";
  }
  if (tool == "initcheck" && verdict == "pass") return "unwritten";
  return verdict;
}

nlohmann::json to_json(const std::string& tool, const SanitizerReport& report) {
  nlohmann::json json = {{"tool", tool}, {"errors", report.errors}, {"complete", report.complete}};
  if (!report.first) return json;
  const SanitizerError& error = *report.first;
  json["first"] = {{"what", error.what},       {"kernel", error.kernel}, {"source", error.source},
                   {"line", error.line},       {"thread", error.thread}, {"block", error.block},
                   {"address", error.address}, {"size", error.size},     {"detail", error.detail}};
  return json;
}

std::string sanitizer_sentence(const std::string& tool, const SanitizerReport& report) {
  if (!report.first)
    return fmt::format("{}: {}", tool, report.complete ? "no errors" : "its log ends without a summary");
  const SanitizerError& error = *report.first;
  std::string text = fmt::format("{}: {}", tool, error.what);
  if (!error.address.empty()) text += " at " + error.address;
  if (!error.kernel.empty()) text += " in " + error.kernel;
  if (error.line != 0) text += fmt::format(" ({}:{})", error.source, error.line);
  if (!error.block.empty()) text += ", block " + error.block;
  if (!error.thread.empty()) text += ", thread " + error.thread;
  if (!error.detail.empty()) text += "; " + error.detail;
  if (report.errors > 1) text += fmt::format("; {} errors in all", report.errors);
  return text;
}

}  // namespace faultline
