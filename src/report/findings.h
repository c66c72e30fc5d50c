// The findings of one run: what findings.json holds (schema 1), and what every other report is written from.
// Plain data. Values are strings plus raw bits, since JSON has no NaN.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/repeat_statistics.h"

namespace faultline {

using AxisValues = std::map<std::string, std::string>;

// What a GPU's core dump says about the kernel that faulted, or why it says nothing.
struct CoreDump {
  std::string file;       // "cores/c017.4711.cudacore", inside the run directory
  std::string exception;  // "Warp Illegal Address"
  std::string kernel;     // as written in the source: "faultline::kernels::run_body<…>"
  std::string source;     // "src/bisect/cuda_plants.cu"
  int64_t line = 0;       // of source; 0: not known
  std::string block;      // "(1,0,0)"
  std::string thread;     // "(37,0,0)"
  std::string place;      // "device 0, sm 1, warp 1, lane 5"
  std::string unread;     // what could not be read, and why; empty: nothing
  bool operator==(const CoreDump&) const = default;
};

struct Violation {
  std::string op;          // "layers.0.self_attn.attention"
  std::string kernel;      // "flashinfer"
  std::string provenance;  // "own"
  std::string build;       // "unchecked" or "checked"
  std::string phase;       // "prefill" or "decode"
  int64_t step = 0;        // pass number within the phase, from 0
  int64_t layer = -1;
  int64_t rank = 0;
  int64_t probe = -1;          // index into the probes; -1: the warm-up
  std::string tensor;          // "layers.0.self_attn.kv_cache"
  std::string kind;            // a verdict name: "nonfinite", "layout", "bounds", …
  std::vector<int64_t> index;  // coordinates within the tensor; caches: [slot, byte or column]
  std::string value;           // "nan", "inf", "3.5", "-1"
  std::string bits;            // "0x7fc00000"
  int64_t count = 0;           // elements of this tensor that break the same contract in this pass
  std::string inputs_clean;    // "yes", "no" (then `bad_input` names one), "unknown"
  std::string bad_input;       // tensor or checkpoint tensor that was already bad
  std::string detail;          // one sentence: what was expected, which request, which probe
  bool setting = false;        // a gap to the model reference, not to the kernel's spec
  std::string attribute;       // of a setting: what differs from the model ("theta", "interleaved", "dense")
  std::string
      follows;  // own kernels: the backend whose layout and arithmetic the kernel follows; empty: none, or not known
  std::optional<CoreDump> core;  // hard faults of a GPU
};

struct ConfigurationResult {
  std::string id;  // "c017", planted: "c017+late_tile"
  AxisValues axes;
  AxisValues resolved;
  std::string plant;          // empty: none
  std::string target_status;  // runs, guard, unsupported
  std::string verdict;
  std::string reason;
  std::vector<std::string> notes;
  std::string launch_command;  // that starts a real server with these settings; empty: not known
  int64_t repeats = 0;
  int64_t failures = 0;
  double seconds = 0;
  std::optional<Violation> first_violation;
};

struct Localized {
  std::string culprit;  // kernel, layout, weights, metadata, setting, collective, ordering; empty: not localized
  std::string op;
  std::string kernel;
  std::string provenance;
  int64_t layer = -1;
  std::string kind;
  std::string signature;
  std::string plant;
  std::string reproduces;  // yes, no, unknown
  std::string necessary;
  std::string confidence;  // "high", "medium", "low"
  // What it rests on where runs were repeated: the case unchanged, and with what is convicted taken out of it. `level`:
  // at which the first could not have come to the second by luck; 0: the failure was taken to be there each time.
  RunCount unchanged;
  RunCount changed;
  double level = 0;
  int64_t worker_runs = 0;  // that the conviction took
  std::vector<std::string> configurations;
  std::string capsule;  // path inside the run directory, or empty
  std::string explanation;
  std::vector<std::string> evidence;  // sentences, in the order to read them
  std::string follows;                // as in Violation
};

struct MinimalCombination {
  AxisValues axes;
  std::vector<std::string> untested;
  std::string signature;
  std::string plant;
};

struct RuledOut {
  std::string axis;
  std::string signature;
  std::string plant;
  AxisValues condition;
  std::vector<std::pair<std::string, std::string>> pairs;
};

struct Inert {
  std::string axis;
  AxisValues condition;
  std::string because;
  std::vector<std::pair<std::string, std::string>> pairs;
};

struct Workaround {
  std::string id;      // the passing configuration
  AxisValues changes;  // what to change
  std::string from;    // the failing configuration it is nearest to
  std::string signature;
  std::string launch_command;  // the server's command line with the changes made, where one was given; else empty
};

// How the grid was searched, without plants.
struct SearchCoverage {
  std::string strategy;  // full, pairs, adaptive; empty: not known
  int64_t grid = 0;      // rows that the experiment does not exclude
  int64_t runnable = 0;  // of them, rows that can run here
  int64_t run = 0;       // of them, rows that ran
  // Every combination of so many settings, outside the failing combinations found, was in a row that passed. The number
  // of axes where every row that can run ran.
  int64_t strength = 0;
};

struct Findings {
  std::string experiment;
  std::string run_directory;
  // The server's command line that the grid is the neighbourhood of, its row being the first; empty: there is none.
  std::string server_args;
  SearchCoverage coverage;
  // Ops, kernels and backends in whose place a reference stood in every row; empty: none.
  std::vector<std::string> assume_fixed;
  std::vector<std::string> server_args_warnings;  // what the rows do otherwise than that server
  std::vector<ConfigurationResult> configurations;
  std::vector<Localized> localized;  // one a signature; culprit empty where it could not be proven
  std::vector<MinimalCombination> minimal_combinations;
  std::vector<RuledOut> ruled_out;
  std::vector<Inert> inert;
  std::vector<Workaround> workarounds;
  std::vector<std::string> next_experiments;       // sentences: what is untested and worth the time
  std::vector<std::string> limits;                 // what the evidence does not show
  std::map<std::string, std::string> environment;  // device, versions, seed, model, arguments
  int exit_code = 0;
};

}  // namespace faultline
