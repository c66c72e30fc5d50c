// What the writer and the reader of capsules share.
#pragma once

#include <string>
#include <string_view>

namespace faultline {

inline constexpr const char* kCapsuleFormat = "faultline-capsule";
inline constexpr const char* kCapsuleSchema = "1";

// Sixteen hexadecimal digits, of the JSON text and then the data.
std::string capsule_checksum(std::string_view text, std::string_view data);

}  // namespace faultline
