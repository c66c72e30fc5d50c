#include "cli/residency.h"

#include <CLI/CLI.hpp>

#include "base/memory.h"
#include "device/device.h"
#include "model/checkpoint.h"
#include "model/synth.h"

namespace faultline {

void add_residency_options(CLI::App& command, ResidencyOptions& options) {
  command
      .add_option("--residency", options.residency,
                  "where weights stay: auto, gpu, host, or stream (made or read at each use)")
      ->capture_default_str();
  command.add_option("--gpu-memory", options.gpu_memory,
                     "most of a GPU's memory to use, as 80GiB (default: what is free)");
  command.add_option("--host-memory", options.host_memory,
                     "most of the host's memory that weights may take, as 8GiB (default: a part of what is free)");
}

Result<ResidencyPlan> plan_for(const std::string& model, const ResidencyOptions& options, int64_t ranks) {
  ResidencyRequest request;
  FAULTLINE_TRY(request.residency, parse_residency(options.residency));
  request.ranks = ranks;
  request.synthetic = model.starts_with(kSynthPrefix);
  if (!options.gpu_memory.empty()) {
    FAULTLINE_TRY(request.gpu_bytes, parse_bytes(options.gpu_memory, "--gpu-memory"));
  } else if (const auto name = usable_device("auto"); name && *name != "cpu") {
    FAULTLINE_TRY(const auto device, make_device(*name));
    request.gpu_bytes = device->memory().free;
  }
  request.gpu = request.gpu_bytes > 0;
  if (options.host_memory.empty()) {
    request.host_bytes = request.synthetic ? default_synth_memory() : available_memory();
  } else {
    FAULTLINE_TRY(request.host_bytes, parse_bytes(options.host_memory, "--host-memory"));
  }

  std::vector<NamedBytes> tensors;
  if (request.synthetic) {
    FAULTLINE_TRY(const SynthModel synth, parse_synth_spec(model));
    std::vector<SafetensorsEntry> entries = synth_tensors(synth);
    lay_out(entries);
    for (const SafetensorsEntry& entry : entries) tensors.push_back({entry.name, entry.bytes()});
    return plan_residency(synth.config, tensors, request);
  }
  FAULTLINE_TRY(const Checkpoint checkpoint, Checkpoint::open(model));
  for (const StoredTensor& tensor : checkpoint.tensors())
    tensors.push_back({tensor.name, static_cast<uint64_t>(tensor.view.elements()) * dtype_bytes(tensor.view.dtype)});
  return plan_residency(checkpoint.config(), tensors, request);
}

nlohmann::json plan_json(const ResidencyPlan& plan) {
  nlohmann::json rows = nlohmann::json::array();
  for (const PlanRow& row : plan.rows)
    rows.push_back({{"weights", row.what},
                    {"tensors", row.tensors},
                    {"bytes_a_rank", row.bytes},
                    {"where", home_name(row.home)},
                    {"why", row.reason}});
  return {{"schema", 1},
          {"ranks", plan.request.ranks},
          {"gpu_memory", plan.request.gpu ? nlohmann::json(plan.request.gpu_bytes) : nlohmann::json(nullptr)},
          {"host_memory", plan.request.host_bytes},
          {"rows", rows},
          {"gpu_bytes", plan.gpu_bytes},
          {"host_bytes", plan.host_bytes},
          {"per_use_bytes", plan.per_use_bytes},
          {"buffer_bytes", plan.buffer_bytes},
          {"reserve_bytes", plan.reserve_bytes},
          {"decode_step_bytes", plan.step_bytes}};
}

SynthMemory::Mode synth_memory_mode(Residency residency) {
  if (residency == Residency::kHost) return SynthMemory::Mode::kWhole;
  return residency == Residency::kStream ? SynthMemory::Mode::kOnUse : SynthMemory::Mode::kAuto;
}

Result<SynthMemory> synth_memory(const ResidencyOptions& options) {
  SynthMemory memory;
  FAULTLINE_TRY(const Residency residency, parse_residency(options.residency));
  if (!options.host_memory.empty()) {
    FAULTLINE_TRY(memory.bytes, parse_bytes(options.host_memory, "--host-memory"));
  }
  memory.mode = synth_memory_mode(residency);
  return memory;
}

}  // namespace faultline
