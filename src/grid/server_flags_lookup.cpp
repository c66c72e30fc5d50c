#include <algorithm>
#include <array>
#include <initializer_list>

#include "grid/server_flags.h"

namespace faultline {
namespace {

struct Version {
  uint8_t bit;
  std::string_view profile;
  std::string_view cited;
};

constexpr std::array<Version, 3> kVersions = {{{server_version::k059, "sglang-0.5.9", "v0.5.9"},
                                               {server_version::k2604, "sglang-2026-04", "93109cc"},
                                               {server_version::k2608, "sglang-2026-08", "c863760"}}};

const Version& first_version(const ServerFlag& flag) {
  return *std::find_if(kVersions.begin(), kVersions.end(),
                       [&](const Version& version) { return (flag.versions & version.bit) != 0; });
}

// Calls `visit` with each name of a list separated by blanks, until it returns true.
template <class Visitor>
bool any_word(std::string_view list, Visitor&& visit) {
  while (!list.empty()) {
    const size_t end = std::min(list.find(' '), list.size());
    if (visit(list.substr(0, end))) return true;
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return false;
}

constexpr Remark kFlagRemarks[] = {
    {"--enable-nan-detection", "NaN logits become -1e5 with a warning, which hides the fault from whoever looks for it",
     "sglang 93109cc layers/sampler.py:67-75"},
    {"--json-model-override-args", "fields of the model's config are replaced; here they are as the model has them",
     "sglang 93109cc server_args.py:4565"},
    {"--enable-hisparse", "the NSA backends become flashmla_sparse for both phases",
     "sglang 93109cc server_args.py:6181-6201"},
    {"--enable-dp-attention", "idle ranks run batches padded with lengths of 0, of which some kernels make NaN rows",
     "sglang 93109cc layers/attention/nsa_backend.py (pad_nsa_cache_seqlens)"},
    {"--fp8-gemm-backend", "this checkpoint's products are NVFP4 and BF16; the flag matters to FP8 weights",
     "sglang 93109cc layers/quantization/fp8_utils.py:438-464"},
};

constexpr Remark kEnvironment[] = {
    {"SGLANG_NSA_PREFILL_DENSE_ATTN_KV_LEN_THRESHOLD",
     "prompts up to this length take dense attention in prefill; here as the profile says",
     "sglang 93109cc server_args.py:1516-1535"},
    {"SGLANG_DSA_PREFILL_DENSE_ATTN_KV_LEN_THRESHOLD",
     "prompts up to this length take dense attention in prefill; here as the profile says",
     "sglang c863760 environ.py"},
    {"SGLANG_NSA_FORCE_MLA", "prefill takes the absorbed form; here as the profile says",
     "sglang v0.5.9 server_args.py:1207"},
    {"SGLANG_NSA_FUSE_TOPK", "top-k writes slots (true) or positions that a second kernel looks up; here slots",
     "sglang 93109cc environ.py:401"},
    {"SGLANG_DSA_FUSE_TOPK", "top-k writes slots (true) or positions that a second kernel looks up; here slots",
     "sglang c863760 environ.py:156"},
    {"SGLANG_ENABLE_JIT_DEEPGEMM", "it decides whether FP8 scales are rounded to powers of two (scale_format)",
     "sglang 93109cc layers/deep_gemm_wrapper/configurer.py:10-25"},
    {"SGLANG_SPEC_NAN_DETECTION", "the server asserts on NaN before it samples",
     "sglang 93109cc server_args.py:933-936"},
    {"SGLANG_SANITIZE_NAN_LOGITS", "NaN logits are replaced, which hides the fault", "sglang c863760 environ.py:1079"},
    {"SGLANG_NVFP4_CKPT_FP8_GEMM_IN_ATTN", "attention's products run in FP8; here in BF16",
     "sglang 93109cc environ.py:340"},
    {"SGLANG_FLASHINFER_FP4_GEMM_BACKEND", "the FP4 backend, instead of --fp4-gemm-backend; here only the flag counts",
     "sglang v0.5.9 server_args.py:3914"},
    {"SGLANG_FLASHINFER_NVFP4_PER_TOKEN_ACTIVATION", "activations have a scale for each token; here one for all",
     "sglang c863760 environ.py:903"},
    {"CUDA_LAUNCH_BLOCKING", "kernels run one after another: a race may not show", "CUDA C programming guide"},
};

template <size_t N>
const Remark* find_in(const Remark (&table)[N], std::string_view name) {
  const auto* it = std::find_if(table, table + N, [&](const Remark& remark) { return remark.name == name; });
  return it == table + N ? nullptr : it;
}

}  // namespace

uint8_t server_version_of(std::string_view profile) {
  for (const Version& version : kVersions)
    if (version.profile == profile) return version.bit;
  return 0;
}

std::string_view first_profile_with(const ServerFlag& flag) {
  return first_version(flag).profile;
}

std::string flag_source(const ServerFlag& flag) {
  return "sglang " + std::string(first_version(flag).cited) + " server_args.py:" + std::to_string(flag.line);
}

bool is_named(const ServerFlag& flag, std::string_view name) {
  return any_word(flag.names, [&](std::string_view word) { return word == name; });
}

const ServerFlag* find_server_flag(std::string_view name, uint8_t version) {
  const ServerFlag* found = nullptr;
  for (const auto table : {flags_that_matter(), flags_without_effect()})
    for (const ServerFlag& flag : table) {
      if (!is_named(flag, name)) continue;
      if ((flag.versions & version) != 0) return &flag;
      if (found == nullptr) found = &flag;
    }
  return found;
}

std::vector<std::string> server_flag_names(uint8_t version) {
  std::vector<std::string> names;
  for (const auto table : {flags_that_matter(), flags_without_effect()})
    for (const ServerFlag& flag : table)
      if ((flag.versions & version) != 0)
        any_word(flag.names, [&](std::string_view word) {
          names.emplace_back(word);
          return false;
        });
  return names;
}

std::string_view role_meaning(FlagRole role) {
  switch (role) {
    case FlagRole::kAxis:
    case FlagRole::kSets:
    case FlagRole::kDecodeGraph:
      return "an axis";
    case FlagRole::kSplitAttention:
      return "another attention backend in one phase than in the other: here one backend serves both";
    case FlagRole::kModel:
      return "the checkpoint";
    case FlagRole::kWeights:
      return "the weights' format: the rules here are those of an NVFP4 checkpoint";
    case FlagRole::kConfigFile:
      return "a file with more flags, which is not read here: put them on the line";
    case FlagRole::kSpeculative:
      return "speculative decoding: here each request decodes one token a step, without a draft model";
    case FlagRole::kPipeline:
      return "pipeline parallelism: here all layers run on the same GPUs";
    case FlagRole::kDataParallel:
      return "data parallelism: here there is one scheduler, and no idle rank with a padded batch";
    case FlagRole::kExperts:
      return "expert parallelism: here no expert is on another GPU than the token, and nothing is sent all-to-all";
    case FlagRole::kContext:
      return "context parallelism: here each GPU sees the whole sequence";
    case FlagRole::kDisaggregation:
      return "prefill and decode on separate servers: here no cache is transferred";
    case FlagRole::kCacheTiers:
      return "cache tiers beyond the GPU: here nothing is evicted or loaded back";
    case FlagRole::kOffload:
      return "weights or experts outside of the GPU";
    case FlagRole::kLora:
      return "adapters: here the checkpoint runs as it is";
    case FlagRole::kGraphs:
      return "which batches are captured or compiled: here decode replays one graph for each batch size of the probes";
    case FlagRole::kOverlap:
      return "batches that overlap or mix prefill with decode: here one runs after another";
    case FlagRole::kCollectives:
      return "how GPUs exchange sums: here by the engine's own collectives";
    case FlagRole::kNumerics:
      return "it changes how something is computed";
    case FlagRole::kServing:
      return "serving, scheduling or logging: no effect on what is computed";
    case FlagRole::kOtherModels:
      return "for other models than this one";
  }
  return "?";
}

const Remark* find_remark(std::string_view name) {
  return find_in(kFlagRemarks, name);
}

const Remark* find_environment_remark(std::string_view name) {
  return find_in(kEnvironment, name);
}

}  // namespace faultline
