#include "grid/server_args.h"

#include <algorithm>
#include <set>

#include "grid/axes.h"
#include "grid/server_flags.h"
#include "grid/shell_words.h"
#include "testing.h"

namespace faultline {
namespace {

using Catch::Matchers::Contains;

ServerLine line_of(std::string_view text, std::string_view profile = "sglang-0.5.9") {
  const auto line = parse_server_args(text, *find_profile(profile));
  INFO(text);
  INFO((line ? "" : line.error().message));
  REQUIRE(line);
  return *line;
}

std::string error_of(std::string_view text, std::string_view profile = "sglang-0.5.9") {
  const auto line = parse_server_args(text, *find_profile(profile));
  INFO(text);
  REQUIRE_FALSE(line);
  CHECK(line.error().kind == ErrorKind::kBadInput);
  return line.error().message;
}

bool mentions(const std::vector<FlagMention>& list, std::string_view words) {
  return std::any_of(list.begin(), list.end(), [&](const FlagMention& entry) { return entry.words == words; });
}

const AxisValues kTritonFp8 = {{"attention_backend", "triton"}, {"kv_cache_dtype", "fp8_e4m3"}, {"tp", "8"}};

}  // namespace

TEST_CASE("a line is read however it was pasted") {
  for (const std::string_view text : {
           "--attention-backend triton --kv-cache-dtype fp8_e4m3 --tp 8",
           "--attention-backend=triton --kv-cache-dtype='fp8_e4m3' --tp-size=8",
           "--attention_backend triton --kv_cache_dtype \"fp8_e4m3\" --tensor-parallel-size 8",
           "python -m sglang.launch_server --attention-backend triton --kv-cache-dtype fp8_e4m3 --tp 8",
           "$ SGLANG_X=1 nohup python3 -m sglang.launch_server \\\n  --attention-backend triton \\\n"
           "  --kv-cache-dtype fp8_e4m3 \\   \n  --tp 8 > server.log 2>&1 &",
           "CUDA_VISIBLE_DEVICES=0,1 --attention-backend triton --kv-cache-dtype fp8_e4m3 --tp 8  # as on Monday",
           "export A=1; python /opt/sglang/launch_server.py --attention-backend triton\r\n --kv-cache-dtype "
           "fp8_e4m3\r\n"
           "--tp 8 | tee log",
           "sglang serve --attention-backend triton\xc2\xa0--kv-cache-dtype fp8_e4m3 --tp 8 && echo done --tp 4",
           "docker run --gpus all -e HF_TOKEN=x lmsysorg/sglang:dev python3 -m sglang.launch_server "
           "--attention-back triton --kv-cache fp8_e4m3 --tp 8",
           "--attention-backend triton \\ --kv-cache-dtype fp8_e4m3 \\ --tp 8 \\",
           "--tp 4 --attention-backend triton --tp 8 --kv-cache-dtype fp8_e4m3",
       })
    CHECK(line_of(text).axes == kTritonFp8);
}

TEST_CASE("each flag that is an axis sets it, in the axis's spelling") {
  const ServerLine line = line_of(
      "--kv-cache-dtype bfloat16 --chunked-prefill-size -1 --disable-cuda-graph --page-size 64 --sampling-backend "
      "pytorch --nsa-prefill-backend flashmla_sparse --nsa-decode-backend fa3 --fp4-gemm-backend flashinfer_cutlass "
      "--moe-runner-backend cutlass");
  CHECK(line.axes == AxisValues{{"kv_cache_dtype", "bf16"},
                                {"chunked_prefill_size", "0"},
                                {"cuda_graph", "off"},
                                {"page_size", "64"},
                                {"sampling_backend", "pytorch"},
                                {"nsa_prefill_backend", "flashmla_sparse"},
                                {"nsa_decode_backend", "fa3"},
                                {"fp4_gemm_backend", "flashinfer_cutlass"},
                                {"moe_runner_backend", "cutlass"}});
  CHECK(line.unmodelled.empty());
  const ServerLine newer = line_of("--attention-backend dsa --dsa-decode-backend trtllm", "sglang-2026-08");
  CHECK(newer.axes == AxisValues{{"attention_backend", "nsa"}, {"nsa_decode_backend", "trtllm"}});
  CHECK(line_of("--cuda-graph-backend-decode disabled", "sglang-2026-08").axes == AxisValues{{"cuda_graph", "off"}});
  CHECK(line_of("--cuda-graph-backend-decode full", "sglang-2026-08").axes == AxisValues{{"cuda_graph", "on"}});
}

TEST_CASE("flags without effect are listed, those that are not modelled are named with why and where") {
  const ServerLine line = line_of(
      "NCCL_DEBUG=INFO SGLANG_NSA_FUSE_TOPK=0 --model-path zai-org/GLM-5-NVFP4 --port 30000 --log-level info "
      "--speculative-algorithm EAGLE --ep-size 8 --pp-size 1 --mem-fraction-static 0.9 --log-requests-target a b");
  CHECK(mentions(line.ignored, "NCCL_DEBUG=INFO"));
  CHECK(mentions(line.ignored, "--port 30000"));
  CHECK(mentions(line.ignored, "--log-requests-target a b"));
  CHECK(mentions(line.ignored, "--pp-size 1"));
  CHECK(mentions(line.unmodelled, "SGLANG_NSA_FUSE_TOPK=0"));
  CHECK(mentions(line.unmodelled, "--speculative-algorithm EAGLE"));
  CHECK(mentions(line.unmodelled, "--ep-size 8"));
  CHECK_FALSE(mentions(line.ignored, "--ep-size 8"));
  for (const FlagMention& entry : line.unmodelled) {
    CHECK_FALSE(entry.why.empty());
    CHECK_THAT(entry.source, Contains("sglang"));
  }
  CHECK(line.model == "zai-org/GLM-5-NVFP4");
  CHECK(line.nvfp4 == true);
  CHECK(line.environment == std::vector<std::string>{"NCCL_DEBUG=INFO", "SGLANG_NSA_FUSE_TOPK=0"});
  CHECK(mentions(line_of("--pp-size 2").unmodelled, "--pp-size 2"));
}

TEST_CASE("the weights' format comes from --quantization, or from the model's name") {
  CHECK(line_of("--quantization modelopt_fp4 --model m").nvfp4 == true);
  CHECK(line_of("--quantization fp8").nvfp4 == false);
  CHECK(mentions(line_of("--quantization fp8").unmodelled, "--quantization fp8"));
  CHECK(line_of("--model zai-org/GLM-5-FP8").nvfp4 == false);
  CHECK_FALSE(line_of("--model zai-org/GLM-5").nvfp4.has_value());
}

TEST_CASE("attention of one phase stands for both when they agree, and is named when they do not") {
  CHECK(line_of("--prefill-attention-backend nsa --decode-attention-backend nsa").unmodelled.empty());
  CHECK(line_of("--prefill-attention-backend nsa --decode-attention-backend nsa").axes.at("attention_backend") ==
        "nsa");
  const ServerLine line = line_of("--attention-backend flashinfer --decode-attention-backend triton");
  CHECK(line.axes.at("attention_backend") == "triton");
  CHECK(mentions(line.unmodelled, "--decode-attention-backend triton"));
}

TEST_CASE("a flag of another version is named with the profile that has it, and still understood") {
  const ServerLine line = line_of("--dsa-decode-backend flashmla_kv");
  CHECK(line.axes.at("nsa_decode_backend") == "flashmla_kv");
  REQUIRE(mentions(line.refused, "--dsa-decode-backend flashmla_kv"));
  CHECK_THAT(line.refused[0].why, Contains("sglang-2026-08 has it"));
  CHECK(line_of("--nsa-decode-backend flashmla_kv", "sglang-2026-08").refused.empty());
  CHECK(line_of("--enable-double-sparsity", "sglang-2026-08").refused.size() == 1);
}

TEST_CASE("mistakes are bad input with their place and what is meant") {
  CHECK_THAT(error_of("--tp 8 \\\n  --atention-backend triton"),
             Contains("server args:2:3: unknown flag '--atention-backend'; did you mean '--attention-backend'?"));
  CHECK_THAT(error_of("--attention-backend tritn"),
             Contains("server args:1:21: --attention-backend has no value 'tritn'; did you mean 'triton'?"));
  CHECK_THAT(error_of("--attention-backend=tritn"), Contains("server args:1:21:"));
  CHECK_THAT(error_of("--kv-cache-dtype f32"), Contains("--kv-cache-dtype has no value 'f32'"));
  CHECK_THAT(error_of("--tp"), Contains("server args:1:1: --tp-size needs a value"));
  CHECK_THAT(error_of("--tp --port 1"), Contains("--tp-size needs a value, and '--port' follows"));
  CHECK_THAT(error_of("--tp eight"), Contains("--tp-size takes an integer, not 'eight'"));
  CHECK_THAT(error_of("--tp $TP"), Contains("for the shell to replace"));
  CHECK_THAT(error_of("--tp 0"), Contains("integers from 1"));
  CHECK_THAT(error_of("--disable-cuda-graph=true"), Contains("--disable-cuda-graph takes no value"));
  CHECK_THAT(error_of("--disable-cuda-graph true"), Contains("server args:1:22: 'true' is no flag"));
  CHECK_THAT(error_of("--speculative-num 3"), Contains("may be --speculative-num-steps or"));
  CHECK_THAT(error_of("-tp 8"), Contains("two dashes, as '--tp'"));
  CHECK_THAT(error_of("\xe2\x80\x93tp 8"), Contains("typeset dash"));
  CHECK_THAT(error_of("--json-model-override-args {rope_theta: 1}"), Contains("takes JSON"));
  CHECK_THAT(error_of("--mem-fraction-static high"), Contains("takes a number"));
  CHECK_THAT(error_of("hello"), Contains("'hello' is no flag"));
  CHECK_THAT(error_of("--zzzzqqqq 1"), Contains("none of sglang-0.5.9's flags"));
}

TEST_CASE("hostile text is refused or read, never more") {
  CHECK_THAT(error_of(""), Contains("nothing to read"));
  CHECK_THAT(error_of(" \\\n\t# only a comment"), Contains("nothing to read"));
  CHECK_THAT(error_of("--model 'a b"), Contains("server args:1:9: this quote (') is never closed"));
  CHECK_THAT(error_of("--model \"a\n b"), Contains("never closed"));
  CHECK_THAT(error_of("--model \xff\xfe"), Contains("byte 9 (0xff) is not text"));
  CHECK_THAT(error_of("--model \xe2\x82"), Contains("is not text"));
  CHECK_THAT(error_of(std::string_view("--tp\0 8", 7)), Contains("byte 5 (0x00)"));
  CHECK_THAT(error_of(std::string(kMaxServerLine + 1, 'a')), Contains("more than"));
  CHECK_THAT(error_of("--"), Contains("unknown flag '--'"));
  CHECK_THAT(error_of("--=8"), Contains("unknown flag '--'"));
  CHECK_THAT(error_of("-"), Contains("is no flag"));
  CHECK_THAT(error_of("| --tp 8"), Contains("nothing to read in front of '|'"));
  CHECK_THAT(error_of("--tp 99999999999999999999"), Contains("takes an integer"));
  CHECK_THAT(error_of("--max-total-tokens 9e99k"), Contains("takes an integer"));
  CHECK(line_of("python3 -m sglang.launch_server").axes.empty());
  std::string many;
  while (many.size() + 8 < kMaxServerLine) many += "--tp 8 ";
  CHECK(line_of(many).axes.at("tp") == "8");
  CHECK(line_of("--model-path '" + std::string(kMaxServerLine - 20, 'm') + "'").model.size() == kMaxServerLine - 20);
}

TEST_CASE("JSON and other values keep their quotes when they are typed again") {
  const ServerLine line = line_of("--json-model-override-args '{\"index_topk\": 2048}' --served-model-name a\\ b");
  CHECK(mentions(line.unmodelled, "--json-model-override-args '{\"index_topk\": 2048}'"));
  CHECK(line.kept == std::vector<std::string>{"--json-model-override-args", "'{\"index_topk\": 2048}'",
                                              "--served-model-name", "'a b'"});
}

TEST_CASE("the table of flags is sound") {
  for (const std::string& profile : profile_names()) {
    const uint8_t version = server_version_of(profile);
    REQUIRE(version != 0);
    std::set<std::string> seen;
    for (const std::string& name : server_flag_names(version)) {
      INFO(profile << " " << name);
      CHECK(seen.insert(name).second);
      CHECK(name.starts_with("--"));
      CHECK(find_server_flag(name, version) != nullptr);
    }
    CHECK(seen.size() > 300);
  }
  CHECK(server_version_of("sglang-9") == 0);
  for (const auto table : {flags_that_matter(), flags_without_effect()})
    for (const ServerFlag& flag : table) {
      INFO(flag.names);
      CHECK(flag.versions != 0);
      CHECK(flag.line > 0);
      CHECK(std::string_view("0sihfj?*+").find(flag.takes) != std::string_view::npos);
      CHECK_FALSE(role_meaning(flag.role).empty());
      if (flag.role == FlagRole::kSets) CHECK(flag.detail.find('=') != std::string_view::npos);
    }
}

TEST_CASE("every axis with a server's flag is reached by that flag") {
  for (const Axis& axis : all_axes()) {
    if (axis.flag.empty()) continue;
    INFO(axis.name << " " << axis.flag);
    const ServerFlag* flag = find_server_flag(axis.flag, server_version::k2604);
    REQUIRE(flag != nullptr);
    const bool names_it = flag->detail.substr(0, flag->detail.find('=')) == axis.name;
    CHECK(names_it);
  }
}

}  // namespace faultline
