#include "bisect/engine_config.h"

#include "testing.h"

using namespace faultline;

namespace {

// A row as an earlier version wrote it: without the engine's newer settings.
AxisValues row() {
  AxisValues values = {{"kernels", "own"},
                       {"prefill_attention", "trtllm"},
                       {"decode_attention", "trtllm"},
                       {"indexer", "on"},
                       {"kv_format", "kv_bf16"},
                       {"prefill_reads", "kv_bf16"},
                       {"decode_reads", "kv_bf16"},
                       {"page_size", "64"},
                       {"rope_theta", "checkpoint"},
                       {"fp4_linear", "w4a4"},
                       {"fp4_experts", "w4a4"},
                       {"sampling", "pytorch"},
                       {"cuda_graph", "off"},
                       {"numerics", "sglang"},
                       {"chunk", "probe"}};
  for (const char* key : {"prefill_gathers", "prefill_from_rows", "prefill_requantizes", "decode_requantizes"})
    values[key] = "off";
  for (const char* key : {"rope_interleaved", "indexer_rope_interleaved", "rope_enabled"}) values[key] = "on";
  return values;
}

EngineConfig read(const AxisValues& values) {
  auto config = engine_config(values, CheckLevel::kFull, 7, 0);
  if (!config) FAIL(config.error().message);
  return *config;
}

}  // namespace

TEST_CASE("a row without the engine's newer settings means what it meant") {
  const EngineConfig config = read(row());
  CHECK_FALSE(config.index_ue8m0);
  CHECK_FALSE(config.index_hadamard);
  CHECK_FALSE(config.index_query_fp8);
  CHECK_FALSE(config.query_fp8);
  CHECK_FALSE(config.experts_own_input_scale);
  CHECK_FALSE(config.first_gate_up_scale);
  CHECK_FALSE(config.router_bias_bf16);
  CHECK_FALSE(config.shared_experts_fused);
  CHECK_FALSE(config.high_slots);
  CHECK(config.max_total_tokens == 0);
}

TEST_CASE("each setting of a row reaches the engine") {
  AxisValues values = row();
  for (const auto& [key, value] : AxisValues{{"index_scales", "ue8m0"},
                                             {"index_hadamard", "on"},
                                             {"index_query", "fp8"},
                                             {"query_format", "fp8"},
                                             {"experts_input_scale", "per_expert"},
                                             {"gate_up_scale", "first"},
                                             {"router_bias", "bf16"},
                                             {"shared_experts", "fused"},
                                             {"slot_placement", "high"},
                                             {"max_total_tokens", "4096"}})
    values[key] = value;
  const EngineConfig config = read(values);
  CHECK(config.index_ue8m0);
  CHECK(config.index_hadamard);
  CHECK(config.index_query_fp8);
  CHECK(config.query_fp8);
  CHECK(config.experts_own_input_scale);
  CHECK(config.first_gate_up_scale);
  CHECK(config.router_bias_bf16);
  CHECK(config.shared_experts_fused);
  CHECK(config.high_slots);
  CHECK(config.max_total_tokens == 4096);
}

TEST_CASE("a value that no setting has, and a pool of no tokens, are errors that name the key") {
  for (const auto& [key, value] :
       AxisValues{{"index_scales", "e5m2"}, {"slot_placement", "low"}, {"max_total_tokens", "0"}}) {
    AxisValues values = row();
    values[key] = value;
    const auto config = engine_config(values, CheckLevel::kFull, 7, 0);
    REQUIRE_FALSE(config);
    CHECK(config.error().message.find(key) != std::string::npos);
  }
}
