#include "bisect/selftest.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "base/clock.h"
#include "base/file.h"
#include "base/temporary_folder.h"
#include "bisect/driver.h"
#include "bisect/journal.h"
#include "bisect/plant.h"
#include "bisect/plant_selector.h"
#include "bisect/protocol.h"
#include "bisect/run_directory.h"
#include "device/device.h"
#include "engine/weights.h"
#include "model/checkpoint.h"

namespace faultline {
namespace {

constexpr size_t kPlantsARun = 60;  // an experiment takes so many values of a key, and a few more
constexpr int64_t kChunk = 16;
constexpr int64_t kPastTopK = 4;  // keys beyond the top-k, so that there is something to leave out

// A configuration that shows some of the faults, and what a run of it may take.
struct Stage {
  std::string_view name;                                  // PlantInfo::stage
  std::vector<std::pair<std::string, std::string>> axes;  // beside those of every stage
  int64_t batch = 2;
  double timeout_s = 60;
  int64_t memory_limit = 0;
};

const std::vector<Stage>& stages() {
  constexpr double kHangSeconds = 3;
  constexpr int64_t kMemory = int64_t{2} << 30;
  static const std::vector<Stage> kStages = {
      {.name = "", .axes = {{"cuda_graph", "off"}}},
      {.name = "graph", .axes = {{"cuda_graph", "on"}}, .batch = 3},  // padded to 4
      {.name = "ragged", .axes = {{"cuda_graph", "off"}, {"nsa_prefill_backend", "flashmla_sparse"}}},
      {.name = "own scales", .axes = {{"cuda_graph", "off"}, {"moe_runner_backend", "cutlass"}}},
      {.name = "high", .axes = {{"cuda_graph", "off"}, {"slot_placement", "high"}}},
      {.name = "hang", .axes = {{"cuda_graph", "off"}}, .timeout_s = kHangSeconds},
      {.name = "memory", .axes = {{"cuda_graph", "off"}}, .memory_limit = kMemory},
  };
  return kStages;
}

std::string_view level_name(CheckLevel level) {
  static constexpr std::array<std::string_view, 4> kNames = {"off", "finite", "full", "reference"};
  return kNames[static_cast<size_t>(level)];
}

// NSA on a packed cache meets nearly everything that a fault needs; a stage changes what it must.
Experiment experiment_of(const Stage& stage, std::string_view checks, const std::string& model, int64_t topk) {
  std::map<std::string, std::string> axes = {{"attention_backend", "nsa"},
                                             {"nsa_prefill_backend", "flashmla_kv"},
                                             {"nsa_decode_backend", "flashmla_kv"},
                                             {"kv_cache_dtype", "fp8_e4m3"},
                                             {"moe_runner_backend", "flashinfer_cutlass"},
                                             {"shared_experts_fusion", "off"}};
  for (const auto& [axis, value] : stage.axes) axes[axis] = value;
  Experiment experiment;
  experiment.name = fmt::format("selftest-{}-{}", stage.name.empty() ? "plain" : stage.name, checks);
  std::replace(experiment.name.begin(), experiment.name.end(), ' ', '-');
  experiment.model = model;
  for (const auto& [axis, value] : axes) experiment.axes.push_back({axis, {value}});
  experiment.checks = checks;
  experiment.probes.prefill_lengths = {topk + 1};
  experiment.probes.prefill_chunk = kChunk;
  experiment.probes.decode_contexts = {topk + kPastTopK};
  experiment.probes.decode_batch = {stage.batch};
  experiment.probes.decode_steps = 2;
  experiment.timeout = stage.timeout_s;
  if (stage.memory_limit != 0) experiment.memory_limit = stage.memory_limit;
  return experiment;
}

// Every pair of these settings, without a fault: whatever is convicted is a false alarm, except where writer and reader
// of the cache disagree or the row computes another function than the model, which the rows say of themselves.
Experiment clean_grid(std::string_view checks, const std::string& model, int64_t topk) {
  Experiment experiment = experiment_of(stages().front(), checks, model, topk);
  experiment.name = fmt::format("selftest-clean-{}", checks);
  experiment.axes = {{"attention_backend", {"nsa"}},
                     {"nsa_prefill_backend", {"flashmla_kv", "flashmla_sparse"}},
                     {"nsa_decode_backend", {"flashmla_kv", "flashmla_sparse"}},
                     {"kv_cache_dtype", {"bf16", "fp8_e4m3"}},
                     {"cuda_graph", {"off", "on"}},
                     {"fp4_gemm_backend", {"flashinfer_cutlass"}},
                     {"moe_runner_backend", {"flashinfer_cutlass", "cutlass"}},
                     {"shared_experts_fusion", {"off"}},
                     {"sampling_backend", {"flashinfer", "pytorch"}},
                     {"slot_placement", {"shuffled", "high"}},
                     {"batch", {"1", "3"}}};
  experiment.strategy = "pairs";
  return experiment;
}

// A folder that goes away with what is in it, unless it is to be kept.
class WorkFolder {
 public:
  static Result<WorkFolder> make(const std::string& kept) {
    WorkFolder folder;
    if (!kept.empty()) {
      std::error_code error;
      std::filesystem::create_directories(kept, error);
      if (error) return bad_input("{}: no folder can be made there: {}", kept, error.message());
      folder.path_ = kept;
      return folder;
    }
    FAULTLINE_TRY(folder.path_, make_temporary_folder());
    folder.temporary_ = true;
    return folder;
  }
  WorkFolder(WorkFolder&& other) noexcept : path_(std::move(other.path_)), temporary_(other.temporary_) {
    other.temporary_ = false;
  }
  WorkFolder& operator=(WorkFolder&&) = delete;
  ~WorkFolder() {
    std::error_code ignored;
    if (temporary_) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  WorkFolder() = default;
  std::string path_;
  bool temporary_ = false;
};

// Worker runs and their seconds, by the plant that they were for.
struct Cost {
  int64_t runs = 0;
  double seconds = 0;
};
Result<std::map<std::string, Cost>> costs_of(const BisectOutcome& outcome) {
  FAULTLINE_TRY(const RunDirectory directory, RunDirectory::open(outcome.directory));
  FAULTLINE_TRY(const JournalContents journal, load_journal(directory.journal_path()));
  std::map<std::string, std::string> plant_of;  // by row
  for (const ConfigurationResult& row : outcome.findings.configurations) plant_of[row.id] = row.plant;
  std::map<std::string, Cost> costs;
  for (const nlohmann::json& entry : journal.entries) {
    const auto name = event_name(entry);
    const auto key = entry.find("key");
    const auto result = entry.find("result");
    if (!name || *name != "result" || key == entry.end() || !key->is_string() || result == entry.end()) continue;
    const auto& text = key->get_ref<const std::string&>();
    const auto row = plant_of.find(text.substr(0, text.find('/')));
    if (row == plant_of.end()) continue;
    Cost& cost = costs[row->second];
    ++cost.runs;
    const auto seconds = result->find("seconds");
    if (seconds != result->end() && seconds->is_number()) cost.seconds += seconds->get<double>();
  }
  return costs;
}

std::string culprit_text(const std::string& culprit, const std::string& op) {
  return op.empty() ? culprit : culprit + " " + op;
}

bool never_triggered(const ConfigurationResult& row) {
  return std::any_of(row.notes.begin(), row.notes.end(),
                     [](const std::string& note) { return note.find("never triggered") != std::string::npos; });
}

// What this model and device cannot have.
struct Facilities {
  bool gpu = false;
  bool moe = false;
  bool indexer = false;
  bool fp4 = false;
};

std::string missing_for(const PlantInfo& info, const Facilities& has) {
  if (info.gpu_only && !has.gpu) return "a GPU";
  const auto needs = [&](std::string_view what) { return info.needs.find(what) != std::string::npos; };
  if (needs("MoE") && !has.moe) return "an MoE layer";
  if (needs("indexer") && !has.indexer) return "the DSA indexer";
  if (needs("W4A4") && !has.fp4) return "NVFP4 weights with input scales";
  return {};
}

Result<Facilities> facilities_of(const Checkpoint& checkpoint, bool gpu) {
  FAULTLINE_TRY(const ModelWeights weights, load_weights(checkpoint));
  Facilities has;
  has.gpu = gpu;
  const auto any = [](const std::vector<bool>& flags) {
    return std::find(flags.begin(), flags.end(), true) != flags.end();
  };
  has.moe = any(weights.config.layer_is_moe);
  has.indexer = any(weights.config.layer_has_indexer);
  for (const LayerWeights& layer : weights.layers)
    for (const auto* list : {&layer.gate_up, &layer.expert_gate_up})
      for (const LinearWeight& weight : *list)
        has.fp4 = has.fp4 || (weight.precision == Precision::kNvfp4 && weight.input_scale.data != nullptr);
  return has;
}

class Selftest {
 public:
  Selftest(const SelftestOptions& options, std::string folder, int64_t topk)
      : options_(options), folder_(std::move(folder)), topk_(topk) {}

  Status plants(const std::vector<const PlantInfo*>& chosen) {
    for (const PlantInfo* info : chosen) expect(*info);
    for (const Stage& stage : stages())
      for (const CheckLevel level : {CheckLevel::kFull, CheckLevel::kReference}) {
        std::vector<const PlantInfo*> here;
        for (const PlantInfo* info : chosen)
          if (info->stage == stage.name && std::max(info->seen_from, CheckLevel::kFull) == level) here.push_back(info);
        for (size_t at = 0; at < here.size() && !report_.interrupted; at += kPlantsARun)
          FAULTLINE_TRY_STATUS(
              stage_run(stage, level,
                        {here.begin() + static_cast<std::ptrdiff_t>(at),
                         here.begin() + static_cast<std::ptrdiff_t>(std::min(at + kPlantsARun, here.size()))}));
      }
    return {};
  }

  Status clean() {
    for (const CheckLevel level : {CheckLevel::kFull, CheckLevel::kReference}) {
      if (report_.interrupted) return {};
      FAULTLINE_TRY(const BisectOutcome outcome, run(clean_grid(level_name(level), options_.model, topk_)));
      take_clean(outcome.findings, level);
    }
    return {};
  }

  SelftestReport report() && { return std::move(report_); }

 private:
  void expect(const PlantInfo& info) {
    SelftestEntry entry;
    entry.name = info.name;
    entry.fault_class = info.fault_class;
    entry.verdicts = info.verdicts;
    const bool failure = info.verdicts.front() != "unsupported";
    if (failure) entry.expected = culprit_text(info.culprit, info.named_at);
    at_[info.name] = report_.entries.size();
    report_.entries.push_back(std::move(entry));
  }

  Status stage_run(const Stage& stage, CheckLevel level, const std::vector<const PlantInfo*>& plants) {
    Experiment experiment = experiment_of(stage, level_name(level), options_.model, topk_);
    for (const PlantInfo* info : plants) experiment.plant.push_back(info->name);
    FAULTLINE_TRY(const BisectOutcome outcome, run(experiment));
    take_clean(outcome.findings, level);
    FAULTLINE_TRY(const auto costs, costs_of(outcome));
    for (const PlantInfo* info : plants) {
      SelftestEntry& entry = report_.entries[at_.at(info->name)];
      entry.checks = level_name(level);
      for (const ConfigurationResult& row : outcome.findings.configurations) {
        if (row.plant != info->name) continue;
        entry.verdict = row.verdict;
        entry.triggered = row.verdict != "skipped" && !never_triggered(row);
        entry.found = entry.triggered &&
                      std::find(info->verdicts.begin(), info->verdicts.end(), row.verdict) != info->verdicts.end();
      }
      judge_naming(outcome.findings, info->culprit, info->named_at, entry);
      const auto cost = costs.find(info->name);
      if (cost == costs.end()) continue;
      entry.runs = cost->second.runs;
      entry.seconds = cost->second.seconds;
    }
    return {};
  }

  void take_clean(const Findings& findings, CheckLevel level) {
    for (const ConfigurationResult& row : findings.configurations) {
      if (!row.plant.empty() || row.verdict == "guard" || row.verdict == "unsupported" || row.verdict == "skipped")
        continue;
      ++report_.clean.rows;
      // A row that computes another function than the model says so: that is no alarm, let alone a false one.
      const bool setting = row.first_violation && row.first_violation->setting;
      if (row.verdict != "pass" && !setting)
        report_.clean.alarms.push_back(fmt::format("{}, checks {}, {}: {} {}", findings.experiment, level_name(level),
                                                   row.id, row.verdict,
                                                   row.first_violation ? row.first_violation->op : row.reason));
    }
    for (const Localized& one : findings.localized)
      if (one.plant.empty() && one.culprit != "setting")
        report_.clean.alarms.push_back(fmt::format("{}, checks {}: convicted: {}", findings.experiment,
                                                   level_name(level), culprit_text(one.culprit, one.op)));
  }

  Result<BisectOutcome> run(const Experiment& experiment) {
    const std::string path = fmt::format("{}/{}-{}.yaml", folder_, experiment.name, ++files_);
    FAULTLINE_TRY_STATUS(write_file(path, write_experiment(experiment)));
    BisectOptions options;
    options.experiment = path;
    options.out = folder_;
    options.device = options_.device;
    options.jobs = options_.jobs;
    options.quiet = options_.quiet;
    options.arguments = {"faultline", "selftest"};
    FAULTLINE_TRY(BisectOutcome outcome, run_bisect(options));
    report_.device = outcome.findings.environment["device"];
    report_.model = outcome.findings.environment["model"];
    report_.interrupted = report_.interrupted || outcome.exit_code == ExitCode::kInterrupted;
    return outcome;
  }

  const SelftestOptions& options_;
  const std::string folder_;
  const int64_t topk_;
  SelftestReport report_;
  std::map<std::string, size_t> at_;  // entries by plant
  int files_ = 0;
};

}  // namespace

std::string_view naming_name(Naming naming) {
  switch (naming) {
    case Naming::kRight:
      return "right";
    case Naming::kWrong:
      return "wrong";
    case Naming::kNone:
      break;
  }
  return "none";
}

void judge_naming(const Findings& findings, std::string_view culprit, std::string_view op, SelftestEntry& entry) {
  bool right = false;
  bool wrong = false;
  for (const Localized& one : findings.localized) {
    if (one.plant != entry.name) continue;
    if (one.culprit.empty()) {
      entry.explanation = one.explanation;
      continue;
    }
    const bool as_expected = !entry.expected.empty() && one.culprit == culprit && glob_matches(op, one.op);
    (as_expected ? right : wrong) = true;
    if (entry.named.empty() || !as_expected) entry.named = culprit_text(one.culprit, one.op);
  }
  entry.localized = wrong ? Naming::kWrong : right ? Naming::kRight : Naming::kNone;
  if (entry.localized != Naming::kNone) entry.explanation.clear();
  // "unsupported" is no failure: nobody is to be convicted.
  if (entry.expected.empty() && !wrong) entry.localized = Naming::kRight;
}

int64_t SelftestReport::found() const {
  return std::count_if(entries.begin(), entries.end(), [](const SelftestEntry& entry) { return entry.found; });
}

int64_t SelftestReport::named(Naming naming) const {
  return std::count_if(entries.begin(), entries.end(),
                       [naming](const SelftestEntry& entry) { return entry.localized == naming; });
}

bool SelftestReport::passed() const {
  return !interrupted && found() == static_cast<int64_t>(entries.size()) && named(Naming::kWrong) == 0 &&
         clean.alarms.empty();
}

Result<SelftestReport> run_selftest(const SelftestOptions& options) {
  const Stopwatch watch;
  SelftestOptions settled = options;
  FAULTLINE_TRY(settled.device, usable_device(options.device));
  FAULTLINE_TRY(const Checkpoint checkpoint, open_checkpoint(settled.model));
  FAULTLINE_TRY(const Facilities has, facilities_of(checkpoint, settled.device != "cpu"));

  std::vector<const PlantInfo*> chosen;
  std::vector<std::string> left_out;
  std::set<std::pair<std::string, std::string>> seen;  // class and culprit
  bool matched = settled.only.empty();
  for (const PlantInfo& info : plant_catalogue()) {
    if (!settled.only.empty() && !glob_matches(settled.only, info.name)) continue;
    matched = true;
    const std::string missing = missing_for(info, has);
    if (!missing.empty()) {
      left_out.push_back(fmt::format("{}: {}", info.name, missing));
      continue;
    }
    if (settled.quick && !seen.insert({info.fault_class, info.culprit}).second) continue;
    chosen.push_back(&info);
  }
  if (!matched) return bad_input("--only '{}' matches no planted fault; `selftest --list` names them", settled.only);

  FAULTLINE_TRY(const WorkFolder folder, WorkFolder::make(settled.out));
  Selftest selftest(settled, folder.path(), checkpoint.config().index_topk);
  FAULTLINE_TRY_STATUS(selftest.plants(chosen));
  if (settled.only.empty()) FAULTLINE_TRY_STATUS(selftest.clean());
  SelftestReport report = std::move(selftest).report();
  report.left_out = std::move(left_out);
  report.seconds = watch.seconds();
  return report;
}

}  // namespace faultline
