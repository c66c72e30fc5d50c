// Synthetic weights made where they are needed: in a GPU's memory, by a kernel (model/synth.h says what they are;
// model/synth_simd.h is the same on the CPU, bit for bit).
//
// One thread makes 16 bytes at a time: two blocks of 16 e2m1 codes (two hashes each), 16 block scales (one hash), or
// eight bf16 values (a hash each). Where a table of offsets is given, jobs of experts without rows are left out: so a
// decode step makes 8 of 256 experts, and the host need not know which.
#pragma once

#include <cstdint>

#include "kernels/launch.h"

namespace faultline::kernels {

enum class SynthKind : int32_t { kCodes, kBlockScales, kNormals };

struct SynthJob {
  uint8_t* out = nullptr;  // 16-byte aligned
  int64_t bytes = 0;
  uint64_t key = 0;  // of the tensor's stream (base/rng.h)
  float spread = 0;  // kNormals
  SynthKind kind = SynthKind::kCodes;
  int32_t expert = -1;
};

// `jobs` lie in device memory. `offsets`: first row of each expert and the end of the last, or null: every job is done.
// A refused launch is kept for take_launch_error.
void make_synth(const LaunchContext& context, const SynthJob* jobs, int64_t count, const int32_t* offsets);

}  // namespace faultline::kernels
