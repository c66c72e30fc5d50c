#include "cli/hold.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "bisect/held_weights.h"
#include "cli/failure.h"
#include "device/slabs.h"
#include "model/synth.h"

namespace faultline {
namespace {

constexpr std::string_view kAll = "all";

struct Options {
  std::string model;
  std::string device = "cuda";
  bool list = false;
  bool release = false;
  bool quiet = false;
  std::string json;
};

Result<std::vector<HeldModel>> everything_held() {
  std::vector<std::string> notes;
  auto held = list_all_held(notes);
  for (const std::string& note : notes) fmt::print(stderr, "faultline: {}\n", note);
  return held;
}

std::string describe(const WeightsManifest& manifest) {
  return fmt::format("{}: {} on {} ({})", manifest.path, bytes_text(manifest.bytes), manifest.device,
                     manifest.device_name);
}

// Whether later commands will use it.
std::string checkpoint_state(const WeightsManifest& manifest) {
  if (manifest.path.starts_with(kSynthPrefix)) return "unchanged";  // made from its name
  const auto checkpoint = Checkpoint::open(manifest.path);
  if (!checkpoint) return "gone: " + checkpoint.error().message;
  const auto changed = what_changed(manifest, *checkpoint);
  if (!changed) return "gone: " + changed.error().message;
  return changed->empty() ? "unchanged" : "changed: " + *changed;
}

Status list(const Options& options) {
  FAULTLINE_TRY(const std::vector<HeldModel> held, everything_held());
  nlohmann::json rows = nlohmann::json::array();
  std::string text;
  for (const HeldModel& model : held) {
    const WeightsManifest& m = model.manifest;
    const std::string state = checkpoint_state(m);
    text += fmt::format("{}\n  since {}, by process {}; checkpoint {}\n", describe(m), m.loaded, model.pid, state);
    rows.push_back({{"model", m.path},
                    {"bytes", m.bytes},
                    {"device", m.device},
                    {"device_name", m.device_name},
                    {"device_uuid", m.device_uuid},
                    {"layout", m.layout},
                    {"since", m.loaded},
                    {"pid", model.pid},
                    {"checkpoint", state}});
  }
  if (options.json == "-") {
    fmt::print("{}\n", dump_json(rows, 2));
    return {};
  }
  if (!options.json.empty()) FAULTLINE_TRY_STATUS(write_file(options.json, dump_json(rows, 2) + "\n"));
  if (held.empty()) text = "nothing is held\n";
  fmt::print("{}", text);
  return {};
}

Status release(const Options& options) {
  FAULTLINE_TRY(const std::vector<HeldModel> held, everything_held());
  std::vector<const HeldModel*> chosen;
  if (options.model.empty() && held.size() > 1)
    return bad_input("{} models are held: name one of them (`faultline hold --list`), or 'all'", held.size());
  // A folder that is gone has no canonical path any more: its name as it was held will do.
  const auto path =
      options.model.empty() || options.model == kAll ? Result<std::string>("") : model_path(options.model);
  for (const HeldModel& model : held)
    if (options.model.empty() || options.model == kAll || model.manifest.path == options.model ||
        (path && model.manifest.path == *path))
      chosen.push_back(&model);
  if (chosen.empty() && !options.model.empty() && options.model != kAll)
    return bad_input("{} is not held; `faultline hold --list` shows what is", options.model);
  if (chosen.empty()) fmt::print("nothing is held\n");
  for (const HeldModel* model : chosen) {
    FAULTLINE_TRY_STATUS(release_held(*model));
    fmt::print("released {}\n", describe(model->manifest));
  }
  return {};
}

Status hold(const Options& options) {
  std::string device = options.device;
  std::string uuid(kMemorySlabs);
  if (device != kMemorySlabs) {
    FAULTLINE_TRY(const int ordinal, cuda_ordinal(options.device));
    FAULTLINE_TRY(uuid, cuda_device_uuid(ordinal));
    device = fmt::format("cuda:{}", ordinal);
  }
  FAULTLINE_TRY(const std::string directory, keeper_directory());
  FAULTLINE_TRY(const Checkpoint checkpoint, open_checkpoint(options.model));
  if (checkpoint.on_demand() != nullptr)
    return cannot_run("{}: its weights are made when they are used; there is nothing to hold", options.model);
  FAULTLINE_TRY(const HeldState state, find_held(checkpoint, uuid));
  if (state.held && state.changed.empty()) {
    fmt::print("already held, by process {} since {}: {}\n", state.held->pid, state.held->manifest.loaded,
               describe(state.held->manifest));
    return {};
  }
  if (state.held) {
    fmt::print(stderr, "faultline: {} has changed since it was held: {}; it is loaded anew\n", options.model,
               state.changed);
    FAULTLINE_TRY_STATUS(release_held(*state.held));
  }
  FAULTLINE_TRY(LoadedWeights loaded, load_weights_apart(checkpoint, device, options.quiet));
  std::vector<int> descriptors;
  if (checkpoint.spec().starts_with(kSynthPrefix)) {
    descriptors = checkpoint.descriptors();
    loaded.manifest.checkpoint = checkpoint.manifest();
    loaded.manifest.checkpoint_descriptors = descriptors.size();
  }
  for (const UniqueFd& fd : loaded.slabs) descriptors.push_back(fd.get());
  FAULTLINE_TRY(const pid_t pid, start_keeper(directory, loaded.manifest, descriptors));
  constexpr double kGB = 1e9;
  fmt::print("held by process {}: {}, loaded in {} ({:.1f} GB/s)\n", pid, describe(loaded.manifest),
             duration_text(loaded.manifest.load_seconds),
             static_cast<double>(loaded.manifest.bytes) / kGB / loaded.manifest.load_seconds);
  return {};
}

Status run(const Options& options) {
  if (!options.json.empty() && !options.list) return bad_input("hold: --json goes with --list");
  if (options.list && options.release) return bad_input("hold: --list or --release, not both");
  if (options.list && !options.model.empty()) return bad_input("hold: --list takes no model");
  if (options.list) return list(options);
  if (options.release) return release(options);
  if (options.model.empty()) return bad_input("hold: name a model, or --list, or --release");
  return hold(options);
}

}  // namespace

void add_hold_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "hold", "Keep a model's weights in GPU memory, so that later commands attach to them instead of loading");
  command->add_option("model", options->model, "checkpoint folder, or synth:NAME?key=value&…");
  command->add_option("--device", options->device, "which GPU: cuda, cuda:N")->capture_default_str();
  command->add_flag("--list", options->list, "what is held, and whether its checkpoint is still the same");
  command->add_flag("--release", options->release, "give the memory back: of MODEL, or of 'all'");
  command->add_option("--json", options->json, "with --list: as JSON to this file ('-': stdout)");
  command->add_flag("--quiet", options->quiet, "no status line");
  command->callback([options, &exit_code] {
    const Status status = run(*options);
    exit_code = status ? static_cast<int>(ExitCode::kGood) : fail(status.error());
  });
}

}  // namespace faultline
