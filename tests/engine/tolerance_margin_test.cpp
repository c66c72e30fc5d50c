// How much of each tolerance is used: the worst |out - ref| / (absolute + relative * |ref|) that whole runs meet.
// Hidden; scripts/tolerance_margins prints it, docs/tolerances.md holds what it printed.
#include <fmt/format.h>
#include <cmath>
#include <cstdlib>
#include <map>

#include "check/compare.h"
#include "engine/engine.h"
#include "testing.h"

using namespace faultline;

namespace {

// Runs each kernel and, on the same inputs, its spec reference.
class Margins : public FaultInjector {
 public:
  KernelResult run(const PassInfo& info, const Op& op, const OpCall& call, bool) override {
    KernelResult result = op.kernel->run(call);
    const Tolerance tolerance = op.kernel->tolerance;
    if (result || (tolerance.atol == 0 && tolerance.rtol == 0) || op.kind->selection != nullptr) return result;
    const ScratchOutputs scratch(op);
    const OpCall reference = scratch.call(op.attributes);
    spec_of(op)(reference);
    for (int i = 0; i < static_cast<int>(op.kind->operands.size()); ++i) {
      const OperandSpec& spec = op.kind->operands[static_cast<size_t>(i)];
      if (spec.direction != Direction::kOut || !call.argument(i).present()) continue;
      if (spec.content != Content::kValues && spec.content != Content::kProbabilities) continue;
      const TensorView& out = call.view(i);
      const TensorView& ref = reference.view(i);
      double& worst = worst_[{op.kind->name, std::string(dtype_name(out.dtype))}];
      for_each_live(call, spec, i, info.live, [&](int64_t at, int64_t, int64_t) {
        const double expected = ref.load(at);
        const double gap = std::abs(static_cast<double>(out.load(at)) - expected);
        worst = std::max(worst, gap / (tolerance.atol + tolerance.rtol * std::abs(expected)));
        return true;
      });
    }
    return result;
  }
  void weights(ModelWeights&) override {}

  const auto& worst() const { return worst_; }

 private:
  std::map<std::pair<std::string, std::string>, double> worst_;
};

void measure(const std::string& model, const EngineConfig& config, Margins& margins) {
  const Checkpoint checkpoint = Checkpoint::open(model).value();
  const ModelWeights weights = load_weights(checkpoint).value();
  EngineHooks hooks;
  hooks.injector = &margins;
  auto made = Engine::create(weights, config, EngineLimits{3, 192, 0}, SamplingParams{}, std::move(hooks));
  if (!made) FAIL(made.error().message);
  std::vector<Sequence> sequences;
  std::vector<Sequence*> pointers;
  for (int64_t s = 0; s < 3; ++s) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < 130 + s; ++i) ids.push_back(static_cast<int32_t>((i * 7 + s * 31) % 250));
    sequences.push_back((*made)->open(ids).value());
  }
  for (Sequence& sequence : sequences) pointers.push_back(&sequence);
  Engine::StepOptions options;
  for (bool done = false; !done;) REQUIRE((*made)->prefill(pointers, options, done).value().clean());
  for (int step = 0; step < 2; ++step) REQUIRE((*made)->decode(pointers, options).value().clean());
}

}  // namespace

TEST_CASE("worst gaps to the spec references, in parts of the tolerance", "[.][tolerances]") {
  const char* const asked = std::getenv("FAULTLINE_MARGINS_MODEL");
  const std::string model = asked == nullptr ? "synth:tiny" : asked;
  Margins margins;
  for (const Format format : {Format::kKvBf16, Format::kKvPacked, Format::kKvPlainFp8})
    for (const char* experts : {"w4a4", "weight_only"}) {
      EngineConfig config;
      config.checks = CheckLevel::kFinite;
      config.kv_format = config.prefill_reads = config.decode_reads = format;
      config.prefill_attention = format == Format::kKvPacked ? "flashmla_kv" : "trtllm";
      config.decode_attention = config.prefill_attention;
      config.fp4_linear = config.fp4_experts = experts;
      config.index_hadamard = format == Format::kKvPlainFp8;
      config.chunk = 64;
      measure(model, config, margins);
    }
  for (const auto& [what, worst] : margins.worst()) {
    fmt::print("| `{}` | {} | {:.2f} |\n", what.first, what.second, worst);
    CHECK(worst <= 1);
  }
}
