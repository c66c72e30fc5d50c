#include "device/slabs.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "base/fd.h"
#include "device/cuda_slabs.h"
#include "device/slab_checksum.h"

namespace faultline {
namespace {

// Memory that is mapped as one range from several descriptors.
class MappedRange {
 public:
  static Result<std::unique_ptr<MappedRange>> map(const std::vector<uint64_t>& sizes,
                                                  const std::vector<int>& descriptors, int protection) {
    if (sizes.size() != descriptors.size())
      return internal_error("{} slabs and {} descriptors do not belong together", sizes.size(), descriptors.size());
    uint64_t total = 0;
    for (const uint64_t size : sizes) total += size;
    void* base = ::mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return internal_error("reserving {} bytes of addresses: {}", total, errno_text(errno));
    auto range = std::unique_ptr<MappedRange>(new MappedRange(static_cast<std::byte*>(base), total));
    uint64_t at = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      struct stat info {};
      if (::fstat(descriptors[i], &info) != 0 || static_cast<uint64_t>(info.st_size) != sizes[i])
        return internal_error("descriptor {} is no slab of {} bytes", i, sizes[i]);
      if (::mmap(range->data_ + at, sizes[i], protection, MAP_SHARED | MAP_FIXED, descriptors[i], 0) == MAP_FAILED)
        return internal_error("mapping slab {} of {} bytes: {}", i, sizes[i], errno_text(errno));
      at += sizes[i];
    }
    return range;
  }
  ~MappedRange() { ::munmap(data_, bytes_); }
  MappedRange(const MappedRange&) = delete;
  MappedRange& operator=(const MappedRange&) = delete;

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t checksum(uint64_t bytes) const {
    FAULTLINE_CHECK(bytes <= bytes_ && bytes % kChecksumWordBytes == 0);
    return checksum_of_words(reinterpret_cast<const uint64_t*>(data_), bytes / kChecksumWordBytes, 0);
  }

 private:
  MappedRange(std::byte* data, uint64_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* data_;
  uint64_t bytes_;
};

class MemoryLane : public SlabWriter::Lane {
 public:
  MemoryLane(std::byte* slabs, size_t staging_bytes) : slabs_(slabs), staging_(staging_bytes) {}
  Result<std::byte*> staging() override { return staging_.data(); }
  Status send(uint64_t offset, size_t bytes) override {
    std::memcpy(slabs_ + offset, staging_.data(), bytes);
    return {};
  }
  Status finish() override { return {}; }

 private:
  std::byte* slabs_;
  std::vector<std::byte> staging_;
};

class MemorySlabs : public SlabWriter {
 public:
  std::string device_name() const override { return "cpu"; }
  std::string uuid() const override { return std::string(kMemorySlabs); }
  Device::Memory memory() const override { return {}; }
  uint64_t granularity() const override { return static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)); }
  Status allocate(const std::vector<uint64_t>& sizes) override {
    std::vector<int> descriptors;
    for (const uint64_t size : sizes) {
      FAULTLINE_TRY(UniqueFd fd, make_shared_memory("faultline-slab", size));
      descriptors.push_back(fd.get());
      slabs_.push_back(std::move(fd));
    }
    FAULTLINE_TRY(range_, MappedRange::map(sizes, descriptors, PROT_READ | PROT_WRITE));
    return {};
  }
  Result<std::unique_ptr<Lane>> open_lane(size_t staging_bytes) override {
    return std::unique_ptr<Lane>(std::make_unique<MemoryLane>(range_->data(), staging_bytes));
  }
  Result<uint64_t> checksum(uint64_t bytes) override { return range_->checksum(bytes); }
  Result<std::vector<UniqueFd>> export_descriptors() override { return std::move(slabs_); }

 private:
  std::vector<UniqueFd> slabs_;
  std::unique_ptr<MappedRange> range_;
};

class MemorySlabMap : public SlabMap {
 public:
  explicit MemorySlabMap(std::unique_ptr<MappedRange> range) : range_(std::move(range)) {}
  const std::byte* data() const override { return range_->data(); }
  uint64_t bytes() const override { return range_->bytes(); }
  Result<uint64_t> checksum(uint64_t bytes) override { return range_->checksum(bytes); }

 private:
  std::unique_ptr<MappedRange> range_;
};

}  // namespace

Result<std::vector<uint64_t>> slab_sizes(uint64_t bytes, uint64_t granularity) {
  FAULTLINE_CHECK(granularity > 0);
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  if (bytes == 0 || bytes > kMost - granularity) return bad_input("{} bytes of weights cannot be placed", bytes);
  const auto round_up = [&](uint64_t value) { return (value + granularity - 1) / granularity * granularity; };
  const uint64_t whole = round_up(std::max(kSlabBytes, (bytes + kMaxSlabs - 1) / kMaxSlabs));
  std::vector<uint64_t> sizes(bytes / whole, whole);
  if (const uint64_t rest = bytes % whole; rest != 0) sizes.push_back(round_up(rest));
  return sizes;
}

std::unique_ptr<SlabWriter> make_memory_slabs() {
  return std::make_unique<MemorySlabs>();
}

Result<std::unique_ptr<SlabMap>> map_slabs(Device& device, const std::vector<uint64_t>& sizes,
                                           const std::vector<int>& descriptors) {
  if (device.is_cuda()) return map_cuda_slabs(sizes, descriptors);
  FAULTLINE_TRY(auto range, MappedRange::map(sizes, descriptors, PROT_READ));
  return std::unique_ptr<SlabMap>(std::make_unique<MemorySlabMap>(std::move(range)));
}

Result<std::string> device_uuid(Device& device) {
  if (!device.is_cuda()) return std::string(kMemorySlabs);
  return current_cuda_uuid();
}

Result<int> cuda_ordinal(const std::string& name) {
  if (name == "cuda") return 0;
  constexpr std::string_view kPrefix = "cuda:";
  constexpr size_t kMostDigits = 3;
  const std::string number = name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : "";
  if (number.empty() || number.size() > kMostDigits || number.find_first_not_of("0123456789") != std::string::npos)
    return bad_input("there is no GPU '{}'; GPUs are cuda (the first) and cuda:N", name);
  return std::stoi(number);
}

#ifndef FAULTLINE_HAVE_CUDA
Result<std::unique_ptr<SlabWriter>> make_cuda_slabs(int ordinal) {
  return tl::make_unexpected(cuda_usable(ordinal).error());
}
Result<std::unique_ptr<SlabMap>> map_cuda_slabs(const std::vector<uint64_t>&, const std::vector<int>&) {
  return tl::make_unexpected(cuda_usable(0).error());
}
Result<std::string> cuda_device_uuid(int ordinal) {
  return tl::make_unexpected(cuda_usable(ordinal).error());
}
Result<std::string> current_cuda_uuid() {
  return tl::make_unexpected(cuda_usable(0).error());
}
#endif

}  // namespace faultline
