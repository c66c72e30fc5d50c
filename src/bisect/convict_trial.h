// A sequential test: the same case under one changed condition, run again and again until it is decided. One failure
// shows that the condition is no cure; that it is one takes as many clean runs as the failure rate of the unchanged
// case asks for (base/repeat_statistics.h).
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>

#include "base/repeat_statistics.h"
#include "bisect/task.h"

namespace faultline {

class Trial {
 public:
  using Change = std::function<void(RunOptions&)>;

  // Decided by the first failure, or by `clean_wanted` clean runs.
  Trial(std::string purpose, int64_t clean_wanted, Change change)
      : purpose_(std::move(purpose)), clean_wanted_(clean_wanted), change_(std::move(change)) {}

  // The unchanged case, to learn its failure rate: decided when the first few runs all fail, after enough failures,
  // after as many clean runs as exclude the design failure rate, or at the limit of runs.
  // `before`: earlier runs of it, which count.
  // `needs_example`: one of the new runs must fail, to be looked at. `alike`: new runs that are enough if they all
  // fail.
  static Trial unchanged(const RunCount& before, bool needs_example, int64_t alike = kRunsAlike) {
    Trial trial("again", 0, [](RunOptions&) {});
    trial.count_ = before;
    trial.before_ = before.runs;
    trial.needs_example_ = needs_example;
    trial.alike_ = alike;
    return trial;
  }
  static constexpr int64_t kRunsAlike = 4;   // all failing: taken for a failure that is there each time
  static constexpr int64_t kFailures = 5;    // then the rate is known well enough
  static constexpr int64_t kMostRuns = 100;  // of the unchanged case
  static constexpr int64_t kRunsABatch = 8;  // at once: several workers are busy, and few runs are for nothing

  const std::string& purpose() const { return purpose_; }
  void change(RunOptions& options) const { change_(options); }

  bool decided() const { return to_run() == 0; }
  // Runs to make before looking again.
  int64_t to_run() const {
    if (clean_wanted_ > 0) {
      if (count_.failures > 0 || count_.runs >= clean_wanted_) return 0;
      return std::min(clean_wanted_ - count_.runs, kRunsABatch);
    }
    const int64_t made = count_.runs - before_;
    const bool alike = count_.failures == count_.runs && count_.runs >= alike_;
    const bool enough = (failure_ || !needs_example_) && (alike || count_.failures >= kFailures);
    if (enough || made >= kMostRuns) return 0;
    if (count_.failures == count_.runs && count_.runs < alike_) return alike_ - count_.runs;
    const int64_t most = count_.failures == 0 ? clean_runs_needed(kDesignFailureRate) - count_.runs : kMostRuns - made;
    return std::clamp<int64_t>(most, 0, kRunsABatch);
  }

  void add(const TaskResult& result, bool failed) {
    ++count_.runs;
    count_.failures += failed ? 1 : 0;
    if (failed && !failure_) failure_ = result;
    last_ = result;
  }

  const RunCount& count() const { return count_; }
  bool failed() const { return count_.failures > 0; }
  bool ever_failed() const { return failure_.has_value(); }  // not counting what was before
  const TaskResult& failure() const { return *failure_; }    // the first; where ever_failed()
  const TaskResult& last() const { return *last_; }

 private:
  std::string purpose_;
  int64_t clean_wanted_;
  Change change_;
  RunCount count_;
  int64_t before_ = 0;
  bool needs_example_ = false;
  int64_t alike_ = kRunsAlike;
  std::optional<TaskResult> failure_;
  std::optional<TaskResult> last_;
};

}  // namespace faultline
