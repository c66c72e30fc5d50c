#include "cli/forward.h"

#include <CLI/CLI.hpp>
#include <charconv>

#include "base/cpus.h"
#include "base/file.h"
#include "base/parallel.h"
#include "base/text.h"
#include "bisect/engine_config.h"
#include "bisect/held_weights.h"
#include "cli/failure.h"
#include "cli/residency.h"
#include "engine/device_weights.h"
#include "engine/forward.h"
#include "grid/axes.h"
#include "grid/resolve.h"
#include "grid/shape.h"
#include "model/safetensors.h"

namespace faultline {
namespace {

struct Options {
  std::string model;
  std::vector<std::string> tokens;
  int64_t decode = 0;
  std::vector<std::string> settings;
  std::string profile{kDefaultProfile};
  std::string arch = "any";
  std::string device = "auto";
  std::string out;
  ResidencyOptions residency;
  uint64_t seed = 7;
};

constexpr int64_t kMaxDecode = 100'000;

Result<std::vector<int32_t>> parse_ids(const std::string& text) {
  std::vector<int32_t> ids;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    if (*at == ',' || *at == ' ' || *at == '\n' || *at == '\t' || *at == '\r') {
      ++at;
      continue;
    }
    int32_t id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc{}) return bad_input("--tokens: '{}' is no list of token ids", text.substr(0, 40));
    ids.push_back(id);
    at = next;
  }
  if (ids.empty()) return bad_input("--tokens: no ids");
  return ids;
}

// A prompt's ids: 1,2,3 or @FILE.
Result<std::vector<int32_t>> prompt_of(const std::string& argument) {
  if (argument.empty() || argument.front() != '@') return parse_ids(argument);
  FAULTLINE_TRY(const std::string text, read_file(argument.substr(1)));
  return parse_ids(text);
}

Result<EngineConfig> configuration(const Options& options, const ModelConfig& model) {
  AxisValues axes;
  for (const std::string& setting : options.settings) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos) return bad_input("--set {}: write axis=value", setting);
    axes[setting.substr(0, equals)] = setting.substr(equals + 1);
  }
  FAULTLINE_TRY(axes, with_defaults(axes));
  const Profile* profile = find_profile(options.profile);
  if (profile == nullptr) return bad_input("no profile '{}'", options.profile);
  FAULTLINE_TRY(const Target target, find_target(options.arch));
  const Experiment none;
  const ResolvedConfiguration row = resolve(axes, *profile, target, shape_info(&model, none));
  if (!can_run(row, false)) return cannot_run("{}: {} [{}]", target_status_name(row.status), row.reason, row.source);
  if (row.status == TargetStatus::kLayout) fmt::print(stderr, "faultline: warning: {} [{}]\n", row.reason, row.source);
  for (const std::string& note : row.notes) fmt::print(stderr, "faultline: note: {}\n", note);
  return engine_config(row.resolved, CheckLevel::kFinite, options.seed, 0);
}

// One tensor of the output file.
class Output {
 public:
  void add(std::string name, Dtype dtype, std::vector<int64_t> shape, const void* data, size_t bytes) {
    SafetensorsEntry entry;
    entry.name = std::move(name);
    entry.dtype = dtype;
    entry.rank = static_cast<int>(shape.size());
    for (size_t i = 0; i < shape.size(); ++i) entry.shape[i] = shape[i];
    entry.begin = data_.size();
    entry.end = entry.begin + bytes;
    entries_.push_back(std::move(entry));
    data_.append(static_cast<const char*>(data), bytes);
  }
  void floats(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& values) {
    add(name, Dtype::kF32, std::move(shape), values.data(), values.size() * sizeof(float));
  }
  void integers(const std::string& name, std::vector<int64_t> shape, const std::vector<int32_t>& values) {
    add(name, Dtype::kI32, std::move(shape), values.data(), values.size() * sizeof(int32_t));
  }
  Status write(const std::string& path) const { return write_file(path, make_safetensors_header(entries_) + data_); }

 private:
  std::vector<SafetensorsEntry> entries_;
  std::string data_;
};

// Those that are held on the device, else a copy of this process's own.
Result<DeviceWeights> weights_on(Device& device, const Checkpoint& checkpoint, uint64_t gpu_bytes) {
  if (checkpoint.on_demand() != nullptr) return DeviceWeights::upload(device, checkpoint, gpu_bytes);
  FAULTLINE_TRY(const std::string uuid, device_uuid(device));
  std::string trouble;
  const std::optional<RunWeights> held = take_if_held(checkpoint, uuid, trouble);
  if (!trouble.empty()) fmt::print(stderr, "faultline: {}\n", trouble);
  if (!held) return DeviceWeights::upload(device, checkpoint);
  std::vector<int> slabs;
  for (const UniqueFd& fd : held->slabs) slabs.push_back(fd.get());
  return DeviceWeights::attach(device, checkpoint, to_text(held->manifest), slabs);
}

Status run(const Options& options) {
  if (options.decode < 0 || options.decode > kMaxDecode) return bad_input("--decode: 0 to {}", kMaxDecode);
  std::vector<std::vector<int32_t>> prompts;
  for (const std::string& argument : options.tokens) {
    FAULTLINE_TRY(auto ids, prompt_of(argument));
    prompts.push_back(std::move(ids));
  }
  set_parallel_threads(usable_cpus());
  FAULTLINE_TRY(const SynthMemory memory, synth_memory(options.residency));
  uint64_t gpu_bytes = 0;  // what is free
  if (!options.residency.gpu_memory.empty()) {
    FAULTLINE_TRY(gpu_bytes, parse_bytes(options.residency.gpu_memory, "--gpu-memory"));
  }
  FAULTLINE_TRY(const Checkpoint checkpoint, open_checkpoint(options.model, memory));
  FAULTLINE_TRY(const EngineConfig config, configuration(options, checkpoint.config()));
  FAULTLINE_TRY(const ModelWeights weights, load_weights(checkpoint));
  for (const auto& ids : prompts)
    for (const int32_t id : ids)
      if (id < 0 || id >= checkpoint.config().vocab_size)
        return bad_input("--tokens: id {} is outside the vocabulary of {}", id, checkpoint.config().vocab_size);
  FAULTLINE_TRY(const std::string name_of_device, usable_device(options.device));
  FAULTLINE_TRY(const auto device, make_device(name_of_device));
  if (options.residency.residency == "gpu" && !device->is_cuda())
    return cannot_run("--residency gpu: there is no GPU to be used; host and stream need none");
  HostMirror mirror(*device);
  std::optional<DeviceWeights> device_weights;
  std::optional<ModelWeights> on_device;
  if (device->is_cuda()) {
    FAULTLINE_TRY(device_weights, weights_on(*device, checkpoint, gpu_bytes));
    FAULTLINE_TRY(on_device, device_weights->to_device(weights));
    for (const DeviceWeights::Range& range : device_weights->ranges())
      mirror.add(range.device, range.bytes, range.host);
  }
  FAULTLINE_TRY(const auto results,
                run_forward(on_device ? *on_device : weights, config, prompts, options.decode, &mirror));
  if (const OnDemandWeights* made = checkpoint.on_demand(); made != nullptr && !device->is_cuda()) {
    const OnDemandWeights::Statistics statistics = made->statistics();
    fmt::print(stderr, "faultline: {} of weights made in {:.1f} s, through {} of memory\n",
               bytes_text(statistics.made_bytes), statistics.seconds, bytes_text(statistics.resident_bytes));
  }
  Output output;
  for (size_t i = 0; i < results.size(); ++i) {
    const ForwardResult& r = results[i];
    const std::string name = fmt::format("prompt{}.", i);
    const auto s = static_cast<int64_t>(r.input_ids.size());
    const auto n = static_cast<int64_t>(r.decode_tokens.size());
    output.integers(name + "input_ids", {s}, r.input_ids);
    output.floats(name + "prefill.logits", {s, r.vocab}, r.prefill_logits);
    output.floats(name + "prefill.hidden", {checkpoint.config().num_hidden_layers + 1, s, r.hidden}, r.prefill_hidden);
    for (const auto& [layer, topk] : r.topk)
      output.integers(fmt::format("{}prefill.topk.layer{}", name, layer), {s, r.topk_width}, topk);
    if (n == 0) continue;
    output.integers(name + "decode.tokens", {n}, r.decode_tokens);
    output.floats(name + "decode.logits", {n, r.vocab}, r.decode_logits);
  }
  FAULTLINE_TRY_STATUS(output.write(options.out));
  for (const ForwardResult& r : results) {
    std::string text;
    for (const int32_t token : r.decode_tokens) text += fmt::format(" {}", token);
    fmt::print("{} tokens in, decoded{}\n", r.input_ids.size(), text.empty() ? " nothing" : text);
  }
  return {};
}

}  // namespace

void add_forward_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("forward", "One prompt (or several, as one ragged batch) through one configuration, greedily");
  command->add_option("model", options->model, "checkpoint folder, or synth:NAME?key=value&…")->required();
  command->add_option("--tokens", options->tokens, "token ids 1,2,3 or @FILE; once a prompt")->required();
  command->add_option("--decode", options->decode, "tokens to decode after the prompt");
  command->add_option("--set", options->settings,
                      "axis=value (kernels=reference, kv_cache_dtype=f32, …); may be repeated");
  command->add_option("--profile", options->profile, "whose rules resolve the flags")->capture_default_str();
  command->add_option("--arch", options->arch, "target architecture")->capture_default_str();
  command->add_option("--device", options->device, "where kernels run: auto, cpu, cuda, cuda:N")->capture_default_str();
  add_residency_options(*command, options->residency);
  command->add_option("--seed", options->seed, "of the page order")->capture_default_str();
  command->add_option("--out", options->out, "safetensors file to write")->required();
  command->callback([options, &exit_code] {
    const Status status = run(*options);
    exit_code = status ? static_cast<int>(ExitCode::kGood) : fail(status.error());
  });
}

}  // namespace faultline
