// The rows around a configuration: itself, then those that differ in one setting, then in two, in the order in which
// they tell most about what is wrong with it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "grid/resolve.h"
#include "report/findings.h"

namespace faultline {

inline constexpr size_t kDefaultNeighbours = 32;
inline constexpr size_t kMaxNeighbours = 4096;  // what an experiment may list

struct Neighbour {
  AxisValues axes;                      // of the line and what is changed; all rows have the same axes
  AxisValues changes;                   // empty: the line itself
  bool inert = false;                   // comes to what the line, or an earlier value of the same setting, comes to
  ResolvedConfiguration configuration;  // by `shape`
};

// `line`: axes in canonical spelling; the others have their default. Changed are the server's own settings that tell
// faults apart (attention and NSA backends, cache, graph, products, sampling, shared experts), to every value that the
// profile's version has.
//
// Order: fewer changes first; changes that have an effect before inert ones; rows that run before those that are
// predicted to conflict, and both before refusals; then one value of each setting before the second of any, the most
// telling setting first. Two changes are made together only where that comes to something new.
std::vector<Neighbour> neighbourhood(const AxisValues& line, const Profile& profile, const Target& target,
                                     const ShapeInfo& shape, size_t max_rows);

// "" or "attention_backend=nsa, kv_cache_dtype=bf16".
std::string changes_text(const AxisValues& changes);

}  // namespace faultline
