#include "bisect/driver.h"

#include <sys/utsname.h>

#define XXH_INLINE_ALL  // the header alone, no library to link
#include <xxhash.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "bisect/assume_fixed.h"
#include "bisect/findings_of_run.h"
#include "bisect/held_weights.h"
#include "bisect/limit_search.h"
#include "bisect/line_experiment.h"
#include "bisect/plant.h"
#include "bisect/run_directory.h"
#include "bisect/search.h"
#include "bisect/search_run.h"
#include "device/device.h"
#include "grid/axes.h"
#include "grid/shape.h"
#include "model/synth.h"
#include "report/write.h"

namespace faultline {
namespace {

constexpr int64_t kPageSize = 64;
constexpr double kDefaultTimeoutSeconds = 60;
constexpr std::string_view kFlags = "command line";

Status apply_overrides(const BisectOptions& options, Experiment& experiment) {
  if (!options.model.empty()) experiment.model = options.model;
  if (!options.profile.empty()) experiment.profile = options.profile;
  if (!options.arch.empty()) experiment.arch = options.arch;
  if (!options.checks.empty()) experiment.checks = options.checks;
  if (!options.strategy.empty()) experiment.strategy = options.strategy;
  if (!options.plants.empty()) experiment.plant = options.plants;
  experiment.compare_outputs = experiment.compare_outputs || options.compare_outputs;
  experiment.assume_fixed.insert(experiment.assume_fixed.end(), options.assume_fixed.begin(),
                                 options.assume_fixed.end());
  if (options.repeats) experiment.repeats = *options.repeats;
  if (options.seed) experiment.seed = *options.seed;
  if (options.time_limit) experiment.time_limit = options.time_limit;
  if (options.timeout) experiment.timeout = options.timeout;
  if (options.memory_limit) experiment.memory_limit = options.memory_limit;
  // The file's own values were validated with their line; these come from flags.
  const auto checked = parse_experiment(write_experiment(experiment), kFlags, plant_names());
  if (!checked) {
    // "command line:27: …": the line of a text that nobody sees.
    Error error = checked.error();
    if (error.message.starts_with(kFlags)) {
      const size_t end = error.message.find_first_not_of("0123456789", kFlags.size() + 1);
      if (end != std::string::npos) error.message.erase(kFlags.size(), end - kFlags.size());
    }
    return tl::make_unexpected(std::move(error));
  }
  if (experiment.model.empty())
    return bad_input("no model: name one by --model DIR (or --model synth:tiny), or by 'model:' in the experiment");
  for (auto plant = experiment.plant.begin(); plant != experiment.plant.end(); ++plant) {
    FAULTLINE_TRY_STATUS(check_plant(*plant));
    if (std::find(experiment.plant.begin(), plant, *plant) != plant)
      return bad_input("plant '{}' is given twice", *plant);
  }
  return {};
}

std::map<std::string, std::string> environment_of(const Experiment& experiment, const Checkpoint& checkpoint,
                                                  const BisectOptions& options) {
  std::map<std::string, std::string> environment;
  environment["faultline"] = FAULTLINE_VERSION;
  environment["device"] = describe_device(options.device);
  environment["model"] = experiment.model;
  environment["checkpoint"] = checkpoint.identity();
  environment["profile"] = experiment.profile;
  environment["arch"] = experiment.arch;
  environment["checks"] = experiment.checks;
  environment["seed"] = std::to_string(experiment.seed);
  utsname machine{};
  if (uname(&machine) == 0)
    environment["system"] = fmt::format("{} {} {}", machine.sysname, machine.release, machine.machine);
  std::string line;
  for (const std::string& argument : options.arguments) line += (line.empty() ? "" : " ") + argument;
  environment["arguments"] = line;
  return environment;
}

std::string hash_text(const std::string& text) {
  return fmt::format("{:016x}", XXH64(text.data(), text.size(), 0));
}

// What screening found, and what the search and the conviction make of it.
struct Run {
  PreparedExperiment prepared;
  Grid grid;
  std::vector<ScreenRow> rows;  // that were screened, of all passes
  std::vector<Localized> localized;
  SearchResult search;
  SearchCoverage coverage;
};

Status execute(Run& run, Session& session, const RunDirectory& directory) {
  const PreparedExperiment& p = run.prepared;
  std::vector<GridPass> passes;
  passes.push_back({"", {}, {}});
  for (const std::string& plant : p.experiment.plant) passes.push_back({plant, {}, {}});
  for (GridPass& pass : passes) {
    FAULTLINE_TRY(pass.rows, screen_rows(p.experiment, run.grid.rows, *p.profile, p.target, p.shape, pass.plant));
  }
  FAULTLINE_TRY_STATUS(screen_passes(passes, p.experiment, session));
  std::vector<SearchRow> searched;
  for (const GridPass& pass : passes) {
    const std::vector<ScreenRow> outcomes = pass.outcomes();
    run.rows.insert(run.rows.end(), outcomes.begin(), outcomes.end());
    const std::vector<SearchRow> rows = search_rows(pass);
    searched.insert(searched.end(), rows.begin(), rows.end());
  }
  run.coverage = coverage_of(passes.front(), p.experiment.strategy);
  SearchOptions options;
  options.checks = p.experiment.checks;
  run.search = search(searched, options);
  FAULTLINE_TRY(run.localized, convict_all(suspicions_of(run.rows), session, directory.path()));
  return {};
}

// An id as the name of an experiment, which names a folder.
std::string case_name(std::string id) {
  for (char& c : id)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '_' && c != '.') c = '_';
  return id;
}

Status write_cases(const Run& run, const RunDirectory& directory) {
  FAULTLINE_TRY(const std::string folder, directory.subfolder("cases"));
  for (const ScreenRow& row : run.rows) {
    if (row.outcome.failures == 0) continue;
    Experiment one = run.prepared.experiment;
    one.name = case_name(row.id);
    one.axes.clear();
    one.rows.clear();
    one.server_args.clear();
    one.exclude.clear();
    one.strategy = "full";
    for (const auto& [axis, value] : row.grid.axes) one.axes.push_back({axis, {value}});
    one.plant.clear();
    if (!row.plant.empty()) one.plant.push_back(row.plant);
    FAULTLINE_TRY_STATUS(write_file(folder + "/" + row.id + ".yaml", write_experiment(one)));
  }
  return {};
}

// The environment is that of the run's first start, which a resumed run and a report written again share.
Result<BisectOutcome> finish(Run& run, const RunDirectory& directory, const Session& session) {
  BisectOutcome outcome;
  outcome.directory = directory.path();
  outcome.findings = findings_of_run(run.prepared, run.rows, run.localized, run.search);
  outcome.findings.run_directory = directory.path();
  outcome.findings.coverage = run.coverage;
  if (const std::string open = open_sentence(run.coverage); !open.empty())
    outcome.findings.next_experiments.push_back(open);
  outcome.findings.assume_fixed = run.prepared.experiment.assume_fixed;
  if (const std::string options = assume_fixed_options(run.localized); !options.empty())
    outcome.findings.next_experiments.insert(
        outcome.findings.next_experiments.begin(),
        fmt::format(
            "A run ends at its first broken contract, so what lies behind it in the rows that fail is not known. "
            "To see it, put a reference in its place: faultline bisect RUN/experiment.yaml{}, RUN being this "
            "run's folder.",
            options));
  FAULTLINE_TRY(const nlohmann::json record, directory.read_run_json());
  for (const auto& [key, value] : record.items())
    if (value.is_string()) outcome.findings.environment[key] = value.get<std::string>();
  if (outcome.findings.environment["device"] == "cpu")
    outcome.findings.limits.push_back(
        "Everything ran on the CPU: faults of a GPU's timing, memory model or compiler cannot show here.");
  else
    outcome.findings.limits.push_back(
        fmt::format("Everything ran on {}: faults that another architecture's code or limits cause cannot show here.",
                    outcome.findings.environment["device"]));
  outcome.findings.environment["worker runs"] = std::to_string(session.worker_runs());
  outcome.exit_code = session.interrupted() ? ExitCode::kInterrupted : exit_code_of(outcome.findings);
  outcome.findings.exit_code = static_cast<int>(outcome.exit_code);
  FAULTLINE_TRY_STATUS(write_cases(run, directory));
  FAULTLINE_TRY_STATUS(write_reports(outcome.findings, directory.path()));
  return outcome;
}

// `arch: native` becomes the GPU at hand, once and for all: the run's directory may be looked at elsewhere.
Status settle_native_arch(const BisectOptions& options, Experiment& experiment) {
  if (experiment.arch != "native") return {};
  FAULTLINE_TRY(const std::string device, usable_device(options.device));
  const int architecture = device_architecture(device);
  if (architecture != 0) experiment.arch = fmt::format("sm_{}", architecture);
  return {};
}

Result<PreparedExperiment> prepare(Experiment experiment, const BisectOptions& options) {
  PreparedExperiment prepared;
  FAULTLINE_TRY_STATUS(apply_overrides(options, experiment));
  FAULTLINE_TRY(const ModelConfig config, model_config(experiment.model));
  fill_probe_defaults(experiment.probes, kPageSize, config.index_topk, config.max_position_embeddings);
  if (experiment.probes.longest_context() > config.max_position_embeddings)
    return bad_input(
        "the probes reach {} tokens, the model's max_position_embeddings is {}: shorten prefill.lengths or "
        "decode.contexts",
        experiment.probes.longest_context(), config.max_position_embeddings);
  for (const std::string& plant : experiment.plant)
    FAULTLINE_TRY_STATUS(make_plant(plant, config).transform([](const auto&) {}));
  FAULTLINE_TRY_STATUS(settle_native_arch(options, experiment));
  prepared.profile = find_profile(experiment.profile);
  FAULTLINE_TRY(prepared.target, find_target(experiment.arch));
  prepared.shape = shape_info(&config, experiment);
  prepared.experiment = std::move(experiment);
  return prepared;
}

Status plants_fit(const Experiment& experiment, const std::string& device) {
  for (const std::string& plant : experiment.plant) FAULTLINE_TRY_STATUS(check_plant_device(plant, device != "cpu"));
  return {};
}

// Before anything runs: that each name of `assume_fixed` means something in some row.
Status check_assumptions(const PreparedExperiment& p, const Grid& grid, const Checkpoint& checkpoint) {
  if (p.experiment.assume_fixed.empty()) return {};
  std::vector<AxisValues> configurations;
  for (const GridRow& row : grid.rows) {
    const ResolvedConfiguration resolved = resolve(row.axes, *p.profile, p.target, p.shape);
    if (can_run(resolved, p.experiment.run_unsupported)) configurations.push_back(resolved.resolved);
  }
  FAULTLINE_TRY(const ModelWeights weights, load_weights(checkpoint));
  return check_assume_fixed(p.experiment.assume_fixed, configurations, weights);
}

// The tool's first error becomes part of what the run came to.
void fold_in(const SanitizerReport& report, const std::string& tool, ConfigurationResult& result) {
  if (!report.first) {
    if (!report.complete) result.notes.push_back(sanitizer_sentence(tool, report));
    return;
  }
  result.verdict = verdict_with_sanitizer(result.verdict, tool, report);
  result.reason += (result.reason.empty() ? "" : "; ") + sanitizer_sentence(tool, report);
  result.failures = std::max<int64_t>(result.failures, 1);
  if (!result.first_violation) return;
  result.first_violation->kind = result.verdict;
  result.first_violation->detail += "; " + sanitizer_sentence(tool, report);
}

SessionOptions session_options(const BisectOptions& options, const Experiment& experiment) {
  SessionOptions session;
  session.device = options.device;
  session.jobs = options.jobs;
  session.quiet = options.quiet;
  session.time_limit_s = experiment.time_limit.value_or(0);
  session.timeout_s = experiment.timeout.value_or(kDefaultTimeoutSeconds);
  session.memory_limit = static_cast<uint64_t>(experiment.memory_limit.value_or(0));
  return session;
}

// "cuda:0" of "cuda:0 NVIDIA H200 (sm_90), …": where the workers of a run ran, which is part of what its results are.
Result<std::string> device_of(const RunDirectory& directory) {
  FAULTLINE_TRY(const nlohmann::json record, directory.read_run_json());
  const auto device = record.find("device");
  if (device == record.end() || !device->is_string())
    return bad_input("{}: run.json there does not say on which device the run was", directory.path());
  const auto& text = device->get_ref<const std::string&>();
  return text.substr(0, text.find(' '));
}

}  // namespace

Result<ModelConfig> model_config(const std::string& spec) {
  if (spec.rfind(kSynthPrefix, 0) == 0) {
    FAULTLINE_TRY(SynthModel model, parse_synth_spec(spec));
    return std::move(model.config);
  }
  const std::string path = spec + "/config.json";
  FAULTLINE_TRY(const std::string text, read_file(path));
  return parse_model_config(text, path);
}

Result<PreparedExperiment> prepare_experiment(const BisectOptions& options) {
  if (options.server_args && options.resume.empty()) {
    Experiment target;
    target.arch = options.arch;
    FAULTLINE_TRY_STATUS(settle_native_arch(options, target));
    FAULTLINE_TRY(Experiment line, experiment_of_line({*options.server_args, options.model, options.profile,
                                                       target.arch, options.max_rows}));
    return prepare(std::move(line), options);
  }
  FAULTLINE_TRY(Experiment experiment, load_experiment(options.experiment, plant_names()));
  std::string& tokens = experiment.probes.tokens;
  if (tokens != "random" && tokens != "repeat") {
    // A file beside the experiment, else from where we are; absolute from here on, so that a case replays from
    // anywhere.
    const std::filesystem::path beside = std::filesystem::path(options.experiment).parent_path() / tokens;
    std::error_code error;
    tokens = std::filesystem::absolute(std::filesystem::exists(beside, error) ? beside : std::filesystem::path(tokens),
                                       error)
                 .string();
  }
  return prepare(std::move(experiment), options);
}

Result<BisectOutcome> run_bisect(const BisectOptions& given) {
  BisectOptions options = given;
  std::optional<RunDirectory> directory;
  if (!options.resume.empty()) {
    FAULTLINE_TRY(directory, RunDirectory::open(options.resume));
    if (options.device == kAnyDevice) {
      FAULTLINE_TRY(options.device, device_of(*directory));
    }
    options.experiment = directory->file("experiment.yaml");
  }
  FAULTLINE_TRY(options.device, usable_device(options.device));
  Run run;
  FAULTLINE_TRY(run.prepared, prepare_experiment(options));
  const Experiment& experiment = run.prepared.experiment;
  FAULTLINE_TRY_STATUS(plants_fit(experiment, options.device));
  FAULTLINE_TRY(run.grid, expand_grid(experiment));
  FAULTLINE_TRY(const Checkpoint checkpoint, open_checkpoint(experiment.model, options.synth_memory));
  FAULTLINE_TRY_STATUS(check_assumptions(run.prepared, run.grid, checkpoint));

  const std::string canonical = write_experiment(experiment);
  std::map<std::string, TaskResult> known;
  std::optional<Journal> journal;
  if (directory) {
    JournalContents contents;
    FAULTLINE_TRY(journal, Journal::resume(directory->journal_path(), contents));
    if (contents.header.experiment_hash != hash_text(canonical))
      return bad_input("{}: the experiment there is another one than these flags make of it; resume without them",
                       options.resume);
    if (contents.header.model != checkpoint.identity())
      return bad_input("{}: the checkpoint {} has changed since this run began; start a new run", options.resume,
                       experiment.model);
    for (const std::string& warning : contents.warnings) fmt::print(stderr, "faultline: {}\n", warning);
    FAULTLINE_TRY(known, results_in(contents.entries));
  } else {
    FAULTLINE_TRY(directory, RunDirectory::create(options.out, experiment.name));
    FAULTLINE_TRY_STATUS(write_file(directory->file("experiment.yaml"), canonical));
    JournalHeader header;
    header.run_id = directory->id();
    header.experiment_hash = hash_text(canonical);
    header.model = checkpoint.identity();
    header.arguments = options.arguments;
    header.started = utc_timestamp();
    // Before the journal: a run that has one has all that a resumed run needs.
    const nlohmann::json record = environment_of(experiment, checkpoint, options);
    FAULTLINE_TRY_STATUS(directory->write_run_json(record));
    FAULTLINE_TRY(journal, Journal::create(directory->journal_path(), header));
  }
  SessionOptions settings = session_options(options, experiment);
  settings.run_directory = directory->path();
  Session session(&checkpoint, std::move(settings), &*journal, std::move(known));
  FAULTLINE_TRY_STATUS(execute(run, session, *directory));
  return finish(run, *directory, session);
}

Result<BisectOutcome> rewrite_reports(const std::string& run_directory) {
  FAULTLINE_TRY(const RunDirectory directory, RunDirectory::open(run_directory));
  BisectOptions options;
  options.experiment = directory.file("experiment.yaml");
  FAULTLINE_TRY(options.device, device_of(directory));
  Run run;
  FAULTLINE_TRY(run.prepared, prepare_experiment(options));
  FAULTLINE_TRY(run.grid, expand_grid(run.prepared.experiment));
  FAULTLINE_TRY(const JournalContents contents, load_journal(directory.journal_path()));
  if (contents.header.experiment_hash != hash_text(write_experiment(run.prepared.experiment)))
    return bad_input("{}: experiment.yaml there is not the one that was run; put it back as it was", run_directory);
  FAULTLINE_TRY(auto known, results_in(contents.entries));
  Session session(nullptr, session_options(options, run.prepared.experiment), nullptr, std::move(known));
  FAULTLINE_TRY_STATUS(execute(run, session, directory));
  return finish(run, directory, session);
}

Result<ReplayOutcome> run_replay(const BisectOptions& given, const std::string& id) {
  BisectOptions options = given;
  FAULTLINE_TRY(options.device, usable_device(given.device));
  if (!options.sanitize.empty()) FAULTLINE_TRY_STATUS(check_sanitizer_tool(options.sanitize));
  FAULTLINE_TRY(const PreparedExperiment p, prepare_experiment(options));
  FAULTLINE_TRY(const Grid grid, expand_grid(p.experiment));
  std::vector<ScreenRow> rows;
  std::vector<std::string> plants = p.experiment.plant;
  if (plants.empty() || !id.empty()) plants.insert(plants.begin(), "");
  for (const std::string& plant : plants) {
    FAULTLINE_TRY(std::vector<ScreenRow> pass,
                  screen_rows(p.experiment, grid.rows, *p.profile, p.target, p.shape, plant));
    for (ScreenRow& row : pass)
      if (id.empty() || row.id == id) rows.push_back(std::move(row));
  }
  if (rows.size() != 1)
    return id.empty() ? bad_input("{} holds {} configurations; name one by --id", options.experiment, rows.size())
                      : bad_input("{} holds no configuration '{}'", options.experiment, id);
  // A case that needs a GPU is no bad case on a machine without one.
  if (!rows.front().plant.empty())
    if (const Status fits = check_plant_device(rows.front().plant, options.device != "cpu"); !fits)
      return cannot_run("{}", fits.error().message);
  ReplayOutcome outcome;
  if (rows.front().tasks.empty()) {
    FAULTLINE_TRY(const Checkpoint none, Checkpoint::open(p.experiment.model));
    Session session(&none, session_options(options, p.experiment), nullptr, {});
    FAULTLINE_TRY_STATUS(screen(rows, p.experiment, session, "replay"));
    outcome.result = rows.front().outcome;
    if (id.empty()) outcome.result.id = p.experiment.name;  // a case file is named after its row
    outcome.exit_code = ExitCode::kCannotRunHere;
    return outcome;
  }
  FAULTLINE_TRY(const Checkpoint checkpoint, open_checkpoint(p.experiment.model, options.synth_memory));
  FAULTLINE_TRY_STATUS(check_assumptions(p, grid, checkpoint));
  SessionOptions settings = session_options(options, p.experiment);
  std::optional<SanitizerRun> sanitizer;
  if (!options.sanitize.empty()) {
    FAULTLINE_TRY(SanitizerRun prepared, SanitizerRun::prepare(options.sanitize, options.device != "cpu"));
    settings.wrapper = prepared.command();
    if (!options.timeout) settings.timeout_s *= kSanitizerSlowdown;
    rows.front().tasks.resize(1);  // one log
    sanitizer.emplace(std::move(prepared));
  }
  Session session(&checkpoint, std::move(settings), nullptr, {});
  FAULTLINE_TRY_STATUS(screen(rows, p.experiment, session, "replay"));
  if (p.experiment.compare_outputs && !sanitizer) FAULTLINE_TRY_STATUS(compare_outputs(rows, session, "replay"));
  outcome.result = rows.front().outcome;
  if (id.empty()) outcome.result.id = p.experiment.name;  // a case file is named after its row
  if (sanitizer) {
    outcome.sanitizer = sanitizer->report();
    fold_in(*outcome.sanitizer, sanitizer->tool(), outcome.result);
  }
  if (session.interrupted())
    outcome.exit_code = ExitCode::kInterrupted;
  else if (outcome.result.verdict == "skipped" || outcome.result.verdict == "unsupported")
    outcome.exit_code = ExitCode::kCannotRunHere;
  else
    outcome.exit_code = outcome.result.failures > 0 ? ExitCode::kFailuresLocalized : ExitCode::kGood;
  return outcome;
}

}  // namespace faultline
