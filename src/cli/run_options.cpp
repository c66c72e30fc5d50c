#include "cli/run_options.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <fstream>

#include "cli/residency.h"
#include "grid/secrets.h"

namespace faultline {

namespace {

int64_t repeats_of(const std::string& text) {
  if (text == "auto") return kAutoRepeats;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number < 1)
    throw CLI::ValidationError("--repeats", "a number from 1 up, or auto; not '" + text + "'");
  return number;
}

SynthMemory::Mode synth_mode(const std::string& text) {
  const auto residency = parse_residency(text);
  if (!residency) throw CLI::ValidationError(residency.error().message);
  if (*residency == Residency::kGpu)
    throw CLI::ValidationError("--residency", "gpu is for inspect --plan and forward; valid here: auto, host, stream");
  return synth_memory_mode(*residency);
}

uint64_t memory_of(const std::string& text) {
  const auto bytes = parse_bytes(text, "--host-memory");
  if (!bytes) throw CLI::ValidationError(bytes.error().message);
  return *bytes;
}

}  // namespace

void add_run_options(CLI::App& command, BisectOptions& options) {
  constexpr int64_t kBytesPerMiB = int64_t{1} << 20;
  constexpr int64_t kMostMiB = int64_t{1} << 24;  // 16384 GiB, as in an experiment
  command.add_option("--model", options.model, "checkpoint folder, or synth:NAME?key=value&…");
  command.add_option("--arch", options.arch, "target architecture: any, native, sm_90, sm_100, sm_120");
  command.add_option("--profile", options.profile, "whose rules resolve the flags");
  command.add_option("--checks", options.checks, "off, finite, full, reference");
  command.add_option("--strategy", options.strategy, "full, pairs, adaptive");
  command.add_option("--plant", options.plants, "a fault to plant, NAME[@selector]; may be repeated");
  command
      .add_option("--assume-fixed", options.assume_fixed,
                  "an op (mlp.experts.down_proj), kernel or backend (flashmla_kv) to take for mended: a reference "
                  "stands in its place in every run; may be repeated")
      ->allow_extra_args(false);
  command.add_flag(
      "--compare-outputs", options.compare_outputs,
      "hold rows that pass to the logits of the same run on references, and find the op where they differ");
  command.add_option_function<std::string>(
      "--repeats", [&options](const std::string& text) { options.repeats = repeats_of(text); },
      "runs of each configuration, or auto: as many as change what is concluded");
  command.add_option("--seed", options.seed, "of prompts, sampling and page order");
  command.add_option("--time-limit", options.time_limit, "seconds; the run then ends cleanly");
  command.add_option("--timeout", options.timeout, "seconds without progress after which a worker hangs");
  command
      .add_option_function<int64_t>(
          "--memory-limit", [&options](const int64_t& mib) { options.memory_limit = mib * kBytesPerMiB; },
          "MiB of private memory a worker may use")
      ->check(CLI::Range(int64_t{1}, kMostMiB));
  command.add_option("--jobs", options.jobs, "workers at once (0: one a core)")->check(CLI::Range(0, 1024));
  command.add_option("--device", options.device, "where kernels run: auto, cpu, cuda, cuda:N")->capture_default_str();
  command.add_option_function<std::string>(
      "--residency", [&options](const std::string& text) { options.synth_memory.mode = synth_mode(text); },
      "of synthetic weights: auto, host, or stream (each worker makes them when they are used)");
  command.add_option_function<std::string>(
      "--host-memory", [&options](const std::string& text) { options.synth_memory.bytes = memory_of(text); },
      "most of the host's memory that synthetic weights may take, as 8GiB");
  command.add_flag("--quiet", options.quiet, "no status line");
}

std::vector<std::string> process_arguments() {
  std::vector<std::string> arguments;
  std::ifstream in("/proc/self/cmdline", std::ios::binary);  // files there have no size
  std::string argument;
  while (std::getline(in, argument, '\0')) arguments.push_back(argument);
  // A server's line may hold keys, which are for no record.
  constexpr std::string_view kLine = "--server-args";
  const std::string joined = std::string(kLine) + "=";
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == kLine && i + 1 < arguments.size()) arguments[i + 1] = redacted_line(arguments[i + 1]);
    if (arguments[i].starts_with(joined)) arguments[i] = joined + redacted_line(arguments[i].substr(joined.size()));
  }
  return arguments;
}

}  // namespace faultline
