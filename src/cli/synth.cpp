#include "cli/synth.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/status_line.h"
#include "base/text.h"
#include "model/synth_write.h"

namespace faultline {
namespace {

constexpr int kMiB = 1 << 20;

struct Options {
  std::string name;
  std::string out;
  std::vector<std::string> settings;
  int64_t shards = 0;
};

Result<SynthModel> parse_model(const Options& options) {
  SynthSettings settings;
  for (const std::string& item : options.settings) {
    const size_t equals = item.find('=');
    if (equals == std::string::npos || equals == 0) return bad_input("--set {}: must be key=value", quotable(item));
    settings.emplace_back(item.substr(0, equals), item.substr(equals + 1));
  }
  if (!options.name.starts_with(kSynthPrefix)) return make_synth(options.name, settings);
  if (!settings.empty()) return bad_input("give the settings in {} or by --set, not both", options.name);
  return parse_synth_spec(options.name);
}

int run(const Options& options) {
  const InterruptGuard guard;
  const Result<SynthModel> model = parse_model(options);
  StatusLine status;
  const SynthProgress progress = [&](uint64_t done, uint64_t total) {
    constexpr uint64_t kWorthWaitingFor = 64;
    const uint64_t all = total / kMiB;
    if (all >= kWorthWaitingFor) status.update({static_cast<int>(done / kMiB), static_cast<int>(all)}, "MiB written");
    return InterruptGuard::signal() == 0;
  };
  const Result<SynthFolder> written =
      model ? write_synth(*model, options.out, options.shards, progress) : tl::make_unexpected(model.error());
  status.finish();
  if (!written) {
    fmt::print(stderr, "faultline synth: {}\n", written.error().message);
    if (InterruptGuard::signal() != 0) return static_cast<int>(ExitCode::kInterrupted);
    return static_cast<int>(written.error().kind == ErrorKind::kInternal ? ExitCode::kInternal : ExitCode::kBadInput);
  }
  fmt::print("{}: {} tensors in {} shard(s), {:.1f} MiB ({})\n", options.out, written->tensors, written->shards,
             static_cast<double>(written->bytes) / kMiB, model->spec);
  return static_cast<int>(ExitCode::kGood);
}

}  // namespace

void add_synth_command(CLI::App& app, int& exit_code) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("synth", "Write a checkpoint of any size with random weights");
  command->add_option("name", options->name, fmt::format("the shape: {}", fmt::join(synth_names(), ", ")))
      ->required()
      ->type_name("NAME");
  command->add_option("--out", options->out, "the folder to make; it must not exist, or be empty")
      ->required()
      ->type_name("DIR");
  command
      ->add_option("--set", options->settings,
                   "a config field, seed, zero_row or dense_fp4; may be given several times")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->add_option("--shards", options->shards, "how many files (default: one a 5 GiB)")
      ->check(CLI::Range(1, 100000));
  command->callback([options, &exit_code] { exit_code = run(*options); });
  command->footer(
      "The same models need no folder: synth:NAME?key=value&… stands for one wherever a model is asked for.");
}

}  // namespace faultline
