// The values of synthetic tensors (see synth.h for what they are meant to show).
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "base/codec.h"
#include "base/cpus.h"
#include "base/rng.h"
#include "model/synth.h"
#include "model/synth_simd.h"

namespace faultline {
namespace {

constexpr float kAttentionGain = 2.5f;  // of q_b_proj: q·k / sqrt(d) has this standard deviation
constexpr float kNormSpread = 0.1f;
constexpr float kRouterBiasMiddle = 6.94f;
constexpr float kRouterBiasReach = 0.123f;
constexpr float kGlobalScaleReach = 0.15f;  // of weight_scale_2, around the value that keeps the variance
constexpr float kInputScaleReach = 0.1f;
constexpr float kNvfp4Range = 6.0f * 448.0f;
// Largest activation seen over some thousand tokens: of a normed row, and of silu(gate) * up.
constexpr float kNormedAmax = 6.0f;
constexpr float kSwigluAmax = 10.0f;

// Root mean square of a value before the global scale: uniform e2m1 codes times uniform block scale codes. (Uniform
// codes are what a normal distribution of 2.9 code units rounds to: each magnitude is as likely as the next.)
double rms_before_global() {
  double code_squares = 0;
  for (uint8_t code = 0; code < 8; ++code) code_squares += std::pow(e2m1_to_float(code), 2);
  double scale_squares = 0;
  for (const uint8_t code : kBlockScaleCodes) scale_squares += std::pow(e4m3_to_float(code), 2);
  return std::sqrt(code_squares / 8 * scale_squares / kBlockScaleCodes.size());
}

// Columns of a quantized projection, from its name alone: scalars have no shape to tell it.
int64_t columns_of(const ModelConfig& c, std::string_view name) {
  if (name.find(".down_proj.") == std::string_view::npos) return c.hidden_size;
  if (name.find(".experts.") != std::string_view::npos) return c.moe_intermediate_size;
  if (name.find(".shared_experts.") != std::string_view::npos) return c.moe_intermediate_size * c.n_shared_experts;
  return c.intermediate_size;
}

float around_one(const CounterRng& rng, float reach) {
  return 1.0f + reach * (2.0f * rng.uniform(0) - 1.0f);
}

float scalar_value(const SynthModel& model, const std::string& name, const CounterRng& rng) {
  if (name.ends_with(".input_scale")) {
    const float amax = name.find(".down_proj.") != std::string::npos ? kSwigluAmax : kNormedAmax;
    return amax * around_one(rng, kInputScaleReach) / kNvfp4Range;
  }
  const auto columns = static_cast<double>(columns_of(model.config, name));
  return static_cast<float>(1.0 / (std::sqrt(columns) * rms_before_global())) * around_one(rng, kGlobalScaleReach);
}

// A part of a tensor that begins and ends in units of `unit` bytes: `fill(first unit, units, to)` makes whole units;
// the last one may be cut.
template <class Fill>
void fill_units(uint64_t unit, uint64_t first, std::span<std::byte> out, const Fill& fill) {
  const uint64_t whole = out.size() / unit;
  auto* to = reinterpret_cast<uint8_t*>(out.data());
  fill(first / unit, whole, to);
  const uint64_t rest = out.size() - whole * unit;
  if (rest == 0) return;
  std::array<uint8_t, kSynthGrain> last;
  fill(first / unit + whole, uint64_t{1}, last.data());
  std::memcpy(to + whole * unit, last.data(), rest);
}

void fill_codes(const CounterRng& rng, uint64_t first, std::span<std::byte> out) {
  constexpr uint64_t kBlockBytes = 8;
  fill_units(kBlockBytes, first, out,
             [&](uint64_t block, uint64_t blocks, uint8_t* to) { synth_code_blocks(rng.key(), block, blocks, to); });
}

void fill_block_scales(const CounterRng& rng, uint64_t first, std::span<std::byte> out) {
  fill_units(kBlockScaleCodes.size(), first, out,
             [&](uint64_t group, uint64_t groups, uint8_t* to) { synth_scale_groups(rng.key(), group, groups, to); });
}

struct Affine {
  float middle = 0;
  float spread = 1;
};

Affine plain_values(const SafetensorsEntry& tensor) {
  const std::string& name = tensor.name;
  if (name.ends_with("norm.weight")) return {1.0f, kNormSpread};
  if (name.ends_with("norm.bias")) return {0.0f, kNormSpread};
  if (name.ends_with("embed_tokens.weight")) return {0.0f, 1.0f};
  const float gain = name.ends_with(".q_b_proj.weight") ? kAttentionGain : 1.0f;
  return {0.0f, gain / std::sqrt(static_cast<float>(tensor.shape[1]))};
}

void fill_bf16(const CounterRng& rng, Affine values, uint64_t first, std::span<std::byte> out) {
  const uint64_t begin = first / sizeof(Bf16);
  if (values.middle == 0) {
    synth_normals(rng.key(), begin, out.size() / sizeof(Bf16), values.spread, reinterpret_cast<uint16_t*>(out.data()));
    return;
  }
  for (uint64_t i = 0; i < out.size() / sizeof(Bf16); ++i) {
    const Bf16 value = to_bf16(values.middle + values.spread * rng.normal(begin + i));
    std::memcpy(out.data() + i * sizeof(Bf16), &value, sizeof value);
  }
}

void fill_router_bias(const CounterRng& rng, uint64_t first, std::span<std::byte> out) {
  const uint64_t begin = first / sizeof(float);
  for (uint64_t i = 0; i < out.size() / sizeof(float); ++i) {
    const float value = kRouterBiasMiddle + kRouterBiasReach * (2.0f * rng.uniform(begin + i) - 1.0f);
    std::memcpy(out.data() + i * sizeof(float), &value, sizeof value);
  }
}

// The part of the zero row that lies in [first, first + out.size()).
void clear_zero_row(const SynthModel& model, uint64_t first, std::span<std::byte> out) {
  const auto row_bytes = static_cast<uint64_t>(model.config.hidden_size) * sizeof(Bf16);
  const uint64_t row_begin = static_cast<uint64_t>(model.zero_row) * row_bytes;
  const uint64_t begin = std::max(row_begin, first);
  const uint64_t end = std::min(row_begin + row_bytes, first + out.size());
  if (begin < end) std::memset(out.data() + (begin - first), 0, end - begin);
}

}  // namespace

void generate(const SynthModel& model, const SafetensorsEntry& tensor, uint64_t first, std::span<std::byte> out) {
  FAULTLINE_CHECK(first % kSynthGrain == 0);
  const CounterRng rng(model.seed, tensor.name);
  switch (tensor.dtype) {
    case Dtype::kU8:
      return fill_codes(rng, first, out);
    case Dtype::kF8E4M3:
      return fill_block_scales(rng, first, out);
    case Dtype::kF32: {
      if (tensor.rank == 1) return fill_router_bias(rng, first, out);
      const float value = scalar_value(model, tensor.name, rng);
      std::memcpy(out.data(), &value, sizeof value);
      return;
    }
    case Dtype::kBF16:
      fill_bf16(rng, plain_values(tensor), first, out);
      if (model.zero_row >= 0 && tensor.name == "model.embed_tokens.weight") clear_zero_row(model, first, out);
      return;
    case Dtype::kF16:
    case Dtype::kI32:
    case Dtype::kI64:
      break;
  }
  check_failed("synthetic models have no such dtype", __FILE__, __LINE__);
}

SynthRecipe synth_recipe(const SynthModel& model, const SafetensorsEntry& tensor) {
  using Kind = SynthRecipe::Kind;
  SynthRecipe recipe{Kind::kOther, CounterRng(model.seed, tensor.name).key(), 0};
  if (tensor.dtype == Dtype::kU8) recipe.kind = Kind::kCodes;
  if (tensor.dtype == Dtype::kF8E4M3) recipe.kind = Kind::kBlockScales;
  if (tensor.dtype != Dtype::kBF16) return recipe;
  const Affine values = plain_values(tensor);
  const bool zero_row = model.zero_row >= 0 && tensor.name == "model.embed_tokens.weight";
  if (values.middle != 0 || zero_row) return recipe;
  recipe.kind = Kind::kNormals;
  recipe.spread = values.spread;
  return recipe;
}

void generate_all(const SynthModel& model, const std::vector<SafetensorsEntry>& tensors, std::byte* file) {
  constexpr uint64_t kPiece = uint64_t{4} << 20;
  static_assert(kPiece % kSynthGrain == 0);
  constexpr size_t kPiecesWorthAThread = 8;
  struct Piece {
    const SafetensorsEntry* tensor;
    uint64_t first;
  };
  std::vector<Piece> pieces;
  for (const SafetensorsEntry& tensor : tensors)
    for (uint64_t first = 0; first < tensor.bytes(); first += kPiece) pieces.push_back({&tensor, first});
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < pieces.size(); i = next++) {
      const auto& [tensor, first] = pieces[i];
      const uint64_t bytes = std::min(kPiece, tensor->bytes() - first);
      generate(model, *tensor, first, {file + tensor->begin + first, bytes});
    }
  };
  uint64_t total = 0;
  for (const SafetensorsEntry& tensor : tensors) total += tensor.bytes();
  const size_t worth = total / (kPiece * kPiecesWorthAThread);
  const size_t threads = std::min<size_t>(worth, static_cast<size_t>(usable_cpus()));
  std::vector<std::thread> others;
  for (size_t i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
}

}  // namespace faultline
