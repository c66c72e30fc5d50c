#include "bisect/convict.h"

#include "bisect/convict_case.h"

namespace faultline {

Result<std::vector<Localized>> convict(const std::vector<Suspicion>& suspicions, const RunTasks& run,
                                       const std::string& run_directory) {
  std::vector<ConvictCase> cases;
  cases.reserve(suspicions.size());
  for (const Suspicion& suspicion : suspicions) cases.emplace_back(suspicion, run_directory);
  while (true) {
    std::vector<WorkerTask> tasks;
    std::vector<std::pair<ConvictCase*, size_t>> owners;
    for (ConvictCase& one : cases) {
      if (one.finished()) continue;
      const std::vector<WorkerTask> wanted = one.tasks();
      owners.emplace_back(&one, wanted.size());
      tasks.insert(tasks.end(), wanted.begin(), wanted.end());
    }
    if (tasks.empty()) break;
    FAULTLINE_TRY(const std::vector<TaskResult> results, run(tasks, "convicting"));
    size_t at = 0;
    for (auto& [owner, count] : owners) {
      owner->take({results.begin() + static_cast<std::ptrdiff_t>(at),
                   results.begin() + static_cast<std::ptrdiff_t>(at + count)});
      at += count;
    }
  }
  std::vector<Localized> localized;
  localized.reserve(cases.size());
  for (ConvictCase& one : cases) localized.push_back(std::move(one).result());
  return localized;
}

Result<std::vector<Localized>> convict(const std::vector<Suspicion>& suspicions, Session& session,
                                       const std::string& run_directory) {
  return convict(
      suspicions,
      [&](const std::vector<WorkerTask>& tasks, const std::string& label) { return session.run(tasks, label); },
      run_directory);
}

}  // namespace faultline
