// Synthetic weights are statistically like a trained model's, so that faults reach the logits: at GLM-5's full depth on
// a narrow model. (The full size is measured in docs/residency.md.)
#include <algorithm>
#include <cmath>
#include <map>

#include "engine/engine.h"
#include "engine/weights.h"
#include "ops/kinds.h"
#include "testing.h"

using namespace faultline;

namespace {

constexpr const char* kDeep = "synth:tiny?num_hidden_layers=78&n_routed_experts=32&num_experts_per_tok=4";
constexpr int64_t kTokens = 24;
constexpr size_t kExperts = 32;
constexpr int64_t kPicked = 4;

struct Run {
  std::vector<double> layer_rms;
  std::map<int, std::vector<int64_t>> picks;  // of each expert, by layer
  std::vector<float> logits;                  // of the last token
};

double rms(const std::vector<float>& values) {
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * value;
  return std::sqrt(squares / static_cast<double>(values.size()));
}

std::vector<float> values_of(const TensorView& view) {
  std::vector<float> values;
  for (int64_t r = 0; r < view.dim(0); ++r)
    for (int64_t c = 0; c < view.dim(1); ++c) values.push_back(view.load(view.offset(r, c)));
  return values;
}

Run run(const ModelWeights& weights, int32_t first_token) {
  std::vector<int32_t> prompt = {first_token};
  for (int64_t i = 1; i < kTokens; ++i) prompt.push_back(static_cast<int32_t>((i * 61 + 7) % 257));
  Run result;
  EngineHooks hooks;
  hooks.on_layer = [&](const Pass& pass, const PassInfo&, int layer) {
    result.layer_rms.push_back(rms(values_of(pass.layer_outputs[static_cast<size_t>(layer)])));
    const Op* router = pass.find("layers." + std::to_string(layer) + ".mlp.router");
    if (router == nullptr) return;
    const TensorView& ids = router->arguments[ops::Router::kIds].view();
    auto& picks = result.picks[layer];
    picks.resize(kExperts);
    for (int64_t t = 0; t < kTokens; ++t)
      for (int64_t j = 0; j < kPicked; ++j) ++picks[static_cast<size_t>(ids.load_index(ids.offset(t, j)))];
  };
  auto engine = Engine::create(weights, EngineConfig{}, EngineLimits{1, kTokens + 1}, SamplingParams{}, hooks);
  REQUIRE(engine);
  auto sequence = (*engine)->open(prompt);
  REQUIRE(sequence);
  Sequence* pointer = &*sequence;
  bool done = false;
  Engine::StepOptions options;
  options.greedy = true;
  const auto outcome = (*engine)->prefill({&pointer, 1}, options, done);
  REQUIRE(outcome);
  REQUIRE(outcome->clean());  // finite values are one of the checks
  result.logits = values_of((*engine)->last_pass().logits);
  return result;
}

}  // namespace

TEST_CASE(
    "a synthetic model of full depth stays in range, routes like a trained one, and carries a change to its end") {
  const auto checkpoint = Checkpoint::open(kDeep);
  REQUIRE(checkpoint);
  const auto weights = load_weights(*checkpoint);
  REQUIRE(weights);
  const Run one = run(*weights, 5);
  REQUIRE(one.layer_rms.size() == 78);
  // Grows as a sum of independent parts does, and no faster.
  CHECK(one.layer_rms.back() > 3);
  CHECK(one.layer_rms.back() < 100);
  for (size_t l = 1; l < one.layer_rms.size(); ++l) CHECK(one.layer_rms[l] > 0.9 * one.layer_rms[l - 1]);

  REQUIRE(one.picks.size() == 77);
  constexpr double kMean = static_cast<double>(kTokens * kPicked) / kExperts;
  double used = 0;
  double largest = 0;
  for (const auto& [layer, picks] : one.picks) {
    used += static_cast<double>(std::count_if(picks.begin(), picks.end(), [](int64_t n) { return n > 0; }));
    largest += static_cast<double>(*std::max_element(picks.begin(), picks.end()));
  }
  used /= static_cast<double>(one.picks.size());
  largest /= static_cast<double>(one.picks.size());
  CHECK(used > kExperts / 3.0);   // not collapsed
  CHECK(used < kExperts * 0.98);  // not uniform
  CHECK(largest > 1.5 * kMean);

  // One other token at the start, 23 before: attention carries it.
  const Run other = run(*weights, 6);
  std::vector<float> difference;
  for (size_t i = 0; i < one.logits.size(); ++i) difference.push_back(one.logits[i] - other.logits[i]);
  CHECK(rms(difference) > 0.02 * rms(one.logits));
}
