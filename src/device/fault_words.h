// What CUDA's own words for an error mean. Needs no CUDA: the words also come from a worker that is gone, and from a
// launch that was refused.
#pragma once

#include <string_view>

namespace faultline {

// The verdict of an error from its text or its name ("an illegal memory access was encountered (…)",
// "cudaErrorIllegalAddress"). Unknown words are a launch failure.
std::string_view verdict_of_fault_words(std::string_view words);

}  // namespace faultline
