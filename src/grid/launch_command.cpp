#include "grid/launch_command.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/text.h"
#include "grid/axes.h"
#include "grid/server_flags.h"
#include "grid/shell_words.h"

namespace faultline {
namespace {

// Where a value is not "AXIS'S FLAG VALUE".
struct Spelling {
  std::string_view axis;
  std::string_view value;  // empty: any
  uint8_t versions;
  std::string_view words;  // "{}" stands for the value
};

constexpr std::array<Spelling, 9> kSpellings = {{
    {"attention_backend", "nsa", server_version::k2608, "--attention-backend dsa"},
    {"nsa_prefill_backend", "", server_version::k2608, "--dsa-prefill-backend {}"},
    {"nsa_decode_backend", "", server_version::k2608, "--dsa-decode-backend {}"},
    // --disable-cuda-graph is deprecated there, and switches off prefill's graphs too.
    {"cuda_graph", "off", server_version::k2608, "--cuda-graph-backend-decode disabled"},
    {"cuda_graph", "off", server_version::kTo2604, "--disable-cuda-graph"},
    {"shared_experts_fusion", "off", server_version::kAll, "--disable-shared-experts-fusion"},
    {"shared_experts_fusion", "on", server_version::k2608, "--enforce-shared-experts-fusion"},
    {"chunked_prefill_size", "0", server_version::kAll, "--chunked-prefill-size -1"},
    {"kv_cache_dtype", "f32", 0, ""},  // this program's own
}};

// "" where this version has no flag for it.
std::string words_for(const Axis& axis, const std::string& value, uint8_t version) {
  bool special = false;
  for (const Spelling& spelling : kSpellings) {
    if (spelling.axis != axis.name || (!spelling.value.empty() && spelling.value != value)) continue;
    special = true;
    if ((spelling.versions & version) == 0) continue;
    const size_t hole = spelling.words.find("{}");
    if (hole == std::string_view::npos) return std::string(spelling.words);
    return std::string(spelling.words.substr(0, hole)) + shell_word(value);
  }
  const bool versioned = axis.name == "nsa_prefill_backend" || axis.name == "nsa_decode_backend";
  const bool switches = axis.name == "cuda_graph" || axis.name == "shared_experts_fusion";
  if (axis.flag.empty() || switches || (special && !versioned)) return "";
  return axis.flag + " " + shell_word(value);
}

// What the server takes when the flag is left out; nothing where that depends on the architecture and none is named.
std::optional<std::string> chosen_by(const std::vector<ArchDefault>& table, const Target& target) {
  if (target.rules) return default_for(table, target.arch).value;
  for (const ArchDefault& entry : table)
    if (entry.value != table.front().value) return std::nullopt;
  return table.front().value;
}

bool is_default(const Axis& axis, const std::string& value, const Profile& profile, const Target& target) {
  if (value == kAuto || value == axis.fallback) return true;
  if (axis.name == "shared_experts_fusion") return false;  // two flags, neither of which is the default
  const std::vector<ArchDefault>* table = defaults_of(profile, axis.name);
  return table != nullptr && !table->empty() && chosen_by(*table, target) == value;
}

}  // namespace

std::string launch_command(const AxisValues& requested, const Profile& profile, const Target& target,
                           const LaunchBase& base) {
  std::string command;
  for (const std::string& assignment : base.environment) {
    const size_t equals = std::min(assignment.find('='), assignment.size() - 1);
    command += assignment.substr(0, equals + 1);
    if (equals + 1 < assignment.size()) command += shell_word(assignment.substr(equals + 1));
    command += " ";
  }
  command += "python3 -m sglang.launch_server";
  for (const std::string& word : base.kept) command += " " + word;
  std::string rest;
  AxisValues all = requested;
  all.insert(base.axes.begin(), base.axes.end());
  for (const Axis& axis : all_axes()) {
    const auto it = all.find(axis.name);
    if (it == all.end() || is_default(axis, it->second, profile, target)) continue;
    const std::string words = words_for(axis, it->second, server_version_of(profile.name));
    if (words.empty())
      rest += fmt::format(" {}={}", axis.name, it->second);
    else
      command += " " + words;
  }
  return rest.empty() ? command : command + "  # and, for which there is no flag:" + rest;
}

}  // namespace faultline
