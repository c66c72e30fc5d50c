#include "mutant.h"

#include <cstdlib>

namespace faultline::mutant {

int chosen = [] {
  const char* value = std::getenv("FAULTLINE_MUTANT");
  return value == nullptr ? 0 : std::atoi(value);
}();
bool recording = false;
unsigned char reached[kMost] = {};

}  // namespace faultline::mutant
