// Server profiles: the rules of one version of the server, as data with citations. The tables are in
// profile_sglang_*.cpp, one a version; resolve.cpp applies them.
//
// Sources are written "sglang VERSION path:line" (paths below python/sglang/srt/); VERSION is a tag or a commit of
// sgl-project/sglang: v0.5.9 = bbe9c7e, 93109cc = main of 2026-04-05, c863760 = main of 2026-08-18. A rule that was
// read in another version than the profile's says so by its VERSION (d69c39b = main of 2026-03-24). "FlashMLA 9804b12",
// "DeepGEMM 54e2261" and "flashinfer fb28d72" are the kernel libraries.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace faultline {

// Compute capability times ten. The rules below list the architectures that they are for; no list: all.
enum class Arch : uint8_t { kSm90 = 90, kSm100 = 100, kSm120 = 120 };
std::string_view arch_name(Arch arch);  // "sm_120"

// What the server would run on. Without rules (`arch: any`) no architecture refuses anything, and defaults are
// sm_100's.
struct Target {
  Arch arch = Arch::kSm100;
  bool rules = false;
  std::string name = "any";  // as resolved: "any", "sm_120"
  std::string note;          // what was assumed; empty: nothing
};
// "any", "native" (the GPU at hand; without one: any, with a note), "sm_90", "sm_100", "sm_120". Bad input: another
// name.
Result<Target> find_target(std::string_view name);
std::vector<std::string> target_names();

struct Cited {
  std::string text;
  std::string source;
};

struct FlagChoices {
  std::string axis;
  std::vector<std::string> values;
  std::string source;
};

struct ArchDefault {
  std::vector<Arch> archs;
  std::string value;
  std::string source;
};

struct NsaDefault {
  std::string kv_cache_dtype;
  std::vector<Arch> archs;
  std::string prefill;
  std::string decode;
  bool overwrites = false;  // the user's own choice is replaced too
  std::string source;
};

// A MoE runner that the experts of an NVFP4 checkpoint have no path of their own for: another takes its place, or the
// server stops, at its start or at the first forward pass.
struct RunnerRule {
  std::string runner;
  std::string runs_as;  // empty: refused
  bool at_start = false;
  Cited why;
};

struct Profile {
  std::string name;  // "sglang-0.5.9"
  std::vector<FlagChoices> choices;
  // The first entry whose list holds the target's architecture is the value of `auto`.
  std::vector<ArchDefault> attention_backend;
  std::vector<ArchDefault> kv_cache_dtype;
  std::vector<ArchDefault> fp4_gemm_backend;
  std::vector<ArchDefault> moe_runner_backend;
  std::vector<ArchDefault> sampling_backend;
  std::vector<ArchDefault> dense_prefill;          // tokens up to which NSA's prefill is dense and un-absorbed
  std::vector<ArchDefault> shared_experts_fusion;  // on, off
  std::vector<NsaDefault> nsa_backends;

  Cited kv_dtype_guard;        // the assertion on the cache's dtype
  Cited packed_store_guard;    // the assertion in set_kv_buffer, for backends that store by it into a packed pool
  Cited cache_dimension;       // when an FP8 pool is plain (576) and when packed (656), by the NSA backends alone
  Cited packed_read_as_plain;  // backends that store packed and read plain
  Cited sparse_decode_guard;   // flashmla_sparse takes a BF16 cache only, and decode does not decode the pool
  Cited gather_guard;          // flashmla_sparse prefill on a plain FP8 pool
  Cited flashmla_kv_guard;     // flashmla_kv on a plain FP8 pool
  Cited fused_rope_note;       // trtllm with FP8 beside another backend
  Cited flashmla_kv_heads;     // heads of one rank other than 64 or 128 in flashmla_kv; empty: the version pads them
  Cited page_size;             // forced for this model
  Cited forced_yarn;           // rope_type deepseek_yarn without a factor
  Cited fusion_off;            // some MoE runners switch the fusion of the shared expert off…
  std::vector<std::string> fusion_off_runners;  // …these
  std::vector<RunnerRule> nvfp4_runners;
  Cited router_bias;  // the router's bias in BF16, with these runners
  std::vector<std::string> router_bias_runners;
  Cited gate_up_scale;  // up's own scale ignored, with these runners
  std::vector<std::string> gate_up_scale_runners;
  Cited index_hadamard;       // the indexer's queries and keys are rotated
  Cited index_query;          // its queries are quantised as its keys are
  Cited expert_input_scales;  // one input scale an expert, with these runners; others have one for all
  std::vector<std::string> expert_input_scale_runners;
  Cited query_in_fp8;                     // trtllm kernels over an FP8 cache
  Cited ue8m0;                            // what scale_format=ue8m0 stands for
  Cited fp4_race_note;                    // flashinfer_cutlass products on SM120
  Cited gather_overflow;                  // int32 offsets of the gather that decodes a packed pool
  Cited index_overflow;                   // int32 offsets of the fused store of index keys
  Cited pool_memory;                      // no room for the pool
  Cited nvfp4_guard;                      // NVFP4 experts without Blackwell
  bool marlin_without_blackwell = false;  // the version has a weight-only runner for older architectures
  Cited indexer_guard;                    // the indexer's logits kernel, where it does not exist…
  std::vector<Arch> indexer_archs;        // …outside of these; empty: everywhere
  bool sparse_mla_on_sm120 = false;       // SM120 with FP8 takes flashinfer_sparse_mla and nothing else
  Cited sparse_mla_guard;
};

const Profile* find_profile(std::string_view name);  // null when unknown
std::vector<std::string> profile_names();
inline constexpr std::string_view kDefaultProfile = "sglang-0.5.9";

// The entry for an architecture; aborts when the table has none (each table ends with one for all).
const ArchDefault& default_for(const std::vector<ArchDefault>& table, Arch arch);
bool applies_to(const std::vector<Arch>& archs, Arch arch);
// What `auto` is of an axis, by architecture; null: the axis has no such table.
const std::vector<ArchDefault>* defaults_of(const Profile& profile, std::string_view axis);
// What the NSA backends are by themselves, for a resolved kv_cache_dtype.
const NsaDefault& nsa_default(const Profile& profile, std::string_view kv_cache_dtype, Arch arch);

}  // namespace faultline
