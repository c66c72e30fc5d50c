// A kernel that somebody registers appears as a value of its axis and resolves by what it says of itself; nothing in
// grid/ knows it.
#include <algorithm>

#include "grid/axes.h"
#include "grid/experiment.h"
#include "grid/resolve.h"
#include "ops/op.h"
#include "testing.h"

namespace faultline {
namespace {

using Catch::Matchers::Contains;

KernelResult run_nothing(const OpCall&) {
  return std::nullopt;
}

Kernel toy(const char* kind, const char* name, std::vector<AxisBinding> serves) {
  Kernel kernel;
  kernel.name = name;
  kernel.kind = kind;
  kernel.run = run_nothing;
  kernel.serves = std::move(serves);
  return kernel;
}

Kernel toy_sparse() {
  Kernel kernel = toy("attention", "toy_sparse", {{"nsa_decode_backend", "toy"}});
  kernel.cache_formats = {Format::kKvBf16, Format::kKvPacked};
  kernel.sparse = true;
  kernel.architectures = {90, 100};
  kernel.source = "toy manual, page 1";
  return kernel;
}

Kernel toy_large() {
  Kernel kernel = toy("attention", "toy_large", {{"nsa_decode_backend", "toy_large"}});
  kernel.sparse = true;
  kernel.shared_memory_bytes = 150000;
  return kernel;
}

const RegisterKernel kSparse{toy_sparse()};
const RegisterKernel kLarge{toy_large()};
const RegisterKernel kDense{toy("attention", "toy_dense", {{"attention_backend", "toy"}})};
const RegisterKernel kSample{toy("sample", "toy_sample", {{"sampling_backend", "toy"}})};
const RegisterKernel kProduct{toy("linear_w4a4", "toy_product", {{"fp4_gemm_backend", "toy"}})};

ResolvedConfiguration resolve_row(const AxisValues& axes, std::string_view arch = "any") {
  return resolve(axes, *find_profile("sglang-0.5.9"), *find_target(arch), {});
}

}  // namespace

TEST_CASE("a registered kernel appears as a value of its axis, in experiments too") {
  const std::vector<std::string> values = axis_values(*find_axis("nsa_decode_backend"));
  CHECK(std::count(values.begin(), values.end(), "toy") == 1);
  CHECK(std::count(values.begin(), values.end(), "flashmla_kv") == 1);
  CHECK(parse_experiment("axes: {nsa_decode_backend: [flashmla_kv, toy]}\n", "f.yaml"));
  CHECK_FALSE(parse_experiment("axes: {nsa_prefill_backend: [toy]}\n", "f.yaml"));
}

TEST_CASE("its row resolves to it, as a choice of any version") {
  const auto row = resolve_row({{"nsa_decode_backend", "toy"}, {"kv_cache_dtype", "fp8_e4m3"}});
  CHECK(row.status == TargetStatus::kRuns);
  CHECK(row.resolved.at("decode_attention") == "toy_sparse");
  CHECK(row.resolved.at("nsa_decode_backend") == "toy");
  CHECK(row.resolved.at("decode_reads") == "kv_packed");
  CHECK(row.resolved.at("prefill_attention") == "flashmla_sparse");
}

TEST_CASE("cache formats that it does not take are guards") {
  const auto plain =
      resolve_row({{"nsa_decode_backend", "toy"}, {"nsa_prefill_backend", "trtllm"}, {"kv_cache_dtype", "fp8_e4m3"}});
  CHECK(plain.status == TargetStatus::kGuard);
  CHECK_THAT(plain.reason, Contains("toy takes no kv_plain_fp8 cache"));
  CHECK(plain.source == "toy manual, page 1");
  CHECK(resolve_row({{"nsa_decode_backend", "toy"}, {"kv_cache_dtype", "f32"}}).status == TargetStatus::kGuard);
  CHECK(resolve_row({{"nsa_decode_backend", "toy"}, {"kv_cache_dtype", "bf16"}}).status == TargetStatus::kRuns);
}

TEST_CASE("architectures and shared memory make it unsupported where it cannot launch") {
  const auto elsewhere = resolve_row({{"nsa_decode_backend", "toy"}}, "sm_120");
  CHECK(elsewhere.status == TargetStatus::kUnsupported);
  CHECK_THAT(elsewhere.reason, Contains("nsa_decode_backend=toy on sm_120"));
  CHECK(can_run(elsewhere, true));
  CHECK(resolve_row({{"nsa_decode_backend", "toy"}}, "sm_100").status == TargetStatus::kRuns);
  CHECK_THAT(resolve_row({{"nsa_decode_backend", "toy_large"}}, "sm_120").reason,
             Contains("150000 bytes of shared memory"));
  CHECK(resolve_row({{"nsa_decode_backend", "toy_large"}}, "sm_100").status == TargetStatus::kRuns);
}

TEST_CASE("a dense kernel takes the cache as it is written, and is dense attention") {
  const auto row = resolve_row({{"attention_backend", "toy"}, {"kv_cache_dtype", "fp8_e4m3"}});
  CHECK(row.status == TargetStatus::kRuns);
  CHECK(row.resolved.at("prefill_attention") == "toy_dense");
  CHECK(row.resolved.at("decode_reads") == "kv_packed");
  CHECK(row.resolved.at("indexer") == "off");
  CHECK(row.settings == std::vector<std::string>{"dense_attention"});
}

TEST_CASE("kernels of other kinds are named in the resolved row") {
  const auto row = resolve_row({{"sampling_backend", "toy"}, {"fp4_gemm_backend", "toy"}});
  CHECK(row.status == TargetStatus::kRuns);
  CHECK(row.resolved.at("sampling") == "toy_sample");
  CHECK(row.resolved.at("fp4_linear") == "w4a4");
  CHECK(row.resolved.at("kernel.linear_w4a4") == "toy_product");
  CHECK(resolve_row({}).resolved.count("kernel.linear_w4a4") == 0);
}

}  // namespace faultline
