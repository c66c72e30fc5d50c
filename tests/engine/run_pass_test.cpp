#include "engine/run_pass.h"

#include <cmath>

#include "engine/engine.h"
#include "testing.h"

using namespace faultline;

namespace {

// Does something to the output of one op, as a broken kernel would.
class Breaker : public FaultInjector {
 public:
  Breaker(std::string op, std::function<void(const OpCall&)> damage) : op_(std::move(op)), damage_(std::move(damage)) {}
  KernelResult run(const PassInfo&, const Op& op, const OpCall& call, bool) override {
    KernelResult result = op.kernel->run(call);
    if (op.name == op_) damage_(call);
    return result;
  }
  void weights(ModelWeights&) override {}

 private:
  std::string op_;
  std::function<void(const OpCall&)> damage_;
};

Checkpoint open_tiny() {
  auto opened = Checkpoint::open("synth:tiny");
  REQUIRE(opened);
  return std::move(*opened);
}

ModelWeights weights_of(const Checkpoint& checkpoint) {
  auto loaded = load_weights(checkpoint);
  REQUIRE(loaded);
  return std::move(*loaded);
}

struct Run {
  Checkpoint checkpoint = open_tiny();
  ModelWeights weights = weights_of(checkpoint);
  EngineConfig config;
  std::unique_ptr<Engine> engine;

  PassOutcome prefill(EngineHooks hooks, int64_t tokens = 20) {
    auto made = Engine::create(weights, config, EngineLimits{2, 64, 0}, SamplingParams{}, std::move(hooks));
    REQUIRE(made);
    engine = std::move(*made);
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < tokens; ++i) ids.push_back(i * 7 % 250);
    auto sequence = engine->open(ids);
    REQUIRE(sequence);
    Sequence* pointer = &*sequence;
    bool done = false;
    auto outcome = engine->prefill({&pointer, 1}, {}, done);
    REQUIRE(outcome);
    return std::move(*outcome);
  }
};

const std::string kOp = "layers.1.self_attn.o_proj";

}  // namespace

TEST_CASE("a clean pass is clean at every check level, in screening and op by op") {
  Run run;
  run.config.checks = GENERATE(CheckLevel::kOff, CheckLevel::kFinite, CheckLevel::kFull, CheckLevel::kReference);
  EngineHooks hooks;
  hooks.op_by_op = GENERATE(false, true);
  const PassOutcome outcome = run.prefill(hooks);
  CHECK(outcome.clean());
  CHECK(outcome.settings.empty());
}

TEST_CASE("a NaN is named at the op that wrote it, with sound inputs, and not below finite") {
  Run run;
  Breaker breaker(kOp, [](const OpCall& call) { call.arguments.back().view().store(5, NAN); });
  EngineHooks hooks;
  hooks.injector = &breaker;
  run.config.checks = GENERATE(CheckLevel::kFinite, CheckLevel::kFull, CheckLevel::kReference);
  const PassOutcome outcome = run.prefill(hooks);
  REQUIRE_FALSE(outcome.violations.empty());
  const EngineViolation& first = outcome.violations.front();
  CHECK(first.op == kOp);
  CHECK(first.violation.kind == "nonfinite");
  CHECK(first.violation.index == std::vector<int64_t>{0, 5});
  CHECK(first.inputs_clean == "yes");
  CHECK(first.layer == 1);
}

TEST_CASE("a finite wrong value is seen by the reference level and not by full") {
  Run run;
  Breaker breaker(kOp, [](const OpCall& call) {
    const TensorView& out = call.arguments.back().view();
    out.store(5, out.load(5) + 3.0f);
  });
  EngineHooks hooks;
  hooks.injector = &breaker;
  run.config.checks = CheckLevel::kFull;
  CHECK(run.prefill(hooks).clean());
  run.config.checks = CheckLevel::kReference;
  const PassOutcome outcome = run.prefill(hooks);
  REQUIRE_FALSE(outcome.violations.empty());
  CHECK(outcome.violations.front().op == kOp);
  CHECK(outcome.violations.front().violation.kind == "mismatch");
}

TEST_CASE("a reference in the kernel's place does not meet the fault") {
  Run run;
  Breaker breaker(kOp, [](const OpCall& call) { call.arguments.back().view().store(5, NAN); });
  EngineHooks hooks;
  hooks.injector = &breaker;
  hooks.use_reference = [](const Op& op, int64_t) { return op.name == kOp; };
  run.config.checks = CheckLevel::kReference;
  CHECK(run.prefill(hooks).clean());
}

TEST_CASE("a replay of the op on its recorded inputs breaks again with the fault and not without") {
  Run run;
  Breaker breaker(kOp, [](const OpCall& call) { call.arguments.back().view().store(5, NAN); });
  EngineHooks hooks;
  hooks.injector = &breaker;
  hooks.op_by_op = true;
  const PassOutcome outcome = run.prefill(hooks);
  REQUIRE_FALSE(outcome.violations.empty());
  const int index = outcome.violations.front().op_index;
  const auto again = replay_op(run.engine->last_pass(), index, run.engine->last_info(), run.engine->hooks(), 1);
  REQUIRE(again);
  CHECK(again->kind == "nonfinite");
  EngineHooks sound;
  CHECK_FALSE(replay_op(run.engine->last_pass(), index, run.engine->last_info(), sound, 1));
}

TEST_CASE("a write beside its own slots of the cache is bounds") {
  Run run;
  Breaker breaker("layers.0.self_attn.kv_write", [](const OpCall& call) {
    const Argument& cache = call.arguments.back();
    const int64_t slot = call.view(1).load_index(0);
    const int64_t page = slot / cache.geometry->page_size;
    // The page's last slot is free in a prompt of 20 tokens.
    cache.view().data[slot_bytes(*cache.geometry, (page + 1) * cache.geometry->page_size - 1)[0].begin] ^= std::byte{1};
  });
  EngineHooks hooks;
  hooks.injector = &breaker;
  run.config.checks = CheckLevel::kFull;
  const PassOutcome outcome = run.prefill(hooks);
  REQUIRE_FALSE(outcome.violations.empty());
  CHECK(outcome.violations.front().op == "layers.0.self_attn.kv_write");
  CHECK(outcome.violations.front().violation.kind == "bounds");
}

TEST_CASE("a write past a tensor's end breaks a canary") {
  Run run;
  Breaker breaker(kOp, [](const OpCall& call) {
    const TensorView& out = call.arguments.back().view();
    out.data[out.extent() * static_cast<int64_t>(dtype_bytes(out.dtype)) + 8] = std::byte{1};
  });
  EngineHooks hooks;
  hooks.injector = &breaker;
  run.config.checks = CheckLevel::kFull;
  const PassOutcome outcome = run.prefill(hooks);
  REQUIRE_FALSE(outcome.violations.empty());
  CHECK(outcome.violations.front().violation.kind == "canary");
  CHECK(outcome.violations.front().tensor == "self_attn.out");
}

TEST_CASE("graph buckets are the server's, and the last holds the batch") {
  CHECK(graph_buckets(1) == std::vector<int64_t>{1});
  CHECK(graph_buckets(3) == std::vector<int64_t>{1, 2, 4});
  CHECK(graph_buckets(9) == std::vector<int64_t>{1, 2, 4, 8, 16});
}

TEST_CASE("prompts outside the vocabulary and empty ones are errors") {
  Run run;
  auto made = Engine::create(run.weights, run.config, EngineLimits{1, 64, 0}, SamplingParams{});
  REQUIRE(made);
  CHECK_FALSE((*made)->open({}));
  CHECK_FALSE((*made)->open({-1}));
  CHECK_FALSE((*made)->open({257}));
}

TEST_CASE("dense attention is a setting beyond top-k, and no more than the cache's format within it") {
  const Format format = GENERATE(Format::kKvBf16, Format::kKvPlainFp8);
  const bool beyond = GENERATE(false, true);
  const bool from_rows = GENERATE(false, true);  // the new rows of a pass, or the pool
  CAPTURE(format_name(format), beyond, from_rows);
  Run run;
  run.config.checks = CheckLevel::kReference;
  run.config.indexer = false;
  run.config.prefill_attention = run.config.decode_attention = "triton";
  run.config.kv_format = run.config.prefill_reads = run.config.decode_reads = format;
  run.config.prefill_from_rows = from_rows;
  const int64_t topk = run.weights.config.index_topk;
  const PassOutcome outcome = run.prefill({}, beyond ? 3 * topk : topk);
  REQUIRE(outcome.clean());
  if (!beyond) CHECK(outcome.settings.empty());
  if (beyond) {
    REQUIRE_FALSE(outcome.settings.empty());
    CHECK(outcome.settings.front().violation.attribute == "dense");
  }
}
