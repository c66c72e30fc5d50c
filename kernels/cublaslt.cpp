#include "kernels/cublaslt.h"

#if defined(FAULTLINE_HAVE_CUDA) && __has_include(<cublasLt.h>)

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <string>

namespace faultline::kernels {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // what cuBLAS's documentation recommends for Hopper and later
constexpr int kVersionMajor = 10000;                  // cublasLtGetVersion: major * 10000 + minor * 100 + patch
constexpr int kVersionMinor = 100;
constexpr uint32_t kMostAlignment = 256;

// The library's functions, and what is made once a process.
class Library {
 public:
  static Library& get() {
    static Library library;
    return library;
  }
  bool usable() const { return handle_ != nullptr; }
  const char* status() const { return status_.c_str(); }
  bool run(cudaStream_t stream, const DenseProduct& p);

 private:
  // What decides on an algorithm.
  using Key = std::array<int64_t, 15>;
  struct Planned {
    bool found = false;
    cublasLtMatmulDesc_t operation = nullptr;
    cublasLtMatrixLayout_t weight = nullptr, x = nullptr, out = nullptr;
    cublasLtMatmulAlgo_t algorithm{};
    size_t workspace = 0;
  };

  Library() {
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so"}) {
      if (void* opened = dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
        use(opened, name);
        return;
      }
    }
    status_ = "no cuBLASLt (libcublasLt.so.13 was not found): own tensor core products";
  }

  template <class Function>
  bool find(void* opened, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(opened, name));
    if (function == nullptr) status_ = std::string("cuBLASLt has no ") + name + ": own tensor core products";
    return function != nullptr;
  }

  void use(void* opened, const char* name) {
    if (!find(opened, "cublasLtGetVersion", version_) || !find(opened, "cublasLtCreate", create_) ||
        !find(opened, "cublasLtMatmul", matmul_) || !find(opened, "cublasLtMatmulDescCreate", describe_) ||
        !find(opened, "cublasLtMatmulDescSetAttribute", set_operation_) ||
        !find(opened, "cublasLtMatrixLayoutCreate", layout_) ||
        !find(opened, "cublasLtMatrixLayoutSetAttribute", set_layout_) ||
        !find(opened, "cublasLtMatmulPreferenceCreate", prefer_) ||
        !find(opened, "cublasLtMatmulPreferenceDestroy", forget_) ||
        !find(opened, "cublasLtMatmulPreferenceSetAttribute", set_preference_) ||
        !find(opened, "cublasLtMatmulAlgoGetHeuristic", heuristic_))
      return;
    const auto version = static_cast<int>(version_());
    char text[160];
    static_cast<void>(std::snprintf(text, sizeof text, "cuBLASLt %d.%d.%d (%s)", version / kVersionMajor,
                                    version % kVersionMajor / kVersionMinor, version % kVersionMinor, name));
    status_ = text;
    if (version / kVersionMajor != CUBLAS_VER_MAJOR) {
      status_ += ": another major version than this build's, own tensor core products";
      return;
    }
    cublasLtHandle_t handle = nullptr;
    if (create_(&handle) != CUBLAS_STATUS_SUCCESS || cudaMalloc(&workspace_, kWorkspaceBytes) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      status_ += ": could not be started, own tensor core products";
      return;
    }
    handle_ = handle;
  }

  cublasLtMatrixLayout_t layout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t stride, int64_t batch,
                                int64_t batch_stride) {
    cublasLtMatrixLayout_t result = nullptr;
    if (layout_(&result, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), stride) !=
        CUBLAS_STATUS_SUCCESS)
      return nullptr;
    const auto count = static_cast<int32_t>(batch);
    set_layout_(result, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count);
    set_layout_(result, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch_stride, sizeof batch_stride);
    return result;
  }

  Planned plan(const DenseProduct& p);

  std::string status_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::map<Key, Planned> plans_;
  decltype(&cublasLtGetVersion) version_ = nullptr;
  decltype(&cublasLtCreate) create_ = nullptr;
  decltype(&cublasLtMatmul) matmul_ = nullptr;
  decltype(&cublasLtMatmulDescCreate) describe_ = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation_ = nullptr;
  // Of these the header makes inline functions of the same name beside; the library exports these.
  decltype(&cublasLtMatrixLayoutCreate) layout_ = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) set_layout_ = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) prefer_ = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) forget_ = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference_ = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic_ = nullptr;
};

uint32_t alignment(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  return address == 0 ? kMostAlignment : std::min(kMostAlignment, static_cast<uint32_t>(address & (~address + 1)));
}

// cuBLASLt counts in columns: out is [out_columns, rows] there, w [columns, out_columns] and x [columns, rows].
Library::Planned Library::plan(const DenseProduct& p) {
  Planned result;
  if (describe_(&result.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F) != CUBLAS_STATUS_SUCCESS) return result;
  const cublasOperation_t transpose = p.weight_kn ? CUBLAS_OP_N : CUBLAS_OP_T;
  set_operation_(result.operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose);
  result.weight = p.weight_kn ? layout(CUDA_R_16BF, p.out_columns, p.columns, p.w_stride, p.batch, p.w_batch)
                              : layout(CUDA_R_16BF, p.columns, p.out_columns, p.w_stride, p.batch, p.w_batch);
  result.x = layout(CUDA_R_16BF, p.columns, p.rows, p.x_stride, p.batch, p.x_batch);
  result.out = layout(p.out_f32 ? CUDA_R_32F : CUDA_R_16BF, p.out_columns, p.rows, p.out_stride, p.batch, p.out_batch);
  cublasLtMatmulPreference_t preference = nullptr;
  if (result.weight == nullptr || result.x == nullptr || result.out == nullptr ||
      prefer_(&preference) != CUBLAS_STATUS_SUCCESS)
    return result;
  const size_t workspace = kWorkspaceBytes;
  set_preference_(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
  // Partial sums stay in float: rounded ones would lie further from the reference than one rounding.
  const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  set_preference_(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof reduction);
  const uint32_t a = alignment(p.w), b = alignment(p.x), d = alignment(p.out);
  set_preference_(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof a);
  set_preference_(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof b);
  set_preference_(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &d, sizeof d);
  set_preference_(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &d, sizeof d);
  cublasLtMatmulHeuristicResult_t best{};
  int count = 0;
  result.found = heuristic_(handle_, result.operation, result.weight, result.x, result.out, result.out, preference, 1,
                            &best, &count) == CUBLAS_STATUS_SUCCESS &&
                 count > 0;
  forget_(preference);
  result.algorithm = best.algo;
  result.workspace = best.workspaceSize;
  return result;
}

bool Library::run(cudaStream_t stream, const DenseProduct& p) {
  const Key key{p.x_stride, p.x_batch,    p.w_stride,     p.w_batch,      p.weight_kn,
                p.out_f32,  p.out_stride, p.out_batch,    p.rows,         p.out_columns,
                p.columns,  p.batch,      alignment(p.x), alignment(p.w), alignment(p.out)};
  auto found = plans_.find(key);
  if (found == plans_.end()) found = plans_.emplace(key, plan(p)).first;
  const Planned& plan = found->second;
  if (!plan.found) return false;
  const float one = 1;
  const float zero = 0;
  const cublasStatus_t status = matmul_(handle_, plan.operation, &one, p.w, plan.weight, p.x, plan.x, &zero, p.out,
                                        plan.out, p.out, plan.out, &plan.algorithm, workspace_, plan.workspace, stream);
  if (status == CUBLAS_STATUS_SUCCESS) return true;
  static_cast<void>(cudaGetLastError());
  char text[64];
  static_cast<void>(std::snprintf(text, sizeof text, "cublasLtMatmul: status %d", static_cast<int>(status)));
  note_launch_error(text);
  return true;
}

}  // namespace

bool cublaslt_product(const LaunchContext& context, const DenseProduct& product) {
  Library& library = Library::get();
  return library.usable() && library.run(static_cast<cudaStream_t>(context.stream), product);
}

const char* cublaslt_status() {
  return Library::get().status();
}

}  // namespace faultline::kernels

#else

namespace faultline::kernels {

bool cublaslt_product(const LaunchContext&, const DenseProduct&) {
  return false;
}
const char* cublaslt_status() {
  return "built without cuBLASLt: own products";
}

}  // namespace faultline::kernels

#endif
