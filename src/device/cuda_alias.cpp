#include <cuda_runtime.h>

#include "base/text.h"
#include "device/alias.h"
#include "device/cuda_driver.h"
#include "device/cuda_error.h"

namespace faultline {
namespace {

class CudaAlias : public AliasedMemory {
 public:
  explicit CudaAlias(const CudaDriver& driver) : driver_(driver) {}
  // After a fault every call fails, and the process is about to end: nothing to be done about it.
  ~CudaAlias() override {
    for (size_t i = 0; i < mapped_; ++i) static_cast<void>(driver_.mem_unmap(base_ + i * bytes_, bytes_));
    if (base_ != 0) static_cast<void>(driver_.mem_address_free(base_, reserved_));
    if (handle_ != 0) static_cast<void>(driver_.mem_release(handle_));
  }
  CudaAlias(const CudaAlias&) = delete;
  CudaAlias& operator=(const CudaAlias&) = delete;

  Status make(uint64_t bytes, size_t places) {
    int ordinal = 0;
    FAULTLINE_CUDA_TRY(cudaGetDevice(&ordinal), "cudaGetDevice");
    FAULTLINE_CUDA_TRY(cudaFree(nullptr), "making a CUDA context");
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = ordinal;
    size_t granularity = 0;
    FAULTLINE_CU_TRY(
        driver_,
        driver_.mem_get_allocation_granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
        "cuMemGetAllocationGranularity");
    bytes_ = (bytes + granularity - 1) / granularity * granularity;
    const CUresult made = driver_.mem_create(&handle_, bytes_, &properties, 0);
    if (made == CUDA_ERROR_OUT_OF_MEMORY)
      return cannot_run("no GPU memory for a buffer of {} that the experts of a layer pass through",
                        bytes_text(bytes_));
    FAULTLINE_CU_TRY(driver_, made, "cuMemCreate");
    const uint64_t reserve = bytes_ * places;
    FAULTLINE_CU_TRY(driver_, driver_.mem_address_reserve(&base_, reserve, 0, 0, 0), "cuMemAddressReserve");
    reserved_ = reserve;
    for (; mapped_ < places; ++mapped_)
      FAULTLINE_CU_TRY(driver_, driver_.mem_map(base_ + mapped_ * bytes_, bytes_, 0, handle_, 0), "cuMemMap");
    CUmemAccessDesc rights{};
    rights.location = properties.location;
    rights.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    FAULTLINE_CU_TRY(driver_, driver_.mem_set_access(base_, reserve, &rights, 1), "cuMemSetAccess");
    return {};
  }

  std::byte* place(size_t i) const override {
    return reinterpret_cast<std::byte*>(base_ + i * bytes_);  // NOLINT: a device address is a number there
  }
  uint64_t bytes() const override { return bytes_; }

 private:
  const CudaDriver& driver_;
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr base_ = 0;
  uint64_t bytes_ = 0;
  uint64_t reserved_ = 0;
  size_t mapped_ = 0;
};

}  // namespace

Result<std::unique_ptr<AliasedMemory>> make_cuda_alias(uint64_t bytes, size_t places) {
  FAULTLINE_TRY(const CudaDriver* driver, cuda_driver());
  auto memory = std::make_unique<CudaAlias>(*driver);
  FAULTLINE_TRY_STATUS(memory->make(bytes, places));
  return std::unique_ptr<AliasedMemory>(std::move(memory));
}

}  // namespace faultline
