// The engine on a GPU: streams, graphs, and the same findings wherever a run looks for them.
#include <cmath>

#include "device_model.h"
#include "engine/engine.h"
#include "gpu_testing.h"

using namespace faultline;

namespace {

// What one op leaves is changed by a copy of its output on the host, as the planted faults do.
class Breaker : public FaultInjector {
 public:
  Breaker(std::string op, int operand, std::function<void(const TensorView&)> damage)
      : op_(std::move(op)), operand_(operand), damage_(std::move(damage)) {}

  KernelResult run(const PassInfo& info, const Op& op, const OpCall& call, bool) override {
    KernelResult result = op.kernel->run(call);
    if (op.name != op_ || (graph_only && !info.graph)) return result;
    const TensorView& out = call.view(operand_);
    const size_t bytes = static_cast<size_t>(out.extent()) * dtype_bytes(out.dtype);
    std::vector<std::byte> copy(bytes);
    device_->copy(copy.data(), out.data, bytes);
    TensorView host = out;
    host.data = copy.data();
    damage_(host);
    device_->copy(out.data, copy.data(), bytes);
    ++struck;
    return result;
  }
  void weights(ModelWeights&) override {}
  bool touches(const Op& op) const override { return op.name == op_; }
  void use_device(Device& device) override { device_ = &device; }

  bool graph_only = false;
  int struck = 0;

 private:
  std::string op_;
  int operand_;
  std::function<void(const TensorView&)> damage_;
  Device* device_ = nullptr;
};

struct Setup {
  std::string name;
  EngineConfig config;
  std::vector<int64_t> lengths = {70, 1, 64, 33};
};

std::vector<Setup> setups() {
  std::vector<Setup> result;
  const auto add = [&](std::string name, Format format, std::string prefill, std::string decode) {
    EngineConfig config;
    config.kv_format = config.prefill_reads = config.decode_reads = format;
    config.prefill_attention = std::move(prefill);
    config.decode_attention = std::move(decode);
    result.push_back({std::move(name), config});
    return &result.back().config;
  };
  add("bf16, flashmla_sparse", Format::kKvBf16, "flashmla_sparse", "flashmla_sparse");
  add("packed, flashmla_kv", Format::kKvPacked, "flashmla_kv", "flashmla_kv");
  add("plain fp8, trtllm", Format::kKvPlainFp8, "trtllm", "trtllm");
  EngineConfig* dense = add("bf16, triton", Format::kKvBf16, "triton", "triton");
  dense->indexer = false;
  result.back().lengths = {5, 1, 9};  // within top-k: dense attention is the model's there
  EngineConfig* marlin = add("f32, weight only", Format::kKvF32, "flashmla_sparse", "flashmla_kv");
  marlin->fp4_linear = marlin->fp4_experts = "weight_only";
  return result;
}

// What the server resolves to by default.
EngineConfig usual_config() {
  return setups()[1].config;
}

std::vector<int32_t> prompt_of(int64_t length, int32_t seed) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < length; ++i) ids.push_back(static_cast<int32_t>((i * 7 + seed * 31 + 3) % 250));
  return ids;
}

// Prompts of these lengths as one batch, then decode steps. The first outcome that is not clean, or the last.
PassOutcome serve(Engine& engine, const std::vector<int64_t>& lengths, int steps) {
  std::vector<Sequence> sequences;
  std::vector<Sequence*> pointers;
  sequences.reserve(lengths.size());
  for (size_t i = 0; i < lengths.size(); ++i) {
    auto sequence = engine.open(prompt_of(lengths[i], static_cast<int32_t>(i)));
    REQUIRE(sequence);
    sequences.push_back(std::move(*sequence));
    pointers.push_back(&sequences.back());
  }
  PassOutcome last;
  const auto take = [&](Result<PassOutcome> outcome) {
    REQUIRE(outcome);
    last = std::move(*outcome);
    return last.clean() && last.settings.empty();
  };
  bool done = false;
  bool go_on = true;
  while (!done && go_on) go_on = take(engine.prefill(pointers, {}, done));
  for (int step = 0; step < steps && go_on; ++step) go_on = take(engine.decode(pointers, {}));
  for (Sequence& sequence : sequences) engine.close(sequence);
  return last;
}

void require_clean(const PassOutcome& outcome) {
  if (outcome.fault) FAIL(outcome.fault->op << ": " << outcome.fault->fault.message);
  for (const auto& v : outcome.violations)
    FAIL(v.op << " " << v.tensor << ": " << v.violation.kind << ": " << v.violation.detail);
  for (const auto& v : outcome.settings) FAIL(v.op << ": " << v.violation.detail);
  SUCCEED();
}

std::unique_ptr<Engine> engine_of(DeviceModel& model, const EngineConfig& config, EngineHooks hooks = {}) {
  if (hooks.injector != nullptr) hooks.injector->use_device(model.mirror().device());
  auto made = Engine::create(model.weights(), config, EngineLimits{4, 256, 0}, SamplingParams{}, std::move(hooks),
                             &model.mirror());
  if (!made) FAIL(made.error().message);
  if (config.cuda_graph) {
    const auto outcome = (*made)->capture(4, false);
    if (!outcome) FAIL(outcome.error().message);
    require_clean(*outcome);
  }
  return std::move(*made);
}

}  // namespace

TEST_CASE("own kernels on a GPU agree with their spec references op by op, in every setup", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  DeviceModel model("synth:tiny", "cuda:0");
  for (Setup& setup : setups()) {
    CAPTURE(setup.name);
    setup.config.checks = CheckLevel::kReference;
    auto engine = engine_of(model, setup.config);
    require_clean(serve(*engine, setup.lengths, 3));
  }
}

TEST_CASE("the checked build on a GPU, op by op, is silent about sound runs", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  DeviceModel model("synth:tiny", "cuda:0");
  for (Setup& setup : setups()) {
    CAPTURE(setup.name);
    EngineHooks hooks;
    hooks.op_by_op = true;
    auto engine = engine_of(model, setup.config, std::move(hooks));
    require_clean(serve(*engine, setup.lengths, 2));
  }
}

TEST_CASE("screening on the stream and in graphs is silent about sound runs at every level", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  DeviceModel model("synth:tiny", "cuda:0");
  for (Setup& setup : setups())
    for (const CheckLevel level : {CheckLevel::kOff, CheckLevel::kFinite, CheckLevel::kFull})
      for (const bool graph : {false, true}) {
        CAPTURE(setup.name, static_cast<int>(level), graph);
        setup.config.checks = level;
        setup.config.cuda_graph = graph;
        auto engine = engine_of(model, setup.config);
        require_clean(serve(*engine, setup.lengths, 4));
        require_clean(serve(*engine, {3}, 2));
      }
}

TEST_CASE("a graph decodes the tokens that the stream decodes", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  DeviceModel model("synth:tiny", "cuda:0");
  std::vector<std::vector<int32_t>> tokens;
  for (const bool graph : {false, true}) {
    EngineConfig config = usual_config();
    config.cuda_graph = graph;
    auto engine = engine_of(model, config);
    auto sequence = engine->open(prompt_of(50, 1));
    REQUIRE(sequence);
    Sequence* pointer = &*sequence;
    bool done = false;
    Engine::StepOptions greedy;
    greedy.greedy = true;
    REQUIRE(engine->prefill({&pointer, 1}, greedy, done));
    for (int i = 0; i < 5; ++i) REQUIRE(engine->decode({&pointer, 1}, greedy));
    tokens.push_back(sequence->tokens);
  }
  CHECK(tokens[0].size() == 56);
  CHECK(tokens[0] == tokens[1]);
}

TEST_CASE("a broken output is found at the same place on the stream, in a graph and op by op", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  DeviceModel model("synth:tiny", "cuda:0");
  struct Mode {
    bool graph;
    bool op_by_op;
  };
  for (const Mode mode : {Mode{false, false}, Mode{true, false}, Mode{false, true}}) {
    CAPTURE(mode.graph, mode.op_by_op);
    Breaker breaker("layers.1.self_attn.q_a_layernorm", 2, [](const TensorView& out) {
      out.store(out.offset(0, 5), std::numeric_limits<float>::quiet_NaN());
    });
    EngineConfig config = usual_config();
    config.cuda_graph = mode.graph;
    EngineHooks hooks;
    hooks.op_by_op = mode.op_by_op;
    hooks.injector = &breaker;
    auto engine = engine_of(model, config, std::move(hooks));
    const PassOutcome outcome = serve(*engine, {9}, 1);
    REQUIRE_FALSE(outcome.fault);
    REQUIRE_FALSE(outcome.violations.empty());
    const EngineViolation& found = outcome.violations.front();
    CHECK(found.op == "layers.1.self_attn.q_a_layernorm");
    CHECK(found.violation.kind == "nonfinite");
    CHECK(found.violation.index == std::vector<int64_t>{0, 5});
    CHECK(found.violation.value == "nan");
    CHECK(found.inputs_clean == "yes");
    if (mode.op_by_op) {
      const auto again = replay_op(engine->last_pass(), found.op_index, engine->last_info(), engine->hooks(), 1);
      REQUIRE(again);
      CHECK(again->kind == "nonfinite");
      CHECK(again->index == std::vector<int64_t>{0, 5});
      EngineHooks sound;
      CHECK_FALSE(replay_op(engine->last_pass(), found.op_index, engine->last_info(), sound, 1));
    }
  }
}

TEST_CASE("a fault that strikes replayed graphs alone is found in the graph, with its step", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  DeviceModel model("synth:tiny", "cuda:0");
  Breaker breaker("layers.0.mlp.residual", 2,
                  [](const TensorView& out) { out.store(out.offset(0, 0), std::numeric_limits<float>::infinity()); });
  breaker.graph_only = true;
  EngineConfig config = usual_config();
  config.cuda_graph = true;
  EngineHooks hooks;
  hooks.injector = &breaker;
  auto engine = engine_of(model, config, std::move(hooks));
  const PassOutcome outcome = serve(*engine, {20, 30, 7}, 2);
  REQUIRE_FALSE(outcome.violations.empty());
  CHECK(outcome.violations.front().op == "layers.0.mlp.residual");
  CHECK(outcome.violations.front().info.graph);
  CHECK(outcome.violations.front().info.phase == PassPhase::kDecode);
  CHECK(breaker.struck == 1);
}

TEST_CASE("a reference in the place of a broken op makes the run clean", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  DeviceModel model("synth:tiny", "cuda:0");
  const std::string broken =
      GENERATE("layers.1.self_attn.q_a_layernorm", "layers.1.self_attn.attention", "layers.1.mlp.residual");
  CAPTURE(broken);
  Breaker breaker(broken, broken.ends_with("attention") ? 8 : 2,
                  [](const TensorView& out) { out.store(0, std::numeric_limits<float>::quiet_NaN()); });
  for (const bool in_place : {false, true}) {
    CAPTURE(in_place);
    EngineHooks hooks;
    hooks.injector = &breaker;
    if (in_place) hooks.use_reference = [&](const Op& op, int64_t) { return op.name == broken; };
    auto engine = engine_of(model, usual_config(), std::move(hooks));
    const PassOutcome outcome = serve(*engine, {12}, 2);
    if (in_place)
      require_clean(outcome);
    else
      CHECK_FALSE(outcome.clean());
  }
}
