// What each engine setting changes in a run, and that a run with it breaks no contract.
#include <cmath>
#include <set>

#include "engine/engine.h"
#include "ops/kinds.h"
#include "testing.h"

using namespace faultline;

namespace {

constexpr int64_t kTokens = 40;  // past tiny's top-k of 16
constexpr int kSteps = 2;

struct Outcome {
  std::vector<EngineViolation> violations;
  std::set<std::string> settings;  // the attributes that a gap to the model was laid to
  std::vector<float> logits;       // of the last step
};

class Setting {
 public:
  explicit Setting(const std::string& model = "synth:tiny") {
    auto opened = Checkpoint::open(model);
    REQUIRE(opened);
    checkpoint_.emplace(std::move(*opened));
    auto loaded = load_weights(*checkpoint_);
    REQUIRE(loaded);
    weights = std::move(*loaded);
    config.checks = CheckLevel::kReference;
    config.decode_attention = "trtllm";
  }

  Outcome run() {
    auto made = Engine::create(weights, config, EngineLimits{2, 64, 0}, SamplingParams{}, {});
    if (!made) FAIL(made.error().message);
    engine = std::move(*made);
    sequences.clear();
    for (int s = 0; s < 2; ++s) {
      std::vector<int32_t> ids;
      for (int32_t i = 0; i < kTokens; ++i) ids.push_back((i * 7 + s * 31) % 250);
      auto sequence = engine->open(ids);
      REQUIRE(sequence);
      sequences.push_back(std::move(*sequence));
    }
    std::vector<Sequence*> pointers = {&sequences[0], &sequences[1]};
    Engine::StepOptions options;
    options.greedy = true;
    options.commit = false;
    Outcome result;
    const auto take = [&](Result<PassOutcome> outcome) {
      if (!outcome) FAIL(outcome.error().message);
      CHECK_FALSE(outcome->fault);
      result.violations.insert(result.violations.end(), outcome->violations.begin(), outcome->violations.end());
      for (const EngineViolation& found : outcome->settings) result.settings.insert(found.violation.attribute);
    };
    bool done = false;
    take(engine->prefill(pointers, options, done));
    for (int step = 0; step < kSteps; ++step) {
      for (Sequence& sequence : sequences) sequence.tokens.push_back(static_cast<int32_t>(5 + step));
      take(engine->decode(pointers, options));
    }
    const TensorView& logits = engine->last_pass().logits;
    for (int64_t i = 0; i < logits.elements(); ++i) result.logits.push_back(logits.load(i));
    for (const EngineViolation& found : result.violations) UNSCOPED_INFO(found.op << ": " << found.violation.detail);
    return result;
  }

  // Ops of a kind in the last pass.
  int count(std::string_view kind) const {
    int found = 0;
    for (const Op& op : engine->last_pass().ops) found += op.kind->name == kind ? 1 : 0;
    return found;
  }
  const Op& op(const std::string& name) const {
    const Op* found = engine->last_pass().find(name);
    REQUIRE(found != nullptr);
    return *found;
  }

  ModelWeights weights;
  EngineConfig config;
  std::unique_ptr<Engine> engine;
  std::vector<Sequence> sequences;

 private:
  std::optional<Checkpoint> checkpoint_;
};

// Sound, the model's structure, and other numbers than without the setting.
void require_format(Setting& setting, const std::vector<float>& without) {
  const Outcome outcome = setting.run();
  CHECK(outcome.violations.empty());
  CHECK(outcome.settings.empty());
  CHECK(outcome.logits != without);
}

// The checkpoint is mapped read-only: tensors that a test changes get memory of the test's.
class Changed {
 public:
  void set(TensorView& view, const std::vector<float>& values) {
    memory_.push_back(std::make_unique<std::vector<float>>(values));
    view = make_view(reinterpret_cast<std::byte*>(memory_.back()->data()), Dtype::kF32,
                     {static_cast<int64_t>(values.size())});
  }

 private:
  std::vector<std::unique_ptr<std::vector<float>>> memory_;
};

}  // namespace

TEST_CASE("scales of index keys that are powers of two are stored so, and are no setting") {
  Setting s;
  REQUIRE(s.run().violations.empty());
  s.config.index_ue8m0 = true;
  const Outcome outcome = s.run();
  CHECK(outcome.violations.empty());
  CHECK(outcome.settings.empty());
  const Op& write = s.op("layers.0.self_attn.indexer.k_write");
  const Argument& cache = write.arguments[ops::CacheWrite::kCache];
  const auto range = slot_bytes(*cache.geometry, write.arguments[ops::CacheWrite::kSlots].view().load_index(0))[1];
  float scale = 0;
  std::memcpy(&scale, cache.view().data + range.begin, sizeof scale);
  int exponent = 0;
  CHECK(std::frexp(scale, &exponent) == 0.5f);
}

TEST_CASE("the Hadamard rotation is in the pass of own kernels, and not in the reference's") {
  Setting s;
  REQUIRE(s.run().violations.empty());
  CHECK(s.count(ops::Hadamard::kName) == 0);
  s.config.index_hadamard = true;
  const Outcome outcome = s.run();
  CHECK(outcome.violations.empty());
  CHECK(outcome.settings.empty());
  CHECK(s.count(ops::Hadamard::kName) == 2 * static_cast<int>(s.weights.layers.size()));
  CHECK(s.op("layers.0.self_attn.indexer.scores").tensor_names[0] == "layers.0.self_attn.indexer.q_rotated");
  s.config.reference_kernels = true;
  CHECK(s.run().violations.empty());
  CHECK(s.count(ops::Hadamard::kName) == 0);
}

TEST_CASE("index queries in FP8 break no contract and are no setting, with either kind of scale") {
  Setting s;
  s.config.index_query_fp8 = true;
  s.config.index_hadamard = true;
  s.config.index_ue8m0 = GENERATE(false, true);
  const Outcome outcome = s.run();
  CHECK(outcome.violations.empty());
  CHECK(outcome.settings.empty());
  const Attributes& attributes = s.op("layers.0.self_attn.indexer.scores").attributes;
  CHECK(attributes.flag("query_fp8"));
  CHECK(attributes.flag("query_ue8m0") == s.config.index_ue8m0);
}

TEST_CASE("a query in FP8 stands before the attention over a plain FP8 pool, and nowhere else") {
  Setting s;
  s.config.prefill_attention = s.config.decode_attention = "trtllm";
  s.config.kv_format = s.config.prefill_reads = s.config.decode_reads = Format::kKvPlainFp8;
  const std::vector<float> without = s.run().logits;
  s.config.query_fp8 = true;
  require_format(s, without);
  CHECK(s.count(ops::RoundFp8::kName) == static_cast<int>(s.weights.layers.size()));
  s.config.kv_format = s.config.prefill_reads = s.config.decode_reads = Format::kKvBf16;
  CHECK(s.run().violations.empty());
  CHECK(s.count(ops::RoundFp8::kName) == 0);
}

TEST_CASE("experts with input scales of their own break no contract and are no setting") {
  Changed changed;
  Setting s;
  for (LayerWeights& layer : s.weights.layers)
    for (size_t e = 0; e < layer.expert_down.size(); ++e) {
      const float factor = 1.0f + 0.25f * static_cast<float>(e);
      changed.set(layer.expert_down[e].input_scale, {layer.expert_down[e].input_scale.load(0) * factor});
    }
  const std::vector<float> without = s.run().logits;
  CHECK(s.count(ops::QuantizeFp4Experts::kName) == 0);
  s.config.experts_own_input_scale = true;
  require_format(s, without);
  CHECK(s.count(ops::QuantizeFp4Experts::kName) > 0);
}

TEST_CASE("w1's scale in w3's place is a setting where the two differ, and nothing where they agree") {
  Changed changed;
  Setting s;
  s.config.first_gate_up_scale = true;
  s.config.fp4_experts = GENERATE(as<std::string>{}, "w4a4", "weight_only");
  const auto set_up_scales = [&](float factor) {
    for (LayerWeights& layer : s.weights.layers)
      for (size_t i = 0; i + 1 < layer.expert_gate_up.size(); i += 2)
        changed.set(layer.expert_gate_up[i + 1].global_scale, {layer.expert_gate_up[i].global_scale.load(0) * factor});
  };
  set_up_scales(1);
  const Outcome agree = s.run();
  CHECK(agree.violations.empty());
  CHECK(agree.settings.empty());
  set_up_scales(4);
  const Outcome differ = s.run();
  CHECK(differ.violations.empty());
  CHECK(differ.settings == std::set<std::string>{"gate_up_scale"});
  s.config.first_gate_up_scale = false;
  const Outcome own = s.run();
  CHECK(own.violations.empty());
  CHECK(own.settings.empty());
}

TEST_CASE("a router's bias in bf16 is a setting where it changes the choice") {
  Changed changed;
  Setting s;
  for (LayerWeights& layer : s.weights.layers) {
    if (!layer.is_moe) continue;
    std::vector<float> bias;
    for (int64_t e = 0; e < layer.router_bias.elements(); ++e)
      bias.push_back(7.0f + 0.0101f * static_cast<float>(e % 3));  // bf16 has steps of 2^-5 there
    changed.set(layer.router_bias, bias);
  }
  REQUIRE(s.run().settings.empty());
  s.config.router_bias_bf16 = true;
  const Outcome outcome = s.run();
  CHECK(outcome.violations.empty());
  CHECK(outcome.settings == std::set<std::string>{"router_bias"});
}

TEST_CASE("a fused shared expert is one more row of the experts' products, and computes the same sum") {
  Setting s;
  const std::vector<float> apart = s.run().logits;
  CHECK(s.op("layers.1.mlp.add_shared").layer == 1);
  s.config.shared_experts_fused = true;
  require_format(s, apart);
  CHECK(s.engine->last_pass().find("layers.1.mlp.add_shared") == nullptr);
  const ModelConfig& c = s.weights.config;
  const Op& permute = s.op("layers.1.mlp.experts.permute");
  CHECK(permute.arguments[ops::MoePermute::kIds].view().dim(1) == c.num_experts_per_tok + 1);
  CHECK(permute.arguments[ops::MoePermute::kOffsets].view().dim(0) == c.n_routed_experts + 2);
}

TEST_CASE("a pool of the size asked for, and an error with figures where the probes need more") {
  Setting s;
  s.config.max_total_tokens = 640;
  CHECK(s.run().violations.empty());
  const CacheGeometry& geometry = *s.op("layers.0.self_attn.kv_write").arguments[ops::CacheWrite::kCache].geometry;
  CHECK(geometry.slots == 704);  // and the dummy page
  s.config.max_total_tokens = 127;
  const auto small = Engine::create(s.weights, s.config, EngineLimits{2, 64, 0}, SamplingParams{}, {});
  REQUIRE_FALSE(small);
  CHECK(small.error().message.find("127") != std::string::npos);
  CHECK(small.error().message.find("need 128 (2 requests of up to 64 tokens") != std::string::npos);
}

TEST_CASE("high placement puts every slot of the requests at the pool's end, and computes the same") {
  Setting s;
  s.config.max_total_tokens = 64 * 20;
  const Outcome shuffled = s.run();
  s.config.high_slots = true;
  const Outcome high = s.run();
  CHECK(high.violations.empty());
  CHECK(high.logits == shuffled.logits);
  const TensorView& table = s.engine->last_pass().req_to_token;
  int64_t lowest = INT64_MAX;
  int64_t highest = 0;
  for (const Sequence& sequence : s.sequences)
    for (int64_t i = 0; i < sequence.cached; ++i) {
      const int64_t slot = table.load_index(table.offset(sequence.request, i));
      lowest = std::min(lowest, slot);
      highest = std::max(highest, slot);
    }
  CHECK(lowest == 64 * 19);
  CHECK(highest == 64 * 20 + kTokens + kSteps - 1);
}
