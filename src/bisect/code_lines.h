// The source line of an address in a kernel, where cuda-gdb finds none: cuobjdump takes the code for one architecture
// out of a program, nvdisasm writes it with the line table that -lineinfo has left in it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace faultline {

struct CodeAddress {
  std::string symbol;  // mangled
  uint64_t offset = 0;
  std::string arch;  // "sm_90"
};

struct CodeLine {
  std::string file;  // as the compiler was given it
  int64_t line = 0;
};

// What cuda-gdb says of an address without a line ("No line number information available for address 0x7f…
// <_Z1fv+192>") and of the device ("… sm_90 …").
std::optional<CodeAddress> code_address(std::string_view debugger_output);

// The line of the instruction at symbol + offset in what `nvdisasm -g` writes. Of inlined code, where it stands itself.
std::optional<CodeLine> line_in_listing(const std::string& listing_file, const CodeAddress& address);

// Runs a shell script with arguments ($1, …) until it ends; false: it did not end well, or in time.
using RunScript = std::function<bool(const std::string& script, const std::vector<std::string>& arguments)>;

// `program`: the path of the executable or library that holds the kernel. Nothing: a tool is missing, or the code has
// no lines.
std::optional<CodeLine> source_of(const CodeAddress& address, const std::string& program, const RunScript& run);

}  // namespace faultline
