// Ops by hand with tensors on a device and a copy of each on the host: the checks of both must say the same.
#pragma once

#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "check/device_checks.h"
#include "check/inspect.h"
#include "check/poison.h"
#include "gpu_testing.h"

namespace faultline {

class DeviceFixture {
 public:
  DeviceFixture() {
    auto made = make_cuda_device(0);
    REQUIRE(made);
    device_ = std::move(*made);
  }
  Device& device() { return *device_; }

  // A tensor on both sides. What is returned is the host's view; ops are built of host views.
  TensorView tensor(Dtype dtype, std::initializer_list<int64_t> shape) {
    TensorView view = make_view(nullptr, dtype, shape);
    const size_t bytes = static_cast<size_t>(view.elements()) * dtype_bytes(dtype);
    Memory memory;
    auto buffer = device_->allocate(bytes);
    REQUIRE(buffer);
    memory.device = std::move(*buffer);
    memory.bytes = bytes;
    memory.host = std::make_unique<uint64_t[]>(bytes / 8 + 1);  // aligned
    view.data = reinterpret_cast<std::byte*>(memory.host.get());
    memory_.push_back(std::move(memory));
    return view;
  }
  TensorView integers(std::initializer_list<int64_t> shape, const std::vector<int32_t>& values) {
    const TensorView view = tensor(Dtype::kI32, shape);
    std::copy(values.begin(), values.end(), view.as<int32_t>());
    return view;
  }
  TensorView cache(const CacheGeometry& geometry) { return tensor(Dtype::kU8, {geometry.total_bytes()}); }

  struct Operand {
    OperandSpec spec;
    TensorView view;
    std::optional<CacheGeometry> geometry;
    IndexRule rule;
  };
  // Adds an op to the list, on both sides.
  int op(int group, const std::vector<Operand>& operands, const Attributes& attributes = {}, bool reference = false,
         const char* name = "made up") {
    kinds_.emplace_back();
    OpKind& kind = kinds_.back();
    kind.name = name;
    for (const Operand& operand : operands) kind.operands.push_back(operand.spec);
    for (const bool on_device : {false, true}) {
      Op made;
      made.name = "op";
      made.kind = &kind;
      made.kernel = reference ? &reference_ : &own_;
      made.attributes = attributes;
      for (const Operand& operand : operands) {
        TensorView view = operand.view;
        if (on_device && view.data != nullptr) view.data = device_address(view.data);
        made.arguments.add({view}, operand.geometry ? operand.geometry->format : Format::kPlain, operand.geometry);
        made.index_rules.push_back(operand.rule);
        made.tensor_names.push_back(operand.spec.name);
        made.written.push_back(operand.geometry);
      }
      (on_device ? device_ops_ : host_ops_).push_back(std::move(made));
    }
    groups_.push_back(group);
    return static_cast<int>(groups_.size()) - 1;
  }
  // An op that writes one tensor.
  int writes(const TensorView& view, Content content = Content::kValues, Region region = {}) {
    return op(0, {{OperandSpec{"out", Direction::kOut, content, region, {}, false}, view, {}, {}}});
  }

  void upload() {
    for (const Memory& memory : memory_) device_->copy(memory.device->data(), host(memory), memory.bytes);
  }
  void download() {
    for (const Memory& memory : memory_) device_->copy(host(memory), memory.device->data(), memory.bytes);
  }
  // What lies in the tensors now, to be compared with later.
  void snapshot() {
    for (Memory& memory : memory_) memory.before.assign(host(memory), host(memory) + memory.bytes);
  }
  std::byte before(const std::byte* at) const {
    const Memory& memory = memory_of(at);
    return memory.before[static_cast<size_t>(at - host(memory))];
  }
  std::byte* device_address(const std::byte* at) const {
    const Memory& memory = memory_of(at);
    return memory.device->data() + (at - host(memory));
  }

  DeviceChecks& checks() {
    if (!checks_) checks_ = make({});
    return *checks_;
  }
  std::unique_ptr<DeviceChecks> make(const DeviceCheckOptions& options,
                                     const std::vector<GuardedBuffer>& buffers = {}) {
    auto made = DeviceChecks::create(*device_, device_ops_, groups_, buffers, options);
    REQUIRE(made);
    return std::move(*made);
  }

  // A group: poison, `kernel` (which changes the host's copies), the checks; what they found.
  template <class Kernel>
  std::vector<DeviceFinding> run(const LiveCounts& live, Kernel&& kernel, DeviceChecks* checks = nullptr) {
    if (checks == nullptr) checks = &this->checks();
    upload();
    checks->set_live(live);
    checks->poison(0);
    REQUIRE_FALSE(device_->wait());
    download();
    snapshot();
    kernel();
    upload();
    checks->check_indices(0, static_cast<int>(groups_.size()));
    checks->check(0);
    REQUIRE_FALSE(device_->wait());
    return checks->read();
  }

  // What the host's checks say of the host's copies, in the order of run_pass (engine/); of bytes that have no
  // sentinel, by the definition of device_checks.h.
  std::vector<DeviceFinding> expected(const LiveCounts& live, bool full = true) const {
    std::vector<DeviceFinding> result;
    for (size_t i = 0; i < host_ops_.size(); ++i) {
      const Op& op = host_ops_[i];
      const OpCall call = op.call();
      const size_t old = result.size();
      const auto add = [&](std::optional<OpViolation> found) {
        if (found) result.push_back({static_cast<int>(i), std::move(*found), ""});
        return result.size() != old;
      };
      const int operands = op.arguments.size();
      const auto is_out = [&](int o) {
        return op.kind->operands[static_cast<size_t>(o)].direction == Direction::kOut && call.argument(o).present();
      };
      for (int o = 0; full && o < operands; ++o)
        if (is_out(o) && op.kind->operands[static_cast<size_t>(o)].content == Content::kIndices)
          add(find_bad_index(call, op.kind->operands[static_cast<size_t>(o)], op.index_rules[static_cast<size_t>(o)], o,
                             live));
      for (int o = 0; o < operands && result.size() == old; ++o) {
        if (!is_out(o)) continue;
        const OperandSpec& spec = op.kind->operands[static_cast<size_t>(o)];
        if (full && add(left_alone(call, spec, o, live))) break;
        if (spec.content == Content::kValues || spec.content == Content::kE4m3Scales) {
          add(find_nonfinite(call, spec, o, live));
        } else if (spec.content == Content::kProbabilities) {
          if (!add(find_nonfinite(call, spec, o, live))) add(find_bad_probability(call, spec, o, live));
        } else if (spec.content == Content::kCache) {
          add(find_nonfinite_slots(call.argument(o), *call.argument(o).geometry, o,
                                   slots_written(call, spec, o, live)));
        }
      }
    }
    return result;
  }

 private:
  struct Memory {
    std::unique_ptr<Buffer> device;
    std::unique_ptr<uint64_t[]> host;
    size_t bytes = 0;
    std::vector<std::byte> before;
  };
  static Kernel reference() {
    Kernel kernel;
    kernel.provenance = Provenance::kReference;
    return kernel;
  }
  static std::byte* host(const Memory& memory) { return reinterpret_cast<std::byte*>(memory.host.get()); }
  const Memory& memory_of(const std::byte* at) const {
    for (const Memory& memory : memory_)
      if (at >= host(memory) && at < host(memory) + std::max<size_t>(memory.bytes, 1)) return memory;
    FAIL("not a tensor of this fixture");
    return memory_.front();
  }

  std::optional<OpViolation> left_alone(const OpCall& call, const OperandSpec& spec, int o,
                                        const LiveCounts& live) const {
    const Argument& argument = call.argument(o);
    const TensorView& view = argument.view();
    const bool cache_codes = spec.content == Content::kCache && needs_two_poisons(spec, argument);
    const bool codes = spec.content == Content::kFp4Codes;
    if (!cache_codes && !codes && spec.content != Content::kE4m3Scales) return find_unwritten(call, spec, o, live);
    std::optional<OpViolation> found;
    const auto note = [&](std::vector<int64_t> index, const std::byte* at, int64_t count) {
      if (!found)
        found = OpViolation{o, "unwritten", std::move(index), "poison", std::to_integer<uint32_t>(*at), 0, "", false};
      found->count += count;
    };
    const auto kept = [&](const std::byte* at, int64_t count) {
      for (int64_t k = 0; k < count; ++k)
        if (before(at + k) != at[k]) return false;
      return true;
    };
    if (cache_codes) {
      const CacheGeometry& geometry = *argument.geometry;
      const int64_t code_bytes = geometry.format == Format::kKvPlainFp8 ? geometry.width() : geometry.latent;
      for (const int64_t slot : slots_written(call, spec, o, live)) {
        const auto ranges = slot_bytes(geometry, slot);
        const std::byte* row = view.data + ranges[0].begin;
        // Codes in words of 8 bytes (these formats keep them aligned in the tests), floats one by one.
        for (int64_t at = 0; at + 8 <= code_bytes; at += 8)
          if (kept(row + at, 8)) note({slot, at}, row + at, 8);
        if (geometry.format == Format::kIndexFp8) {
          if (kept(view.data + ranges[1].begin, 4)) note({slot, code_bytes}, view.data + ranges[1].begin, 4);
        } else if (geometry.format == Format::kKvPacked) {
          const int64_t scales = code_bytes + kPackedScales * 4;
          for (int64_t at = code_bytes; at < scales; at += 4)
            if (kept(row + at, 4)) note({slot, at}, row + at, 4);
          for (int64_t at = scales; at < geometry.row_bytes(); at += 2)
            if (kept(row + at, 2)) note({slot, at}, row + at, 2);
        }
      }
      return found;
    }
    for_each_live(call, spec, o, live, [&](int64_t at, int64_t row, int64_t column) {
      const std::byte* byte = view.data + at;
      if (!codes) {
        if (*byte == std::byte{0xFF}) note(coordinates(view, row, column), byte, 1);
        return true;
      }
      const bool aligned = reinterpret_cast<uintptr_t>(byte) % 8 == 0;  // as on the device: both begin aligned
      if (aligned && column + 8 <= view.dim(1) && kept(byte, 8)) note(coordinates(view, row, column), byte, 8);
      return true;
    });
    return found;
  }

  std::unique_ptr<Device> device_;
  std::vector<Memory> memory_;
  std::deque<OpKind> kinds_;
  Kernel own_, reference_ = reference();
  std::vector<Op> host_ops_, device_ops_;
  std::vector<int> groups_;
  std::unique_ptr<DeviceChecks> checks_;
};

// The same findings, but for the words of "unwritten" where there is no sentinel.
inline void require_same(const std::vector<DeviceFinding>& device, const std::vector<DeviceFinding>& host) {
  REQUIRE(device.size() == host.size());
  for (size_t i = 0; i < host.size(); ++i) {
    const OpViolation& a = device[i].violation;
    const OpViolation& b = host[i].violation;
    CHECK(device[i].op == host[i].op);
    CHECK(a.operand == b.operand);
    CHECK(a.kind == b.kind);
    CHECK(a.index == b.index);
    CHECK(a.value == b.value);
    CHECK(a.bits == b.bits);
    CHECK(a.count == b.count);
    if (!b.detail.empty()) CHECK(a.detail == b.detail);
  }
}

inline const LiveCounts kAllLive{1 << 20, 1 << 20};

// TensorView::store, also for F16 (1 stands for every finite value).
inline void put(const TensorView& view, int64_t at, float value) {
  if (view.dtype != Dtype::kF16) return view.store(at, value);
  const bool negative = std::signbit(value);
  const uint16_t magnitude = std::isnan(value) ? 0x7E00 : (std::isinf(value) ? 0x7C00 : 0x3C00);
  view.as<uint16_t>()[at] = static_cast<uint16_t>(magnitude | (negative ? 0x8000 : 0));
}

// Every element of a view gets a value that is random, finite and written.
inline void fill(const TensorView& view, std::mt19937& random) {
  std::uniform_real_distribution<float> value(-4, 4);
  for (int64_t i = 0; i < view.dim(0); ++i)
    for (int64_t j = 0; j < (view.rank > 1 ? view.dim(1) : 1); ++j)
      for (int64_t k = 0; k < (view.rank > 2 ? view.dim(2) : 1); ++k) {
        const int64_t at = i * view.stride[0] + (view.rank > 1 ? j * view.stride[1] : 0) + (view.rank > 2 ? k : 0);
        switch (view.dtype) {
          case Dtype::kU8:
            view.as<uint8_t>()[at] = static_cast<uint8_t>(random());
            break;
          case Dtype::kF8E4M3:
            view.as<uint8_t>()[at] = static_cast<uint8_t>(random() % 0x7F);
            break;
          case Dtype::kI32:
            view.as<int32_t>()[at] = static_cast<int32_t>(random() % 1000);
            break;
          default:
            put(view, at, value(random));
        }
      }
}

inline CacheGeometry geometry_of(Format format, int64_t slots = 64, int64_t page_size = 8) {
  CacheGeometry geometry;
  geometry.format = format;
  geometry.slots = slots;
  geometry.page_size = page_size;
  geometry.latent = 32;
  geometry.rope = format == Format::kIndexF32 || format == Format::kIndexFp8 ? 0 : 8;
  return geometry;
}

inline void write_slots(const CacheGeometry& geometry, const TensorView& cache, const std::vector<int32_t>& slots,
                        std::mt19937& random) {
  std::uniform_real_distribution<float> value(-4, 4);
  std::vector<float> row(static_cast<size_t>(geometry.width()));
  for (const int32_t slot : slots) {
    for (float& x : row) x = value(random);
    encode_slot(geometry, cache.data, slot, row.data(), false);
  }
}

inline DeviceFixture::Operand cache_output(const TensorView& cache, const CacheGeometry& geometry, int slots_operand) {
  Region region;
  region.slots_operand = slots_operand;
  return {OperandSpec{"cache", Direction::kOut, Content::kCache, region, {}, false}, cache, geometry, {}};
}

inline DeviceFixture::Operand output_of(const TensorView& view, Content content = Content::kValues, Region region = {},
                                        IndexRule rule = {}) {
  return {OperandSpec{"out", Direction::kOut, content, region, {}, false}, view, {}, rule};
}

inline DeviceFixture::Operand plain_input(const TensorView& view) {
  return {OperandSpec{"in", Direction::kIn, Content::kMetadata, {}, {}, false}, view, {}, {}};
}

}  // namespace faultline
