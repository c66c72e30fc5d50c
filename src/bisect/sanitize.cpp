#include "bisect/sanitize.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/text.h"
#include "bisect/core_dump.h"
#include "bisect/core_dump_report.h"

namespace faultline {
namespace {

constexpr std::string_view kMark = "=========";
constexpr size_t kLongest = 400;

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

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
  out.kernel = printable(trimmed(name));
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
  if (text.starts_with("at ") && error.kernel.empty()) {
    take_place(text.substr(3), error);
  } else if (text.starts_with("by thread")) {
    error.thread = triple_after(text, "thread");
    error.block = triple_after(text, "block");
  } else if (text.starts_with("Access ") || text.starts_with("Address ")) {
    if (error.address.empty()) error.address = address_in(text);
    error.detail = printable(text);
  } else if (text.starts_with("and ") && !error.detail.empty()) {
    error.detail += " " + printable(text);
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
  }
  return report;
}

const std::vector<std::string>& sanitizer_tools() {
  static const std::vector<std::string> kTools = {"memcheck", "racecheck", "initcheck", "synccheck"};
  return kTools;
}

Result<std::vector<std::string>> sanitizer_command(const std::string& tool, const std::string& log) {
  const std::vector<std::string>& tools = sanitizer_tools();
  if (std::find(tools.begin(), tools.end(), tool) == tools.end())
    return bad_input("--sanitize: there is no tool '{}'{}", quotable(tool), suggestion(tool, tools));
  const std::string program = find_tool("compute-sanitizer", "COMPUTE_SANITIZER");
  if (program.empty())
    return cannot_run(
        "compute-sanitizer was not found (PATH, $COMPUTE_SANITIZER): it comes with the CUDA toolkit; or replay without "
        "--sanitize");
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return internal_error("/proc/self/exe cannot be read: {}", error.message());
  // Errors of calls are the engine's own business: it asks for things that may be refused.
  return std::vector<std::string>{program, "--tool",     tool, "--log-file", log, "--report-api-errors",
                                  "no",    self.string()};
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
