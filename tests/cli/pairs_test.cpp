// All pairs of axis values, run: each row gets the verdict that the table of expectations gives it
// (tests/grid/expectations.h), under checks full and reference.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <span>
#include <unordered_map>

#include "base/rng.h"
#include "grid/axes.h"
#include "grid/expectations.h"
#include "grid/resolve.h"
#include "program.h"
#include "testing.h"

namespace faultline {
namespace {

constexpr std::string_view kProfile = "sglang-0.5.9";
// Completions of a combination that are looked at. Of triples there are 20 times as many as of pairs.
int tries_of(size_t strength) {
  return strength == 2 ? 40 : 16;
}

struct Factor {
  std::string axis;
  std::vector<std::string> values;
};

// Every value that the facts list. Numbers stand for their axis.
const std::vector<Factor> kFactors = {
    {"attention_backend",
     {"nsa", "flashinfer", "triton", "fa3", "flashmla", "cutlass_mla", "trtllm_mla", "torch_native"}},
    {"nsa_prefill_backend",
     {"auto", "flashmla_sparse", "flashmla_kv", "flashmla_auto", "fa3", "tilelang", "aiter", "trtllm",
      "flashinfer_sparse_mla"}},
    {"nsa_decode_backend",
     {"auto", "flashmla_sparse", "flashmla_kv", "flashmla_auto", "fa3", "tilelang", "aiter", "trtllm",
      "flashinfer_sparse_mla"}},
    {"kv_cache_dtype", {"auto", "f32", "bf16", "fp8_e4m3", "fp8_e5m2"}},
    {"fp4_gemm_backend", {"auto", "flashinfer_cutlass", "flashinfer_cudnn", "flashinfer_trtllm", "cutlass", "marlin"}},
    {"moe_runner_backend",
     {"auto", "flashinfer_cutlass", "flashinfer_trtllm", "cutlass", "marlin", "deep_gemm", "triton"}},
    {"scale_format", {"checkpoint", "ue8m0"}},
    {"sampling_backend", {"flashinfer", "pytorch"}},
    {"page_size", {"64", "16"}},
    {"rope_mode",
     {"checkpoint", "theta_10000", "forced_yarn", "half_split", "indexer_half_split", "swapped_half", "none"}},
    {"cuda_graph", {"off", "on"}},
    {"batch", {"probe", "3"}},
    {"chunked_prefill_size", {"probe", "0", "5"}},
    {"shared_experts_fusion", {"auto", "on", "off"}},
    {"mem_fraction_static", {"auto", "0.85"}},
    {"max_total_tokens", {"auto", "1024"}},
    {"slot_placement", {"shuffled", "high"}},
};

using Row = std::vector<size_t>;          // one value a factor
using Combination = std::vector<size_t>;  // factor, value, factor, value, …
using Key = uint32_t;                     // a combination as a number: 5 bits a factor, 4 a value

Key extended(Key key, size_t factor, size_t value) {
  return (key << 9) | static_cast<Key>(factor << 4 | value);
}

// The combinations of `strength` values that a row holds.
template <class Visitor>
void visit(const Row& row, size_t strength, const Visitor& visitor, size_t from = 0, Key key = 1) {
  if (strength == 0) return visitor(key);
  for (size_t a = from; a < row.size(); ++a) visit(row, strength - 1, visitor, a + 1, extended(key, a, row[a]));
}

Key key_of(const Combination& combination) {
  Key key = 1;
  for (size_t i = 0; i < combination.size(); i += 2) key = extended(key, combination[i], combination[i + 1]);
  return key;
}

AxisValues axes_of(const Row& row) {
  AxisValues axes;
  for (size_t a = 0; a < row.size(); ++a) axes[kFactors[a].axis] = kFactors[a].values[row[a]];
  return axes;
}

// How much a row tells: a refused one that it is refused; one that another model is computed by, less than one in which
// every gap to the model would be an alarm.
enum Worth { kRefused, kRuns, kPasses };

Worth worth_of(const AxisValues& axes) {
  const ResolvedConfiguration row = resolve(axes, *find_profile(kProfile), *find_target("any"), {});
  if (!can_run(row, false)) return kRefused;
  return row.settings.empty() && row.status == TargetStatus::kRuns ? kPasses : kRuns;
}

// The values of each factor that, everything else left to the server, leave the model as it is.
std::vector<std::vector<size_t>> innocent_values() {
  std::vector<std::vector<size_t>> innocent;
  for (const Factor& factor : kFactors) {
    innocent.emplace_back();
    for (size_t i = 0; i < factor.values.size(); ++i)
      if (worth_of({{factor.axis, factor.values[i]}}) == kPasses) innocent.back().push_back(i);
  }
  return innocent;
}

// Every combination of `strength` values, in a fixed order.
void all_combinations(size_t strength, size_t from, Combination& chosen, std::vector<Combination>& into) {
  if (chosen.size() == 2 * strength) {
    into.push_back(chosen);
    return;
  }
  for (size_t a = from; a < kFactors.size(); ++a)
    for (size_t i = 0; i < kFactors[a].values.size(); ++i) {
      chosen.push_back(a);
      chosen.push_back(i);
      all_combinations(strength, a + 1, chosen, into);
      chosen.resize(chosen.size() - 2);
    }
}

// Rows that together hold every combination of values, each in a row of the most worth that holds it. What is refused
// alone or together is looked for in few completions.
std::vector<Row> covering_array(size_t strength) {
  const CounterRng rng(7, "pairs");
  const std::vector<std::vector<size_t>> innocent = innocent_values();
  uint64_t counter = 0;
  std::vector<Combination> wanted;
  Combination none;
  all_combinations(strength, 0, none, wanted);
  std::unordered_map<Key, Worth> met;
  const int tries = tries_of(strength);
  std::vector<Row> rows;
  const auto pick = [&](size_t size) { return rng.below(++counter, static_cast<uint32_t>(size)); };
  // Every second one of innocent values alone.
  const auto completed = [&](const Combination& combination, bool any) {
    Row row;
    for (size_t a = 0; a < kFactors.size(); ++a) {
      const bool all = any || innocent[a].empty();
      row.push_back(all ? pick(kFactors[a].values.size()) : innocent[a][pick(innocent[a].size())]);
    }
    for (size_t i = 0; i < combination.size(); i += 2) row[combination[i]] = combination[i + 1];
    return row;
  };
  for (const Combination& combination : wanted) {
    const auto known = met.find(key_of(combination));
    if (known != met.end() && known->second == kPasses) continue;
    Row best;
    std::pair<Worth, size_t> most = {kRefused, 0};
    for (int attempt = 0; attempt < tries; ++attempt) {
      const Row row = completed(combination, attempt % 2 == 0);
      const Worth worth = worth_of(axes_of(row));
      if (worth < most.first || (known != met.end() && worth <= known->second)) continue;
      size_t fresh = 0;
      visit(row, strength, [&](Key other) {
        const auto it = met.find(other);
        fresh += it == met.end() || it->second < worth ? 1 : 0;
      });
      if (std::pair(worth, fresh) <= most && !best.empty()) continue;
      most = {worth, fresh};
      best = row;
    }
    if (best.empty()) continue;
    visit(best, strength, [&](Key other) {
      const auto [it, added] = met.emplace(other, most.first);
      if (!added) it->second = std::max(it->second, most.first);
    });
    rows.push_back(std::move(best));
  }
  return rows;
}

// scripts/pairs asks for other models, triples, a GPU, and another program than the one built beside this test.
std::string asked(const char* variable, const char* fallback) {
  const char* value = std::getenv(variable);
  return value == nullptr ? fallback : value;
}

// Past the top-k of the model at hand, so that dense attention is another model.
std::string probes(const std::string& model) {
  if (model == "tiny") return kQuickProbes;
  return "probes:\n  prefill: {lengths: [70], chunk: 64}\n  decode: {contexts: [80], batch: [2], steps: 1}\n";
}

std::string experiment(std::span<const Row> rows) {
  const std::string model = asked("FAULTLINE_PAIRS_MODEL", "tiny");
  std::string text = fmt::format("name: pairs\nmodel: synth:{}\nprofile: {}\nrows:\n", model, kProfile);
  for (const Row& row : rows) {
    std::string entry;
    for (const auto& [axis, value] : axes_of(row))
      entry += fmt::format("{}{}: {}", entry.empty() ? "" : ", ", axis, value);
    text += "  - {" + entry + "}\n";
  }
  return text + probes(model);
}

void check(const std::string& level) {
  static const std::vector<Row> rows = covering_array(asked("FAULTLINE_PAIRS_STRENGTH", "2") == "3" ? 3 : 2);
  INFO(rows.size() << " rows");
  constexpr size_t kRowsOfOneRun = 16;  // ends well within a run's patience, also of slower models
  std::map<std::string, int> seen;
  for (size_t first = 0; first < rows.size(); first += kRowsOfOneRun) {
    const auto part = std::span(rows).subspan(first, std::min(kRowsOfOneRun, rows.size() - first));
    const TempDir folder;
    const Bisection run = bisect(folder, experiment(part),
                                 {"--checks", level, "--device", asked("FAULTLINE_PAIRS_DEVICE", "cpu"), "--jobs",
                                  asked("FAULTLINE_PAIRS_JOBS", "0")},
                                 asked("FAULTLINE_PAIRS_PROGRAM", ""));
    REQUIRE(run.findings.at("configurations").size() == part.size());
    for (const nlohmann::json& row : run.findings.at("configurations")) {
      const AxisValues axes = with_defaults(row.at("axes").get<AxisValues>()).value();
      const Expectation& expected = expectation(kProfile, "any", axes);
      INFO(row.dump());
      INFO("expected by: " << expected.pattern << " [" << expected.source << "]");
      CHECK(row.at("verdict") == expected_verdict(expected, level == "reference"));
      ++seen[row.at("verdict").get<std::string>()];
    }
  }
  for (const char* verdict : {"pass", "layout", "guard"}) CHECK(seen[verdict] > 0);
  CHECK((seen["mismatch"] > 0) == (level == "reference"));
}

}  // namespace

TEST_CASE("all pairs of axis values have the expected verdict under checks: full") {
  check("full");
}

TEST_CASE("all pairs of axis values have the expected verdict under checks: reference") {
  check("reference");
}

}  // namespace faultline
