// `faultline bisect`: grid, journal, verdicts, search, conviction, report. The driver runs no kernel itself.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "bisect/sanitize.h"
#include "bisect/session.h"
#include "grid/experiment.h"
#include "grid/resolve.h"
#include "report/findings.h"

namespace faultline {

inline constexpr std::string_view kAnyDevice = "auto";

struct BisectOptions {
  std::string experiment;                  // path; empty with `resume` and `server_args`
  std::optional<std::string> server_args;  // a server's command line instead of a file
  size_t max_rows = 0;                     // of its neighbourhood; 0: as line_experiment.h says
  std::string resume;                      // a run directory to go on with
  std::string out = "reports";
  // Each overrides what the experiment says.
  std::string model, profile, arch, checks, strategy;
  std::vector<std::string> plants;
  bool compare_outputs = false;
  std::vector<std::string> assume_fixed;  // besides what the experiment says
  std::optional<int64_t> repeats;
  std::optional<uint64_t> seed;
  std::optional<double> time_limit;
  std::optional<double> timeout;
  std::optional<int64_t> memory_limit;
  int jobs = 0;
  // Where workers run kernels: auto, cpu, cuda, cuda:N. A resumed run stays where it was unless another is named.
  std::string device{kAnyDevice};
  SynthMemory synth_memory;  // where the model is a synthetic one
  bool quiet = false;
  std::vector<std::string> arguments;  // argv, for the record
  std::string sanitize;                // replay: the tool of compute-sanitizer to run under; empty: none
};

struct BisectOutcome {
  Findings findings;
  std::string directory;
  ExitCode exit_code = ExitCode::kGood;
};

Result<BisectOutcome> run_bisect(const BisectOptions& options);

// `faultline report RUN`: the reports again, from the journal alone.
Result<BisectOutcome> rewrite_reports(const std::string& run_directory);

// An experiment ready to run: validated, with defaults filled in from the model's config. Loads no weights.
struct PreparedExperiment {
  Experiment experiment;
  const Profile* profile = nullptr;
  Target target;
  ShapeInfo shape;
};
// Loads and validates with a run's overrides. Needs the model's config only.
Result<PreparedExperiment> prepare_experiment(const BisectOptions& options);

// `faultline replay`: one configuration, once per repeat, in worker processes. Case files are experiments of one row.
struct ReplayOutcome {
  ConfigurationResult result;
  std::optional<SanitizerReport> sanitizer;  // with `sanitize`
  ExitCode exit_code = ExitCode::kGood;
};
// `id`: the row to take when the file holds more than one ("c017", "c017+late_tile"); empty: there must be one.
Result<ReplayOutcome> run_replay(const BisectOptions& options, const std::string& id);

// The config of a model named by a spec, without its weights.
Result<ModelConfig> model_config(const std::string& spec);

}  // namespace faultline
