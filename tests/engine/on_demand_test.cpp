// Weights that are made on use give the bits of weights that are all there.
#include <cstring>

#include "base/parallel.h"
#include "engine/forward.h"
#include "engine/weights.h"
#include "testing.h"

using namespace faultline;

namespace {

// Experts, projections and the vocabulary are each larger than OnDemandWeights::kSmall.
constexpr const char* kModel =
    "synth:tiny?hidden_size=512&moe_intermediate_size=512&intermediate_size=512&vocab_size=2000&num_hidden_layers=3";

std::vector<ForwardResult> forward(const SynthMemory& memory, CheckLevel checks, uint64_t* made = nullptr,
                                   uint64_t* of_all = nullptr) {
  const auto checkpoint = Checkpoint::open(kModel, memory);
  REQUIRE(checkpoint);
  REQUIRE((checkpoint->on_demand() != nullptr) == (memory.mode == SynthMemory::Mode::kOnUse));
  const auto weights = load_weights(*checkpoint);
  REQUIRE(weights);
  EngineConfig config;
  config.decode_attention = config.prefill_attention;  // both on a BF16 cache
  config.checks = checks;
  auto results = run_forward(*weights, config, {{5, 900, 17, 3}, {1999, 0}}, 2, nullptr);
  INFO((results ? std::string() : results.error().message));
  REQUIRE(results);
  if (made == nullptr) return std::move(*results);
  *made = checkpoint->on_demand()->statistics().made_bytes;
  for (const StoredTensor& tensor : checkpoint->tensors())
    *of_all += dtype_bytes(tensor.view.dtype) * static_cast<uint64_t>(tensor.view.extent());
  return std::move(*results);
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("a forward pass over weights made on use gives the same bits, through less memory than they take") {
  const auto whole = forward({SynthMemory::Mode::kWhole, 0}, CheckLevel::kFull);
  constexpr uint64_t kBudget = 24 * OnDemandWeights::kFrame;
  for (const int threads : {1, 2}) {
    set_parallel_threads(threads);
    uint64_t made = 0;
    uint64_t of_all = 0;
    const auto lazy = forward({SynthMemory::Mode::kOnUse, kBudget}, CheckLevel::kFull, &made, &of_all);
    set_parallel_threads(1);
    CHECK(made > of_all);  // memory was taken back, and what had lain there made again
    REQUIRE(lazy.size() == whole.size());
    for (size_t i = 0; i < whole.size(); ++i) {
      CHECK(same(lazy[i].prefill_logits, whole[i].prefill_logits));
      CHECK(same(lazy[i].prefill_hidden, whole[i].prefill_hidden));
      CHECK(same(lazy[i].decode_logits, whole[i].decode_logits));
    }
  }
}

TEST_CASE("references find the weights of their ops, too") {
  const auto whole = forward({SynthMemory::Mode::kWhole, 0}, CheckLevel::kReference);
  const auto lazy = forward({SynthMemory::Mode::kOnUse, 24 * OnDemandWeights::kFrame}, CheckLevel::kReference);
  for (size_t i = 0; i < whole.size(); ++i) CHECK(same(lazy[i].prefill_logits, whole[i].prefill_logits));
}

TEST_CASE("an op whose weights do not fit is a lack of memory, not a crash") {
  const auto checkpoint = Checkpoint::open(kModel, {SynthMemory::Mode::kOnUse, 2 * OnDemandWeights::kFrame});
  REQUIRE(checkpoint);
  const auto weights = load_weights(*checkpoint);
  REQUIRE(weights);
  const auto results = run_forward(*weights, EngineConfig{}, {{5, 900, 17, 3}}, 0, nullptr);
  REQUIRE_FALSE(results);
  CHECK(results.error().message.find("--host-memory") != std::string::npos);
}
