// silu_mul, add and the gathers. One block a row; thread t takes columns t, t + threads, …
//
//   silu_mul     out = narrow(silu(gate) * up), x [rows, 2 * columns] = gate | up: float inside, one rounding
//   add          out = narrow(a + b)
//   gather_rows  out[r] = x[rows[r]]
//   embed        out[t] = narrow(table[ids[t]]), the table in the checkpoint's float type
// Each operand [rows, columns] with a row stride in elements; ids and rows int32, contiguous.
#pragma once

#include <cmath>

#include "kernels/operand.h"

namespace faultline::kernels {

inline constexpr int kElementwiseThreads = 128;
inline constexpr int kElementwiseCudaThreads = 512;  // a GPU needs more of a row in flight

template <class T, bool kChecked>
struct SiluMulBody {
  Operand<T> x;
  Operand<T> out;
  int64_t columns = 0;
  int64_t x_stride = 0;
  int64_t out_stride = 0;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto x_view = open<kChecked>(x, log, block);
    const auto out_view = open<kChecked>(out, log, block);
    const int64_t row = block.index(0);
    block.for_each_thread([&](int t) {
      for (int64_t c = t; c < columns; c += block.threads()) {
        const float gate = to_float(x_view.load(row * x_stride + c));
        const float up = to_float(x_view.load(row * x_stride + columns + c));
        out_view.store(row * out_stride + c, narrow<T>(gate / (1.0f + expf(-gate)) * up));
      }
    });
  }
};

template <class T, bool kChecked>
struct AddBody {
  Operand<T> a;
  Operand<T> b;
  Operand<T> out;
  int64_t columns = 0;
  int64_t a_stride = 0;
  int64_t b_stride = 0;
  int64_t out_stride = 0;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto a_view = open<kChecked>(a, log, block);
    const auto b_view = open<kChecked>(b, log, block);
    const auto out_view = open<kChecked>(out, log, block);
    const int64_t row = block.index(0);
    block.for_each_thread([&](int t) {
      for (int64_t c = t; c < columns; c += block.threads())
        out_view.store(row * out_stride + c, narrow<T>(to_float(a_view.load(row * a_stride + c)) +
                                                       to_float(b_view.load(row * b_stride + c))));
    });
  }
};

template <class T, bool kChecked>
struct GatherRowsBody {
  Operand<T> x;
  Operand<int32_t> rows;
  Operand<T> out;
  int64_t columns = 0;
  int64_t x_stride = 0;
  int64_t out_stride = 0;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto x_view = open<kChecked>(x, log, block);
    const auto rows_view = open<kChecked>(rows, log, block);
    const auto out_view = open<kChecked>(out, log, block);
    const int64_t row = block.index(0);
    block.for_each_thread([&](int t) {
      const int64_t from = rows_view.load(row);
      for (int64_t c = t; c < columns; c += block.threads())
        out_view.store(row * out_stride + c, x_view.load(from * x_stride + c));
    });
  }
};

template <class T, bool kChecked>
struct EmbedBody {
  Operand<int32_t> ids;
  ScalarOperand table;
  Operand<T> out;
  int64_t columns = 0;
  int64_t table_stride = 0;
  int64_t out_stride = 0;
  AccessLog* log = nullptr;

  template <class Block>
  FAULTLINE_HD void operator()(Block& block) const {
    const auto ids_view = open<kChecked>(ids, log, block);
    const ScalarView<kChecked> table_view(table, log, block);
    const auto out_view = open<kChecked>(out, log, block);
    const int64_t row = block.index(0);
    block.for_each_thread([&](int t) {
      const int64_t id = ids_view.load(row);
      for (int64_t c = t; c < columns; c += block.threads())
        out_view.store(row * out_stride + c, narrow<T>(table_view.load(id * table_stride + c)));
    });
  }
};

#ifdef FAULTLINE_HAVE_CUDA
bool cuda_faster(const LaunchContext& context, Grid grid, const SiluMulBody<Bf16, false>& body);  // cuda_rows.cu
bool cuda_faster(const LaunchContext& context, Grid grid, const AddBody<Bf16, false>& body);      // cuda_rows.cu
#endif

// One block for each of `rows`.
template <class Body>
void launch_elementwise(const LaunchContext& context, int64_t rows, const Body& body) {
  launch(context, Grid{rows}, context.cuda ? kElementwiseCudaThreads : kElementwiseThreads, 0, body);
}

}  // namespace faultline::kernels
