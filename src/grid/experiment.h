// The experiment: what the user asks for, as one YAML file. Everything is validated before anything is loaded; every
// error is bad_input with "FILE:LINE: …" and, where a name or value is unknown, the nearest valid one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "grid/profile.h"
#include "report/findings.h"

namespace faultline {

struct Sampling {
  double temperature = 1.0;  // 0: greedy
  double top_p = 0.95;
};

// Workloads, in tokens. Lists may be empty and numbers absent after parsing: fill_probe_defaults() knows what fits the
// model.
struct Probes {
  std::string tokens = "random";  // "random", "repeat", or the path of a file of token ids
  Sampling sampling;
  std::string sequence = "server";  // "server": capture, greedy warm-up, then the probes; "plain": the probes alone

  std::vector<int64_t> prefill_lengths;  // one prompt each
  std::optional<int64_t> prefill_chunk;  // 0: whole
  std::vector<int64_t> decode_contexts;  // tokens cached before the first decode step
  std::vector<int64_t> decode_batch;     // requests that decode together
  std::optional<int64_t> decode_steps;

  int64_t longest_context() const;  // tokens that the longest probe reaches; 0 when nothing is set
};

struct RequestedAxis {
  std::string name;
  std::vector<std::string> values;  // canonical spelling, no two alike
};

// A row is excluded when every axis named here has one of its values.
struct Exclusion {
  std::vector<RequestedAxis> when;
};

// `repeats: auto`: as many as change what the run concludes.
inline constexpr int64_t kAutoRepeats = 0;

struct Experiment {
  std::string name;   // of the run directory; the file's name without ".yaml" when left out
  std::string model;  // folder or "synth:…"; empty: not said
  std::string profile{kDefaultProfile};
  std::string arch = "any";
  std::vector<RequestedAxis> axes;  // in file order
  // Rows listed one by one instead of the product of `axes`, which then holds the values that occur in them. Each row
  // has a value of every axis. Empty: the product.
  std::vector<AxisValues> rows;
  std::string server_args;  // the server's command line whose neighbourhood `rows` is, the first row being the line's
  std::vector<Exclusion> exclude;
  Probes probes;
  std::string checks = "full";    // off, finite, full, reference
  std::string strategy = "full";  // full, pairs, adaptive
  int64_t repeats = 1;            // of each configuration, or kAutoRepeats
  uint64_t seed = 7;
  std::vector<std::string> plant;         // "NAME" or "NAME@selector"
  bool compare_outputs = false;           // rows that pass are held to the logits of the same run on spec references
  std::vector<std::string> assume_fixed;  // ops, kernels and backends in whose place a reference stands in every run
  std::string shape_rules = "glm5";       // glm5: guards as for the full model; actual: as for the model at hand
  bool run_unsupported = false;
  std::optional<double> time_limit;     // seconds of the whole run
  std::optional<double> timeout;        // seconds that a worker may go without progress
  std::optional<int64_t> memory_limit;  // bytes of a worker
};

// `known_plants`: names that `plant` may use; empty: any.
Result<Experiment> parse_experiment(std::string_view text, std::string_view where,
                                    const std::vector<std::string>& known_plants = {});
Result<Experiment> load_experiment(const std::string& path, const std::vector<std::string>& known_plants = {});

// The experiment as YAML that parse_experiment() reads back to the same.
std::string write_experiment(const Experiment& experiment);

// Gives what the experiment leaves out: lengths and contexts on both sides of a page and of the model's top-k, within
// `max_positions`; a chunk that splits the longest prompt in about four; batches 1, 3, 8; 4 steps.
void fill_probe_defaults(Probes& probes, int64_t page_size, int64_t index_topk, int64_t max_positions);

// "late_tile@layers.3" as {"late_tile", "layers.3"}; without a selector the second is empty.
std::pair<std::string, std::string> split_plant(std::string_view plant);

}  // namespace faultline
