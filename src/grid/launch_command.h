// The command that starts a real server with a row's settings.
#pragma once

#include <string>
#include <vector>

#include "grid/profile.h"
#include "report/findings.h"

namespace faultline {

// What a command keeps besides the axes: shell words, as they were on a line that was given (server_args.h).
struct LaunchBase {
  std::vector<std::string> environment;  // NAME=value
  std::vector<std::string> kept;         // flags and their values
  AxisValues axes;                       // of axes that `requested` does not say
};

// Flags in the spelling of the profile's version, and only those whose value is not what that server would choose for
// the target anyway (for arch any: on every architecture). What no flag says follows as a shell comment. `requested`
// holds axes in canonical spelling; those that are left out have their default.
std::string launch_command(const AxisValues& requested, const Profile& profile, const Target& target,
                           const LaunchBase& base = {});

}  // namespace faultline
