// FINDINGS.md.
#pragma once

#include <string>

#include "report/document.h"
#include "report/findings.h"

namespace faultline {

std::string findings_markdown(const Findings& findings);
std::string render_markdown(const Document& document);

}  // namespace faultline
