// Weights that are made on the GPU: the host's bits, and the results of weights that were copied there.
#include <cstring>

#include "device_model.h"
#include "engine/forward.h"
#include "gpu_testing.h"
#include "model/residency.h"

using namespace faultline;

namespace {

// Experts, projections and the vocabulary are each larger than OnDemandWeights::kSmall.
constexpr const char* kModel =
    "synth:tiny?hidden_size=512&moe_intermediate_size=512&intermediate_size=512&vocab_size=2000&num_hidden_layers=5";
constexpr SynthMemory kOnUse{SynthMemory::Mode::kOnUse, uint64_t{64} << 20};

// GPU memory for all that every step reads, the buffer, and `layers` layers of experts.
uint64_t room_for(int64_t layers) {
  const auto checkpoint = Checkpoint::open(kModel, kOnUse);
  REQUIRE(checkpoint);
  std::vector<NamedBytes> sizes;
  for (const StoredTensor& tensor : checkpoint->tensors()) sizes.push_back({tensor.name, tensor_bytes(tensor.view)});
  ResidencyRequest request;
  request.gpu = true;
  request.synthetic = true;
  request.gpu_bytes = uint64_t{4} << 30;
  request.residency = Residency::kStream;
  const auto plan = plan_residency(checkpoint->config(), sizes, request);
  REQUIRE(plan);
  constexpr uint64_t kReserve = uint64_t{2} << 30;
  return kReserve + plan->gpu_bytes + plan->buffer_bytes * static_cast<uint64_t>(1 + layers) + 4096;
}

std::vector<ForwardResult> forward(DeviceModel& model, bool graph, CheckLevel checks) {
  EngineConfig config;
  config.decode_attention = config.prefill_attention;  // both on a BF16 cache
  config.checks = checks;
  config.cuda_graph = graph;
  auto results = run_forward(model.weights(), config, {{5, 900, 17, 3, 1200, 8}, {1999, 0}}, 3, &model.mirror());
  INFO((results ? std::string() : results.error().message));
  REQUIRE(results);
  return std::move(*results);
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return !a.empty() && a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("weights made on the GPU are the host's, bit for bit", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  DeviceModel model(kModel, "cuda:0", kOnUse);
  size_t large = 0;
  std::vector<std::byte> copy;
  for (const DeviceWeights::Range& range : model.uploaded().ranges()) {
    const WeightRange wanted{range.host, range.bytes};
    REQUIRE(need_weights({&wanted, 1}));
    copy.resize(range.bytes);
    model.mirror().device().copy(copy.data(), range.device, range.bytes);
    REQUIRE(std::memcmp(copy.data(), range.host, range.bytes) == 0);
    large += range.bytes >= OnDemandWeights::kSmall ? 1 : 0;
  }
  CHECK(large > 100);
}

TEST_CASE("experts that are made before each use give the bits of experts that stay", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  std::vector<ForwardResult> resident;
  {
    DeviceModel model(kModel, "cuda:0", {SynthMemory::Mode::kWhole, 0});
    resident = forward(model, false, CheckLevel::kFull);
  }
  for (const int64_t layers : {0, 1}) {
    for (const bool graph : {false, true}) {
      DeviceModel model(kModel, "cuda:0", kOnUse, room_for(layers));
      const auto made = forward(model, graph, CheckLevel::kFull);
      for (size_t i = 0; i < resident.size(); ++i) {
        CHECK(same(made[i].prefill_logits, resident[i].prefill_logits));
        CHECK(same(made[i].decode_logits, resident[i].decode_logits));
      }
    }
  }
}

TEST_CASE("references find weights that are made on use, on the GPU and on the host", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  DeviceModel model(kModel, "cuda:0", kOnUse, room_for(0));
  const auto checked = forward(model, false, CheckLevel::kReference);
  CHECK(checked.size() == 2);
}

TEST_CASE("a GPU that cannot hold what every step reads is refused before anything is made", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto checkpoint = Checkpoint::open(kModel, kOnUse);
  REQUIRE(checkpoint);
  const auto device = make_device("cuda:0");
  REQUIRE(device);
  const auto weights = DeviceWeights::upload(**device, *checkpoint, uint64_t{2} << 30);
  REQUIRE_FALSE(weights);
  CHECK(weights.error().kind == ErrorKind::kCannotRun);
}
