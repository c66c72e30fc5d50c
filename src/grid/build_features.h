// What this build's engine can be told, by key of a resolved configuration. A row that resolves to a value which is not
// in the table is `unsupported`: the engine would do something else. A setting that the engine learns is one entry.
#pragma once

#include <string_view>

namespace faultline {

bool build_does(std::string_view key, std::string_view value);

}  // namespace faultline
