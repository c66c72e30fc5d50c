// Strict JSON: refuses or accepts, never crashes; what it accepts is written and read back as the same value.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace faultline;
  const auto parsed = parse_json(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz.json");
  if (!parsed) {
    FAULTLINE_CHECK(!parsed.error().message.empty());
    return 0;
  }
  const auto again = parse_json(dump_json(*parsed), "again.json");
  FAULTLINE_CHECK(again.has_value());
  FAULTLINE_CHECK(*again == *parsed);
  return 0;
}
