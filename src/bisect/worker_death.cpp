#include "bisect/worker_death.h"

#include <csignal>
#include <cstring>
#include <fstream>

#include "base/clock.h"
#include "bisect/core_dump_report.h"
#include "bisect/protocol.h"

namespace faultline {

namespace {

constexpr std::string_view kCrash = "crash";
constexpr std::string_view kAbort = "abort";
constexpr std::string_view kHang = "hang";
constexpr std::string_view kOom = "oom";
constexpr std::string_view kSkipped = "skipped";
constexpr std::string_view kLaunchFailure = "launch-failure";

struct Verdict {
  std::string_view name;
  std::string message;
};

std::string signal_text(int signal) {
  const char* description = ::sigdescr_np(signal);
  return description != nullptr ? fmt::format("{} ({})", signal_name(signal), description) : signal_name(signal);
}

std::string bytes_text(uint64_t bytes) {
  constexpr double kMebibyte = 1024.0 * 1024.0;
  constexpr double kGibibyte = 1024.0 * kMebibyte;
  const double value = static_cast<double>(bytes);
  return value >= kGibibyte ? fmt::format("{:.1f} GiB", value / kGibibyte)
                            : fmt::format("{:.0f} MiB", value / kMebibyte);
}

std::string out_of_memory(const WorkerFacts& facts) {
  return facts.memory_limit == 0
             ? fmt::format("out of memory at {}", bytes_text(static_cast<uint64_t>(facts.end.max_resident_bytes)))
             : fmt::format("out of memory under its limit of {}", bytes_text(facts.memory_limit));
}

Verdict of_stop(const WorkerFacts& facts) {
  const std::string limit = duration_text(facts.limit_s);
  switch (facts.stopped) {
    case StopReason::kWatchdog:
      return {kHang, fmt::format("no progress for {}; stopped by the watchdog", limit)};
    case StopReason::kLingered:
      return {kHang, facts.done ? fmt::format("finished, but did not end within {}; killed", limit)
                                : fmt::format("closed its event pipe unfinished and lived on for {}; killed", limit)};
    case StopReason::kCorruptEvent:
      return {kCrash, fmt::format("sent a corrupt event ({})", facts.detail)};
    case StopReason::kCancelled:
    case StopReason::kNone:
      break;
  }
  return {kSkipped, "cancelled"};
}

Verdict of_signal(const WorkerFacts& facts) {
  const int signal = facts.end.code;
  if (signal == SIGABRT) return {kAbort, "aborted"};
  if (signal != SIGKILL) return {kCrash, fmt::format("died of {}", signal_text(signal))};
  // Nobody else kills workers as a rule, so silence of the kernel's counters counts as the killer.
  if (facts.kernel_oom_kill.value_or(true))
    return {kOom, fmt::format("{}: killed by the kernel's out-of-memory killer{}", out_of_memory(facts),
                              facts.kernel_oom_kill ? "" : " (presumably: its counter cannot be read here)")};
  return {kCrash, "killed by SIGKILL from outside (not by Faultline, nor by the kernel's out-of-memory killer)"};
}

// What a device-side assertion printed: "a.cu:19: void f(): block: [1,0,0], thread: [6,0,0] Assertion `…` failed."
std::string assertion_in(const std::string& output) {
  constexpr size_t kShown = 300;
  const size_t at = output.find(" Assertion `");
  if (at == std::string::npos || output.find("thread: [") > at) return "";
  const size_t begin = output.rfind('\n', at) + 1;  // npos + 1 is 0
  std::string line = output.substr(begin, std::min(output.find('\n', at) - begin, kShown));
  for (char& c : line)
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  return line;
}

// CUDA aborts a process once its dump is written; but a worker may come to another end in the meantime.
Verdict of_dump(const WorkerFacts& facts) {
  const CoreDump dump = parse_dump_progress(facts.output);
  const std::string assertion = assertion_in(facts.output);
  std::string message = dump.exception.empty() ? "a kernel trapped" : dump.exception;  // which one: add_core_dump()
  if (!assertion.empty()) message += ": " + assertion;
  if (dump.exception.empty()) return {kLaunchFailure, std::move(message)};
  static constexpr std::string_view kVerdicts[] = {"device-assert", "illegal-access"};
  const std::string verdict = verdict_of_exception(dump.exception);
  for (const std::string_view known : kVerdicts)
    if (verdict == known) return {known, std::move(message)};
  return {kLaunchFailure, std::move(message)};
}

Verdict of_exit(const WorkerFacts& facts) {
  switch (facts.end.code) {
    case 0:
      if (facts.done) return {"", ""};
      return {kCrash, "exited with code 0 before it had finished"};
    case kOomExit:
      return {kOom, out_of_memory(facts)};
    case kExceptionExit:
      return {kCrash, fmt::format("uncaught exception: {}", facts.exception.empty() ? "unknown" : facts.exception)};
    case kErrorExit:
      return {kCrash, fmt::format("gave up: {}", facts.error.empty() ? "for an unknown reason" : facts.error)};
    default:
      return {kCrash, fmt::format("exited with code {}", facts.end.code)};
  }
}

// A sanitizer, an assertion or a library says why it ended the process; the last line is mostly that.
std::string last_line(const std::string& output) {
  constexpr size_t kShown = 200;
  const size_t end = output.find_last_not_of(" \t\r\n");
  if (end == std::string::npos) return "";
  const size_t newline = output.find_last_of('\n', end);
  std::string line = output.substr(newline == std::string::npos ? 0 : newline + 1);
  line.resize(line.find_last_not_of(" \t\r\n") + 1);
  if (line.size() > kShown) line = line.substr(0, kShown) + "...";
  for (char& c : line)
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  return line;
}

}  // namespace

Death explain_death(WorkerFacts facts) {
  // A worker that ended by itself just before our signal reached it ended by itself; but no good exit makes up for a
  // corrupt event.
  const bool killed = facts.end.signalled && facts.end.code == SIGKILL;
  const bool by_us = facts.stopped == StopReason::kCancelled || (facts.stopped != StopReason::kNone && killed) ||
                     (facts.stopped == StopReason::kWatchdog && facts.dump_asked) ||
                     (facts.stopped == StopReason::kCorruptEvent && !facts.end.signalled);
  const bool faulted = !by_us && !facts.core_file.empty();
  Verdict verdict = by_us                 ? of_stop(facts)
                    : faulted             ? of_dump(facts)
                    : facts.end.signalled ? of_signal(facts)
                                          : of_exit(facts);
  Death death;
  death.verdict = verdict.name;
  death.message = std::move(verdict.message);
  if (!death.verdict.empty() && death.verdict != kSkipped) {
    death.message += facts.done ? " (after its last probe)" : fmt::format(" ({})", facts.progress.where());
    if (facts.progress.torn) death.message += " (the op's name may be torn)";
    // Ends that speak for themselves need no last words.
    const bool explained = !facts.exception.empty() || !facts.error.empty() || by_us || faulted;
    const std::string line = explained ? "" : last_line(facts.output);
    if (!line.empty()) death.message += fmt::format("; its last output: {}", line);
  }
  death.facts = std::move(facts);
  return death;
}

nlohmann::json death_to_json(const Death& death) {
  const WorkerFacts& facts = death.facts;
  const ProgressSnapshot& progress = facts.progress;
  nlohmann::json records = nlohmann::json::array();
  for (const CheckRecord& record : progress.records)
    records.push_back({{"op_index", record.op_index},
                       {"tensor", record.tensor},
                       {"kind", record.kind},
                       {"count", record.count},
                       {"first_index", record.first_index},
                       {"bits", record.bits}});
  nlohmann::json json = {{"verdict", death.verdict},
                         {"message", death.message},
                         {"signalled", facts.end.signalled},
                         {"code", facts.end.code},
                         {"user_seconds", facts.end.user_seconds},
                         {"system_seconds", facts.end.system_seconds},
                         {"max_resident_bytes", facts.end.max_resident_bytes},
                         {"stopped", static_cast<int>(facts.stopped)},
                         {"done", facts.done},
                         {"seconds", facts.seconds},
                         {"output", facts.output},
                         {"dump_asked", facts.dump_asked},
                         {"core_file", facts.core_file},
                         {"records", std::move(records)},
                         {"records_made", progress.records_made}};
  if (progress.started)
    json["progress"] = {{"phase", static_cast<int>(progress.phase)},
                        {"phase_text", progress.phase_text},
                        {"probe", progress.probe},
                        {"step", progress.step},
                        {"op_index", progress.op_index},
                        {"layer", progress.layer},
                        {"device_group", progress.device_group},
                        {"op_state", static_cast<int>(progress.op_state)},
                        {"op", progress.op},
                        {"kernel", progress.kernel},
                        {"torn", progress.torn}};
  return json;
}

Result<Death> death_from_json(const nlohmann::json& json, std::string_view where) {
  try {
    Death death;
    WorkerFacts& facts = death.facts;
    ProgressSnapshot& progress = facts.progress;
    json.at("verdict").get_to(death.verdict);
    json.at("message").get_to(death.message);
    json.at("signalled").get_to(facts.end.signalled);
    json.at("code").get_to(facts.end.code);
    json.at("user_seconds").get_to(facts.end.user_seconds);
    json.at("system_seconds").get_to(facts.end.system_seconds);
    json.at("max_resident_bytes").get_to(facts.end.max_resident_bytes);
    const int stopped = json.at("stopped").get<int>();
    if (stopped < 0 || stopped > static_cast<int>(StopReason::kCancelled))
      return bad_input("{}: unknown stop reason {}", where, stopped);
    facts.stopped = static_cast<StopReason>(stopped);
    json.at("done").get_to(facts.done);
    json.at("seconds").get_to(facts.seconds);
    json.at("output").get_to(facts.output);
    // Not in journals of older versions.
    facts.dump_asked = json.value("dump_asked", false);
    facts.core_file = json.value("core_file", "");
    json.at("records_made").get_to(progress.records_made);
    for (const nlohmann::json& entry : json.at("records")) {
      CheckRecord& record = progress.records.emplace_back();
      entry.at("op_index").get_to(record.op_index);
      entry.at("tensor").get_to(record.tensor);
      entry.at("kind").get_to(record.kind);
      entry.at("count").get_to(record.count);
      entry.at("first_index").get_to(record.first_index);
      entry.at("bits").get_to(record.bits);
    }
    if (const auto marks = json.find("progress"); marks != json.end()) {
      progress.started = true;
      progress.phase = static_cast<WorkerPhase>(marks->at("phase").get<int32_t>());
      marks->at("phase_text").get_to(progress.phase_text);
      marks->at("probe").get_to(progress.probe);
      marks->at("step").get_to(progress.step);
      marks->at("op_index").get_to(progress.op_index);
      marks->at("layer").get_to(progress.layer);
      progress.device_group = marks->value("device_group", -1);
      const int state = marks->at("op_state").get<int>();
      if (state < 0 || state > static_cast<int>(OpState::kDone))
        return bad_input("{}: unknown op state {}", where, state);
      progress.op_state = static_cast<OpState>(state);
      marks->at("op").get_to(progress.op);
      marks->at("kernel").get_to(progress.kernel);
      marks->at("torn").get_to(progress.torn);
    }
    return death;
  } catch (const nlohmann::json::exception& error) {
    return bad_input("{}: not the end of a worker: {}", where, error.what());
  }
}

std::optional<int64_t> kernel_oom_kills(const std::string& vmstat) {
  std::ifstream file(vmstat);
  std::string name;
  for (int64_t value = 0; file >> name >> value;)
    if (name == "oom_kill") return value;
  return std::nullopt;
}

}  // namespace faultline
