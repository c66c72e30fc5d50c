#include "grid/axes.h"

#include <algorithm>

#include "testing.h"

namespace faultline {
namespace {

using Catch::Matchers::Contains;

std::string canonical(std::string_view axis, std::string_view text) {
  const auto value = canonical_value(*find_axis(axis), text);
  return value ? *value : "error: " + value.error().message;
}

}  // namespace

TEST_CASE("every axis has a default that is one of its values") {
  for (const Axis& axis : all_axes()) {
    INFO(axis.name);
    CHECK_FALSE(axis.doc.empty());
    CHECK(canonical(axis.name, axis.fallback) == axis.fallback);
    CHECK((axis.integers || axis.fraction) == axis.values.empty());
  }
  CHECK(find_axis("no_such_axis") == nullptr);
  CHECK(axis_names().size() == all_axes().size());
}

TEST_CASE("aliases and YAML booleans become the one spelling") {
  CHECK(canonical("attention_backend", "dsa") == "nsa");
  CHECK(canonical("kv_cache_dtype", "bfloat16") == "bf16");
  CHECK(canonical("cuda_graph", "on") == "on");
  CHECK(canonical("cuda_graph", "True") == "on");
  CHECK(canonical("cuda_graph", "NO") == "off");
  CHECK(canonical("batch", "8") == "8");
  CHECK(canonical("batch", "007") == "7");
}

TEST_CASE("unknown values are refused with the nearest one") {
  CHECK_THAT(canonical("attention_backend", "flahinfer"), Contains("did you mean 'flashinfer'?"));
  CHECK_THAT(canonical("kv_cache_dtype", "fp8_e4m4"), Contains("did you mean 'fp8_e4m3'?"));
  CHECK_THAT(canonical("kernels", "on"), Contains("error: "));
  CHECK_THAT(canonical("batch", "0"), Contains("integers from 1"));
  CHECK_THAT(canonical("batch", "1e3"), Contains("integers from 1"));
  CHECK_THAT(canonical("batch", "99999999999999999999"), Contains("integers from 1"));
  CHECK_THAT(canonical("tp", "-1"), Contains("integers from 1"));
}

TEST_CASE("a fraction has one spelling, and lies between 0 and 1") {
  CHECK(canonical("mem_fraction_static", "0.850") == "0.85");
  CHECK(canonical("mem_fraction_static", ".9") == "0.9");
  CHECK(canonical("mem_fraction_static", "auto") == "auto");
  for (const char* text : {"1", "1.0", "0", "0.0", "0.", ".", "-0.5", "0.12345", "85", "nan", "0.8x", "0.8.5", ""})
    CHECK_THAT(canonical("mem_fraction_static", text), Contains("fractions between 0 and 1"));
}

TEST_CASE("every backend of the server is recognised, with or without a kernel here") {
  for (const char* value : {"fa3", "fa4", "cutlass_mla", "trtllm_mla", "flashmla", "torch_native", "aiter", "wave"})
    CHECK(canonical("attention_backend", value) == value);
  for (const char* value : {"fa3", "tilelang", "aiter", "trtllm", "flashmla_auto", "flashinfer_sparse_mla"})
    CHECK(canonical("nsa_decode_backend", value) == value);
}

TEST_CASE("defaults are filled in beside what is asked for, and unknown axes are refused") {
  const auto filled = with_defaults({{"kv_cache_dtype", "bfloat16"}});
  REQUIRE(filled);
  CHECK(filled->size() == all_axes().size());
  CHECK(filled->at("kv_cache_dtype") == "bf16");
  CHECK(filled->at("attention_backend") == "auto");
  CHECK(filled->at("cuda_graph") == "on");
  CHECK(filled->at("batch") == "probe");
  CHECK_THAT(with_defaults({{"kv_dtype", "bf16"}}).error().message, Contains("kv_dtype"));
}

}  // namespace faultline
