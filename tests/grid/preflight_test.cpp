// What preflight says of the incident's rows, and of what cannot run for lack of a kernel, shared memory, grid, heads,
// offsets or memory.
#include "grid/preflight.h"

#include "grid/preflight_memory.h"
#include "grid/resolve.h"
#include "grid/shape.h"
#include "model/synth.h"
#include "testing.h"

namespace faultline {
namespace {

using Catch::Matchers::Contains;

ResolvedConfiguration on(std::string_view profile, std::string_view arch, const AxisValues& axes,
                         const ShapeInfo& shape = {}) {
  return resolve(axes, *find_profile(profile), *find_target(arch), shape);
}

AxisValues with(AxisValues axes, const AxisValues& more) {
  for (const auto& [axis, value] : more) axes[axis] = value;
  return axes;
}

// The incident's command line on eight GPUs, and what its rows changed.
ShapeInfo eight_gpus() {
  ShapeInfo shape;
  shape.target_only = true;
  return shape;
}
const AxisValues kLine = {{"attention_backend", "flashinfer"}, {"kv_cache_dtype", "fp8_e4m3"}, {"tp", "8"}};
const AxisValues kRow3 = with(kLine, {{"attention_backend", "triton"}, {"sampling_backend", "pytorch"}});
const AxisValues kRow4 = with(kLine, {{"nsa_decode_backend", "flashmla_sparse"}});

std::vector<PreflightRow> rows_of(const std::vector<AxisValues>& list, std::string_view profile = "sglang-0.5.9",
                                  std::string_view arch = "any") {
  std::vector<PreflightRow> rows;
  for (const AxisValues& axes : list) {
    PreflightRow row;
    row.row.axes = axes;
    row.configuration = on(profile, arch, axes);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

TEST_CASE("the incident on sm_120 under 0.5.9: rows 1 and 4 are one layout conflict, row 3 is the guard") {
  const auto row1 = on("sglang-0.5.9", "sm_120", kLine, eight_gpus());
  const auto row4 = on("sglang-0.5.9", "sm_120", kRow4, eight_gpus());
  CHECK(row1.status == TargetStatus::kLayout);
  CHECK_THAT(row1.source, Contains("flashinfer_mla_backend.py:613-619") && Contains("639-650"));
  CHECK(row1.resolved.at("kv_format") == "kv_packed");
  CHECK(row1.resolved.at("decode_reads") == "kv_plain_fp8");
  CHECK(row4.status == TargetStatus::kLayout);
  CHECK(row4.resolved == row1.resolved);
  CHECK(row4.resolved.at("nsa_decode_backend") == "-");

  const auto row3 = on("sglang-0.5.9", "sm_120", kRow3, eight_gpus());
  CHECK(row3.status == TargetStatus::kGuard);
  CHECK_THAT(row3.reason, Contains("assert not self.nsa_kv_cache_store_fp8"));
  CHECK_THAT(row3.source, Contains("memory_pool.py:1498"));
  CHECK(row3.resolved.at("kv_format") == "kv_packed");

  // Row 2, a lower memory fraction, and row 5, what was planned.
  CHECK(on("sglang-0.5.9", "sm_120", with(kLine, {{"mem_fraction_static", "0.8"}}), eight_gpus()).resolved ==
        row1.resolved);
  for (const char* backend : {"flashinfer", "triton"}) {
    const AxisValues bf16 = with(kLine, {{"attention_backend", backend}, {"kv_cache_dtype", "bf16"}});
    CHECK(on("sglang-0.5.9", "sm_120", bf16, eight_gpus()).status == TargetStatus::kRuns);
  }
  const auto trtllm = on(
      "sglang-0.5.9", "sm_120",
      with(kLine, {{"attention_backend", "nsa"}, {"nsa_prefill_backend", "trtllm"}, {"nsa_decode_backend", "trtllm"}}),
      eight_gpus());
  CHECK(trtllm.status == TargetStatus::kUnsupported);
  CHECK_THAT(trtllm.reason, Contains("TllmGenFmhaRunner"));
}

TEST_CASE("the guard of row 3 appears exactly when the cache is packed, whatever makes it plain") {
  CHECK(on("sglang-0.5.9", "sm_120", with(kRow3, {{"nsa_decode_backend", "trtllm"}}), eight_gpus()).status ==
        TargetStatus::kRuns);
  CHECK(on("sglang-0.5.9", "sm_120", with(kRow3, {{"nsa_prefill_backend", "trtllm"}}), eight_gpus()).status ==
        TargetStatus::kRuns);
  CHECK(on("sglang-0.5.9", "sm_120", with(kRow3, {{"nsa_decode_backend", "flashmla_sparse"}}), eight_gpus()).status ==
        TargetStatus::kGuard);
  CHECK(on("sglang-2026-04", "sm_90", kRow3,
           [] {
             ShapeInfo shape = eight_gpus();
             shape.nvfp4 = false;  // its refusal of NVFP4 would come first
             return shape;
           }())
            .status == TargetStatus::kGuard);
}

TEST_CASE("the incident on sm_120 under 2026-04: trtllm defaults make the cache plain, and rows 1, 3 and 4 run") {
  for (const AxisValues& line : {kLine, kRow3, kRow4}) {
    const auto row = on("sglang-2026-04", "sm_120", line, eight_gpus());
    CHECK(row.status == TargetStatus::kRuns);
    CHECK(row.resolved.at("kv_format") == "kv_plain_fp8");
    CHECK(row.resolved.at("decode_reads") == "kv_plain_fp8");
    CHECK(row.resolved.at("nsa_decode_backend") == "-");
  }
  const auto row4 = on("sglang-2026-04", "sm_120", kRow4, eight_gpus());
  REQUIRE_FALSE(row4.notes.empty());
  CHECK_THAT(row4.notes.front(), Contains("replaces nsa_decode_backend=flashmla_sparse by trtllm"));
  const auto nsa = on("sglang-2026-04", "sm_120", with(kLine, {{"attention_backend", "nsa"}}), eight_gpus());
  CHECK(nsa.status == TargetStatus::kUnsupported);
  CHECK_THAT(nsa.reason, Contains("DeepGEMM") && Contains("TllmGenFmhaRunner"));
}

TEST_CASE("more than one rank is this build's limit, and none of the server's") {
  CHECK(on("sglang-0.5.9", "sm_120", with(kLine, {{"kv_cache_dtype", "bf16"}})).status == TargetStatus::kUnsupported);
  const auto row = on("sglang-0.5.9", "sm_120", with(kLine, {{"kv_cache_dtype", "bf16"}}), eight_gpus());
  CHECK(row.status == TargetStatus::kRuns);
  CHECK_FALSE(can_run(row, true));
}

TEST_CASE("the checkpoint's bytes are those of the full model, and split over the GPUs") {
  const auto synth = parse_synth_spec("synth:glm-5");
  REQUIRE(synth);
  const WeightBytes bytes = weight_bytes(synth->config);
  CHECK(bytes.total == 440911290192);  // facts of the checkpoint, without MTP
  CHECK(bytes.total == ShapeInfo{}.weight_bytes);
  CHECK(bytes.replicated == ShapeInfo{}.replicated_bytes);
  const MemoryPlan plan = plan_memory({}, Arch::kSm120, {.kv_format = Format::kKvPacked});
  CHECK(plan.gpus == 8);
  CHECK(plan.weights == (bytes.total - bytes.replicated) / 8 + bytes.replicated);
  CHECK(plan.bytes_per_token == 78 * (656 + 132));
}

TEST_CASE("memory: too few GPUs, a fraction without room for the pool, and what fits") {
  const AxisValues bf16 = {{"attention_backend", "flashinfer"}, {"kv_cache_dtype", "bf16"}};
  ShapeInfo four;
  four.gpus = 4;
  const auto few = on("sglang-0.5.9", "sm_120", bf16, four);
  CHECK(few.status == TargetStatus::kUnsupported);
  CHECK_THAT(few.reason, Contains("4 GPUs of 96 GB: 113.4 GB weights"));
  four.gpu_memory = 180000000000;
  CHECK(on("sglang-0.5.9", "sm_120", bf16, four).status == TargetStatus::kRuns);
  const auto fraction = [&](const char* value) {
    ShapeInfo shape;
    shape.longest_context = 4096;
    return on("sglang-0.5.9", "sm_120", with(bf16, {{"mem_fraction_static", value}}), shape);
  };
  CHECK(fraction("0.85").status == TargetStatus::kRuns);
  CHECK_THAT(fraction("0.6").reason, Contains("Please try to increase --mem-fraction-static"));
  CHECK(fraction("0.6").status == TargetStatus::kUnsupported);
  // Without a target there is no memory to speak of.
  ShapeInfo one;
  one.gpus = 1;
  CHECK(on("sglang-0.5.9", "any", bf16, one).status == TargetStatus::kRuns);
}

TEST_CASE("offsets in int32 overflow at the pool's size, in the kernels that compute them so") {
  const AxisValues gather = {{"nsa_prefill_backend", "flashmla_sparse"},
                             {"nsa_decode_backend", "flashmla_kv"},
                             {"kv_cache_dtype", "fp8_e4m3"}};
  const auto pool = [&](const AxisValues& axes, const char* tokens) {
    return on("sglang-0.5.9", "any", with(axes, {{"max_total_tokens", tokens}}), eight_gpus());
  };
  CHECK_THAT(pool(gather, "3273664").reason, Contains("dequantize_k_cache_paged"));
  CHECK(pool(gather, "3273664").status == TargetStatus::kUnsupported);
  CHECK_THAT(pool(gather, "3273600").reason, !Contains("dequantize_k_cache_paged"));
  const AxisValues bf16 = with(gather, {{"kv_cache_dtype", "bf16"}});
  CHECK_THAT(pool(bf16, "3273664").reason, !Contains("int32"));
  CHECK_THAT(pool(bf16, "16268864").reason, Contains("fused store of index keys"));
  CHECK_THAT(pool({{"attention_backend", "triton"}, {"kv_cache_dtype", "bf16"}}, "16268864").reason,
             !Contains("int32"));
}

TEST_CASE("a launch of more tokens than the grid's z is refused to trtllm alone") {
  const AxisValues trtllm = {
      {"nsa_prefill_backend", "trtllm"}, {"nsa_decode_backend", "trtllm"}, {"kv_cache_dtype", "bf16"}};
  const auto chunk = [&](const AxisValues& axes, const char* tokens) {
    return on("sglang-0.5.9", "sm_100", with(axes, {{"chunked_prefill_size", tokens}}));
  };
  CHECK(chunk(trtllm, "131072").status == TargetStatus::kUnsupported);
  CHECK_THAT(chunk(trtllm, "131072").source, Contains("#29453"));
  CHECK(chunk(trtllm, "65535").status == TargetStatus::kRuns);
  CHECK(chunk({{"attention_backend", "triton"}, {"kv_cache_dtype", "bf16"}}, "131072").status == TargetStatus::kRuns);
}

TEST_CASE("heads of one rank: padded, refused, or taken as they are") {
  const auto heads = [&](const char* profile, const char* decode, const char* tp) {
    const char* prefill = "flashmla_sparse";
    return on(
        profile, "any",
        {{"nsa_prefill_backend", prefill}, {"nsa_decode_backend", decode}, {"kv_cache_dtype", "bf16"}, {"tp", tp}},
        eight_gpus());
  };
  CHECK(heads("sglang-2026-04", "flashmla_kv", "1").status == TargetStatus::kRuns);
  CHECK_THAT(heads("sglang-2026-04", "flashmla_kv", "8").reason, Contains("Unsupported h_q") && Contains("8 a rank"));
  CHECK(heads("sglang-2026-08", "flashmla_kv", "8").status == TargetStatus::kRuns);  // pads them
  CHECK(heads("sglang-2026-04", "flashmla_sparse", "8").status == TargetStatus::kRuns);
  CHECK_THAT(heads("sglang-2026-04", "flashmla_sparse", "3").reason, Contains("pads 21 heads to 128"));
}

TEST_CASE("shared memory: a named backend's by a table, this build's own kernels' by their launch") {
  const auto tilelang = on("sglang-0.5.9", "sm_120",
                           {{"nsa_decode_backend", "tilelang"}, {"kv_cache_dtype", "bf16"}, {"tp", "8"}}, eight_gpus());
  CHECK_THAT(tilelang.reason, Contains("168192 bytes of shared memory"));
  const auto own = on("sglang-0.5.9", "sm_120", {{"nsa_decode_backend", "flashmla_kv"}, {"kv_cache_dtype", "bf16"}});
  CHECK_THAT(own.reason, Contains("this build's kernel flashmla_kv needs"));
  const auto target =
      on("sglang-0.5.9", "sm_120", {{"nsa_decode_backend", "flashmla_kv"}, {"kv_cache_dtype", "bf16"}}, eight_gpus());
  CHECK_THAT(target.reason, !Contains("this build's kernel"));
  for (const char* backend : {"triton", "flashinfer"})
    CHECK(on("sglang-0.5.9", "sm_120", {{"attention_backend", backend}, {"kv_cache_dtype", "bf16"}}).status ==
          TargetStatus::kRuns);
}

TEST_CASE("dense backends of other servers' kinds are refused by what this model forces on them") {
  const auto fp8 = [](const char* backend, const char* profile) {
    return on(profile, "any", {{"attention_backend", backend}, {"kv_cache_dtype", "fp8_e4m3"}});
  };
  CHECK_THAT(fp8("cutlass_mla", "sglang-0.5.9").reason, Contains("page_size == 64"));
  CHECK_THAT(fp8("fa3", "sglang-0.5.9").reason, Contains("view()"));
  CHECK_THAT(fp8("trtllm_mla", "sglang-0.5.9").reason, Contains("multiple of 36"));
  for (const char* backend : {"fa3", "trtllm_mla"})  // plain there
    CHECK(fp8(backend, "sglang-2026-04").status == TargetStatus::kRuns);
}

TEST_CASE("an axis is inert where rows that differ in it alone resolve alike, under the first axis that explains it") {
  std::vector<AxisValues> list;
  for (const char* backend : {"nsa", "flashinfer", "triton"})
    for (const char* decode : {"flashmla_kv", "flashmla_sparse"})
      for (const char* fraction : {"0.8", "0.9"})
        list.push_back({{"attention_backend", backend},
                        {"nsa_decode_backend", decode},
                        {"kv_cache_dtype", "bf16"},
                        {"mem_fraction_static", fraction}});
  const std::vector<InertAxis> inert = inert_axes(rows_of(list));
  REQUIRE(inert.size() == 3);
  CHECK(inert[0].axis == "mem_fraction_static");
  CHECK(inert[0].where.empty());
  CHECK(inert[0].rows == 12);
  CHECK(inert[1].axis == "nsa_decode_backend");
  CHECK(inert[1].where == AxisValues{{"attention_backend", "flashinfer"}});
  CHECK(inert[1].rows == 4);
  CHECK(inert[2].where == AxisValues{{"attention_backend", "triton"}});
  CHECK(inert_axes({}).empty());
  CHECK(inert_axes(rows_of({{{"attention_backend", "nsa"}, {"kv_cache_dtype", "bf16"}}})).empty());
}

}  // namespace faultline
