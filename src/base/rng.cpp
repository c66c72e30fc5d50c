#include "base/rng.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace faultline {

uint64_t stream_key(uint64_t seed, std::string_view name) {
  return mix64(XXH64(name.data(), name.size(), seed) ^ mix64(seed));
}

}  // namespace faultline
