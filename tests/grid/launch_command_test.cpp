#include "grid/launch_command.h"

#include "grid/axes.h"
#include "grid/server_args.h"
#include "testing.h"

namespace faultline {
namespace {

constexpr std::string_view kProgram = "python3 -m sglang.launch_server";

std::string command(const AxisValues& axes, std::string_view profile, std::string_view arch = "sm_120") {
  return launch_command(axes, *find_profile(profile), *find_target(arch));
}

}  // namespace

TEST_CASE("a launch command has the flags that differ from the server's own choice, in its version's spelling") {
  const AxisValues axes = {{"attention_backend", "nsa"},  {"nsa_decode_backend", "flashmla_sparse"},
                           {"kv_cache_dtype", "bf16"},    {"cuda_graph", "off"},
                           {"chunked_prefill_size", "0"}, {"tp", "8"}};
  CHECK(command(axes, "sglang-0.5.9") ==
        std::string(kProgram) +
            " --nsa-decode-backend flashmla_sparse --kv-cache-dtype bf16 --disable-cuda-graph --tp-size 8 "
            "--chunked-prefill-size -1");
  CHECK(command(axes, "sglang-2026-08") ==
        std::string(kProgram) +
            " --dsa-decode-backend flashmla_sparse --kv-cache-dtype bf16 --cuda-graph-backend-decode disabled "
            "--tp-size 8 --chunked-prefill-size -1");
  CHECK(command({{"attention_backend", "auto"}, {"cuda_graph", "on"}, {"page_size", "64"}}, "sglang-0.5.9") ==
        kProgram);
}

TEST_CASE("a default that depends on the architecture is left out only where one is named") {
  const AxisValues fp8 = {{"kv_cache_dtype", "fp8_e4m3"}};
  CHECK(command(fp8, "sglang-0.5.9", "sm_120") == kProgram);
  CHECK(command(fp8, "sglang-0.5.9", "sm_90") == std::string(kProgram) + " --kv-cache-dtype fp8_e4m3");
  CHECK(command(fp8, "sglang-0.5.9", "any") == std::string(kProgram) + " --kv-cache-dtype fp8_e4m3");
  CHECK(command({{"fp4_gemm_backend", "flashinfer_cutlass"}}, "sglang-2026-04", "sm_120") ==
        std::string(kProgram) + " --fp4-gemm-backend flashinfer_cutlass");
}

TEST_CASE("what no flag says is a comment") {
  CHECK(command({{"attention_backend", "flashinfer"},
                 {"nsa_decode_backend", "auto"},
                 {"kv_cache_dtype", "fp8_e4m3"},
                 {"cuda_graph", "off"},
                 {"rope_mode", "theta_10000"}},
                "sglang-0.5.9", "any") ==
        "python3 -m sglang.launch_server --attention-backend flashinfer --kv-cache-dtype fp8_e4m3 --disable-cuda-graph"
        "  # and, for which there is no flag: rope_mode=theta_10000");
  CHECK(command({{"kv_cache_dtype", "f32"}, {"rope_mode", "none"}}, "sglang-0.5.9") ==
        std::string(kProgram) + "  # and, for which there is no flag: kv_cache_dtype=f32 rope_mode=none");
}

TEST_CASE("the rest of a given line stays, and every command reads back as the same axes") {
  const Profile& profile = *find_profile("sglang-2026-04");
  const auto line = parse_server_args(
      "A='b c' python3 -m sglang.launch_server --model-path 'my model' --port 30000 --attention-backend triton --tp 8",
      profile);
  REQUIRE(line);
  CHECK(launch_command(line->axes, profile, *find_target("any"), {line->environment, line->kept}) ==
        "A='b c' python3 -m sglang.launch_server --model-path 'my model' --port 30000 --attention-backend triton "
        "--tp-size 8");
  for (const std::string& name : profile_names())
    for (const Axis& axis : all_axes())
      for (const std::string& value : axis.values) {
        if (axis.flag.empty() || value == axis.fallback || value == "f32") continue;
        const std::string text = launch_command({{axis.name, value}}, *find_profile(name), *find_target("any"));
        INFO(name << " " << axis.name << "=" << value << ": " << text);
        const auto again = parse_server_args(text, *find_profile(name));
        REQUIRE(again);
        CHECK(again->refused.empty());
        if (!again->axes.empty()) CHECK(again->axes == AxisValues{{axis.name, value}});
      }
}

}  // namespace faultline
