// From a resolved grid row to what the engine is told (grid/resolve.h lists the keys).
#pragma once

#include "engine/config.h"
#include "report/findings.h"

namespace faultline {

// Errors name the key: a row of another version of this program (a case file, a journal), or one that cannot run here.
Result<EngineConfig> engine_config(const AxisValues& resolved, CheckLevel checks, uint64_t seed, int64_t probe_chunk);

Result<CheckLevel> check_level(std::string_view name);  // off, finite, full, reference
std::string_view check_level_name(CheckLevel level);

}  // namespace faultline
