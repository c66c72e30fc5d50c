// A kernel that is compiled for an architecture on which Faultline does not run (CMakeLists.txt): every GPU that gets
// here finds no code for itself.
#pragma once

#include <cstddef>

namespace faultline::plants {

void launch_planted_no_code(std::byte* target, int blocks, int threads, void* stream);

}  // namespace faultline::plants
