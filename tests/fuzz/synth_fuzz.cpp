// "synth:…" specs of arbitrary bytes: whatever is accepted has a canonical spec that means the same model.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "model/synth.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace faultline;
  const auto model = parse_synth_spec(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!model) {
    FAULTLINE_CHECK(!model.error().message.empty());
    return 0;
  }
  const auto again = parse_synth_spec(model->spec);
  FAULTLINE_CHECK(again.has_value());
  FAULTLINE_CHECK(again->config_text == model->config_text && again->seed == model->seed);
  return 0;
}
