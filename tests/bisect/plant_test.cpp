#include "bisect/plant.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <map>
#include <new>
#include <set>
#include <sstream>

#include "bisect/plant_selector.h"
#include "engine/engine.h"
#include "engine/run_pass.h"
#include "ops/kinds.h"
#include "testing.h"

using namespace faultline;

namespace {

const Checkpoint& checkpoint() {
  static const Checkpoint kCheckpoint = [] {
    auto opened = Checkpoint::open("synth:tiny");
    if (!opened) std::fprintf(stderr, "%s\n", opened.error().message.c_str());
    return std::move(opened).value();
  }();
  return kCheckpoint;
}

// What a row of the grid would be: the packed cache, read as it was written.
EngineConfig packed_config(CheckLevel level) {
  EngineConfig config;
  config.checks = level;
  config.prefill_attention = config.decode_attention = "flashmla_kv";
  config.kv_format = config.prefill_reads = config.decode_reads = Format::kKvPacked;
  return config;
}

// And what the fault's stage of the self-test changes about it.
EngineConfig stage_config(const PlantInfo& info, CheckLevel level) {
  EngineConfig config = packed_config(level);
  config.cuda_graph = info.stage == "graph";
  config.experts_own_input_scale = info.stage == "own scales";
  config.high_slots = info.stage == "high";
  if (info.stage == "ragged") {
    config.prefill_attention = "flashmla_sparse";
    config.prefill_gathers = config.prefill_from_rows = true;
    config.chunk = 16;  // so that there is a prefix
  }
  return config;
}

struct Run {
  std::optional<PassOutcome> failed;  // the first pass that was not clean
  int64_t passes = 0;
};

// An engine with a planted fault: prompts of 20 and 33 tokens (past the top-k of 16), then two decode steps.
class Fixture {
 public:
  explicit Fixture(const std::string& spec, const EngineConfig& config, EngineHooks hooks = {}) {
    auto loaded = load_weights(checkpoint());
    REQUIRE(loaded.has_value());
    weights_ = std::move(*loaded);
    if (!spec.empty()) {
      auto made = make_plant(spec, weights_.config);
      if (!made) FAIL(made.error().message);
      plant_ = std::move(*made);
      plant_->weights(weights_);
      hooks.injector = plant_.get();
    }
    auto created = Engine::create(weights_, config, EngineLimits{3, 64, 0}, SamplingParams{}, std::move(hooks));
    if (!created) FAIL(created.error().message);
    engine_ = std::move(*created);
  }

  Run run(int64_t requests = 2) {
    Run result;
    std::vector<Sequence> sequences;
    for (int64_t r = 0; r < requests; ++r) {
      std::vector<int32_t> prompt;
      for (int32_t i = 0; i < 20 + 13 * r; ++i) prompt.push_back(static_cast<int32_t>((i * 37 + 11 * r + 5) % 257));
      auto opened = engine_->open(std::move(prompt));
      REQUIRE(opened.has_value());
      sequences.push_back(std::move(*opened));
    }
    std::vector<Sequence*> rows;
    for (Sequence& sequence : sequences) rows.push_back(&sequence);
    const auto keep = [&](Result<PassOutcome> outcome) {
      REQUIRE(outcome.has_value());
      ++result.passes;
      if (!outcome->clean()) result.failed = std::move(*outcome);
    };
    bool done = false;
    while (!done && !result.failed) keep(engine_->prefill(rows, {}, done));
    for (int step = 0; step < 2 && !result.failed; ++step) keep(engine_->decode(rows, {}));
    for (Sequence& sequence : sequences) engine_->close(sequence);
    return result;
  }

  // The configuration that its stage asks for: a graph padded to four requests.
  Run run_staged() {
    if (!engine_->config().cuda_graph) return run();
    REQUIRE(engine_->capture(4, false).has_value());
    return run(3);
  }

  int64_t fired() const { return plant_ ? plant_->fired() : 0; }
  Engine& engine() { return *engine_; }
  PlantedFault& plant() { return *plant_; }

 private:
  ModelWeights weights_;
  std::unique_ptr<PlantedFault> plant_;
  std::unique_ptr<Engine> engine_;
};

Run run_with(const std::string& spec, CheckLevel level = CheckLevel::kFull, int64_t requests = 2) {
  return Fixture(spec, packed_config(level)).run(requests);
}

// Whether the op is still broken when it runs alone on the inputs that the failed pass left.
std::optional<OpViolation> replay(Fixture& fixture, const std::string& op) {
  const Pass& pass = fixture.engine().last_pass();
  for (size_t i = 0; i < pass.ops.size(); ++i)
    if (pass.ops[i].name == op)
      return replay_op(pass, static_cast<int>(i), fixture.engine().last_info(), fixture.engine().hooks(), 1);
  FAIL("no op " << op);
  return std::nullopt;
}

// Runs `body` in a child, whose standard error is dropped; what wait() says of it.
int end_of_child(const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_CORE, &none);
    for (const int signal : {SIGSEGV, SIGABRT, SIGALRM, SIGTERM}) std::signal(signal, SIG_DFL);  // Catch2 has handlers
    if (std::freopen("/dev/null", "w", stderr) == nullptr) std::_Exit(99);
    body();
    std::_Exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

void run_in_child(const std::string& spec) {
  Fixture(spec, packed_config(CheckLevel::kFull)).run();
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const std::set<std::string>& host_plants() {
  static const std::set<std::string> kNames = {"crash",      "abort",           "hang",
                                               "exit",       "exception",       "out_of_memory",
                                               "late_crash", "store_assertion", "indexer_out_of_memory"};
  return kNames;
}

}  // namespace

TEST_CASE("a run without a planted fault is clean at every level", "[plant]") {
  for (const CheckLevel level : {CheckLevel::kFinite, CheckLevel::kFull, CheckLevel::kReference}) {
    const Run run = run_with("", level);
    if (run.failed && !run.failed->violations.empty())
      FAIL(run.failed->violations.front().op << ": " << run.failed->violations.front().violation.detail);
    REQUIRE(run.passes == 3);
  }
}

TEST_CASE("each planted fault is seen where and as its entry says", "[plant]") {
  for (const PlantInfo& info : plant_catalogue()) {
    if (host_plants().count(info.name) != 0 || info.gpu_only) continue;
    DYNAMIC_SECTION(info.name) {
      const CheckLevel level = std::max(info.seen_from, CheckLevel::kFinite);
      Fixture fixture(info.name, stage_config(info, level));
      const Run run = fixture.run_staged();
      REQUIRE(fixture.fired() > 0);
      REQUIRE(run.failed.has_value());
      if (run.failed->fault) {
        REQUIRE(run.failed->fault->fault.verdict == info.verdicts.front());
        REQUIRE(glob_matches(info.seen_at, run.failed->fault->op));
        return;
      }
      const EngineViolation& first = run.failed->violations.front();
      INFO(first.op << ": " << first.violation.detail);
      REQUIRE(first.violation.kind == info.verdicts.front());
      if (info.name == "canary_overrun") {
        REQUIRE(first.tensor == "self_attn.residual_mid");  // screening knows the layer and the tensor, not the op
        return;
      }
      REQUIRE(glob_matches(info.seen_at, first.op));
      REQUIRE(first.inputs_clean == (info.culprit == "weights" ? "no" : "yes"));
    }
  }
}

TEST_CASE("a fault of a GPU is refused on the CPU, and would leave the kernel alone there", "[plant]") {
  int found = 0;
  for (const PlantInfo& info : plant_catalogue()) {
    REQUIRE(check_plant_device(info.name, true).has_value());
    const Status on_cpu = check_plant_device(info.name, false);
    REQUIRE(on_cpu.has_value() == !info.gpu_only);
    if (!info.gpu_only) continue;
    ++found;
    REQUIRE(contains(on_cpu.error().message, "--device cuda"));
    Fixture fixture(info.name, packed_config(CheckLevel::kFull));
    REQUIRE(!fixture.run().failed);
    REQUIRE(fixture.fired() == 0);
  }
  REQUIRE(found == 4);
}

TEST_CASE("a plant says which ops it may strike", "[plant]") {
  const auto touched = [](const std::string& spec) {
    Fixture fixture(spec, packed_config(CheckLevel::kFull));
    fixture.run();
    std::set<std::string> ops;
    for (const Op& op : fixture.engine().last_pass().ops)
      if (fixture.plant().touches(op)) ops.insert(op.name);
    return ops;
  };
  REQUIRE(touched("nan_output") == std::set<std::string>{"layers.0.self_attn.o_proj"});
  REQUIRE(touched("nan_output@op=*.o_proj,layer=1") == std::set<std::string>{"layers.1.self_attn.o_proj"});
  const std::set<std::string> raced = touched("late_tile");
  REQUIRE(raced.count("layers.0.mlp.gate_up_proj") == 1);
  REQUIRE(raced.count("layers.0.mlp.act_fn") == 1);
  REQUIRE(raced.count("layers.1.mlp.router") == 0);
  const std::set<std::string> scaled = touched("zero_input_scale");
  REQUIRE(scaled.count("layers.0.mlp.gate_up_proj.quantize") == 1);
  REQUIRE(scaled.count("layers.0.mlp.down_proj.quantize") == 0);
}

TEST_CASE("a planted fault is not seen below the level that its entry names", "[plant]") {
  for (const PlantInfo& info : plant_catalogue()) {
    if (info.seen_from != CheckLevel::kReference || info.verdicts.front() != "mismatch") continue;
    DYNAMIC_SECTION(info.name) {
      Fixture fixture(info.name, stage_config(info, CheckLevel::kFull));
      const Run run = fixture.run_staged();
      REQUIRE(fixture.fired() > 0);
      REQUIRE(!run.failed);
    }
  }
}

TEST_CASE("a replay of the broken op meets the fault, and is clean without it", "[plant]") {
  for (const char* name : {"pow2_scales", "zero_kv_block", "topk_minus_one", "page_past_pool", "foreign_page",
                           "router_zero_over_zero", "expert_past_end", "nan_output", "unwritten_tile", "assert"}) {
    DYNAMIC_SECTION(name) {
      Fixture fixture(name, packed_config(CheckLevel::kFull));
      const Run run = fixture.run();
      REQUIRE(run.failed.has_value());
      const std::string op = run.failed->fault ? run.failed->fault->op : run.failed->violations.front().op;
      const auto found = replay(fixture, op);
      REQUIRE(found.has_value());
      REQUIRE(found->kind == find_plant(name)->verdicts.front());
      fixture.engine().hooks().injector = nullptr;
      REQUIRE(!replay(fixture, op).has_value());
    }
  }
}

TEST_CASE("a write past the end is recorded by the checked build, which drops it", "[plant]") {
  EngineHooks hooks;
  hooks.op_by_op = true;
  Fixture fixture("canary_overrun", packed_config(CheckLevel::kFull), hooks);
  const Run run = fixture.run();
  REQUIRE(run.failed.has_value());
  const EngineViolation& first = run.failed->violations.front();
  REQUIRE(first.op == "layers.0.self_attn.residual");
  REQUIRE(first.violation.kind == "bounds");
}

TEST_CASE("the late tile shows at its consumer and leaves the producer's output whole", "[plant]") {
  Fixture fixture("late_tile", packed_config(CheckLevel::kReference));
  const Run run = fixture.run();
  REQUIRE(run.failed.has_value());
  REQUIRE(run.passes == 2);  // the first decode step
  for (const EngineViolation& violation : run.failed->violations) REQUIRE(violation.op != "layers.0.mlp.gate_up_proj");
  REQUIRE(run.failed->violations.front().op == "layers.0.mlp.act_fn");
  REQUIRE(run.failed->violations.front().inputs_clean == "yes");
  REQUIRE(!replay(fixture, "layers.0.mlp.act_fn").has_value());
  REQUIRE(!replay(fixture, "layers.0.mlp.gate_up_proj").has_value());
}

TEST_CASE("the late tile is gone where its edge, or every edge, is serialized", "[plant]") {
  const auto run = [](const std::function<void(EngineHooks&)>& set) {
    EngineHooks hooks;
    set(hooks);
    Fixture fixture("late_tile", packed_config(CheckLevel::kFull), hooks);
    const Run result = fixture.run();
    REQUIRE(!result.failed == (fixture.fired() == 0));
    return !result.failed;
  };
  REQUIRE(run([](EngineHooks& hooks) { hooks.serialize = {"layers.0.mlp.gate_up_proj"}; }));
  REQUIRE(run([](EngineHooks& hooks) { hooks.serialize_all = true; }));
  REQUIRE(run([](EngineHooks& hooks) { hooks.op_by_op = true; }));
  REQUIRE(!run([](EngineHooks& hooks) { hooks.serialize = {"layers.0.mlp.down_proj"}; }));
  REQUIRE(!run([](EngineHooks& hooks) { hooks.serialize = {"layers.0.mlp.act_fn"}; }));
}

TEST_CASE("the late tile depends on the batch's make-up and on W4A4 products", "[plant]") {
  Fixture alone("late_tile", packed_config(CheckLevel::kFull));
  REQUIRE(!alone.run(1).failed);
  REQUIRE(alone.fired() == 0);

  EngineConfig weight_only = packed_config(CheckLevel::kFull);
  weight_only.fp4_linear = weight_only.fp4_experts = "weight_only";
  Fixture marlin("late_tile", weight_only);
  REQUIRE(!marlin.run().failed);
  REQUIRE(marlin.fired() == 0);
}

TEST_CASE("without sentinels the late tile holds the previous step's values", "[plant]") {
  EngineHooks hooks;
  hooks.no_poison = true;
  Fixture finite("late_tile@step>=1", packed_config(CheckLevel::kFull), hooks);
  REQUIRE(!finite.run().failed);
  REQUIRE(finite.fired() == 1);

  Fixture seen("late_tile@step>=1", packed_config(CheckLevel::kReference), hooks);
  const Run run = seen.run();
  REQUIRE(run.failed.has_value());
  REQUIRE(run.failed->violations.front().op == "layers.0.mlp.act_fn");
  REQUIRE(run.failed->violations.front().violation.kind == "mismatch");
}

TEST_CASE("the late tile reaches experts and other products", "[plant]") {
  const Run experts = run_with("late_tile@layer=1");
  REQUIRE(experts.failed.has_value());
  REQUIRE(experts.failed->violations.front().op == "layers.1.mlp.experts.act_fn");

  const Run down = run_with("late_tile@op=layers.0.mlp.down_proj");
  REQUIRE(down.failed.has_value());
  REQUIRE(down.failed->violations.front().op == "layers.0.mlp.residual");
}

TEST_CASE("a consumer that runs twice over two poisons reads the late tile both times", "[plant]") {
  Fixture fixture("late_tile@step=2", packed_config(CheckLevel::kFull));
  REQUIRE(!fixture.run().failed);
  const Pass& pass = fixture.engine().last_pass();
  PassInfo info = fixture.engine().last_info();
  info.step = 2;
  const Op& producer = *pass.find("layers.0.mlp.gate_up_proj");
  const Op& consumer = *pass.find("layers.0.mlp.act_fn");
  const TensorView& product = producer.arguments[ops::LinearW4A4::kOut].view();
  const TensorView& activation = consumer.arguments[ops::SiluMul::kOut].view();
  const auto values = [](const TensorView& view) {
    std::vector<float> result;
    for (int64_t i = 0; i < view.extent(); ++i) result.push_back(view.load(i));
    return result;
  };
  const std::vector<float> zeros(static_cast<size_t>(activation.extent()), 0.0f);
  producer.kernel->run(producer.call());
  const std::vector<float> complete = values(product);
  consumer.kernel->run(consumer.call());
  REQUIRE(values(activation) != zeros);

  for (int64_t i = 0; i < product.extent(); ++i) product.store(i, 0.0f);  // what the buffer held before
  fixture.plant().run(info, producer, producer.call(), false);
  for (int round = 0; round < 2; ++round) {
    fixture.plant().run(info, consumer, consumer.call(), false);
    REQUIRE(values(activation) == zeros);
    REQUIRE(values(product) == complete);
  }
}

TEST_CASE("the late tile strikes in a padded graph replay too", "[plant]") {
  EngineConfig config = packed_config(CheckLevel::kFull);
  config.cuda_graph = true;
  Fixture fixture("late_tile@graph", config);
  REQUIRE(fixture.engine().capture(4, false).has_value());
  const Run run = fixture.run(3);
  REQUIRE(run.failed.has_value());
  REQUIRE(run.failed->violations.front().op == "layers.0.mlp.act_fn");
  REQUIRE(run.failed->violations.front().info.graph);
  REQUIRE(!run_with("late_tile@graph", CheckLevel::kFull, 3).failed);
}

TEST_CASE("faults of the packed cache need one", "[plant]") {
  EngineConfig bf16;
  bf16.checks = CheckLevel::kFull;
  bf16.decode_requantizes = false;
  bf16.decode_attention = "flashmla_sparse";
  for (const char* name : {"pow2_scales", "zero_kv_block"}) {
    DYNAMIC_SECTION(name) {
      Fixture fixture(name, bf16);
      REQUIRE(!fixture.run().failed);
      REQUIRE(fixture.fired() == 0);
    }
  }
}

TEST_CASE("scales of the FP8 index cache can be read as powers of two", "[plant]") {
  Fixture fixture("pow2_scales@op=layers.2.self_attn.indexer.scores", packed_config(CheckLevel::kReference));
  const Run run = fixture.run();
  REQUIRE(fixture.fired() > 0);
  REQUIRE(run.failed.has_value());
  REQUIRE(run.failed->violations.front().op == "layers.2.self_attn.indexer.scores");
}

TEST_CASE("a zero input scale can be lost for all experts of a layer", "[plant]") {
  Fixture fixture("zero_input_scale@layer=2,op=*experts.down_proj", packed_config(CheckLevel::kFull));
  const Run run = fixture.run();
  REQUIRE(fixture.fired() > 0);
  REQUIRE(run.failed.has_value());
  REQUIRE(run.failed->violations.front().op == "layers.2.mlp.experts.down_proj.quantize");
  REQUIRE(run.failed->violations.front().violation.value == "0");
}

TEST_CASE("a foreign page is somebody else's slot, or nobody's", "[plant]") {
  for (const int64_t requests : {1, 2, 3}) {
    const Run run = run_with("foreign_page", CheckLevel::kFull, requests);
    REQUIRE(run.failed.has_value());
    const EngineViolation& first = run.failed->violations.front();
    REQUIRE(first.op == "batch.prepare");
    REQUIRE(first.violation.index == std::vector<int64_t>{requests - 1, 0});
    REQUIRE(first.violation.detail.find("not in the pages") != std::string::npos);
  }
}

TEST_CASE("a selector moves a fault to another op, pass or row", "[plant]") {
  const Run moved = run_with("nan_output@op=layers.2.self_attn.q_b_proj,phase=decode,step=1,row=0");
  REQUIRE(moved.failed.has_value());
  const EngineViolation& first = moved.failed->violations.front();
  REQUIRE(moved.passes == 3);
  REQUIRE(first.op == "layers.2.self_attn.q_b_proj");
  REQUIRE(first.info.step == 1);
  REQUIRE(first.violation.index.front() == 0);
  REQUIRE(first.violation.count == 1);
}

TEST_CASE("a selector that matches nothing breaks nothing, and says so", "[plant]") {
  for (const char* spec :
       {"nan_output@op=layers.9.*", "nan_output@batch=3", "nan_output@tokens>=1000", "nan_output@row=500",
        "nan_output@warmup", "nan_output@graph", "nan_output@op=*.topk", "crash@step=50"}) {
    DYNAMIC_SECTION(spec) {
      Fixture fixture(spec, packed_config(CheckLevel::kFull));
      REQUIRE(!fixture.run().failed);
      REQUIRE(fixture.fired() == 0);
    }
  }
}

TEST_CASE("host crash, abort and exit end the process as they say", "[plant]") {
  const int crashed = end_of_child([] { run_in_child("crash"); });
  REQUIRE(WIFSIGNALED(crashed));
  REQUIRE(WTERMSIG(crashed) == SIGSEGV);
  const int aborted = end_of_child([] { run_in_child("abort"); });
  REQUIRE(WIFSIGNALED(aborted));
  REQUIRE(WTERMSIG(aborted) == SIGABRT);
  const int left = end_of_child([] { run_in_child("exit"); });
  REQUIRE(WIFEXITED(left));
  REQUIRE(WEXITSTATUS(left) == 7);
}

TEST_CASE("a hang lasts until somebody ends it", "[plant]") {
  const int status = end_of_child([] {
    ::alarm(1);
    run_in_child("hang@phase=prefill");
  });
  REQUIRE(WIFSIGNALED(status));
  REQUIRE(WTERMSIG(status) == SIGALRM);
}

TEST_CASE("an exception leaves the op", "[plant]") {
  Fixture fixture("exception", packed_config(CheckLevel::kFull));
  REQUIRE_THROWS_AS(fixture.run(), std::runtime_error);
}

#if !defined(__SANITIZE_ADDRESS__)  // its shadow memory does not fit under a limit
TEST_CASE("running out of memory ends in bad_alloc under a limit", "[plant]") {
  constexpr int kRanOut = 42;
  const int status = end_of_child([] {
    Fixture fixture("out_of_memory", packed_config(CheckLevel::kFull));
    const rlimit limit{size_t{1} << 30, size_t{1} << 30};
    ::setrlimit(RLIMIT_DATA, &limit);
    try {
      fixture.run();
    } catch (const std::bad_alloc&) {
      std::_Exit(kRanOut);
    }
  });
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == kRanOut);
}
#endif

TEST_CASE("plant specs are parsed strictly", "[plant]") {
  const auto message = [](const std::string& spec) {
    const Status status = check_plant(spec);
    REQUIRE(!status.has_value());
    REQUIRE(status.error().kind == ErrorKind::kBadInput);
    return status.error().message;
  };
  REQUIRE(contains(message("late_tiel"), "did you mean 'late_tile'"));
  REQUIRE(contains(message(""), "unknown plant ''"));
  REQUIRE(contains(message("crash@"), "no condition"));
  REQUIRE(contains(message("crash@step=1,"), "no condition"));
  REQUIRE(contains(message("crash@stepp=1"), "did you mean 'step'"));
  REQUIRE(contains(message("crash@step=1,step=2"), "given twice"));
  REQUIRE(contains(message("crash@step"), "no value"));
  REQUIRE(contains(message("crash@step="), "no value"));
  REQUIRE(contains(message("crash@step=-1"), "number from 0"));
  REQUIRE(contains(message("crash@step=99999999999999999999"), "number from 0"));
  REQUIRE(contains(message("crash@step=1x"), "number from 0"));
  REQUIRE(contains(message("crash@layer>=1"), "not '>='"));
  REQUIRE(contains(message("crash@phase=decoed"), "did you mean 'decode'"));
  REQUIRE(contains(message("crash@graph=yes"), "'on' or 'off'"));
  REQUIRE(contains(message("crash@row=1"), "takes no 'row'"));
  REQUIRE(contains(message("zero_input_scale@step=1"), "takes no 'step'"));
  REQUIRE(contains(message("crash@op=" + std::string(300, '*')), "longer than"));
  REQUIRE(
      check_plant("crash@op=layers.?.*,layer=3,phase=prefill,step>=2,batch=3,tokens>=4,graph=off,warmup").has_value());

  const auto beyond = make_plant("crash@layer=4", checkpoint().config());
  REQUIRE(!beyond.has_value());
  REQUIRE(contains(beyond.error().message, "layers 0 to 3"));
}

TEST_CASE("two faults at once both strike, and the first of them is seen first", "[plant]") {
  Fixture fixture("swapped_gate_up+wrong_value", packed_config(CheckLevel::kReference));
  const Run run = fixture.run();
  REQUIRE(run.failed.has_value());
  std::set<std::string> ops;
  for (const EngineViolation& violation : run.failed->violations) ops.insert(violation.op);
  REQUIRE(run.failed->violations.front().op == "layers.0.self_attn.o_proj");
  REQUIRE(ops.count("layers.0.mlp.act_fn") == 1);
  REQUIRE(fixture.plant().where() == "op=layers.0.mlp.act_fn+wrong_value@op=layers.0.self_attn.o_proj");
  REQUIRE(contains(check_plant("swapped_gate_up+late_tiel").error().message, "did you mean 'late_tile'"));
  REQUIRE(!check_plant("swapped_gate_up+").has_value());
  REQUIRE(!check_plant_device("swapped_gate_up+illegal_access", false).has_value());
  REQUIRE(check_plant_device("swapped_gate_up+illegal_access", true).has_value());
}

TEST_CASE("a planted fault says where it strikes, defaults included", "[plant]") {
  const ModelConfig& config = checkpoint().config();
  REQUIRE((*make_plant("late_tile", config))->where() == "op=layers.0.mlp.gate_up_proj,phase=decode,tokens>=2");
  REQUIRE((*make_plant("late_tile@layer=2,batch=3", config))->where() ==
          "op=layers.2.mlp.experts.gate_up_proj,layer=2,phase=decode,batch=3");
  REQUIRE((*make_plant("router_zero_over_zero", config))->where() == "op=layers.1.mlp.router");
  REQUIRE((*make_plant("crash@phase=prefill,op=*.o_proj", config))->where() == "op=*.o_proj,phase=prefill");
}

TEST_CASE("globs match whole names", "[plant]") {
  REQUIRE(glob_matches("layers.*.mlp*.act_fn", "layers.10.mlp.experts.act_fn"));
  REQUIRE(glob_matches("*a*b", "aabab"));
  REQUIRE(glob_matches("", ""));
  REQUIRE(glob_matches("layers.?.x", "layers.1.x"));
  REQUIRE(!glob_matches("layers.?.x", "layers.10.x"));
  REQUIRE(!glob_matches("layers.1", "layers.1.x"));
  REQUIRE(!glob_matches("", "x"));
  REQUIRE(!glob_matches("*.b", "a.bc"));
}

TEST_CASE("the catalogue is sorted, complete and in the documentation", "[plant]") {
  std::ifstream file(std::string(FAULTLINE_SOURCE_DIR) + "/docs/planted-faults.md");
  std::ostringstream text;
  text << file.rdbuf();
  REQUIRE(contains(text.str(), plant_table()));
  std::string last;
  for (const PlantInfo& info : plant_catalogue()) {
    REQUIRE(last < info.name);
    last = info.name;
    REQUIRE(!info.summary.empty());
    REQUIRE(!info.culprit.empty());
    REQUIRE(!info.verdicts.empty());
    REQUIRE(!info.seen_at.empty());
    REQUIRE(!info.named_at.empty());
    REQUIRE(find_plant(info.name + "@op=x") == find_plant(info.name));
  }
  REQUIRE(find_plant("nothing") == nullptr);
}

// The classes into which public faults of such deployments fall, and how many entries stand for each.
TEST_CASE("the catalogue has faults of every class that an op can show", "[plant]") {
  std::map<std::string, int> classes;
  for (const PlantInfo& info : plant_catalogue()) ++classes[info.fault_class];
  const std::set<std::string> known = {"UNKNOWN", "ARCH",  "CODEGEN", "GRAPHMETA", "SMEM", "SCALEFMT", "SEQ0",
                                       "TOPK",    "INT32", "OOM",     "UNINITPAD", "ROPE", "ALLRED",   "CACHEXFER",
                                       "INSCALE", "IDXXF", "ROUTE",   "OOB",       "RACE", "GRID",     "GUARD",
                                       "MASK",    "LOAD",  "FP8ZERO", "HEADPAD"};
  for (const auto& [name, count] : classes) {
    INFO(name);
    REQUIRE(known.count(name) == 1);
  }
  REQUIRE(classes.size() == known.size());
  REQUIRE(plant_catalogue().size() >= 50);
}
