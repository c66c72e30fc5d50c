// Manifests come from other processes, maybe of another build: the answer is a manifest that adds up, or an error
// value.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "model/weights_manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto manifest = faultline::parse_weights_manifest(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!manifest) return 0;
  uint64_t sum = 0;
  for (const uint64_t slab : manifest->slabs) sum += slab;
  if (sum < manifest->bytes || manifest->slabs.empty()) __builtin_trap();
  const auto again = faultline::parse_weights_manifest(faultline::to_text(*manifest));
  if (!again || *again != *manifest) __builtin_trap();
  return 0;
}
