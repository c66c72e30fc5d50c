// Random GLM-5 checkpoints: any shape, deterministic in (seed, tensor name), any tensor or part of one without the
// rest.
//
// The layout is that of a ModelOpt NVFP4 export (nvidia/GLM-5-NVFP4): experts, and with dense_fp4 also the dense MLP
// and the shared experts, as .weight U8, .weight_scale F8_E4M3, .weight_scale_2 and .input_scale F32; everything else
// BF16; the router's e_score_correction_bias F32. The values are such that faults show:
//   q_b_proj       scaled up so that attention scores have a standard deviation near 2.5: few keys carry each row
//   e_score_…bias  6.94 ± 0.123 as measured on GLM-5.2 (facts of sglang PR 37133: [6.817, 7.063]), against sigmoid
//   scores
//                  whose spread is near 0.2: expert usage is neither uniform nor collapsed
//   block scales   drawn from codes with a non-zero mantissa: none is a power of two
//   global scales  differ between gate and up of one expert
//   input_scale    amax / (6 * 448) of typical activations, different for each module
//   norms          1 ± 0.1; embeddings have unit variance, and no zero row unless zero_row asks for one
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "model/config.h"
#include "model/safetensors.h"

namespace faultline {

inline constexpr std::string_view kSynthPrefix = "synth:";

struct SynthModel {
  std::string spec;  // "synth:tiny?num_hidden_layers=2&seed=3": canonical, settings sorted
  ModelConfig config;
  std::string config_text;  // config.json
  uint64_t seed = 1;
  int64_t zero_row = -1;  // the embedding row that is all zero; -1: none
  bool dense_fp4 = true;  // dense MLP and shared experts in NVFP4, as in nvidia/GLM-5-NVFP4
};

using SynthSettings = std::vector<std::pair<std::string, std::string>>;

std::vector<std::string> synth_names();  // "tiny", "slim", …
std::vector<std::string> synth_keys();   // every setting, sorted

// Bad input: an unknown name or key (with the nearest valid one), a key given twice, a value of the wrong type, a
// config that parse_model_config refuses, NVFP4 of a width that is no multiple of 16.
Result<SynthModel> make_synth(std::string_view name, const SynthSettings& settings);
// The same from "synth:NAME?key=value&…".
Result<SynthModel> parse_synth_spec(std::string_view spec);

// What there is to write: every tensor, sorted by name; begin and end are 0.
std::vector<SafetensorsEntry> synth_tensors(const SynthModel& model);

// Places tensors in a file behind their header, as safetensors does: wider dtypes first, then by name. Sets begin and
// end; returns the header's bytes.
std::string lay_out(std::vector<SafetensorsEntry>& entries);

// How the bytes of a tensor come from its stream (base/rng.h), for whoever makes them elsewhere (model/synth_simd.h,
// kernels/cuda_synth.h). kOther: small tensors, and embeddings with a zero row: generate() alone knows.
struct SynthRecipe {
  enum class Kind : uint8_t { kCodes, kBlockScales, kNormals, kOther };
  Kind kind = Kind::kOther;
  uint64_t key = 0;
  float spread = 0;  // kNormals
};
SynthRecipe synth_recipe(const SynthModel& model, const SafetensorsEntry& tensor);

// Writes bytes [first, first + out.size()) of a tensor. `first` is a multiple of kSynthGrain; so is the size, but for
// the end.
inline constexpr uint64_t kSynthGrain = 64;
void generate(const SynthModel& model, const SafetensorsEntry& tensor, uint64_t first, std::span<std::byte> out);
// All of them, each at file + its begin, on all usable cores where there is enough to do.
void generate_all(const SynthModel& model, const std::vector<SafetensorsEntry>& tensors, std::byte* file);

// hf_quant_config.json and model.safetensors.index.json.
std::string synth_quant_text(const SynthModel& model);

}  // namespace faultline
