#include "bisect/signature.h"

#include <algorithm>

#include "report/verdict.h"

namespace faultline {
namespace {

bool is_number(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::vector<std::string_view> split_dots(std::string_view text) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  while (true) {
    const size_t end = text.find('.', begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

}  // namespace

std::string op_pattern(std::string_view op) {
  const std::vector<std::string_view> parts = split_dots(op);
  std::string pattern;
  for (size_t i = 0; i < parts.size(); ++i) {
    // A bare "layers.3" keeps its name: dropping it would leave nothing to read.
    if (parts[i] == "layers" && i + 2 < parts.size() && is_number(parts[i + 1])) {
      ++i;
      continue;
    }
    if (!pattern.empty()) pattern += '.';
    pattern += is_number(parts[i]) ? std::string_view("*") : parts[i];
  }
  return pattern;
}

std::string signature_text(const SignatureParts& parts) {
  std::string text = parts.kind;
  if (parts.setting) text = "setting " + (parts.attribute.empty() ? parts.kind : parts.attribute + ": " + parts.kind);
  if (parts.op.empty()) {
    text += " outside of any op";
  } else {
    text += " at " + op_pattern(parts.op);
  }
  std::string where = parts.kernel;
  if (!parts.phase.empty()) where += (where.empty() ? "" : ", ") + parts.phase;
  if (!where.empty()) text += " (" + where + ")";
  return text;
}

std::string signature_of(const Violation& violation) {
  return signature_text(
      {violation.kind, violation.op, violation.kernel, violation.phase, violation.setting, violation.attribute});
}

std::string signature_of(const ConfigurationResult& configuration) {
  if (!verdict_is_failure(configuration.verdict)) return {};
  if (configuration.first_violation) return signature_of(*configuration.first_violation);
  return signature_text({configuration.verdict, {}, {}, {}, false});
}

std::vector<SignatureGroup> group_failures(const std::vector<ConfigurationResult>& configurations) {
  std::vector<SignatureGroup> groups;
  for (const ConfigurationResult& configuration : configurations) {
    const std::string signature = signature_of(configuration);
    if (signature.empty()) continue;
    auto group = std::find_if(groups.begin(), groups.end(), [&](const SignatureGroup& candidate) {
      return candidate.signature == signature && candidate.plant == configuration.plant;
    });
    if (group == groups.end()) group = groups.insert(groups.end(), {signature, configuration.plant, {}});
    group->configurations.push_back(configuration.id);
  }
  return groups;
}

}  // namespace faultline
