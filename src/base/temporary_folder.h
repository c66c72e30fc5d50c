// A new, empty folder for files that do not outlive their use.
#pragma once

#include <string>

#include "base/error.h"

namespace faultline {

// Its path, in $TMPDIR or /tmp; only the user may enter it. Whoever asked for it removes it. Bad input where TMPDIR
// names no folder; cannot-run where none can be made there.
Result<std::string> make_temporary_folder();

}  // namespace faultline
