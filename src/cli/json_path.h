// The file that --json names, looked at before hours of work, not after.
#pragma once

#include <string>

#include "base/error.h"

namespace faultline {

// Its folder must be there and take files; none and "-" (stdout) are good. Error: bad_input.
Status check_json_path(const std::string& path);

}  // namespace faultline
