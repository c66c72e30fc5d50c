// --residency, --gpu-memory and --host-memory, for the commands that load a model.
#pragma once

#include <string>

#include "base/error.h"
#include "base/json.h"
#include "model/residency.h"

namespace CLI {
class App;
}

namespace faultline {

struct ResidencyOptions {
  std::string residency = "auto";
  std::string gpu_memory;   // empty: what is free
  std::string host_memory;  // empty: what is free
};

void add_residency_options(CLI::App& command, ResidencyOptions& options);

// The plan for a model, before anything of it is loaded. GPU memory is that named, else what is free on the first GPU
// that can be used, else there is no GPU.
Result<ResidencyPlan> plan_for(const std::string& model, const ResidencyOptions& options, int64_t ranks);
nlohmann::json plan_json(const ResidencyPlan& plan);

SynthMemory::Mode synth_memory_mode(Residency residency);
// What they say of weights that this process makes itself. Bad input: a value that is none.
Result<SynthMemory> synth_memory(const ResidencyOptions& options);

}  // namespace faultline
