#include "bisect/assume_fixed.h"

#include <algorithm>
#include <set>

#include "base/text.h"
#include "bisect/engine_config.h"
#include "bisect/plant_selector.h"
#include "bisect/signature.h"
#include "bisect/task.h"
#include "check/compare.h"
#include "engine/op_list.h"

namespace faultline {
namespace {

// The op's name without its layer: what holds for all layers.
std::string_view without_layer(std::string_view op, int layer) {
  const std::string prefix = fmt::format("layers.{}.", layer);
  return layer >= 0 && op.starts_with(prefix) ? op.substr(prefix.size()) : op;
}

bool means(const std::string& name, const Op& op) {
  if (name.starts_with(kSettingPrefix)) return structural_difference(op) == name.substr(kSettingPrefix.size());
  if (glob_matches(name, op.name) || glob_matches(name, without_layer(op.name, op.layer)) ||
      name == op_pattern(op.name))
    return true;
  if (op.kernel->provenance == Provenance::kReference) return false;
  return glob_matches(name, op.kernel->name) ||
         std::any_of(op.kernel->serves.begin(), op.kernel->serves.end(),
                     [&](const AxisBinding& binding) { return glob_matches(name, binding.value); });
}

Status check_spelling(const std::vector<std::string>& names) {
  for (auto name = names.begin(); name != names.end(); ++name) {
    if (name->empty()) return bad_input("--assume-fixed: an empty name; give an op, a kernel or a backend");
    if (std::find(names.begin(), name, *name) != name)
      return bad_input("--assume-fixed '{}' is given twice", quotable(*name));
  }
  return {};
}

}  // namespace

bool assumed_fixed(const std::vector<std::string>& names, const Op& op) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return means(name, op); });
}

bool assumes_weights(const std::vector<std::string>& names) {
  return std::find(names.begin(), names.end(), kAssumedWeights) != names.end();
}

Status check_assume_fixed(const std::vector<std::string>& names, const std::vector<AxisValues>& configurations,
                          const ModelWeights& weights) {
  FAULTLINE_TRY_STATUS(check_spelling(names));
  std::set<std::string> open(names.begin(), names.end());
  open.erase(std::string(kAssumedWeights));
  std::set<AxisValues> seen;
  std::set<std::string> valid{std::string(kAssumedWeights)};
  for (const AxisValues& resolved : configurations) {
    if (open.empty()) return {};
    if (!seen.insert(resolved).second) continue;
    auto config = engine_config(resolved, CheckLevel::kOff, 0, 0);
    if (!config) continue;  // it cannot run either
    FAULTLINE_TRY_STATUS(visit_ops(weights, *config, [&](const Op& op) {
      std::erase_if(open, [&](const std::string& name) { return means(name, op); });
      valid.insert(op_pattern(op.name));
      if (op.kernel->provenance != Provenance::kReference) valid.insert(op.kernel->name);
      if (const auto setting = structural_difference(op)) valid.insert(std::string(kSettingPrefix) + *setting);
    }));
  }
  if (open.empty() || seen.empty()) return {};
  return bad_input("--assume-fixed '{}' means no op, kernel or backend of any configuration that can run{}",
                   quotable(*open.begin()),
                   suggestion(*open.begin(), std::vector<std::string>(valid.begin(), valid.end())));
}

std::string assume_fixed_options(const std::vector<Localized>& localized) {
  for (const bool planted : {false, true}) {
    std::string options;
    std::set<std::string> named;
    for (const Localized& one : localized) {
      // A setting ends no run: what lies behind it was seen.
      if (one.plant.empty() == planted || one.culprit.empty() || one.culprit == "setting") continue;
      std::string name = one.culprit == "weights" ? std::string(kAssumedWeights) : op_pattern(one.op);
      if (!name.empty() && named.insert(name).second) options += " --assume-fixed " + shell_word(name);
    }
    if (!options.empty()) return options;
  }
  return {};
}

}  // namespace faultline
