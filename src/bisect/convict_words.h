// How a conviction words its evidence.
#pragma once

#include <string>

#include "base/repeat_statistics.h"
#include "report/findings.h"
#include "report/phrases.h"

namespace faultline {

// "1 run", "29 runs".
std::string counted_runs(int64_t runs);
// "0 of 29 runs fail".
std::string came_to(const RunCount& count);

bool is_checkpoint_tensor(const std::string& name);
// Why a suspect that was proven is the culprit: one or two sentences.
std::string explanation_of(const Violation& suspect, const std::string& culprit);

}  // namespace faultline
