// Strict JSON reading: for files and lines that somebody else wrote.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"

namespace faultline {

inline constexpr int kMaxJsonDepth = 64;  // nested arrays and objects; deeper input is refused, never recursed into

// Parses one JSON document. Errors (bad input, with `where` and the byte offset or key): malformed or trailing text, a
// key that occurs twice in one object, nesting beyond kMaxJsonDepth, invalid UTF-8, numbers that no double can hold.
Result<nlohmann::json> parse_json(std::string_view text, std::string_view where);

// Writes JSON that parse_json() reads back; invalid UTF-8 in strings is replaced, never thrown about. `indent` as in
// nlohmann::json::dump (-1: one line).
std::string dump_json(const nlohmann::json& value, int indent = -1);

}  // namespace faultline
