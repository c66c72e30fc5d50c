// Secrets on a pasted command line: keys, tokens and passwords. None may reach an output, and none is needed: what is
// read of a line is read with a placeholder in their places.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "grid/shell_words.h"

namespace faultline {

inline constexpr std::string_view kRedacted = "REDACTED";

// Values of the server's flags that are secrets (ServerFlag::secret), of other flags and of environment variables whose
// names say so (HF_TOKEN=…), and words that begin as known services' tokens do. A value that the shell would have
// replaced ("$API_KEY") stays.
void redact_words(std::vector<ShellWord>& words);

// The line with placeholders, otherwise byte by byte as it was. A line that cannot be taken apart (an open quote) is
// one placeholder.
std::string redacted_line(std::string_view text);

}  // namespace faultline
