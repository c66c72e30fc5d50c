// The rules that all profiles share, and the incident, under sglang-0.5.9.
#include "grid/resolve.h"

#include <set>

#include <algorithm>

#include "testing.h"

namespace faultline {
namespace {

using Catch::Matchers::Contains;

ResolvedConfiguration resolve_row(const AxisValues& axes, std::string_view arch = "any",
                                  std::string_view profile = "sglang-0.5.9", const ShapeInfo& shape = {}) {
  return resolve(axes, *find_profile(profile), *find_target(arch), shape);
}

bool has_setting(const ResolvedConfiguration& c, std::string_view name) {
  return std::find(c.settings.begin(), c.settings.end(), name) != c.settings.end();
}

const AxisValues kRow1 = {
    {"attention_backend", "flashinfer"}, {"nsa_decode_backend", "flashmla_kv"}, {"kv_cache_dtype", "fp8_e4m3"}};
const AxisValues kRow3 = {{"attention_backend", "triton"},
                          {"nsa_decode_backend", "flashmla_kv"},
                          {"kv_cache_dtype", "fp8_e4m3"},
                          {"sampling_backend", "pytorch"}};
const AxisValues kRow4 = {
    {"attention_backend", "flashinfer"}, {"nsa_decode_backend", "flashmla_sparse"}, {"kv_cache_dtype", "fp8_e4m3"}};

// Without what this build does otherwise than the server in nearly every row.
std::vector<std::string> own_notes(const ResolvedConfiguration& c) {
  std::vector<std::string> notes;
  for (const std::string& note : c.notes)
    if (note.rfind("this build does otherwise", 0) != 0) notes.push_back(note);
  return notes;
}

AxisValues with(AxisValues axes, const std::string& axis, const std::string& value) {
  axes[axis] = value;
  return axes;
}

}  // namespace

TEST_CASE("incident rows 1 and 4: flashinfer reads a packed cache as plain, and the NSA decode backend is inert") {
  for (const char* arch : {"any", "sm_120"}) {
    INFO(arch);
    const auto row1 = resolve_row(kRow1, arch);
    const auto row4 = resolve_row(kRow4, arch);
    CHECK(row1.status == TargetStatus::kLayout);
    CHECK(row1.resolved == row4.resolved);
    CHECK(row1.resolved.at("nsa_decode_backend") == "-");
    CHECK(row1.resolved.at("nsa_prefill_backend") == "-");
    CHECK(row1.resolved.at("kv_format") == "kv_packed");
    CHECK(row1.resolved.at("decode_reads") == "kv_plain_fp8");
    CHECK(row1.resolved.at("prefill_reads") == "kv_plain_fp8");
    CHECK(row1.resolved.at("prefill_from_rows") == "on");
    CHECK(row1.resolved.at("decode_attention") == "flashinfer");
    CHECK(row1.resolved.at("indexer") == "off");
    CHECK_THAT(row1.source, Contains("flashinfer_mla_backend.py:613-619"));
    CHECK(can_run(row1, false));
  }
}

TEST_CASE("incident row 3: triton's store asserts, only when the cache is packed") {
  for (const char* arch : {"any", "sm_120"}) {
    INFO(arch);
    const auto packed = resolve_row(kRow3, arch);
    CHECK(packed.status == TargetStatus::kGuard);
    CHECK_THAT(packed.reason, Contains("assert not self.nsa_kv_cache_store_fp8"));
    CHECK_THAT(packed.source, Contains("memory_pool.py:1498"));
    CHECK_FALSE(can_run(packed, true));

    const auto plain = resolve_row(with(kRow3, "nsa_prefill_backend", "trtllm"), arch);
    CHECK(plain.status == TargetStatus::kRuns);
    CHECK(plain.resolved.at("kv_format") == "kv_plain_fp8");
    CHECK(plain.resolved.at("decode_reads") == "kv_plain_fp8");

    const auto bf16 = resolve_row(with(kRow3, "kv_cache_dtype", "bf16"), arch);
    CHECK(bf16.status == TargetStatus::kRuns);
    CHECK(bf16.resolved.at("sampling") == "pytorch");
  }
}

TEST_CASE("flashinfer on a plain FP8 cache or a bf16 cache has no conflict") {
  const auto plain = resolve_row(with(kRow1, "nsa_decode_backend", "trtllm"));
  CHECK(plain.status == TargetStatus::kRuns);
  CHECK(plain.resolved.at("kv_format") == "kv_plain_fp8");
  const auto bf16 = resolve_row(with(kRow1, "kv_cache_dtype", "bf16"));
  CHECK(bf16.status == TargetStatus::kRuns);
  CHECK(bf16.resolved.at("decode_reads") == "kv_bf16");
}

TEST_CASE("sparse attention: decode by flashmla_kv runs, by flashmla_sparse on FP8 it is refused") {
  const AxisValues nsa = {{"attention_backend", "nsa"}, {"kv_cache_dtype", "fp8_e4m3"}};
  const auto kv = resolve_row(with(nsa, "nsa_decode_backend", "flashmla_kv"));
  CHECK(kv.status == TargetStatus::kRuns);
  CHECK(kv.resolved.at("prefill_attention") == "flashmla_sparse");
  CHECK(kv.resolved.at("nsa_prefill_backend") == "flashmla_sparse");
  CHECK(kv.resolved.at("decode_attention") == "flashmla_kv");
  CHECK(kv.resolved.at("prefill_gathers") == "on");
  CHECK(kv.resolved.at("prefill_from_rows") == "on");
  CHECK(kv.resolved.at("prefill_reads") == "kv_packed");
  CHECK(kv.resolved.at("decode_reads") == "kv_packed");
  CHECK(kv.resolved.at("decode_requantizes") == "off");
  CHECK(kv.resolved.at("indexer") == "on");
  CHECK(kv.settings.empty());
  CHECK(own_notes(kv).empty());

  const auto sparse = resolve_row(with(nsa, "nsa_decode_backend", "flashmla_sparse"));
  CHECK(sparse.status == TargetStatus::kGuard);
  CHECK_THAT(sparse.reason, Contains("BF16"));
  CHECK_THAT(sparse.source, Contains("sparse_fwd.h:141"));

  const auto bf16 = resolve_row({{"nsa_decode_backend", "flashmla_sparse"}, {"kv_cache_dtype", "bf16"}});
  CHECK(bf16.status == TargetStatus::kRuns);
  CHECK(bf16.resolved.at("prefill_from_rows") == "off");
  CHECK(bf16.resolved.at("prefill_gathers") == "off");
}

TEST_CASE("flashmla_kv on a bf16 pool packs it anew at each call, and not on f32") {
  const auto bf16 = resolve_row(
      {{"nsa_prefill_backend", "flashmla_kv"}, {"nsa_decode_backend", "flashmla_kv"}, {"kv_cache_dtype", "bf16"}});
  CHECK(bf16.status == TargetStatus::kRuns);
  CHECK(bf16.resolved.at("decode_requantizes") == "on");
  CHECK(bf16.resolved.at("prefill_requantizes") == "on");
  CHECK(bf16.resolved.at("decode_reads") == "kv_bf16");
  const auto f32 = resolve_row({{"nsa_decode_backend", "flashmla_kv"}, {"kv_cache_dtype", "f32"}});
  CHECK(f32.status == TargetStatus::kRuns);
  CHECK(f32.resolved.at("decode_requantizes") == "off");
  CHECK(f32.resolved.at("kv_format") == "kv_f32");
}

TEST_CASE("trtllm beside a packed-FP8 backend makes the pool plain, which the other side refuses") {
  const auto gather = resolve_row(
      {{"kv_cache_dtype", "fp8_e4m3"}, {"nsa_prefill_backend", "flashmla_sparse"}, {"nsa_decode_backend", "trtllm"}});
  CHECK(gather.status == TargetStatus::kGuard);
  CHECK_THAT(gather.reason, Contains("576 != 656"));
  CHECK_THAT(gather.notes.front(), Contains("RoPE is fused"));
  const auto decode = resolve_row(
      {{"kv_cache_dtype", "fp8_e4m3"}, {"nsa_prefill_backend", "trtllm"}, {"nsa_decode_backend", "flashmla_kv"}});
  CHECK(decode.status == TargetStatus::kGuard);
  CHECK_THAT(decode.reason, Contains("656 bytes a token"));
  const auto both = resolve_row(
      {{"kv_cache_dtype", "fp8_e4m3"}, {"nsa_prefill_backend", "trtllm"}, {"nsa_decode_backend", "trtllm"}});
  CHECK(both.status == TargetStatus::kRuns);
  CHECK(both.resolved.at("decode_reads") == "kv_plain_fp8");
  CHECK(own_notes(both).empty());
}

TEST_CASE("only bf16 and fp8_e4m3 caches are accepted, by the server's own words") {
  for (const char* dtype : {"fp8_e5m2", "fp4_e2m1"})
    for (const char* kernels : {"own", "reference"}) {
      const auto row = resolve_row({{"kv_cache_dtype", dtype}, {"kernels", kernels}});
      CHECK(row.status == TargetStatus::kGuard);
      CHECK_THAT(row.reason, Contains("DeepSeek DSA only supports bf16/bfloat16 or fp8_e4m3"));
      CHECK_FALSE(can_run(row, true));
    }
  CHECK(resolve_row({{"kv_cache_dtype", "f32"}, {"nsa_decode_backend", "flashmla_kv"}}).status == TargetStatus::kRuns);
}

TEST_CASE("flashmla_auto is a prefill backend only, and resolves by cache and architecture") {
  const auto decode = resolve_row({{"nsa_decode_backend", "flashmla_auto"}, {"kv_cache_dtype", "bf16"}});
  CHECK(decode.status == TargetStatus::kGuard);
  CHECK_THAT(decode.reason, Contains("flashmla_auto is no decode backend"));
  CHECK_THAT(decode.source, Contains("nsa_backend.py:1461"));

  const AxisValues automatic = {{"nsa_prefill_backend", "flashmla_auto"}, {"nsa_decode_backend", "flashmla_kv"}};
  const auto prefill = [&](const char* dtype, const char* arch) {
    return resolve_row(with(automatic, "kv_cache_dtype", dtype), arch).resolved.at("nsa_prefill_backend");
  };
  CHECK(prefill("bf16", "any") == "flashmla_sparse");
  CHECK(prefill("fp8_e4m3", "any") == "flashmla_sparse");
  CHECK(prefill("fp8_e4m3", "sm_100") == "flashmla_sparse");
  CHECK(prefill("fp8_e4m3", "sm_90") == "flashmla_kv");
  CHECK(prefill("bf16", "sm_90") == "flashmla_sparse");
  CHECK(resolve_row(with(kRow1, "nsa_decode_backend", "flashmla_auto")).status == TargetStatus::kLayout);
}

TEST_CASE("sm_120 has no sparse kernel, and says so in the server's words") {
  const auto kv = resolve_row(
      {{"attention_backend", "nsa"}, {"nsa_decode_backend", "flashmla_kv"}, {"kv_cache_dtype", "fp8_e4m3"}}, "sm_120");
  CHECK(kv.status == TargetStatus::kUnsupported);
  CHECK_THAT(kv.reason,
             Contains("Sparse Attention Forward Kernel is only supported on SM90a and SM100f architectures."));
  CHECK_THAT(kv.reason, Contains("Unsupported architecture for sparse decode fwd"));
  CHECK_THAT(kv.reason, Contains("DeepGEMM"));
  CHECK_FALSE(can_run(kv, false));
  CHECK(can_run(kv, true));
  const auto trtllm = resolve_row(
      {{"nsa_prefill_backend", "trtllm"}, {"nsa_decode_backend", "trtllm"}, {"kv_cache_dtype", "bf16"}}, "sm_120");
  CHECK(trtllm.status == TargetStatus::kUnsupported);
  CHECK_THAT(trtllm.reason, Contains("TllmGenFmhaRunner"));
  for (const char* backend : {"flashinfer", "triton"})
    CHECK(resolve_row({{"attention_backend", backend}, {"kv_cache_dtype", "bf16"}}, "sm_120").status ==
          TargetStatus::kRuns);
  // A kernel that a dense row does not select does not count against it.
  CHECK(resolve_row(kRow1, "sm_120").status == TargetStatus::kLayout);
}

TEST_CASE("sm_90 refuses NVFP4, and trtllm does not exist there") {
  const AxisValues nsa = {{"nsa_prefill_backend", "flashmla_sparse"}, {"nsa_decode_backend", "flashmla_kv"}};
  const auto nvfp4 = resolve_row(nsa, "sm_90");
  CHECK(nvfp4.status == TargetStatus::kGuard);
  CHECK_THAT(nvfp4.reason, Contains("Please use Blackwell"));
  CHECK_THAT(nvfp4.source, Contains("modelopt_quant.py:1530"));
  ShapeInfo bf16_weights;
  bf16_weights.nvfp4 = false;
  CHECK(resolve_row(nsa, "sm_90", "sglang-0.5.9", bf16_weights).status == TargetStatus::kRuns);
  const auto trtllm = resolve_row(with(nsa, "nsa_decode_backend", "trtllm"), "sm_90", "sglang-0.5.9", bf16_weights);
  CHECK(trtllm.status == TargetStatus::kUnsupported);
  CHECK_THAT(trtllm.reason, Contains("TllmGenFmhaRunner"));
  CHECK(resolve_row(nsa, "any").status == TargetStatus::kRuns);
}

TEST_CASE("backends without a kernel here are unsupported, or guarded where the server refuses them") {
  const auto fa4 = resolve_row({{"attention_backend", "fa4"}, {"kv_cache_dtype", "bf16"}});
  CHECK(fa4.status == TargetStatus::kUnsupported);
  CHECK_THAT(fa4.reason, Contains("no kernel that follows it"));
  CHECK_FALSE(can_run(fa4, true));
  CHECK(fa4.resolved.at("decode_attention") == "-");
  const std::set<std::string> followed = {"flashmla", "torch_native"};
  for (const std::string backend : {"flashmla", "torch_native", "flex_attention", "aiter", "wave"}) {
    CAPTURE(backend);
    CHECK(resolve_row({{"attention_backend", backend}, {"kv_cache_dtype", "bf16"}}).status ==
          (followed.count(backend) != 0 ? TargetStatus::kRuns : TargetStatus::kUnsupported));
    const auto packed = resolve_row({{"attention_backend", backend}, {"kv_cache_dtype", "fp8_e4m3"}});
    CHECK(packed.status == TargetStatus::kGuard);
    CHECK_THAT(packed.reason, Contains("nsa_kv_cache_store_fp8"));
    CHECK_FALSE(can_run(packed, true));
  }
  const auto aiter = resolve_row({{"nsa_decode_backend", "aiter"}, {"kv_cache_dtype", "bf16"}});
  CHECK(aiter.status == TargetStatus::kGuard);
  CHECK_THAT(aiter.reason, Contains("HIP"));
  CHECK(resolve_row({{"attention_backend", "flex_attention"}, {"kv_cache_dtype", "bf16"}}).status ==
        TargetStatus::kUnsupported);
  CHECK_THAT(resolve_row({{"nsa_decode_backend", "fa3"}, {"kv_cache_dtype", "bf16"}}, "sm_120").reason,
             Contains("SM8x and SM90"));
  CHECK_THAT(resolve_row({{"nsa_decode_backend", "tilelang"}, {"kv_cache_dtype", "bf16"}}, "sm_120").reason,
             Contains("206848 bytes of shared memory"));
  CHECK_THAT(resolve_row({{"attention_backend", "trtllm_mla"}, {"kv_cache_dtype", "bf16"}}, "sm_90", "sglang-0.5.9",
                         [] {
                           ShapeInfo s;
                           s.nvfp4 = false;
                           return s;
                         }())
                 .reason,
             Contains("Blackwell"));
}

TEST_CASE("reference kernels are the model whatever the backends, and nothing is refused that can exist") {
  const auto reference = resolve_row(with(kRow3, "kernels", "reference"), "sm_120");
  CHECK(reference.status == TargetStatus::kRuns);
  CHECK(reference.resolved.at("prefill_attention") == "reference");
  CHECK(reference.resolved.at("decode_attention") == "reference");
  CHECK(reference.resolved.at("attention_backend") == "-");
  CHECK(reference.resolved.at("fp4_linear") == "weight_only");
  CHECK(reference.resolved.at("decode_reads") == reference.resolved.at("kv_format"));
  CHECK(reference.settings.empty());
  CHECK(resolve_row(with(kRow1, "kernels", "reference")).status == TargetStatus::kRuns);
  CHECK(resolve_row({{"kernels", "reference"}, {"attention_backend", "fa4"}}).status == TargetStatus::kRuns);
  CHECK(resolve_row({{"kernels", "reference"}}, "sm_90").status == TargetStatus::kRuns);
  CHECK(resolve_row({{"kernels", "reference"}, {"tp", "2"}}).status == TargetStatus::kUnsupported);
}

TEST_CASE("a dense backend is another model past top-k, and not within it") {
  const AxisValues dense = {{"attention_backend", "flashinfer"}, {"kv_cache_dtype", "bf16"}};
  const auto unknown = resolve_row(dense);
  CHECK(has_setting(unknown, "dense_attention"));
  CHECK_THAT(unknown.notes.front(), Contains("beyond index_topk"));
  ShapeInfo shape;
  shape.model_index_topk = 16;
  shape.longest_context = 16;
  const auto within = resolve_row(dense, "any", "sglang-0.5.9", shape);
  CHECK(within.settings.empty());
  CHECK(own_notes(within).empty());
  shape.longest_context = 17;
  CHECK(has_setting(resolve_row(dense, "any", "sglang-0.5.9", shape), "dense_attention"));
  CHECK_FALSE(has_setting(resolve_row({{"kv_cache_dtype", "bf16"}}, "any", "sglang-0.5.9", shape), "dense_attention"));
}

TEST_CASE("rope modes and numerics are settings with a note, and checkpoint is none") {
  const AxisValues nsa = {{"nsa_decode_backend", "flashmla_kv"}, {"kv_cache_dtype", "fp8_e4m3"}};
  const auto mode = [&](const char* name) { return resolve_row(with(nsa, "rope_mode", name)); };
  CHECK(mode("checkpoint").settings.empty());
  CHECK(mode("checkpoint").resolved.at("rope_theta") == "checkpoint");
  CHECK(mode("theta_10000").settings == std::vector<std::string>{"rope_theta"});
  CHECK(mode("theta_10000").resolved.at("rope_theta") == "10000");
  CHECK_THAT(mode("theta_10000").notes.front(), Contains("another model"));
  CHECK(mode("half_split").settings == std::vector<std::string>{"rope_interleaved"});
  CHECK(mode("half_split").resolved.at("rope_interleaved") == "off");
  CHECK(mode("half_split").resolved.at("indexer_rope_interleaved") == "on");
  CHECK(mode("indexer_half_split").resolved.at("indexer_rope_interleaved") == "off");
  CHECK(mode("none").resolved.at("rope_enabled") == "off");
  const auto transformers = resolve_row(with(nsa, "numerics", "transformers"));
  CHECK(transformers.settings == std::vector<std::string>{"norm_eps"});
  CHECK(transformers.resolved.at("numerics") == "transformers");

  // Without an indexer its RoPE is inert.
  const AxisValues dense = {{"attention_backend", "triton"}, {"kv_cache_dtype", "bf16"}};
  CHECK(resolve_row(with(dense, "rope_mode", "indexer_half_split")).resolved == resolve_row(dense).resolved);
}

TEST_CASE("shape rules are the full model's unless the model's own are asked for") {
  ShapeInfo tiny;
  tiny.num_attention_heads = 4;
  tiny.kv_lora_rank = 32;
  tiny.qk_rope_head_dim = 16;
  tiny.index_n_heads = 16;
  tiny.index_topk = 16;
  const AxisValues nsa = {{"nsa_decode_backend", "flashmla_kv"}, {"kv_cache_dtype", "fp8_e4m3"}};
  const auto topk = resolve_row(nsa, "any", "sglang-0.5.9", tiny);
  CHECK(topk.status == TargetStatus::kGuard);
  CHECK_THAT(topk.reason, Contains("topk == 2048"));
  tiny.index_topk = 2048;
  CHECK_THAT(resolve_row(nsa, "any", "sglang-0.5.9", tiny).reason, Contains("576"));
  tiny.kv_lora_rank = 512;
  tiny.qk_rope_head_dim = 64;
  CHECK(resolve_row(nsa, "any", "sglang-0.5.9", tiny).status == TargetStatus::kRuns);
  tiny.num_attention_heads = 48;
  CHECK_THAT(resolve_row(nsa, "any", "sglang-0.5.9", tiny).reason, Contains("pads 48 heads to 128"));
  tiny.num_attention_heads = 64;
  tiny.index_head_dim = 32;
  CHECK_THAT(resolve_row(nsa, "any", "sglang-0.5.9", tiny).reason, Contains("index_head_dim == 128"));
  tiny.index_head_dim = 128;
  tiny.index_n_heads = 12;
  CHECK_THAT(resolve_row(nsa, "sm_100", "sglang-0.5.9", tiny).reason, Contains("12 index heads"));
  CHECK(resolve_row(nsa, "any").status == TargetStatus::kRuns);
}

TEST_CASE("page size, tensor parallelism, sampling and native targets") {
  const auto page = resolve_row({{"page_size", "16"}, {"nsa_decode_backend", "flashmla_kv"}});
  CHECK(page.resolved.at("page_size") == "64");
  CHECK_THAT(page.notes.front(), Contains("forces 64"));
  CHECK(page.resolved == resolve_row({{"nsa_decode_backend", "flashmla_kv"}}).resolved);
  CHECK(resolve_row({{"tp", "8"}, {"nsa_decode_backend", "flashmla_kv"}}).status == TargetStatus::kUnsupported);
  CHECK(resolve_row({}).resolved.at("sampling") == "flashinfer");
  CHECK(resolve_row({{"sampling_backend", "ascend"}}).status == TargetStatus::kUnsupported);
  const auto native = resolve_row({{"nsa_decode_backend", "flashmla_kv"}}, "native");
  CHECK(native.status == TargetStatus::kRuns);
  CHECK_THAT(native.notes.back(), Contains("native"));
  CHECK_FALSE(find_target("sm_121"));
}

TEST_CASE("every row resolves every axis, and every refusal has a source or names this build") {
  for (const char* profile : {"sglang-0.5.9", "sglang-2026-04", "sglang-2026-08"})
    for (const char* arch : {"any", "sm_90", "sm_100", "sm_120"})
      for (const char* backend : {"auto", "nsa", "flashinfer", "triton", "fa3", "trtllm_mla", "flashmla"})
        for (const char* decode :
             {"auto", "flashmla_kv", "flashmla_sparse", "flashmla_auto", "trtllm", "fa3", "aiter", "tilelang"})
          for (const char* kv : {"auto", "f32", "bf16", "fp8_e4m3", "fp8_e5m2"}) {
            const auto row =
                resolve_row({{"attention_backend", backend}, {"nsa_decode_backend", decode}, {"kv_cache_dtype", kv}},
                            arch, profile);
            INFO(profile << " " << arch << " " << backend << " " << decode << " " << kv << ": " << row.reason);
            for (const auto& [axis, value] : row.requested) CHECK(row.resolved.count(axis) == 1);
            for (const char* key :
                 {"kv_format", "prefill_reads", "decode_reads", "prefill_attention", "decode_attention", "indexer",
                  "fp4_linear", "fp4_experts", "sampling", "rope_theta", "chunk"})
              CHECK(row.resolved.count(key) == 1);
            CHECK(format_from_resolved(row.resolved.at("kv_format")).has_value());
            const bool runs = row.status == TargetStatus::kRuns;
            CHECK(runs == row.reason.empty());
            if (!runs) CHECK((!row.source.empty() || row.reason.find("this build") != std::string::npos));
            if (can_run(row, true)) CHECK(row.resolved.at("decode_attention") != "-");
          }
}

}  // namespace faultline
