// A shell's command line, taken apart into words: what parse_server_args() reads. Nothing is expanded or run.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace faultline {

struct ShellWord {
  std::string text;   // without quotes and backslashes
  size_t line = 1;    // of its first character
  size_t column = 1;  // in characters
  size_t begin = 0;   // its bytes of the text, quotes and backslashes included
  size_t end = 0;
  bool literal = true;   // false: it holds a variable or a command that a shell would have replaced
  bool ends = false;     // no word: here the simple command ends (| & ; < >); `text` is the operator
  bool assigns = false;  // NAME=…, with an unquoted name
};

// Bad input, with the place: an open quote.
Result<std::vector<ShellWord>> shell_words(std::string_view text);

// "server args:3:17: ".
std::string place_in_line(size_t line, size_t column);

}  // namespace faultline
