// What a replayed decode step finds in the rows that pad its batch: as the server's graph runner leaves them.
#include "engine/engine.h"
#include "ops/kinds.h"
#include "testing.h"

using namespace faultline;

namespace {

constexpr int64_t kRequests = 4;  // a graph's batch size, so that three of them leave one row over
constexpr int64_t kTokens = 20;

}  // namespace

TEST_CASE("a padded row has length 1 and slot 0, and keeps the position, id and request of an earlier batch") {
  const Checkpoint checkpoint = Checkpoint::open("synth:tiny").value();
  const ModelWeights weights = load_weights(checkpoint).value();
  EngineConfig config;
  config.cuda_graph = true;
  config.checks = CheckLevel::kFinite;  // higher ones poison what a kernel need not write
  config.decode_attention = "trtllm";
  auto made = Engine::create(weights, config, EngineLimits{kRequests, 64, 0}, SamplingParams{}, {});
  if (!made) FAIL(made.error().message);
  Engine& engine = **made;
  std::vector<Sequence> sequences;
  std::vector<Sequence*> pointers;
  for (int64_t s = 0; s < kRequests; ++s) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < kTokens + s; ++i) ids.push_back(static_cast<int32_t>((i * 7 + s * 31) % 250));
    sequences.push_back(engine.open(ids).value());
  }
  for (Sequence& sequence : sequences) pointers.push_back(&sequence);
  Engine::StepOptions options;
  options.greedy = true;
  options.commit = true;
  bool done = false;
  REQUIRE(engine.prefill(pointers, options, done).value().clean());
  REQUIRE(engine.decode(pointers, options).value().clean());
  const int32_t id = sequences.back().tokens[kTokens + kRequests - 1];
  pointers.pop_back();
  REQUIRE(engine.decode(pointers, options).value().clean());

  const Pass& pass = engine.last_pass();
  REQUIRE(pass.shape.requests == kRequests);
  const auto number = [&](const TensorView& view) { return view.load_index(kRequests - 1); };
  const ArgumentList& prepare = pass.find("batch.prepare")->arguments;
  using P = ops::Prepare;
  CHECK(number(prepare[P::kPositions].view()) == kTokens + kRequests - 1);
  CHECK(number(pass.input_ids) == id);
  CHECK(number(pass.req_pool) == sequences.back().request);
  CHECK(number(prepare[P::kLengths].view()) == 1);
  CHECK(number(pass.seq_lens) == 1);
  CHECK(number(pass.slots) == 0);
  // A live row's are this step's.
  CHECK(prepare[P::kPositions].view().load_index(0) == kTokens + 1);
}
