// What can be said about the rows of a grid together, without running any: which requested axes change nothing, and
// where.
#pragma once

#include <string>
#include <vector>

#include "grid/expand.h"
#include "grid/resolved.h"

namespace faultline {

struct PreflightRow {
  GridRow row;
  ResolvedConfiguration configuration;
};

// Under `where` (at most one axis and value; empty: in all rows) the values of `axis` resolve alike.
struct InertAxis {
  std::string axis;
  AxisValues where;
  size_t rows = 0;  // that it was seen in
};

// Of the rows' axes, in their order. All rows have the same axes. An axis counts as inert where rows that differ in it
// alone resolve to the same, or where the server does not look at it ("-" in the resolved row).
std::vector<InertAxis> inert_axes(const std::vector<PreflightRow>& rows);

}  // namespace faultline
