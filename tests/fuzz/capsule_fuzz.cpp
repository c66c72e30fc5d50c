// A capsule of arbitrary bytes, and a sound file around an arbitrary description: what is accepted keeps every view
// within its memory.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "bisect/capsule.h"
#include "bisect/capsule_format.h"
#include "model/safetensors.h"

namespace {

using namespace faultline;

constexpr uint64_t kDataBytes = 4096;

void parse(std::string_view bytes) {
  const auto capsule = parse_capsule(bytes, "fuzz");
  if (!capsule) {
    FAULTLINE_CHECK(!capsule.error().message.empty());
    return;
  }
  const Op& op = capsule->op;
  FAULTLINE_CHECK(static_cast<size_t>(op.arguments.size()) == op.kind->operands.size());
  const auto* begin = reinterpret_cast<const std::byte*>(capsule->data.data());
  const auto* end = begin + capsule->data.size() * sizeof(uint64_t);
  for (int o = 0; o < op.arguments.size(); ++o) {
    const Argument& argument = op.arguments[o];
    if (op.kind->operands[static_cast<size_t>(o)].direction == Direction::kOut) continue;
    for (const TensorView& view : argument.views) {
      if (view.data == nullptr || view.elements() == 0) continue;
      const auto bytes_reached = static_cast<int64_t>(dtype_bytes(view.dtype)) * view.extent();
      FAULTLINE_CHECK(view.data >= begin && bytes_reached <= end - view.data);
      if (argument.geometry != nullptr) FAULTLINE_CHECK(argument.geometry->total_bytes() <= bytes_reached);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  parse(bytes);
  const SafetensorsEntry entry{"x", Dtype::kU8, 1, {static_cast<int64_t>(kDataBytes)}, 0, kDataBytes};
  const std::string header = make_safetensors_header(
      std::span(&entry, 1),
      {{"format", kCapsuleFormat}, {"schema", kCapsuleSchema}, {"capsule", std::string(bytes)}, {"xxh64", ""}});
  parse(header + std::string(kDataBytes, '\0'));
  return 0;
}
