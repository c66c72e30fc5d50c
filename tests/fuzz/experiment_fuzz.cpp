// The experiment parser on arbitrary bytes: it may refuse them, and must neither crash nor take long; what it accepts
// expands or is refused as too large, and survives being written and read again.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "grid/expand.h"
#include "grid/experiment.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace faultline;
  const auto experiment = parse_experiment(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz.yaml");
  if (!experiment) {
    FAULTLINE_CHECK(!experiment.error().message.empty());
    return 0;
  }
  const auto again = parse_experiment(write_experiment(*experiment), "again.yaml");
  FAULTLINE_CHECK(again.has_value());
  FAULTLINE_CHECK(again->axes.size() == experiment->axes.size());
  const auto grid = expand_grid(*experiment);
  FAULTLINE_CHECK(!grid || !grid->rows.empty());
  return 0;
}
