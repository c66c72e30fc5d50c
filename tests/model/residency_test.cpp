#include "model/residency.h"

#include <numeric>

#include "fixtures.h"
#include "model/synth.h"

using namespace faultline;
using fixtures::mentions;

namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

struct Model {
  SynthModel synth;
  std::vector<SafetensorsEntry> entries;
  std::vector<NamedBytes> tensors;

  explicit Model(std::string_view name) {
    auto made = make_synth(name, {});
    REQUIRE(made);
    synth = std::move(*made);
    entries = synth_tensors(synth);
    lay_out(entries);
    for (const SafetensorsEntry& entry : entries) tensors.push_back({entry.name, entry.bytes()});
  }
  uint64_t bytes() const {
    return std::accumulate(tensors.begin(), tensors.end(), uint64_t{0},
                           [](uint64_t sum, const NamedBytes& tensor) { return sum + tensor.bytes; });
  }
  Result<ResidencyPlan> plan(const ResidencyRequest& request) const {
    return plan_residency(synth.config, tensors, request);
  }
};

const Model& glm5() {
  static const Model model("glm-5");
  return model;
}

uint64_t bytes_at(const ResidencyPlan& plan, Home home) {
  uint64_t sum = 0;
  for (const PlanRow& row : plan.rows) sum += row.home == home ? row.bytes : 0;
  return sum;
}

ResidencyRequest gpu(double gib, int64_t ranks, Residency residency = Residency::kAuto) {
  ResidencyRequest request;
  request.gpu = true;
  request.gpu_bytes = static_cast<uint64_t>(gib * static_cast<double>(kGiB));
  request.host_bytes = 128 * kGiB;
  request.ranks = ranks;
  request.residency = residency;
  request.synthetic = true;
  return request;
}

}  // namespace

TEST_CASE("every byte of the model has a place in the plan") {
  for (const double gib : {60.0, 139.0, 500.0}) {
    const auto plan = glm5().plan(gpu(gib, 1));
    REQUIRE(plan);
    CHECK(bytes_at(*plan, Home::kGpu) + bytes_at(*plan, Home::kHost) + bytes_at(*plan, Home::kPerUse) ==
          glm5().bytes());
    CHECK(plan->gpu_bytes + plan->buffer_bytes + plan->reserve_bytes <= plan->request.gpu_bytes);
  }
}

TEST_CASE("eight GPUs hold GLM-5, one holds what every step reads and as many layers of experts as fit") {
  const auto eight = glm5().plan(gpu(93, 8));
  REQUIRE(eight);
  CHECK(eight->per_use_bytes == 0);
  CHECK(eight->buffer_bytes == 0);
  CHECK(eight->gpu_expert_layers.size() == 75);
  const auto one = glm5().plan(gpu(139, 1));
  REQUIRE(one);
  CHECK(one->gpu_expert_layers.size() > 10);
  CHECK(one->gpu_expert_layers.size() < 20);
  CHECK(one->gpu_expert_layers.front() == 3);
  CHECK(one->per_use_bytes > 300'000'000'000);
  // Published budget: 44.06 GB a decoded token in the style of nvidia/GLM-5-NVFP4.
  CHECK(one->step_bytes > 43'900'000'000);
  CHECK(one->step_bytes < 44'200'000'000);
}

TEST_CASE("what does not fit anywhere is refused, and the message says what is missing") {
  const auto small = glm5().plan(gpu(24, 1));
  REQUIRE_FALSE(small);
  CHECK(small.error().kind == ErrorKind::kCannotRun);
  CHECK(mentions(small.error().message, "a GPU would need"));
  const auto all = glm5().plan(gpu(139, 1, Residency::kGpu));
  REQUIRE_FALSE(all);
  CHECK(mentions(all.error().message, "--residency gpu"));
  ResidencyRequest host;
  host.residency = Residency::kHost;
  host.host_bytes = 24 * kGiB;
  const auto workstation = glm5().plan(host);
  REQUIRE_FALSE(workstation);
  CHECK(mentions(workstation.error().message, "--residency host"));
  host.residency = Residency::kGpu;
  CHECK_FALSE(glm5().plan(host));
}

TEST_CASE("files' experts stay in host memory where it suffices, and are read per use where not") {
  ResidencyRequest request = gpu(139, 1);
  request.synthetic = false;
  request.host_bytes = 400 * kGiB;
  const auto rich = glm5().plan(request);
  REQUIRE(rich);
  CHECK(rich->host_bytes > 300'000'000'000);
  CHECK(rich->per_use_bytes == 0);
  request.host_bytes = 64 * kGiB;
  const auto poor = glm5().plan(request);
  REQUIRE(poor);
  CHECK(poor->host_bytes == 0);
  CHECK(poor->per_use_bytes > 300'000'000'000);
  request.residency = Residency::kHost;
  CHECK_FALSE(glm5().plan(request));
}

TEST_CASE("without a GPU a model is in host memory or made per use") {
  const Model tiny("tiny");
  ResidencyRequest request;
  request.synthetic = true;
  request.host_bytes = kGiB;
  const auto fits = tiny.plan(request);
  REQUIRE(fits);
  CHECK(fits->per_use_bytes == 0);
  CHECK(fits->host_bytes == tiny.bytes());
  request.residency = Residency::kStream;
  const auto streamed = tiny.plan(request);
  REQUIRE(streamed);
  CHECK(streamed->host_bytes == 0);
  CHECK(streamed->per_use_bytes == tiny.bytes());
  const auto large = glm5().plan(request);
  REQUIRE(large);
  CHECK(mentions(to_text(*large), "routed experts, layers 3 to 77"));
  CHECK(mentions(to_text(*large), "made after routing, those in use alone"));
}

TEST_CASE("ranks that do not divide the model are refused") {
  const auto plan = glm5().plan(gpu(139, 3));
  REQUIRE_FALSE(plan);
  CHECK(plan.error().kind == ErrorKind::kBadInput);
  CHECK(mentions(plan.error().message, "3 ranks do not divide the 64 attention heads"));
  const Model tiny("tiny");  // experts of 32 columns
  const auto blocks = tiny.plan(gpu(139, 4));
  REQUIRE_FALSE(blocks);
  CHECK(mentions(blocks.error().message, "in NVFP4 blocks of 16"));
  CHECK(glm5().plan(gpu(139, 2)));
}

TEST_CASE("amounts of memory and residencies are read, and what is none is refused") {
  CHECK(*parse_bytes("8GiB", "--gpu-memory") == 8 * kGiB);
  CHECK(*parse_bytes("8G", "--gpu-memory") == 8 * kGiB);
  CHECK(*parse_bytes("80GB", "--gpu-memory") == 80'000'000'000);
  CHECK(*parse_bytes("1.5KiB", "--gpu-memory") == 1536);
  CHECK(*parse_bytes("1000", "--gpu-memory") == 1000);
  for (const char* text : {"", "GiB", "0", "-1GB", "8 GiB", "8gigs", "nan", "1e30", "0.1"}) {
    const auto refused = parse_bytes(text, "--host-memory");
    REQUIRE_FALSE(refused);
    CHECK(mentions(refused.error().message, "--host-memory"));
  }
  CHECK(*parse_residency("stream") == Residency::kStream);
  CHECK(mentions(parse_residency("strem").error().message, "did you mean 'stream'"));
}
