#include "bisect/code_lines.h"

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/temporary_folder.h"
#include "base/text.h"
#include "bisect/core_dump.h"

namespace faultline {
namespace {

// One file of code after another, until one has the symbol: that one is listed.
constexpr const char* kList = R"sh(
cd "$1" && "$2" -xelf "$4" "$5" >/dev/null || exit 1
for code in *"$4"*.cubin; do
  if grep -q -F -e "$6" "$code"; then exec "$3" -g -c "$code" >listing; fi
done
exit 1)sh";

std::optional<uint64_t> number_of(std::string_view text, int base) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

bool is_symbol(std::string_view text) {
  return !text.empty() && text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_$.") ==
                              std::string_view::npos;
}

}  // namespace

std::optional<CodeAddress> code_address(std::string_view debugger_output) {
  constexpr std::string_view kNoLine = "No line number information available for address ";
  CodeAddress address;
  size_t at = debugger_output.find(kNoLine);
  if (at == std::string_view::npos) return std::nullopt;
  std::string_view said = debugger_output.substr(at);
  said = said.substr(0, said.find('\n'));
  const size_t open = said.find('<');
  const size_t plus = said.find('+', open == std::string_view::npos ? said.size() : open);
  if (plus == std::string_view::npos) return std::nullopt;
  address.symbol = said.substr(open + 1, plus - open - 1);
  const auto offset = number_of(said.substr(plus + 1), 10);
  if (!offset || !is_symbol(address.symbol)) return std::nullopt;
  address.offset = *offset;
  constexpr std::string_view kArch = " sm_";
  at = debugger_output.find(kArch);
  if (at == std::string_view::npos) return std::nullopt;
  const auto arch = number_of(debugger_output.substr(at + kArch.size()), 10);
  if (!arch) return std::nullopt;
  address.arch = fmt::format("sm_{}", *arch);
  return address;
}

std::optional<CodeLine> line_in_listing(const std::string& listing_file, const CodeAddress& address) {
  std::ifstream in(listing_file);
  const std::string section = ".text." + address.symbol + ":";
  CodeLine current;
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (!inside) {
      inside = line == section;
      continue;
    }
    const std::string_view text = trimmed(line);
    if (text.starts_with("//---")) break;  // the next section
    constexpr std::string_view kFile = "//## File \"";
    if (text.starts_with(kFile)) {
      const size_t quote = text.find('"', kFile.size());
      constexpr std::string_view kLine = "\", line ";
      if (quote == std::string_view::npos || !text.substr(quote).starts_with(kLine)) continue;
      const auto number = number_of(text.substr(quote + kLine.size()), 10);
      if (number)
        current = {std::string(text.substr(kFile.size(), quote - kFile.size())), static_cast<int64_t>(*number)};
      continue;
    }
    // "/*00c0*/   LDG.E R0, desc[UR4][R2.64] ;"
    if (!text.starts_with("/*")) continue;
    const auto offset = number_of(text.substr(2), 16);
    if (!offset || *offset != address.offset || text.find("*/") == std::string_view::npos) continue;
    if (current.line == 0) return std::nullopt;
    return current;
  }
  return std::nullopt;
}

std::optional<CodeLine> source_of(const CodeAddress& address, const std::string& program, const RunScript& run) {
  const std::string extract = find_tool("cuobjdump", "CUOBJDUMP");
  const std::string list = find_tool("nvdisasm", "NVDISASM");
  if (extract.empty() || list.empty()) return std::nullopt;
  const Result<std::string> folder = make_temporary_folder();
  if (!folder) return std::nullopt;
  std::optional<CodeLine> found;
  if (run(kList, {*folder, extract, list, address.arch, program, address.symbol}))
    found = line_in_listing(*folder + "/listing", address);
  std::error_code ignored;
  std::filesystem::remove_all(*folder, ignored);
  return found;
}

}  // namespace faultline
