// A pass on a GPU as screening runs it: everything goes to the stream, checks included, and the host looks once at the
// end. Recorded passes are replayed as graphs, cut where the host has a hand in an op.
#pragma once

#include "engine/run_pass.h"

namespace faultline {

PassOutcome stream_pass(const Pass& pass, const PassInfo& info, CheckLevel level, const EngineHooks& hooks,
                        RunState& state);

// Runs a pass that keeps its buffers once to warm up (whatever kernels make at their first call), then records it. Does
// nothing where the hooks or the level do not let it be replayed.
Result<PassOutcome> record_pass(Pass& pass, const PassInfo& info, CheckLevel level, const EngineHooks& hooks);

// The checks of a pass that has been built, with its marks and records on `page` (null: memory of their own).
Result<std::shared_ptr<DeviceChecks>> make_device_checks(const Pass& pass, CheckLevel level, bool poison,
                                                         DeviceCheckPage* page, std::byte* page_on_device);

}  // namespace faultline
