// Small helpers on text, for messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace faultline {

// Insertions, deletions and substitutions of one character (and swaps of two neighbours) that turn `a` into `b`.
size_t edit_distance(std::string_view a, std::string_view b);

// The valid name that `name` is most likely a misspelling of: fewest edits, at most a third of the longer name (and at
// least one edit is always forgiven); "" when nothing is that near. Case, '-' and '_' are not told apart.
std::string nearest_name(std::string_view name, const std::vector<std::string>& valid);

// "; did you mean 'X'?" when a valid name is near, otherwise "; valid: a, b, c". To append to an error message.
std::string suggestion(std::string_view name, const std::vector<std::string>& valid);

// `text` cut to `limit` bytes and with control bytes replaced by '?', for quoting untrusted input in a message.
std::string quotable(std::string_view text, size_t limit = 60);

// Without the blanks (space, tab, carriage return) at both ends.
std::string_view trimmed(std::string_view text);

// "688.4 KiB", "64.0 GiB": for people.
std::string bytes_text(uint64_t bytes);

// A word of a shell's command line as it has to be typed: quoted where it has to be.
std::string shell_word(std::string_view text);

}  // namespace faultline
