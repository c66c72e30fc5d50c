// Functions of the CUDA driver. libcuda is not linked, so that the program starts on machines without a driver: each
// function is asked for by name and version when it is first needed.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include "base/error.h"

namespace faultline {

struct CudaDriver {
  PFN_cuInit_v2000 init = nullptr;
  PFN_cuDeviceGet_v2000 device_get = nullptr;
  PFN_cuDeviceGetUuid_v11040 device_get_uuid = nullptr;
  PFN_cuGetErrorName_v6000 get_error_name = nullptr;
  PFN_cuMemGetAllocationGranularity_v10020 mem_get_allocation_granularity = nullptr;
  PFN_cuMemCreate_v10020 mem_create = nullptr;
  PFN_cuMemRelease_v10020 mem_release = nullptr;
  PFN_cuMemExportToShareableHandle_v10020 mem_export = nullptr;
  PFN_cuMemImportFromShareableHandle_v10020 mem_import = nullptr;
  PFN_cuMemAddressReserve_v10020 mem_address_reserve = nullptr;
  PFN_cuMemAddressFree_v10020 mem_address_free = nullptr;
  PFN_cuMemMap_v10020 mem_map = nullptr;
  PFN_cuMemUnmap_v10020 mem_unmap = nullptr;
  PFN_cuMemSetAccess_v10020 mem_set_access = nullptr;

  // "CUDA_ERROR_OUT_OF_MEMORY"
  std::string error_name(CUresult result) const;
};

// Loaded once a process. Cannot-run when the driver lacks one of them.
Result<const CudaDriver*> cuda_driver();

// FAULTLINE_CU_TRY(driver, call, "name"): returns an error that names the call and the driver's reason.
#define FAULTLINE_CU_TRY(driver, expression, call)                                               \
  do {                                                                                           \
    const CUresult cu_status = (expression);                                                     \
    if (cu_status != CUDA_SUCCESS)                                                               \
      return ::faultline::internal_error("{} failed: {}", call, (driver).error_name(cu_status)); \
  } while (false)

}  // namespace faultline
