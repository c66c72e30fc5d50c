// What preflight says to command lines that people had: the incident's, and those of rows of public reports that state
// their flags. Each under the profile nearest to the report's version and on its GPU.
#include "cli/server_args_answer.h"

#include <algorithm>
#include <filesystem>

#include "cli/program.h"
#include "testing.h"

namespace faultline {
namespace {

using Catch::Matchers::Contains;

ServerArgsAnswer answer_to(const std::string& text, const std::string& profile, const std::string& arch) {
  const auto answer = answer_server_args({text, profile, arch});
  INFO(text);
  INFO((answer ? "" : answer.error().message));
  REQUIRE(answer);
  return *answer;
}

bool is_inert(const ServerArgsAnswer& answer, const std::string& axis) {
  return std::find(answer.inert.begin(), answer.inert.end(), axis) != answer.inert.end();
}

// One of the suggestions is these changes and no others.
bool suggests(const ServerArgsAnswer& answer, const AxisValues& changes) {
  return std::any_of(answer.suggestions.begin(), answer.suggestions.end(),
                     [&](const ServerArgsAnswer::Suggestion& suggestion) { return suggestion.changes == changes; });
}

std::string all_notes(const ServerArgsAnswer& answer) {
  std::string text;
  for (const std::string& note : answer.configuration.notes) text += note + "\n";
  return text;
}

const std::string kCard =
    "python3 -m sglang.launch_server --model-path zai-org/GLM-5-NVFP4 --tp 8 --quantization modelopt_fp4 "
    "--kv-cache-dtype fp8_e4m3 --mem-fraction-static 0.8 --attention-backend ";

}  // namespace

TEST_CASE("the incident's lines under 0.5.9: rows 1, 2 and 4 conflict in layout, row 3 is the guard") {
  const std::vector<std::string> conflicts = {kCard + "flashinfer", kCard + "flashinfer --mem-fraction-static 0.7",
                                              kCard + "flashinfer --nsa-decode-backend flashmla_sparse"};
  for (const std::string& text : conflicts) {
    const ServerArgsAnswer answer = answer_to(text, "sglang-0.5.9", "sm_120");
    CHECK(answer.status == TargetStatus::kLayout);
    CHECK_THAT(answer.source, Contains("flashinfer_mla_backend.py:613-619"));
    CHECK(answer.configuration.resolved.at("kv_format") == "kv_packed");
    CHECK(answer.configuration.resolved.at("nsa_decode_backend") == "-");
    CHECK(answer_exit_code(answer) == 1);
    CHECK(suggests(answer, {{"kv_cache_dtype", "bf16"}}));
    for (const ServerArgsAnswer::Suggestion& suggestion : answer.suggestions) {
      INFO(suggestion.command);
      CHECK_THAT(suggestion.command, Contains("--model-path zai-org/GLM-5-NVFP4"));
      CHECK(suggestion.configuration.status == TargetStatus::kRuns);
      CHECK(answer_to(suggestion.command, "sglang-0.5.9", "sm_120").status == TargetStatus::kRuns);
    }
  }
  CHECK(is_inert(answer_to(conflicts[2], "sglang-0.5.9", "sm_120"), "nsa_decode_backend"));
  const ServerArgsAnswer triton = answer_to(kCard + "triton --sampling-backend pytorch", "sglang-0.5.9", "sm_120");
  CHECK(triton.status == TargetStatus::kGuard);
  CHECK_THAT(triton.reason, Contains("nsa_kv_cache_store_fp8"));
  CHECK_THAT(triton.source, Contains("memory_pool.py:1498"));
  CHECK(triton.configuration.resolved.at("sampling_backend") == "pytorch");
}

TEST_CASE(
    "the incident's lines under 2026-04 on SM120: the default NSA backends make the cache plain, nothing conflicts") {
  for (const char* rest : {"flashinfer", "flashinfer --nsa-decode-backend flashmla_sparse", "triton"}) {
    const ServerArgsAnswer answer = answer_to(kCard + rest, "sglang-2026-04", "sm_120");
    CHECK(answer.configuration.resolved.at("kv_format") == "kv_plain_fp8");
    CHECK(answer.status == TargetStatus::kRuns);
    CHECK(answer.suggestions.empty());
    CHECK(answer_exit_code(answer) == 0);
  }
}

TEST_CASE("public rows that say what stops them: preflight says the same") {
  struct Row {
    int number;
    std::string_view thread;
    std::string text, profile, arch;
    TargetStatus status;
    std::string reason;
  };
  const std::vector<Row> rows = {
      {46, "sglang #40558", "--nsa-prefill-backend trtllm --nsa-decode-backend trtllm", "sglang-2026-04", "sm_120",
       TargetStatus::kUnsupported, "Unsupported architecture"},
      {47, "sglang #37105", "--kv-cache-dtype auto", "sglang-2026-04", "sm_120", TargetStatus::kUnsupported,
       "Unsupported architecture"},
      {51, "sglang #31578",
       "--nsa-prefill-backend flashmla_sparse --nsa-decode-backend flashmla_sparse "
       "--kv-cache-dtype bf16",
       "sglang-2026-04", "sm_120", TargetStatus::kUnsupported, "only supported on SM90a and SM100f"},
      {59, "sglang #38370", "--nsa-prefill-backend tilelang --nsa-decode-backend tilelang --kv-cache-dtype bf16",
       "sglang-2026-08", "sm_120", TargetStatus::kUnsupported, "206848"},
      {62, "sglang #14691", "--model deepseek-ai/DeepSeek-V3.2 --attention-backend flashmla --kv-cache-dtype fp8_e4m3",
       "sglang-0.5.9", "any", TargetStatus::kGuard, "nsa_kv_cache_store_fp8"},
      {63, "sglang #31346", "--nsa-prefill-backend tilelang --nsa-decode-backend tilelang --kv-cache-dtype fp8_e4m3",
       "sglang-0.5.9", "any", TargetStatus::kGuard, "tilelang"},
      {98, "sglang #22372",
       "--model zai-org/GLM-5-FP8 --tp 8 --nsa-prefill-backend flashmla_kv --nsa-decode-backend "
       "flashmla_kv --kv-cache-dtype fp8_e4m3",
       "sglang-2026-04", "sm_90", TargetStatus::kGuard, "h_q"},
  };
  for (const Row& row : rows) {
    INFO("row " << row.number << ", " << row.thread);
    const ServerArgsAnswer answer = answer_to(row.text, row.profile, row.arch);
    INFO(answer.reason);
    CHECK(answer.status == row.status);
    CHECK_THAT(answer.reason, Contains(row.reason));
    CHECK_FALSE(answer.source.empty());
    CHECK(answer_exit_code(answer) == 1);
  }
}

TEST_CASE("public rows whose cause is a choice of the server's: preflight names it") {
  // Row 64, sglang #22430: the user's NSA backends are replaced.
  const ServerArgsAnswer replaced =
      answer_to("--nsa-decode-backend flashmla_kv --kv-cache-dtype fp8_e4m3", "sglang-2026-04", "sm_100");
  CHECK(replaced.configuration.resolved.at("nsa_decode_backend") == "trtllm");
  CHECK_THAT(all_notes(replaced), Contains("replaces nsa_decode_backend=flashmla_kv by trtllm"));
  // Row 1, sglang #20043: the FP4 product with the race.
  const ServerArgsAnswer race =
      answer_to("--quantization modelopt_fp4 --fp4-gemm-backend flashinfer_cutlass", "sglang-0.5.9", "sm_120");
  CHECK_THAT(all_notes(race), Contains("#20043"));
}

TEST_CASE("public rows whose cause is not modelled: preflight says so instead of calling them good") {
  struct Row {
    int number;
    std::string_view thread;
    std::string text, profile, arch;
    std::string not_covered;
  };
  const std::vector<Row> rows = {
      {3, "sglang #19948",
       "--attention-backend flashinfer --moe-runner-backend deep_gemm --kv-cache-dtype bf16 "
       "--quantization modelopt_fp4 --speculative-algorithm EAGLE",
       "sglang-2026-04", "sm_120", "--speculative-algorithm EAGLE"},
      {16, "sglang #30645",
       "--model zai-org/GLM-5.2 --nsa-decode-backend fa3 --kv-cache-dtype bf16 "
       "--speculative-algorithm EAGLE",
       "sglang-2026-08", "sm_90", "--speculative-algorithm EAGLE"},
      {85, "sglang #15650", "--enable-flashinfer-allreduce-fusion", "sglang-0.5.9", "sm_120",
       "--enable-flashinfer-allreduce-fusion"},
      {101, "sglang #32843", "--moe-a2a-backend deepep --fp8-gemm-backend flashinfer_deepgemm", "sglang-2026-08",
       "sm_100", "--moe-a2a-backend deepep"},
      {106, "sglang #12893",
       "--tp 8 --dp 8 --enable-dp-attention --kv-cache-dtype fp8_e4m3 --speculative-algorithm "
       "EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
       "sglang-0.5.9", "sm_100", "--dp-size 8"},
      {109, "flashinfer #2516",
       "--tp 8 --moe-runner-backend flashinfer_trtllm --fp4-gemm-backend flashinfer_cutlass "
       "--speculative-algorithm EAGLE",
       "sglang-0.5.9", "sm_100", "--speculative-algorithm EAGLE"},
  };
  for (const Row& row : rows) {
    INFO("row " << row.number << ", " << row.thread);
    const ServerArgsAnswer answer = answer_to(row.text, row.profile, row.arch);
    CHECK(std::any_of(answer.line.unmodelled.begin(), answer.line.unmodelled.end(),
                      [&](const FlagMention& entry) { return entry.words == row.not_covered; }));
    CHECK_THAT(answer_text(answer), Contains("not covered here"));
  }
}

TEST_CASE("public row 3 ran with deep_gemm as its MoE runner: the line can run, as cutlass_moe_fp4") {
  const ServerArgsAnswer answer = answer_to(
      "--attention-backend flashinfer --moe-runner-backend deep_gemm --kv-cache-dtype bf16 "
      "--quantization modelopt_fp4",
      "sglang-2026-04", "sm_120");
  CHECK(answer.status == TargetStatus::kRuns);
  CHECK_THAT(all_notes(answer), Contains("cutlass_moe_fp4") && Contains("#19948"));
}

TEST_CASE("a flag of another version is a refusal that names the profile to ask instead") {
  const ServerArgsAnswer answer = answer_to("--dsa-decode-backend trtllm", "sglang-0.5.9", "any");
  CHECK(answer.status == TargetStatus::kGuard);
  CHECK_THAT(answer.reason, Contains("unrecognized arguments"));
  CHECK_THAT(answer.reason, Contains("sglang-2026-08"));
  CHECK(answer_exit_code(answer) == 1);
}

TEST_CASE("preflight --server-args answers as text and as JSON, with preflight's exit codes") {
  const std::string line = kCard + "triton --port 30000";
  const Outcome text = faultline({"preflight", "--server-args", line, "--arch", "sm_120"});
  CHECK(text.code == 1);
  CHECK_THAT(text.out, Contains("sglang-0.5.9 on sm_120: guard"));
  CHECK_THAT(text.out, Contains("requested -> resolved"));
  CHECK_THAT(text.out, Contains("to try"));
  const Outcome json = faultline({"preflight", "--server-args", line, "--arch", "sm_120", "--json", "-"});
  CHECK(json.code == 1);
  const auto root = nlohmann::json::parse(json.out);
  REQUIRE(root["rows"].size() == 1);
  CHECK(root["rows"][0]["status"] == "guard");
  CHECK(root["rows"][0]["axes"]["tp"] == "8");
  CHECK_FALSE(root["suggestions"].empty());
  CHECK_FALSE(root["ignored"].empty());
  CHECK(faultline({"preflight", "--server-args", "--attention-backend nsa --kv-cache-dtype bf16 --model GLM-5-NVFP4",
                   "--arch", "sm_100"})
            .code == 0);
  const Outcome bad = faultline({"preflight", "--server-args", "--tpp 8"});
  CHECK(bad.code == 2);
  CHECK_THAT(bad.err, Contains("server args:1:1: unknown flag '--tpp'"));
  CHECK(faultline({"preflight", "--server-args", ""}).code == 2);
  CHECK(faultline({"preflight"}).code == 2);
}

TEST_CASE("bisect --server-args walks the line's neighbourhood, and its run directory replays and resumes") {
  const TempDir folder;
  const std::string line =
      "python3 -m sglang.launch_server --attention-backend flashinfer --kv-cache-dtype fp8_e4m3 --tp 8 --port 1";
  const Outcome outcome = faultline(
      {"bisect", "--server-args", line, "--model", "synth:tiny", "--max-rows", "6", "--out", folder.path(), "--quiet"});
  INFO(outcome.err);
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.out, Contains("The line: " + line) && Contains("(c001): layout"));
  CHECK_THAT(outcome.out, Contains("nearest that passes"));
  const std::string directory = run_directory_in(folder.path());
  const auto findings = nlohmann::json::parse(read_text(directory + "/findings.json"));
  REQUIRE(findings["configurations"].size() == 6);
  CHECK(findings["server_args"] == line);
  CHECK(findings["configurations"][0]["verdict"] == "layout");
  CHECK_THAT(findings["configurations"][0]["launch_command"].get<std::string>(), Contains("--tp-size 8"));
  const std::string report = read_text(directory + "/FINDINGS.md");
  CHECK_THAT(report, Contains("Requested → resolved"));
  CHECK(report.find("The line") < report.find("Fails"));
  const Outcome again = faultline({"bisect", "--resume", directory, "--quiet"});
  INFO(again.err);
  CHECK(again.code == 1);
  CHECK(again.out == outcome.out);
  CHECK(faultline({"report", directory}).code == 0);
  CHECK(faultline({"replay", directory + "/cases/c001.yaml"}).code == 1);
  CHECK(faultline({"bisect", "--server-args", line}).code == 2);  // no model
  CHECK(faultline({"bisect", "--server-args", "--nonsense 1", "--model", "synth:tiny"}).code == 2);
}

TEST_CASE("no key of a pasted line reaches an output or a file of the run") {
  const TempDir folder;
  const std::string line =
      "HF_TOKEN=s3cret sglang serve --attention-backend nsa --kv-cache-dtype bf16 --api-key s3cret "
      "--admin-api-key=s3cret";
  const Outcome outcome = faultline(
      {"bisect", "--server-args", line, "--model", "synth:tiny", "--max-rows", "1", "--out", folder.path(), "--quiet"});
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  std::string all = outcome.out + outcome.err;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path()))
    if (entry.is_regular_file()) all += read_text(entry.path().string());
  for (const char* output : {"", "-"}) {
    std::vector<std::string> arguments = {"preflight", "--server-args", line};
    if (*output != 0) arguments.insert(arguments.end(), {"--json", output});
    all += faultline(arguments).out;
  }
  CHECK(all.find("s3cret") == std::string::npos);
  CHECK_THAT(all, Contains("--api-key REDACTED"));
}

}  // namespace faultline
