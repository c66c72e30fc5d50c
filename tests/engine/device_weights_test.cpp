#include "engine/device_weights.h"

#include <sys/mman.h>

#include <cstring>

#include "engine/load_slabs.h"
#include "testing.h"

using namespace faultline;

namespace {

Checkpoint open_synth(const std::string& spec) {
  auto opened = Checkpoint::open(spec);
  REQUIRE(opened);
  return std::move(*opened);
}

struct Loaded {
  WeightsManifest manifest;
  std::vector<UniqueFd> slabs;
  std::vector<int> descriptors() const {
    std::vector<int> fds;
    for (const UniqueFd& fd : slabs) fds.push_back(fd.get());
    return fds;
  }
};

Loaded load(const Checkpoint& checkpoint, int threads = 3) {
  const auto writer = make_memory_slabs();
  LoadOptions options;
  options.device = "cpu";
  options.threads = threads;
  auto manifest = load_slabs(checkpoint, *writer, options);
  REQUIRE(manifest);
  auto fds = writer->export_descriptors();
  REQUIRE(fds);
  return {std::move(*manifest), std::move(*fds)};
}

bool same_bytes(const TensorView& a, const TensorView& b) {
  return a.extent() == b.extent() && a.shape == b.shape && a.stride == b.stride &&
         std::memcmp(a.data, b.data, static_cast<size_t>(a.extent()) * dtype_bytes(a.dtype)) == 0;
}

DeviceWeights attach(Device& device, const Checkpoint& checkpoint, const Loaded& loaded) {
  auto weights = DeviceWeights::attach(device, checkpoint, to_text(loaded.manifest), loaded.descriptors());
  if (!weights) FAIL(weights.error().message);
  return std::move(*weights);
}

}  // namespace

TEST_CASE("Slabs hold every tensor of the checkpoint, aligned", "[engine][weights]") {
  const Checkpoint checkpoint = open_synth("synth:tiny");
  const Loaded loaded = load(checkpoint);
  const auto device = make_cpu_device();
  DeviceWeights weights = attach(*device, checkpoint, loaded);
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    const auto view = weights.to_device(tensor.view);
    REQUIRE(view);
    CHECK(view->data != tensor.view.data);
    CHECK(reinterpret_cast<uintptr_t>(view->data) % kPlacementAlignment == 0);
    CHECK(same_bytes(*view, tensor.view));
  }
  CHECK(weights.ranges().size() == checkpoint.tensors().size());  // nothing was uploaded besides
  CHECK(weights.verify());
}

TEST_CASE("The number of threads changes nothing of what is loaded", "[engine][weights]") {
  const Checkpoint checkpoint = open_synth("synth:tiny");
  const Loaded one = load(checkpoint, 1);
  const Loaded many = load(checkpoint, 7);
  CHECK(one.manifest.checksum == many.manifest.checksum);
  CHECK(one.manifest.placement == many.manifest.placement);
}

TEST_CASE("All weights of a model become views of the device's memory", "[engine][weights]") {
  const Checkpoint checkpoint = open_synth("synth:tiny");
  const Loaded loaded = load(checkpoint);
  const auto device = make_cpu_device();
  DeviceWeights weights = attach(*device, checkpoint, loaded);
  const auto host = load_weights(checkpoint);
  REQUIRE(host);
  const auto there = weights.to_device(*host);
  REQUIRE(there);
  REQUIRE(there->layers.size() == host->layers.size());
  CHECK(there->owned.empty());
  for (size_t l = 0; l < host->layers.size(); ++l) {
    CHECK(same_bytes(there->layers[l].w_uk, host->layers[l].w_uk));
    CHECK(same_bytes(there->layers[l].w_uv, host->layers[l].w_uv));
    CHECK(there->layers[l].w_uk.data != host->layers[l].w_uk.data);
    CHECK(same_bytes(there->layers[l].o.weight, host->layers[l].o.weight));
    REQUIRE(there->layers[l].expert_down.size() == host->layers[l].expert_down.size());
    for (size_t e = 0; e < host->layers[l].expert_down.size(); ++e) {
      CHECK(same_bytes(there->layers[l].expert_down[e].block_scale, host->layers[l].expert_down[e].block_scale));
      CHECK(there->layers[l].expert_down[e].weight.data != host->layers[l].expert_down[e].weight.data);
    }
  }
  // Every device address leads back to the host's bytes.
  const auto ranges = weights.ranges();
  CHECK(ranges.size() == checkpoint.tensors().size());
  for (size_t i = 0; i < ranges.size(); ++i) {
    CHECK(std::memcmp(ranges[i].device, ranges[i].host, ranges[i].bytes) == 0);
    if (i > 0) CHECK(ranges[i].device >= ranges[i - 1].device + ranges[i - 1].bytes);
  }
}

TEST_CASE("What lies outside the checkpoint is uploaded once", "[engine][weights]") {
  const Checkpoint checkpoint = open_synth("synth:tiny");
  const Loaded loaded = load(checkpoint);
  const auto device = make_cpu_device();
  DeviceWeights weights = attach(*device, checkpoint, loaded);
  auto host = load_weights(checkpoint);
  REQUIRE(host);
  // As a planted fault does: a copy, of which two views look at parts.
  host->owned.push_back(std::make_unique<std::vector<std::byte>>(size_t{4096}, std::byte{0x5A}));
  auto* memory = host->owned.back()->data();
  TensorView& norm = host->layers[0].input_norm;
  norm.data = memory;
  host->layers[1].input_norm = norm;
  host->layers[1].input_norm.data = memory + 512;
  const auto there = weights.to_device(*host);
  REQUIRE(there);
  CHECK(weights.ranges().size() == checkpoint.tensors().size() + 1);
  CHECK(same_bytes(there->layers[0].input_norm, norm));
  CHECK(there->layers[1].input_norm.data == there->layers[0].input_norm.data + 512);
  static float one = 1.0f;
  const TensorView scale = make_view(&one, Dtype::kF32, {1});
  const auto first = weights.to_device(scale);
  const auto second = weights.to_device(scale);
  REQUIRE((first && second));
  CHECK(first->data == second->data);
  CHECK(*first->as<float>() == 1.0f);
  CHECK(weights.to_device(TensorView{})->data == nullptr);
}

TEST_CASE("Without slabs the same views come from an upload", "[engine][weights]") {
  const Checkpoint checkpoint = open_synth("synth:tiny");
  const auto device = make_cpu_device();
  auto weights = DeviceWeights::upload(*device, checkpoint);
  REQUIRE(weights);
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    const auto view = weights->to_device(tensor.view);
    REQUIRE(view);
    CHECK(view->data != tensor.view.data);
    CHECK(same_bytes(*view, tensor.view));
  }
  CHECK(weights->verify());
  CHECK(weights->checksum().empty());
}

TEST_CASE("A changed byte in a slab is found, wherever it is", "[engine][weights]") {
  const Checkpoint checkpoint = open_synth("synth:tiny");
  const Loaded loaded = load(checkpoint);
  const auto device = make_cpu_device();
  DeviceWeights weights = attach(*device, checkpoint, loaded);
  const uint64_t bytes = loaded.manifest.slabs[0];
  auto* writable =
      static_cast<uint8_t*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, loaded.slabs[0].get(), 0));
  REQUIRE(writable != MAP_FAILED);
  for (const uint64_t at : {uint64_t{0}, uint64_t{7}, loaded.manifest.bytes / 2 + 3, loaded.manifest.bytes - 1}) {
    writable[at] ^= 0x80;
    const auto status = weights.verify();
    REQUIRE_FALSE(status);
    CHECK(status.error().message.find("have changed since they were loaded") != std::string::npos);
    writable[at] ^= 0x80;
    CHECK(weights.verify());
  }
  // Two words that change places, and two flips of one bit.
  auto* words = reinterpret_cast<uint64_t*>(writable) + loaded.manifest.bytes / 16;
  REQUIRE(words[8] != words[9]);
  std::swap(words[8], words[9]);
  CHECK_FALSE(weights.verify());
  std::swap(words[8], words[9]);
  words[8] ^= uint64_t{1} << 63;
  words[9] ^= uint64_t{1} << 63;
  CHECK_FALSE(weights.verify());
  ::munmap(writable, bytes);
}

TEST_CASE("Slabs of another checkpoint, device or layout are refused", "[engine][weights]") {
  const Checkpoint checkpoint = open_synth("synth:tiny");
  const Checkpoint other = open_synth("synth:tiny?seed=3");
  const Loaded loaded = load(checkpoint);
  const auto device = make_cpu_device();
  const auto refused = [&](const Checkpoint& of, const WeightsManifest& manifest, const std::vector<int>& fds) {
    const auto weights = DeviceWeights::attach(*device, of, to_text(manifest), fds);
    REQUIRE_FALSE(weights);
    return weights.error().message;
  };
  CHECK(refused(other, loaded.manifest, loaded.descriptors()).find("another checkpoint") != std::string::npos);
  WeightsManifest manifest = loaded.manifest;
  manifest.device_uuid = std::string(32, '0');
  manifest.device = "cuda:5";
  CHECK(refused(checkpoint, manifest, loaded.descriptors()).find("in the memory of cuda:5") != std::string::npos);
  manifest = loaded.manifest;
  manifest.layout = "swizzled";
  CHECK(refused(checkpoint, manifest, loaded.descriptors()).find("laid out otherwise") != std::string::npos);
  CHECK(refused(checkpoint, loaded.manifest, {}).find("do not belong together") != std::string::npos);
  // Descriptors of another manifest: slabs of another size.
  const Loaded small = load(open_synth("synth:tiny?num_hidden_layers=2"));
  CHECK(refused(checkpoint, loaded.manifest, small.descriptors()).find("is no slab of") != std::string::npos);
  // The same size, other bytes: mapped, and found by the checksum.
  const Loaded same_size = load(other);
  REQUIRE(same_size.manifest.slabs == loaded.manifest.slabs);
  auto weights = DeviceWeights::attach(*device, checkpoint, to_text(loaded.manifest), same_size.descriptors());
  REQUIRE(weights);
  CHECK_FALSE(weights->verify());
}

TEST_CASE("Slabs are few, large, and cover what they must", "[engine][weights]") {
  constexpr uint64_t kGranularity = uint64_t{2} << 20;
  for (const uint64_t bytes : {uint64_t{1}, kGranularity, kGranularity + 256, kSlabBytes, kSlabBytes + 256,
                               uint64_t{141} << 30, uint64_t{1} << 40}) {
    const auto sizes = slab_sizes(bytes, kGranularity);
    REQUIRE(sizes);
    uint64_t sum = 0;
    for (const uint64_t size : *sizes) {
      CHECK(size % kGranularity == 0);
      sum += size;
    }
    CHECK(sum >= bytes);
    CHECK(sum - bytes < kGranularity);
    CHECK(sizes->size() <= kMaxSlabs);
  }
  CHECK_FALSE(slab_sizes(0, kGranularity));
  CHECK_FALSE(slab_sizes(~uint64_t{0}, kGranularity));
}

namespace {

// A device with little memory; nothing must be asked of it but that.
class SmallDevice : public SlabWriter {
 public:
  explicit SmallDevice(uint64_t free) : free_(free) {}
  std::string device_name() const override { return "small GPU"; }
  std::string uuid() const override { return "none"; }
  Device::Memory memory() const override { return {free_, free_ * 2}; }
  uint64_t granularity() const override { return 4096; }
  Status allocate(const std::vector<uint64_t>&) override { return internal_error("asked for memory"); }
  Result<std::unique_ptr<Lane>> open_lane(size_t) override { return internal_error("asked for a lane"); }
  Result<uint64_t> checksum(uint64_t) override { return internal_error("asked for a checksum"); }
  Result<std::vector<UniqueFd>> export_descriptors() override { return internal_error("asked for descriptors"); }

 private:
  uint64_t free_;
};

}  // namespace

TEST_CASE("Weights that do not fit are refused with what is needed and what would fit", "[engine][weights]") {
  const Checkpoint checkpoint = open_synth("synth:tiny");
  const auto message = [&](uint64_t free) {
    SmallDevice device(free);
    const auto manifest = load_slabs(checkpoint, device, {});
    REQUIRE_FALSE(manifest);
    CHECK(manifest.error().kind == ErrorKind::kCannotRun);
    return manifest.error().message;
  };
  constexpr uint64_t kReserve = uint64_t{1} << 30;
  const uint64_t all = place_tensors(checkpoint)->bytes;
  const std::string most = message(kReserve + all * 9 / 10);
  CHECK(most.find(fmt::format("of the {} layers would fit", checkpoint.config().num_hidden_layers)) !=
        std::string::npos);
  CHECK(most.find("are free") != std::string::npos);
  CHECK(message(kReserve / 2).find("not even one layer would fit") != std::string::npos);
  // With room enough the device is asked.
  SmallDevice large(2 * kReserve);
  const auto manifest = load_slabs(checkpoint, large, {});
  REQUIRE_FALSE(manifest);
  CHECK(manifest.error().message == "asked for memory");
}
