#include "device/cuda_driver.h"

#include <cuda_runtime.h>

namespace faultline {
namespace {

template <class Function>
Status load(const char* name, unsigned version, Function& function) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &address, version, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess || address == nullptr) {
    static_cast<void>(cudaGetLastError());
    return cannot_run("the NVIDIA driver has no {} (CUDA {}.{}): update it, or use --device cpu", name, version / 1000,
                      version % 1000 / 10);
  }
  function = reinterpret_cast<Function>(address);
  return {};
}

Result<CudaDriver> load_all() {
  // The version of a function is that in its type's name: v10020 is CUDA 10.2.
  CudaDriver d;
  FAULTLINE_TRY_STATUS(load("cuInit", 2000, d.init));
  FAULTLINE_TRY_STATUS(load("cuDeviceGet", 2000, d.device_get));
  FAULTLINE_TRY_STATUS(load("cuDeviceGetUuid", 11040, d.device_get_uuid));
  FAULTLINE_TRY_STATUS(load("cuGetErrorName", 6000, d.get_error_name));
  FAULTLINE_TRY_STATUS(load("cuMemGetAllocationGranularity", 10020, d.mem_get_allocation_granularity));
  FAULTLINE_TRY_STATUS(load("cuMemCreate", 10020, d.mem_create));
  FAULTLINE_TRY_STATUS(load("cuMemRelease", 10020, d.mem_release));
  FAULTLINE_TRY_STATUS(load("cuMemExportToShareableHandle", 10020, d.mem_export));
  FAULTLINE_TRY_STATUS(load("cuMemImportFromShareableHandle", 10020, d.mem_import));
  FAULTLINE_TRY_STATUS(load("cuMemAddressReserve", 10020, d.mem_address_reserve));
  FAULTLINE_TRY_STATUS(load("cuMemAddressFree", 10020, d.mem_address_free));
  FAULTLINE_TRY_STATUS(load("cuMemMap", 10020, d.mem_map));
  FAULTLINE_TRY_STATUS(load("cuMemUnmap", 10020, d.mem_unmap));
  FAULTLINE_TRY_STATUS(load("cuMemSetAccess", 10020, d.mem_set_access));
  return d;
}

}  // namespace

std::string CudaDriver::error_name(CUresult result) const {
  const char* name = nullptr;
  return get_error_name(result, &name) == CUDA_SUCCESS && name != nullptr
             ? name
             : fmt::format("driver error {}", static_cast<int>(result));
}

Result<const CudaDriver*> cuda_driver() {
  static const Result<CudaDriver> driver = load_all();
  if (!driver) return tl::make_unexpected(driver.error());
  return &*driver;
}

}  // namespace faultline
