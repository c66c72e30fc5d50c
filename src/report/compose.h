// The findings as a document for somebody who has never seen this tool: the answer, the grid, each conviction with its
// evidence, what does not matter, what is untested, the work-around, how to replay, the limits of the evidence.
#pragma once

#include "report/document.h"
#include "report/findings.h"

namespace faultline {

Document compose(const Findings& findings);

// The table of one pass ("": unplanted): a row a configuration, or, where the grid is long, a row a group of
// configurations with the same outcome and the whole table folded below.
void compose_grid(const Findings& findings, const std::string& plant, Document& document);

// One signature: what is convicted, and every piece of evidence. `level`: of its heading.
void compose_signature(const Findings& findings, const Localized& localized, int level, Document& document);

}  // namespace faultline
