// One suspicion on its way to a verdict (convict.h). It asks for runs, takes what they came to, and either ends or goes
// on to its next step. Runs nothing itself.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "bisect/convict.h"
#include "bisect/convict_relax.h"
#include "bisect/convict_trial.h"

namespace faultline {

class ConvictCase {
 public:
  // `suspicion` outlives the case.
  ConvictCase(const Suspicion& suspicion, const std::string& run_directory);

  bool finished() const { return step_ == Step::kEnd; }
  // The runs to make next; at least one until it is finished.
  std::vector<WorkerTask> tasks();
  // Their results, in order.
  void take(const std::vector<TaskResult>& results);
  Localized result() &&;

 private:
  enum class Step : uint8_t {
    kOpByOp,      // every op checked by itself
    kUnchanged,   // how often it fails
    kNecessary,   // a reference in the suspect's place
    kSerialized,  // all edges forced to wait
    kEager,       // without a graph
    kAllBuffers,  // all buffers of the graph written anew
    kHalves,      // all relaxed but half of the edges or buffers that may matter
    kAlone,       // the one that is left
    kLimit,       // the first so many ops on their kernels
    kEnd,
  };
  enum class Relaxing : uint8_t { kEdges, kBuffers };

  void start(Step step, std::vector<Trial> trials);
  void finish_step();
  bool counts_as_failure(const TaskResult& result) const;
  bool shows(const TaskResult& result) const;
  bool setting() const { return suspicion_.failure.violation.setting; }
  // Clean runs that a step on the way takes, and that the last word takes.
  int64_t enough_to_go_on() const { return sure_ ? 1 : needed_; }

  void start_op_by_op();
  void op_by_op_done(const Trial& trial);
  void op_by_op_broke(const TaskResult& result);
  void name_suspect(const Violation& found, const std::string& culprit);
  void unchanged_done(const Trial& trial);
  void start_necessary();
  void necessary_done(const Trial& trial);
  void start_relaxing();
  void serialized_done(const Trial& trial);
  void start_eager();
  void eager_done(const Trial& trial);
  void doubt_relaxed();
  void start_edges(const RunCount& all);
  void start_buffers();
  void all_buffers_done(const Trial& trial);
  void start_half();
  void half_done(const Trial& trial);
  void start_alone();
  void alone_done(const Trial& trial);
  void convict_relaxed();
  Trial relaxed(std::string purpose, int64_t clean_wanted, const std::vector<std::string>& set) const;
  void start_limit();
  void limit_done(const Trial& trial);

  void take_capsule(const std::string& capsule);
  void drop_other_capsules(const std::vector<TaskResult>& results);
  void say_rate();
  void conclude();
  void give_up(const std::string& why);
  void say(std::string sentence) { out_.evidence.push_back(std::move(sentence)); }

  const Suspicion& suspicion_;
  const std::string run_directory_;
  Localized out_;
  Step step_ = Step::kEnd;
  std::vector<Trial> trials_;
  std::vector<WorkerTask> issued_;  // the runs asked for last
  int64_t next_repeat_;
  int64_t only_probe_;
  Violation suspect_;
  bool wanders_ = false;  // it ends the process now in this op, now in that one: any failure counts as this one
  std::set<std::string> ends_elsewhere_;  // ops in which the process ended with a reference in the suspect's place
  std::string capsule_;                   // of the suspect, within the run directory

  // How often the case fails when nothing is changed, without the run that drew attention to it: that one was chosen
  // because it failed.
  RunCount unchanged_;
  bool rate_known_ = false;
  bool sure_ = true;    // it has failed in every run so far
  int doubts_ = 0;      // how often the runs were found to contradict each other
  int64_t needed_ = 1;  // clean runs to call it gone
  RunCount op_by_op_;   // clean runs of all probes op by op
  TaskResult example_;  // an unchanged run that failed

  Relaxing relaxing_ = Relaxing::kEdges;
  RelaxSearch search_;
  bool serialized_cures_ = false;
  RunCount alone_;

  int64_t limit_ = 0;      // launches on their kernels in the next run
  int64_t clean_at_ = -1;  // the largest limit seen clean
  int64_t fails_at_ = 0;   // the smallest seen failing
  int64_t limit_runs_ = 0;
};

}  // namespace faultline
