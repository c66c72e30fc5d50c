#include "bisect/core_reader.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "base/temporary_folder.h"
#include "bisect/core_dump_report.h"

namespace faultline {
void note_core_dump(TaskResult& result, const WorkerFacts& facts) {
  if (facts.core_file.empty() || !result.failed()) return;
  CoreDump core = facts.dump_asked ? CoreDump{} : parse_dump_progress(facts.output);
  core.file = facts.core_file;
  if (!result.violation) {  // it died between ops: the dump alone says where
    Violation& violation = result.violation.emplace();
    violation.kernel = kernel_of(core.kernel).body;
    violation.kind = result.verdict;
    violation.provenance = "own";
    violation.build = "unchecked";
    violation.probe = result.probe;
    violation.inputs_clean = "unknown";
    violation.detail = result.message;
  }
  result.violation->core = std::move(core);
}

void add_core_dump(TaskResult& result, CoreDump core, const std::string& directory) {
  if (!result.violation || !result.violation->core) return;
  Violation& violation = *result.violation;
  const CoreDump& known = *violation.core;
  if (core.exception.empty()) core.exception = known.exception;
  if (core.kernel.empty()) core.kernel = known.kernel;
  std::error_code error;
  const std::filesystem::path relative = std::filesystem::relative(core.file, directory, error);
  if (directory.empty())
    core.file.clear();
  else if (!error && !relative.empty())
    core.file = relative.string();
  // A hang's dump has no exception, and what the driver printed while it wrote another is better known than its words.
  if (known.exception.empty() && !core.exception.empty() && result.verdict == "launch-failure") {
    result.verdict = verdict_of_exception(core.exception);
    violation.kind = result.verdict;
  }
  const std::string what = core_dump_sentence(core);
  result.message += (result.message.empty() ? "" : "; ") + what;
  violation.detail += (violation.detail.empty() ? "" : "; ") + what;
  violation.core = std::move(core);
}

std::string core_file_of(const TaskResult& result) {
  return result.violation && result.violation->core ? result.violation->core->file : "";
}

CoreReader::~CoreReader() {
  cancel_ = true;
  pending_.clear();  // the futures wait for their threads
  std::error_code error;
  if (made_ && !keep_) std::filesystem::remove_all(directory_, error);
}

std::string CoreReader::prefix(const std::string& name) {
  std::error_code error;
  if (!made_) {
    if (directory_.empty()) {
      const Result<std::string> folder = make_temporary_folder();
      if (!folder) return "";
      directory_ = *folder;
    }
    directory_ = std::filesystem::absolute(directory_, error).string();
    made_ = true;
  }
  const std::string folder = directory_ + "/cores";
  std::filesystem::create_directories(folder, error);
  return error ? "" : core_dump_prefix(folder, name);
}

void CoreReader::add(std::string key, TaskResult result) {
  const std::string file = core_file_of(result);
  CoreReadOptions options;
  options.cancel = &cancel_;
  Pending pending;
  pending.item = {std::move(key), std::move(result)};
  pending.core = std::async(std::launch::async, [file, options] { return read_core_dump(file, options); });
  pending_.push_back(std::move(pending));
}

std::vector<CoreReader::Item> CoreReader::take(bool all) {
  std::vector<Item> result;
  for (Pending& pending : pending_) {
    if (!all && pending.core.wait_for(std::chrono::seconds(0)) != std::future_status::ready) continue;
    add_core_dump(pending.item.result, pending.core.get(), keep_ ? directory_ : "");
    result.push_back(std::move(pending.item));
  }
  std::erase_if(pending_, [](const Pending& pending) { return !pending.core.valid(); });
  return result;
}

}  // namespace faultline
