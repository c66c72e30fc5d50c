// The one table of tolerances: how far a kernel's output may lie from its spec reference, by op kind and by the dtype
// or format of the output. Each row says why. A comparison passes when abs(out - ref) <= atol + rtol * abs(ref); NaN
// fails.
//
// Units of the last place: bf16 stores 8 significant bits, so two values on both sides of one rounding boundary differ
// by at most 2^-7 of their size ("one step"); f32 by 2^-23; e4m3 by 2^-3.
#pragma once

#include <string_view>

#include "base/dtype.h"
#include "base/error.h"
#include "ops/formats.h"
#include "ops/op.h"

namespace faultline {

struct ToleranceRow {
  std::string_view kind;    // OpKind::name
  std::string_view output;  // "F32", "BF16" (dtype_name), or a cache's format_name; "*": whatever the output is
  Tolerance tolerance;
  std::string_view reason;
};

inline constexpr double kBf16Step = 0x1p-7;
inline constexpr double kF32Step = 0x1p-23;

inline constexpr ToleranceRow kTolerances[] = {
    // batch.cpp, embed.cpp, and what only copies or adds
    {"prepare", "*", {0, 0}, "integers"},
    {"embed", "*", {0, 0}, "a copy"},
    {"gather_rows", "*", {0, 0}, "a copy"},
    {"add", "*", {0, 0}, "one IEEE addition and one rounding: equal"},
    // linear.cpp, batched_linear.cpp, moe.cpp. A sum of K products in float is off by about sqrt(K) * 2^-24 of the
    // size s of its partial sums: 5e-6 s at K = 6144. Cancellation leaves that beside any output; s stays below 20.
    {"linear", "BF16", {2e-4, kBf16Step}, "one rounding to bf16 of a float sum in another order"},
    {"linear", "F32", {1e-4, 1e-5}, "a float sum in another order"},
    {"linear_w4a4", "BF16", {2e-4, kBf16Step}, "exact terms, a float sum in another order, one rounding to bf16"},
    {"linear_w4a4", "F32", {1e-4, 1e-5}, "exact terms, a float sum in another order"},
    {"batched_linear", "BF16", {2e-4, kBf16Step}, "one rounding to bf16 of a float sum in another order"},
    {"batched_linear", "F32", {1e-4, 1e-5}, "a float sum in another order"},
    {"expert_linear", "BF16", {2e-4, kBf16Step}, "one rounding to bf16 of a float sum in another order"},
    {"expert_linear", "F32", {1e-4, 1e-5}, "a float sum in another order"},
    {"expert_linear_w4a4", "BF16", {2e-4, kBf16Step}, "exact terms, a float sum in another order, one rounding"},
    {"expert_linear_w4a4", "F32", {1e-4, 1e-5}, "exact terms, a float sum in another order"},
    {"moe_permute", "*", {0, 0}, "integers"},
    {"moe_combine", "BF16", {1e-5, kBf16Step}, "a float sum of k terms that cancel, one rounding to bf16"},
    {"moe_combine", "F32", {1e-5, 16 * kF32Step}, "a float sum of k terms that cancel"},
    // quantize.cpp
    {"quantize_fp4", "*", {0, 0}, "the same IEEE operations in the same order: equal codes, equal scales"},
    {"quantize_fp4_experts", "*", {0, 0}, "the same IEEE operations in the same order: equal codes, equal scales"},
    {"round_fp8", "*", {0, 0}, "one rounding to e4m3, whose values bf16 and float hold: equal"},
    // elementwise.cpp
    {"silu_mul", "BF16", {1e-6, kBf16Step}, "one rounding to bf16 of a few float operations"},
    {"silu_mul", "F32", {1e-7, 16 * kF32Step}, "exp agrees to a few last bits, then three float operations"},
    // router.cpp: its weights, and of a chosen expert below the k-th best one
    {"router", "*", {1e-7, 32 * kF32Step}, "exp agrees to a few last bits, then a sum of k positive terms"},
    {"router_choice", "F32", {1e-6, 4 * kF32Step}, "a sigmoid's last bits, and those of adding a bias near 7"},
    // sampling.cpp
    {"softmax", "F32", {1e-9, 32 * kF32Step}, "exp agrees to a few last bits; sums in double"},
    {"sample", "*", {0, 0}, "cumulative sums in double decide alike"},
    {"argmax", "*", {0, 0}, "comparisons only"},
    // norm.cpp
    {"rmsnorm",
     "BF16",
     {1e-6, 2 * kBf16Step},
     "two roundings to bf16, each of which a last bit of the float mean can tip"},
    {"rmsnorm",
     "F32",
     {1e-7, 16 * kF32Step},
     "the mean of squares is a sum in another order, then four float operations"},
    {"layernorm", "BF16", {1e-5, kBf16Step}, "one rounding to bf16; x - mean cancels, so a small absolute part"},
    {"layernorm",
     "F32",
     {4e-6, 16 * kF32Step},
     "x - mean cancels: the error is a step of the mean, not of the difference"},
    // rope.cpp
    {"rope", "BF16", {1e-5, kBf16Step}, "one rounding to bf16; the sum of two products cancels"},
    {"rope", "F32", {2e-6, 8 * kF32Step}, "the sum of two products cancels; sines of equal angles agree to a last bit"},
    // hadamard.cpp
    {"hadamard", "BF16", {1e-5, kBf16Step}, "one rounding to bf16 of a float sum of both signs in another order"},
    {"hadamard", "F32", {1e-5, 16 * kF32Step}, "a float sum of both signs in another order"},
    // cache_write.cpp, cache_gather.cpp, cache_requantize.cpp
    {"cache_write", "*", {0, 2 * kF32Step}, "the same IEEE operations in the same order: equal codes, equal scales"},
    {"cache_gather", "*", {0, 2 * kF32Step}, "a code times its scale, one rounding: equal"},
    {"cache_requantize",
     "*",
     {0, 2 * kF32Step},
     "the same IEEE operations in the same order: equal codes, equal scales"},
    // index_scores.cpp
    {"index_scores", "F32", {2e-4, 1e-4}, "sums of heads x dim products in float, in another order, with both signs"},
    // topk.cpp: of a chosen score below the k-th best one, given the same scores
    {"topk", "I32", {0, 2 * kF32Step}, "both select on the same float scores; only equal ones may be exchanged"},
    // attention.cpp
    {"attention",
     "BF16",
     {2e-3, 2 * kBf16Step},
     "one rounding to bf16 of a float sum whose terms cancel; exp of a float score"},
    {"attention",
     "F32",
     {2e-4, 2e-4},
     "the error of a score of size 50 in float is 1e-5, and exp passes it on to every term"},
};

namespace detail {
inline Tolerance find_tolerance(std::string_view kind, std::string_view output) {
  for (const ToleranceRow& row : kTolerances)
    if (row.kind == kind && (row.output == output || row.output == "*")) return row.tolerance;
  FAULTLINE_CHECK(!"an op kind without a row in the table of tolerances");
  return {};
}
}  // namespace detail

// Aborts when the table has no row: a broken invariant.
inline Tolerance tolerance_for(std::string_view kind, Dtype output) {
  return detail::find_tolerance(kind, dtype_name(output));
}
inline Tolerance tolerance_for(std::string_view kind, Format output) {
  return detail::find_tolerance(kind, format_name(output));
}

}  // namespace faultline
