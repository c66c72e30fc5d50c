// junit.xml, for continuous integration: one test case a configuration, one suite a pass (unplanted, then each plant).
#pragma once

#include <string>

#include "report/findings.h"

namespace faultline {

// failure: a check said no. error: the run itself ended (crash, abort, hang, oom, a GPU fault). skipped: not run.
std::string findings_junit(const Findings& findings);

}  // namespace faultline
