// Multiply-adds a second and core of the matrix products, beside OpenBLAS on floats of the same shape.
#include <fmt/format.h>

#include <cstdint>
#include <vector>

#include "bench.h"
#include "kernels/blas.h"
#include "kernels/matmul.h"

namespace faultline::bench {
namespace {

// One expert's gate_proj of GLM-5, cut to a quarter of its rows.
constexpr int64_t kColumns = 6144;
constexpr int64_t kRows = 512;
constexpr int64_t kTokens[] = {1, 2, 4, 8, 32, 47, 64, 256};

struct Operands {
  std::vector<float> x, w, out;
  std::vector<uint16_t> w_bf16;
  std::vector<uint8_t> codes, scales, x_codes, x_scales;

  explicit Operands(int64_t tokens)
      : x(static_cast<size_t>(tokens * kColumns)),
        w(static_cast<size_t>(kRows * kColumns)),
        out(static_cast<size_t>(tokens * kRows)),
        w_bf16(w.size()),
        codes(w.size() / 2),
        scales(w.size() / kernels::kFp4Block),
        x_codes(x.size() / 2),
        x_scales(x.size() / kernels::kFp4Block) {
    uint32_t state = 1;
    const auto next = [&state] {
      state = state * 1664525u + 1013904223u;
      return state >> 16;
    };
    for (float& value : x) value = static_cast<float>(next()) / 65536.0f - 0.5f;
    for (float& value : w) value = static_cast<float>(next()) / 65536.0f - 0.5f;
    for (uint16_t& value : w_bf16) value = static_cast<uint16_t>(0x3C00u + next() % 0x200u);
    for (uint8_t& value : codes) value = static_cast<uint8_t>(next());
    for (uint8_t& value : x_codes) value = static_cast<uint8_t>(next());
    for (uint8_t& value : scales) value = static_cast<uint8_t>(0x30u + next() % 16u);
    for (uint8_t& value : x_scales) value = static_cast<uint8_t>(0x30u + next() % 16u);
  }
};

}  // namespace

void products() {
  fmt::print("products, {} x {} weights, one core, G multiply-adds a second (and times OpenBLAS sgemm)\n", kRows,
             kColumns);
  fmt::print("{:>6} {:>9} {:>18} {:>18} {:>18}\n", "rows", "sgemm", "nvfp4 weight-only", "nvfp4 w4a4", "bf16");
  for (const int64_t tokens : kTokens) {
    Operands o(tokens);
    const double giga = static_cast<double>(tokens * kRows * kColumns) * 1e-9;
    const kernels::MatmulWeight fp4{.type = kernels::WeightType::kFp4,
                                    .values = o.codes.data(),
                                    .stride = kColumns / 2,
                                    .rows = kRows,
                                    .columns = kColumns,
                                    .fp4_scales = o.scales.data(),
                                    .scale_stride = kColumns / kernels::kFp4Block};
    const kernels::MatmulWeight bf16{.type = kernels::WeightType::kBf16,
                                     .values = o.w_bf16.data(),
                                     .stride = kColumns,
                                     .rows = kRows,
                                     .columns = kColumns};
    const double sgemm =
        giga / fastest_seconds([&] {
          kernels::sgemm_nt(tokens, kRows, kColumns, o.x.data(), kColumns, o.w.data(), kColumns, o.out.data(), kRows);
        });
    const double weight_only =
        giga / fastest_seconds([&] { kernels::matmul(o.x.data(), tokens, fp4, o.out.data(), kRows); });
    const double w4a4 =
        giga / fastest_seconds([&] {
          kernels::Fp4Rows x(tokens, kColumns);
          for (int64_t t = 0; t < tokens; ++t)
            x.set(t, o.x_codes.data() + t * kColumns / 2, o.x_scales.data() + t * (kColumns / kernels::kFp4Block));
          kernels::matmul_w4a4(x, fp4, o.out.data(), kRows);
        });
    const double dense =
        giga / fastest_seconds([&] { kernels::matmul(o.x.data(), tokens, bf16, o.out.data(), kRows); });
    fmt::print("{:>6} {:>9.1f} {:>10.1f} ({:>4.2f}x) {:>10.1f} ({:>4.2f}x) {:>10.1f} ({:>4.2f}x)\n", tokens, sgemm,
               weight_only, weight_only / sgemm, w4a4, w4a4 / sgemm, dense, dense / sgemm);
  }
}

}  // namespace faultline::bench
