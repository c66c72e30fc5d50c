// findings.html: one page without scripts, fonts or images from elsewhere, light and dark.
#pragma once

#include <string>

#include "report/document.h"
#include "report/findings.h"

namespace faultline {

std::string findings_html(const Findings& findings);
std::string render_html(const Document& document);

}  // namespace faultline
