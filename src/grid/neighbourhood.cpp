#include "grid/neighbourhood.h"

#include <algorithm>
#include <array>
#include <set>
#include <tuple>

#include "grid/axes.h"

namespace faultline {
namespace {

// The settings that are changed, those that separate the most suspects first: who reads the cache, how it is written,
// whose kernel decodes, stale graph buffers, FP4 products, and what draws the token.
constexpr std::array<std::string_view, 9> kSuspects = {
    "attention_backend", "kv_cache_dtype",     "nsa_decode_backend", "nsa_prefill_backend",  "cuda_graph",
    "fp4_gemm_backend",  "moe_runner_backend", "sampling_backend",   "shared_experts_fusion"};

struct Change {
  size_t suspect = 0;
  std::string value;
  size_t rank = 0;  // among the values of the setting
};

// Values of the axis that this version of the server takes, and what it does when none is given.
std::vector<std::string> choices_of(const Axis& axis, const Profile& profile) {
  for (const FlagChoices& flag : profile.choices) {
    if (flag.axis != axis.name) continue;
    std::vector<std::string> values = {std::string(kAuto)};
    for (const std::string& value : axis.values)  // the axis lists them in the order of interest
      if (std::find(flag.values.begin(), flag.values.end(), value) != flag.values.end()) values.push_back(value);
    return values;
  }
  return axis.values;
}

int status_rank(const ResolvedConfiguration& c) {
  if (!c.has_kernels) return 3;
  switch (c.status) {
    case TargetStatus::kRuns:
      return 0;
    case TargetStatus::kLayout:
      return 1;
    case TargetStatus::kUnsupported:
    case TargetStatus::kGuard:
      return 2;
  }
  return 2;
}

// All that a row comes to, as one text to compare.
std::string effect_of(const ResolvedConfiguration& c) {
  std::string text = fmt::format("{} {}\n", static_cast<int>(c.status), c.reason);
  for (const auto& [key, value] : c.resolved) text += key + "=" + value + "\n";
  return text;
}

// Rows of equal standing: the first value of each setting, then the second of each, and so on.
void order(std::vector<Neighbour>& rows, const std::vector<std::tuple<size_t, size_t>>& keys) {
  std::vector<size_t> indices(rows.size());
  for (size_t i = 0; i < indices.size(); ++i) indices[i] = i;
  const auto standing = [&](size_t i) { return std::make_tuple(rows[i].inert, status_rank(rows[i].configuration)); };
  std::stable_sort(indices.begin(), indices.end(), [&](size_t a, size_t b) {
    return std::make_tuple(standing(a), keys[a]) < std::make_tuple(standing(b), keys[b]);
  });
  std::vector<Neighbour> sorted;
  sorted.reserve(rows.size());
  for (const size_t i : indices) sorted.push_back(std::move(rows[i]));
  rows = std::move(sorted);
}

class Builder {
 public:
  Builder(const AxisValues& line, const Profile& profile, const Target& target, const ShapeInfo& shape)
      : profile_(profile), target_(target), shape_(shape), base_(line) {
    for (const std::string_view name : kSuspects)
      if (const Axis* axis = find_axis(name)) base_.emplace(axis->name, axis->fallback);
    origin_ = resolve(base_, profile_, target_, shape_);
    origin_effect_ = effect_of(origin_);
  }

  std::vector<Neighbour> run(size_t max_rows) {
    std::vector<Neighbour> result;
    result.push_back({base_, {}, false, origin_});
    std::vector<Neighbour> near = one_change();
    std::vector<Neighbour> far = two_changes(near);
    for (std::vector<Neighbour>* rows : {&near, &far})
      for (Neighbour& row : *rows)
        if (result.size() < max_rows) result.push_back(std::move(row));
    return result;
  }

 private:
  Neighbour row_with(const AxisValues& changes) const {
    Neighbour row{base_, changes, false, {}};
    for (const auto& [axis, value] : changes) row.axes[axis] = value;
    row.configuration = resolve(row.axes, profile_, target_, shape_);
    return row;
  }

  // Of values that resolve alike one is enough before anything else was tried: the others count as inert.
  std::vector<Neighbour> one_change() {
    std::vector<Neighbour> rows;
    std::vector<std::tuple<size_t, size_t>> keys;
    for (size_t suspect = 0; suspect < kSuspects.size(); ++suspect) {
      const Axis* axis = find_axis(kSuspects[suspect]);
      if (axis == nullptr) continue;
      size_t rank = 0;
      std::set<std::string> known = {origin_effect_};
      for (const std::string& value : choices_of(*axis, profile_)) {
        if (value == base_.at(axis->name) || value == "f32") continue;
        Neighbour row = row_with({{axis->name, value}});
        row.inert = !known.insert(effect_of(row.configuration)).second;
        keys.emplace_back(rank, suspect);
        if (!row.inert) ++rank;
        rows.push_back(std::move(row));
      }
    }
    order(rows, keys);
    return rows;
  }

  // Pairs of changes of two settings that come to something that no row before came to.
  std::vector<Neighbour> two_changes(const std::vector<Neighbour>& near) const {
    std::vector<Neighbour> rows;
    std::vector<std::tuple<size_t, size_t>> keys;
    std::vector<std::string> effects;
    for (const Neighbour& row : near) effects.push_back(effect_of(row.configuration));
    std::set<std::string> known(effects.begin(), effects.end());
    known.insert(origin_effect_);
    for (size_t a = 0; a < near.size(); ++a)
      for (size_t b = a + 1; b < near.size(); ++b) {
        const auto& [axis_a, value_a] = *near[a].changes.begin();
        const auto& [axis_b, value_b] = *near[b].changes.begin();
        if (axis_a == axis_b) continue;
        Neighbour row = row_with({{axis_a, value_a}, {axis_b, value_b}});
        if (!known.insert(effect_of(row.configuration)).second) continue;
        keys.emplace_back(a + b, a);
        rows.push_back(std::move(row));
      }
    order(rows, keys);
    return rows;
  }

  const Profile& profile_;
  const Target& target_;
  const ShapeInfo& shape_;
  AxisValues base_;
  ResolvedConfiguration origin_;
  std::string origin_effect_;
};

}  // namespace

std::vector<Neighbour> neighbourhood(const AxisValues& line, const Profile& profile, const Target& target,
                                     const ShapeInfo& shape, size_t max_rows) {
  return Builder(line, profile, target, shape).run(std::max<size_t>(max_rows, 1));
}

std::string changes_text(const AxisValues& changes) {
  std::string text;
  for (const auto& [axis, value] : changes) text += fmt::format("{}{}={}", text.empty() ? "" : ", ", axis, value);
  return text;
}

}  // namespace faultline
