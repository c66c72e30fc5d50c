#include "device/cuda_slabs.h"

#include <cuda_runtime.h>

#include <utility>

#include "device/cuda_driver.h"
#include "device/cuda_error.h"
#include "device/slab_checksum.h"

namespace faultline {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

CUmemAllocationProp slab_properties(int ordinal) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = ordinal;
  return properties;
}

Result<std::string> uuid_text(int ordinal) {
  FAULTLINE_TRY(const CudaDriver* driver, cuda_driver());
  FAULTLINE_CU_TRY(*driver, driver->init(0), "cuInit");
  CUdevice device = 0;
  FAULTLINE_CU_TRY(*driver, driver->device_get(&device, ordinal), "cuDeviceGet");
  CUuuid uuid{};
  FAULTLINE_CU_TRY(*driver, driver->device_get_uuid(&uuid, device), "cuDeviceGetUuid");
  std::string text;
  for (const char byte : uuid.bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

// Addresses, the allocations mapped there, and nothing else. After a fault every call fails, and the process is about
// to end: nothing to be done about it.
class MappedAllocations {
 public:
  MappedAllocations(const CudaDriver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {}
  ~MappedAllocations() {
    uint64_t at = 0;
    for (const auto& [handle, bytes] : allocations_) {
      if (at < mapped_) static_cast<void>(driver_.mem_unmap(base_ + at, bytes));
      static_cast<void>(driver_.mem_release(handle));
      at += bytes;
    }
    if (base_ != 0) static_cast<void>(driver_.mem_address_free(base_, reserved_));
  }
  MappedAllocations(const MappedAllocations&) = delete;
  MappedAllocations& operator=(const MappedAllocations&) = delete;

  // Takes over the handle.
  void add(CUmemGenericAllocationHandle handle, uint64_t bytes) { allocations_.emplace_back(handle, bytes); }

  // All of them, first to last.
  Status map(CUmemAccess_flags access) {
    uint64_t total = 0;
    for (const auto& [handle, bytes] : allocations_) total += bytes;
    FAULTLINE_CU_TRY(driver_, driver_.mem_address_reserve(&base_, total, 0, 0, 0), "cuMemAddressReserve");
    reserved_ = total;
    for (const auto& [handle, bytes] : allocations_) {
      const CUresult mapped = driver_.mem_map(base_ + mapped_, bytes, 0, handle, 0);
      if (mapped != CUDA_SUCCESS)
        return internal_error("mapping a slab of {} bytes failed: {}; is it of another run?", bytes,
                              driver_.error_name(mapped));
      mapped_ += bytes;
    }
    CUmemAccessDesc rights{};
    rights.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    rights.location.id = ordinal_;
    rights.flags = access;
    FAULTLINE_CU_TRY(driver_, driver_.mem_set_access(base_, total, &rights, 1), "cuMemSetAccess");
    return {};
  }

  std::byte* data() const { return reinterpret_cast<std::byte*>(base_); }  // NOLINT: a device address is a number there
  uint64_t bytes() const { return mapped_; }
  const std::vector<std::pair<CUmemGenericAllocationHandle, uint64_t>>& allocations() const { return allocations_; }

  Result<uint64_t> checksum(uint64_t bytes) const {
    FAULTLINE_CHECK(bytes <= mapped_ && bytes % kChecksumWordBytes == 0);
    uint64_t sum = 0;
    FAULTLINE_CUDA_TRY(static_cast<cudaError_t>(cuda_checksum(reinterpret_cast<const uint64_t*>(data()),
                                                              bytes / kChecksumWordBytes, cudaStreamPerThread, &sum)),
                       "the checksum of the weights");
    return sum;
  }

 private:
  const CudaDriver& driver_;
  int ordinal_;
  std::vector<std::pair<CUmemGenericAllocationHandle, uint64_t>> allocations_;
  CUdeviceptr base_ = 0;
  uint64_t reserved_ = 0;
  uint64_t mapped_ = 0;
};

// Two pinned buffers in turn, and a stream of its own.
class CudaLane : public SlabWriter::Lane {
 public:
  static Result<std::unique_ptr<Lane>> open(int ordinal, std::byte* slabs, size_t staging_bytes) {
    auto lane = std::unique_ptr<CudaLane>(new CudaLane(slabs));
    FAULTLINE_CUDA_TRY(cudaSetDevice(ordinal), "cudaSetDevice");  // of this thread
    FAULTLINE_CUDA_TRY(cudaStreamCreateWithFlags(&lane->stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    for (Stage& stage : lane->stages_) {
      FAULTLINE_CUDA_TRY(cudaHostAlloc(&stage.memory, staging_bytes, cudaHostAllocDefault), "cudaHostAlloc");
      FAULTLINE_CUDA_TRY(cudaEventCreateWithFlags(&stage.free, cudaEventDisableTiming), "cudaEventCreate");
    }
    return std::unique_ptr<Lane>(std::move(lane));
  }
  ~CudaLane() override {
    if (stream_ != nullptr) static_cast<void>(cudaStreamSynchronize(stream_));
    for (const Stage& stage : stages_) {
      if (stage.free != nullptr) static_cast<void>(cudaEventDestroy(stage.free));
      if (stage.memory != nullptr) static_cast<void>(cudaFreeHost(stage.memory));
    }
    if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
  }
  CudaLane(const CudaLane&) = delete;
  CudaLane& operator=(const CudaLane&) = delete;

  Result<std::byte*> staging() override {
    FAULTLINE_CUDA_TRY(cudaEventSynchronize(stages_[next_].free), "cudaEventSynchronize");
    return static_cast<std::byte*>(stages_[next_].memory);
  }
  Status send(uint64_t offset, size_t bytes) override {
    Stage& stage = stages_[next_];
    next_ = (next_ + 1) % kStages;
    FAULTLINE_CUDA_TRY(cudaMemcpyAsync(slabs_ + offset, stage.memory, bytes, cudaMemcpyHostToDevice, stream_),
                       "cudaMemcpyAsync");
    FAULTLINE_CUDA_TRY(cudaEventRecord(stage.free, stream_), "cudaEventRecord");
    return {};
  }
  Status finish() override {
    FAULTLINE_CUDA_TRY(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    return {};
  }

 private:
  static constexpr size_t kStages = 2;
  struct Stage {
    void* memory = nullptr;
    cudaEvent_t free = nullptr;
  };
  explicit CudaLane(std::byte* slabs) : slabs_(slabs) {}
  std::byte* slabs_;
  cudaStream_t stream_ = nullptr;
  Stage stages_[kStages];
  size_t next_ = 0;
};

class CudaSlabs : public SlabWriter {
 public:
  CudaSlabs(const CudaDriver& driver, int ordinal, std::string name, std::string uuid, uint64_t granularity)
      : driver_(driver),
        ordinal_(ordinal),
        name_(std::move(name)),
        uuid_(std::move(uuid)),
        granularity_(granularity),
        memory_(driver, ordinal) {}

  std::string device_name() const override { return name_; }
  std::string uuid() const override { return uuid_; }
  Device::Memory memory() const override {
    size_t free = 0;
    size_t total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) return {};
    return {free, total};
  }
  uint64_t granularity() const override { return granularity_; }

  Status allocate(const std::vector<uint64_t>& sizes) override {
    const CUmemAllocationProp properties = slab_properties(ordinal_);
    for (const uint64_t size : sizes) {
      CUmemGenericAllocationHandle handle = 0;
      const CUresult made = driver_.mem_create(&handle, size, &properties, 0);
      if (made == CUDA_ERROR_OUT_OF_MEMORY) {
        const Device::Memory now = memory();
        return cannot_run("{}: no memory for a slab of {:.2f} GiB: {:.2f} of {:.2f} GiB are free", name_,
                          static_cast<double>(size) / kGiB, static_cast<double>(now.free) / kGiB,
                          static_cast<double>(now.total) / kGiB);
      }
      FAULTLINE_CU_TRY(driver_, made, "cuMemCreate");
      memory_.add(handle, size);
    }
    return memory_.map(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  }

  Result<std::unique_ptr<Lane>> open_lane(size_t staging_bytes) override {
    return CudaLane::open(ordinal_, memory_.data(), staging_bytes);
  }
  Result<uint64_t> checksum(uint64_t bytes) override { return memory_.checksum(bytes); }

  Result<std::vector<UniqueFd>> export_descriptors() override {
    std::vector<UniqueFd> descriptors;
    for (const auto& [handle, bytes] : memory_.allocations()) {
      int fd = -1;
      FAULTLINE_CU_TRY(driver_, driver_.mem_export(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                       "cuMemExportToShareableHandle");
      descriptors.emplace_back(fd);
    }
    return descriptors;
  }

 private:
  const CudaDriver& driver_;
  int ordinal_;
  std::string name_;
  std::string uuid_;
  uint64_t granularity_;
  MappedAllocations memory_;
};

class CudaSlabMap : public SlabMap {
 public:
  CudaSlabMap(const CudaDriver& driver, int ordinal) : memory_(driver, ordinal) {}
  Status map(const CudaDriver& driver, const std::vector<uint64_t>& sizes, const std::vector<int>& descriptors) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      CUmemGenericAllocationHandle handle = 0;
      // The driver takes the number of the descriptor as a pointer.
      const CUresult got = driver.mem_import(&handle, reinterpret_cast<void*>(static_cast<uintptr_t>(descriptors[i])),
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
      if (got != CUDA_SUCCESS)
        return internal_error("descriptor {} is no slab of {} bytes of this GPU: {}", i, sizes[i],
                              driver.error_name(got));
      memory_.add(handle, sizes[i]);
    }
    return memory_.map(CU_MEM_ACCESS_FLAGS_PROT_READ);
  }
  const std::byte* data() const override { return memory_.data(); }
  uint64_t bytes() const override { return memory_.bytes(); }
  Result<uint64_t> checksum(uint64_t bytes) override { return memory_.checksum(bytes); }

 private:
  MappedAllocations memory_;
};

}  // namespace

Result<std::unique_ptr<SlabWriter>> make_cuda_slabs(int ordinal) {
  FAULTLINE_TRY_STATUS(cuda_usable(ordinal));
  FAULTLINE_TRY(const CudaDriver* driver, cuda_driver());
  FAULTLINE_TRY(std::string uuid, uuid_text(ordinal));
  FAULTLINE_CUDA_TRY(cudaSetDevice(ordinal), "cudaSetDevice");
  FAULTLINE_CUDA_TRY(cudaFree(nullptr), "making a CUDA context");
  cudaDeviceProp device{};
  FAULTLINE_CUDA_TRY(cudaGetDeviceProperties(&device, ordinal), "cudaGetDeviceProperties");
  const CUmemAllocationProp properties = slab_properties(ordinal);
  size_t granularity = 0;
  FAULTLINE_CU_TRY(
      *driver, driver->mem_get_allocation_granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
      "cuMemGetAllocationGranularity");
  return std::unique_ptr<SlabWriter>(std::make_unique<CudaSlabs>(
      *driver, ordinal, fmt::format("cuda:{} {}", ordinal, device.name), std::move(uuid), granularity));
}

Result<std::unique_ptr<SlabMap>> map_cuda_slabs(const std::vector<uint64_t>& sizes,
                                                const std::vector<int>& descriptors) {
  if (sizes.size() != descriptors.size())
    return internal_error("{} slabs and {} descriptors do not belong together", sizes.size(), descriptors.size());
  FAULTLINE_TRY(const CudaDriver* driver, cuda_driver());
  int ordinal = 0;
  FAULTLINE_CUDA_TRY(cudaGetDevice(&ordinal), "cudaGetDevice");
  FAULTLINE_CUDA_TRY(cudaFree(nullptr), "making a CUDA context");
  auto map = std::make_unique<CudaSlabMap>(*driver, ordinal);
  FAULTLINE_TRY_STATUS(map->map(*driver, sizes, descriptors));
  return std::unique_ptr<SlabMap>(std::move(map));
}

Result<std::string> cuda_device_uuid(int ordinal) {
  FAULTLINE_TRY_STATUS(cuda_usable(ordinal));
  return uuid_text(ordinal);
}

Result<std::string> current_cuda_uuid() {
  int ordinal = 0;
  FAULTLINE_CUDA_TRY(cudaGetDevice(&ordinal), "cudaGetDevice");
  return uuid_text(ordinal);
}

}  // namespace faultline
