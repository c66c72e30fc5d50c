#include <fmt/format.h>

#include "bench.h"

int main() {
  faultline::bench::products();
  if (const auto status = faultline::bench::workers(); !status) {
    fmt::print(stderr, "faultline_bench: {}\n", status.error().message);
    return static_cast<int>(faultline::ExitCode::kInternal);
  }
  return 0;
}
