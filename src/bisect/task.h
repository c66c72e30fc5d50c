// What the driver asks of a worker, and what it makes of the worker's answer: plain data with a JSON form, so that the
// journal can hold both and a resumed run can tell that a task was done already.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "report/findings.h"
#include "report/verdict.h"

namespace faultline {

// The probes of one configuration, with every default filled in.
struct ProbePlan {
  std::string tokens = "random";  // random, repeat, file
  std::vector<int32_t> ids;       // tokens: file — its ids, repeated as needed
  double temperature = 1.0;
  double top_p = 0.95;
  bool server_sequence = true;  // capture, greedy warm-up, then the probes
  std::vector<int64_t> prefill_lengths;
  int64_t chunk = 0;
  std::vector<int64_t> contexts;
  std::vector<int64_t> batch;
  int64_t steps = 1;

  bool operator==(const ProbePlan&) const = default;
};

// Of each row of logits, with RunOptions::outputs.
inline constexpr size_t kSampledLogits = 32;

inline constexpr std::string_view kSettingPrefix = "setting:";

// How a run differs from a plain screening run.
struct RunOptions {
  bool op_by_op = false;
  bool serialize_all = false;
  std::vector<std::string> serialize;  // op names
  std::vector<std::string> refresh;    // buffers of a graph's batch, written anew right before each replay
  // Ops that run on the reference: patterns (signature.h), or kSettingPrefix + attribute for every op whose resolved
  // attribute differs from the model's.
  std::vector<std::string> reference;
  int64_t kernel_limit = -1;   // ops launched from this number on run on the reference; -1: none
  bool eager = false;          // cuda_graph off, whatever the row says
  bool repair_scales = false;  // unusable scalar scales of the checkpoint are replaced by 1
  int64_t spec_from = -1;      // with outputs: kernel calls numbered from this on run their spec reference; -1: none
  bool outputs = false;        // take a sample of every pass's logits along, over tokens that do not hang on them
  int64_t only_probe = -1;     // run this probe alone (after capture); -1: all
  int64_t repeat = 0;          // which repeat this is; only sets tasks apart
  std::string capsule;  // op_by_op: where to write the capsule of a violation; empty: nowhere. Not part of the key
};

struct WorkerTask {
  std::string id;  // "c017", "c017+late_tile"; unique with `purpose`
  std::string purpose = "screen";
  AxisValues resolved;
  std::string checks = "full";
  std::string plant;
  std::vector<std::string> assume_fixed;  // whatever the options say: assume_fixed.h
  std::string device = "cpu";             // where the kernels run: cpu, cuda:0
  ProbePlan probes;
  uint64_t seed = 7;
  RunOptions options;

  // Identifies the work: equal keys, equal results. Part of every journal entry.
  std::string key() const;
};

nlohmann::json to_json(const WorkerTask& task);
Result<WorkerTask> task_from_json(const nlohmann::json& json);

// What a worker's run came to.
struct TaskResult {
  std::string verdict;                 // a verdict of DESIGN; "pass"
  std::string message;                 // why, for deaths and faults
  std::optional<Violation> violation;  // the first broken contract (of a death: where it was)
  std::vector<Violation> settings;     // gaps to the model that the row explains
  int64_t probe = -1;                  // index of the probe that failed
  int64_t probes = 0;                  // probes run
  int64_t plant_fired = 0;
  std::vector<std::string> edges;         // ops before the violating one in its pass, whose output it reads first
  std::vector<std::string> edge_kernels;  // theirs
  int64_t launches = 0;                   // ops launched; with outputs: kernels called
  std::string last_kernel_op;             // with a kernel limit: the last op that ran on its kernel
  std::string last_kernel;
  std::string replayed;  // op_by_op: the violating op run again on its recorded inputs: yes, no; empty: not done
  std::string
      capsule;  // what became of the capsule: "yes" (it breaks again), "no", or why there is none; empty: not asked
  // outputs: kSampledLogits logits as the bits of a float, of every row of each decode step and of the last pass of a
  // prefill of one prompt (of several, each may end in another pass).
  std::vector<int64_t> outputs;
  std::string error;  // an Error of the worker's (the task could not be done); verdict is then empty
  bool bad_input = false;
  double seconds = 0;

  bool failed() const { return !verdict.empty() && verdict_is_failure(verdict); }
};

nlohmann::json to_json(const TaskResult& result);
Result<TaskResult> task_result_from_json(const nlohmann::json& json);

nlohmann::json to_json(const Violation& violation);
Result<Violation> violation_from_json(const nlohmann::json& json);

}  // namespace faultline
