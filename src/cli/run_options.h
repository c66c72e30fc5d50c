// The flags that `bisect` and `replay` share: each overrides what the experiment file says.
#pragma once

#include <string>
#include <vector>

#include "bisect/driver.h"

namespace CLI {
class App;
}

namespace faultline {

void add_run_options(CLI::App& command, BisectOptions& options);

// argv of this process, for the record.
std::vector<std::string> process_arguments();

}  // namespace faultline
