// Private to profile*.cpp: the tables, and what the versions share.
#pragma once

#include "grid/profile.h"

namespace faultline {

Profile make_profile_sglang_0_5_9();
Profile make_profile_sglang_2026_04();
Profile make_profile_sglang_2026_08();

// The rules that no version read changed, with the sources of 93109cc and of the kernel libraries.
Profile common_rules();

}  // namespace faultline
