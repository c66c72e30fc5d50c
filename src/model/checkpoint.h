// A checkpoint: its config and its tensors, mapped read-only, never copied.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/tensor.h"
#include "model/config.h"
#include "model/on_demand.h"
#include "model/quant_config.h"

namespace faultline {

// How one projection is stored.
enum class Precision : uint8_t {
  kBf16,
  kF16,
  kF32,
  kFp8Tensor,  // e4m3, one fp32 scale
  kFp8Block,   // e4m3, fp32 scale per 128x128 block
  kNvfp4,      // e2m1 pairs, e4m3 scale per 16 columns, two fp32 scalars
};
std::string_view precision_name(Precision precision);  // "BF16", "F16", "F32", "FP8", "FP8-128x128", "NVFP4"

inline constexpr int64_t kNvfp4BlockSize = 16;
inline constexpr int64_t kFp8BlockSize = 128;

// One projection as stored; y = x · Wᵀ. Views are mapped, read-only memory; `data == nullptr` where absent.
//
//   precision    weight                      block_scale                                global_scale   input_scale
//   Bf16/F16/F32 [out, in]                   -                                          -              -
//   Fp8Tensor    [out, in] F8_E4M3           F32 scalar (weight_scale)                  -              F32 scalar or -
//   Fp8Block     [out, in] F8_E4M3           F32 [ceil(out/128), ceil(in/128)]          -              F32 scalar or -
//                                            (weight_scale_inv or weight_scale)
//   Nvfp4        [out, in/2] U8, low nibble  F8_E4M3 [out, in/16] (weight_scale)        F32 scalar     F32 scalar or -
//                = even column                                                          (weight_scale_2)
//
// Scales multiply: w = e4m3 · scale; w = e2m1 · block_scale · global_scale.
struct LinearWeight {
  Precision precision = Precision::kBf16;
  int64_t out_features = 0;
  int64_t in_features = 0;
  TensorView weight;
  TensorView block_scale;
  TensorView global_scale;
  TensorView input_scale;
  std::string name;  // "model.layers.0.mlp.gate_proj"
};

// Row `row` of a projection, dequantized to `in_features` floats.
void dequantize_row(const LinearWeight& weight, int64_t row, float* out);

// A tensor of a checkpoint and the file it is in (of weights made on use: none).
struct StoredTensor {
  std::string name;
  TensorView view;
  size_t file = 0;     // descriptors()[file + 1]
  uint64_t begin = 0;  // bytes from the start of the file
};

// Whether synthetic weights are all made when a checkpoint is opened, or each when it is used.
struct SynthMemory {
  enum class Mode : uint8_t {
    kAuto,   // on use where they are larger than `bytes`
    kWhole,  // at once; cannot-run when they do not fit
    kOnUse,
  };
  Mode mode = Mode::kAuto;
  uint64_t bytes = 0;  // that weights may take; 0: a quarter of the memory that is free (all of it for kWhole)
};

// What SynthMemory::bytes is where it is 0 and weights are made on use.
uint64_t default_synth_memory();

// Movable; owns the mappings, so every view dies with it.
class Checkpoint {
 public:
  // A folder with config.json and safetensors (single or sharded), or "synth:NAME?key=value&…" (model/synth.h), made in
  // memory. Bad input when anything about the files is wrong (all of it is listed by inspect); missing tensors are
  // found by linear() and by inspect. Tensors of MTP layers are left out.
  static Result<Checkpoint> open(const std::string& spec, const SynthMemory& memory = {});

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const ModelConfig& config() const;
  const std::optional<QuantConfig>& quantization() const;  // what the metadata says; nothing in an attached checkpoint
  // nullptr when absent. Names as in the files ("model.layers.0.mlp.gate_proj.weight").
  const TensorView* find(std::string_view tensor_name) const;
  // The projection `module` ("model.layers.0.mlp.gate_proj"). Precision is decided from what is in the file: dtype and
  // sibling scales. Bad input when the weight is missing or its scales do not fit it.
  Result<LinearWeight> linear(std::string_view module) const;
  const std::vector<StoredTensor>& tensors() const;
  int64_t mtp_tensors() const;  // how many were left out
  // Who makes the weights when they are used; null: they are all there. Before a view's bytes are read, it must have
  // been asked for them (OnDemandWeights::need).
  OnDemandWeights* on_demand() const;
  std::string spec() const;

  // Sharing with another process without reading anything again: the descriptors to pass on (owned by this object, and
  // close-on-exec), and what attach() needs besides: a short text. attach() maps the same memory; it takes no
  // ownership, and the descriptors may be closed afterwards. Internal error when they are not those of the manifest.
  // Weights made on use have no descriptors: each process makes its own, within the same budget.
  std::vector<int> descriptors() const;
  std::string manifest() const;
  static Result<Checkpoint> attach(const std::string& manifest, const std::vector<int>& descriptors);
  // The same, keeping the descriptors, so that it can be passed on in its turn (descriptors()).
  static Result<Checkpoint> adopt(const std::string& manifest, std::vector<UniqueFd> descriptors);

  // Stable text: spec, sizes, header hash. Equal identities: the same checkpoint (journals, capsules).
  std::string identity() const;

 private:
  struct State;
  static Result<Checkpoint> open_folder(const std::string& folder);
  static Result<Checkpoint> open_synth(const std::string& spec, const SynthMemory& memory);
  explicit Checkpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace faultline
