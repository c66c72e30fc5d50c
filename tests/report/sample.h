// Findings as the incident's grid gives them: a layout conflict, guards, passes, and one planted fault.
#pragma once

#include "report/findings.h"

namespace faultline {

inline Violation sample_violation() {
  Violation violation;
  violation.op = "layers.0.self_attn.attention";
  violation.kernel = "flashinfer";
  violation.provenance = "own";
  violation.follows = "FlashInfer MLA";
  violation.build = "checked";
  violation.phase = "decode";
  violation.step = 0;
  violation.layer = 0;
  violation.rank = 0;
  violation.tensor = "layers.0.self_attn.kv_cache";
  violation.kind = "layout";
  violation.index = {12, 540};
  violation.value = "nan";
  violation.bits = "0x7f";
  violation.count = 37;
  violation.inputs_clean = "yes";
  violation.detail = "the cache was written as kv_packed_656 and is read as kv_plain_576";
  return violation;
}

inline ConfigurationResult sample_row(const std::string& id, const std::string& backend, const std::string& dtype,
                                      const std::string& verdict) {
  ConfigurationResult row;
  row.id = id;
  row.axes = {{"attention_backend", backend}, {"kv_cache_dtype", dtype}, {"tp", "1"}};
  row.resolved = {{"decode", backend}};
  row.target_status = verdict == "guard" ? "guard" : "runs";
  row.verdict = verdict;
  row.repeats = verdict == "guard" ? 0 : 1;
  row.seconds = 0.25;
  if (verdict == "guard") row.reason = "assert not self.nsa_kv_cache_store_fp8";
  if (verdict == "layout") {
    row.failures = 1;
    row.first_violation = sample_violation();
  }
  return row;
}

inline Findings sample_findings() {
  Findings findings;
  findings.experiment = "incident";
  findings.run_directory = "reports/incident-1";
  findings.configurations = {
      sample_row("c001", "nsa", "bf16", "pass"),        sample_row("c002", "nsa", "fp8_e4m3", "pass"),
      sample_row("c003", "flashinfer", "bf16", "pass"), sample_row("c004", "flashinfer", "fp8_e4m3", "layout"),
      sample_row("c005", "triton", "bf16", "pass"),     sample_row("c006", "triton", "fp8_e4m3", "guard")};
  Localized localized;
  localized.culprit = "layout";
  localized.op = "layers.0.self_attn.attention";
  localized.kernel = "flashinfer";
  localized.provenance = "own";
  localized.follows = "FlashInfer MLA";
  localized.layer = 0;
  localized.kind = "layout";
  localized.signature = "layout at self_attn.attention (flashinfer, decode)";
  localized.reproduces = "yes";
  localized.necessary = "yes";
  localized.confidence = "high";
  localized.configurations = {"c004"};
  localized.capsule = "capsules/c004.safetensors";
  localized.explanation = "The writer packs 656 bytes a token; the reader takes them for plain e4m3.";
  localized.evidence = {"The writer's format is kv_packed_656.", "The reader's format is kv_plain_576."};
  findings.localized = {localized};
  findings.minimal_combinations = {{{{"attention_backend", "flashinfer"}, {"kv_cache_dtype", "fp8_e4m3"}},
                                    {"attention_backend"},
                                    localized.signature,
                                    ""}};
  findings.ruled_out = {{"rope_mode",
                         localized.signature,
                         "",
                         {{"attention_backend", "flashinfer"}, {"kv_cache_dtype", "fp8_e4m3"}},
                         {{"c004", "c007"}}}};
  findings.inert = {
      {"nsa_decode_backend", {{"attention_backend", "flashinfer"}}, "it has no effect there", {{"c003", "c008"}}}};
  findings.workarounds = {{"c003",
                           {{"kv_cache_dtype", "bf16"}},
                           "c004",
                           localized.signature,
                           "python -m sglang.launch_server --kv-cache-dtype bf16"}};
  findings.next_experiments = {"Run {triton, fp8_e4m3} where its guard does not stop it."};
  findings.limits = {"The model is synthetic."};
  findings.environment = {{"checks", "full"}, {"device", "cpu"}, {"seed", "7"}};
  findings.exit_code = 1;
  return findings;
}

inline Findings sample_planted() {
  Findings findings = sample_findings();
  for (ConfigurationResult row : sample_findings().configurations) {
    row.id += "+late_tile";
    row.plant = "late_tile";
    if (row.id == "c001+late_tile") {
      row.verdict = "mismatch";
      row.failures = 1;
      row.first_violation = sample_violation();
      row.first_violation->kind = "mismatch";
      row.first_violation->op = "layers.1.mlp.down";
      row.first_violation->kernel = "w4a4";
    }
    findings.configurations.push_back(row);
  }
  Localized localized = findings.localized[0];
  localized.culprit = "ordering";
  localized.op = "layers.1.mlp.down";
  localized.signature = "mismatch at mlp.down (w4a4, prefill)";
  localized.plant = "late_tile";
  localized.configurations = {"c001+late_tile"};
  localized.explanation = "planted-explanation";
  findings.localized.push_back(localized);
  findings.minimal_combinations.push_back({{{"kv_cache_dtype", "bf16"}}, {}, localized.signature, "late_tile"});
  return findings;
}

}  // namespace faultline
