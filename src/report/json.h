// findings.json, schema 1: the contract for other programs (docs: DESIGN, "Command line"), written and read back.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "report/findings.h"

namespace faultline {

inline constexpr int kFindingsSchema = 1;

std::string findings_json(const Findings& findings);

// Reads what findings_json() wrote, or a later minor version of it: unknown fields are ignored, fields beyond the
// contract may be missing, but the contract's own fields must be there with their types. Bad input names `where` and
// the field.
Result<Findings> parse_findings(std::string_view text, std::string_view where);

}  // namespace faultline
