// An sglang server's command line as people paste it: what it asks for, in the grid's axes, and what of it this program
// does not model.
//
// Read as a shell and argparse would: quotes, backslashes at the end of a line, comments, environment assignments and
// anything else in front of the program, redirections and further commands behind it; "--flag value" and
// "--flag=value"; unambiguous abbreviations ("--tp"); of a flag given twice the last one. Beyond that underscores in a
// flag's name are taken for dashes, since configuration files spell it so.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "grid/profile.h"
#include "report/findings.h"

namespace faultline {

inline constexpr size_t kMaxServerLine = size_t{1} << 16;  // bytes

struct FlagMention {
  std::string words;  // as it would be typed: "--speculative-algorithm EAGLE", "NCCL_DEBUG=INFO"
  std::string why;
  std::string source;
};

struct ServerLine {
  AxisValues axes;                      // that the line sets, in canonical spelling
  std::vector<FlagMention> unmodelled;  // it decides what is computed, and this program computes something else
  std::vector<FlagMention> refused;     // the profile's version has no such flag: that server stops at it
  std::vector<FlagMention> ignored;     // no effect on what is computed
  std::vector<std::string> notes;
  std::string model;          // --model-path; empty: not said
  std::optional<bool> nvfp4;  // the weights' format, where --quantization or the model's name tell
  // Environment and flags that are no axis, as shell words in their order: what another line for the same server keeps.
  std::vector<std::string> environment;
  std::vector<std::string> kept;
};

// Secrets are replaced by a placeholder (grid/secrets.h) before anything is read.
//
// Bad input, as "server args:LINE:COLUMN: …" (columns count characters, from 1): nothing but blanks, more than
// kMaxServerLine bytes, text that is not UTF-8, an open quote, a word that is no flag, a flag that no version has (with
// the nearest one), a value that is missing, superfluous or not of the flag's type, a value that no version's flag has.
Result<ServerLine> parse_server_args(std::string_view text, const Profile& profile);

}  // namespace faultline
