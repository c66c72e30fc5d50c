// The reports of a run, written into its directory.
#pragma once

#include <string>

#include "base/error.h"
#include "report/findings.h"

namespace faultline {

// FINDINGS.md, findings.html, findings.json, junit.xml in an existing `directory`. Each is replaced whole or stays as
// it was. Bad input when the directory cannot be written.
Status write_reports(const Findings& findings, const std::string& directory);

}  // namespace faultline
