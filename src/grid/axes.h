// The axes of the grid: names, values, defaults. A new axis is one entry in axes.cpp; a new value of an existing axis
// appears by itself when a kernel is registered that serves it (ops/op.h, Kernel::serves).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "report/findings.h"

namespace faultline {

inline constexpr std::string_view kAuto = "auto";    // the server chooses
inline constexpr std::string_view kProbe = "probe";  // what the experiment's probes say

struct Axis {
  std::string name;
  std::string flag;                 // the server's flag, "--attention-backend"; empty: the server has none
  std::vector<std::string> values;  // that somebody may ask for: the server's choices in any version, and ours
  std::string fallback;             // of an axis that the experiment leaves out: kAuto, kProbe or one of the values
  std::string doc;                  // one line
  std::vector<std::pair<std::string, std::string>> aliases;  // other spelling, value
  bool integers = false;                                     // values are integers of [least, most] instead
  int64_t least = 0;
  int64_t most = 0;
  bool fraction = false;  // values are decimal fractions between 0 and 1, both excluded, with up to 3 places, instead
};

const std::vector<Axis>& all_axes();
const Axis* find_axis(std::string_view name);  // null when unknown
std::vector<std::string> axis_names();

// The values of an axis that is no integer axis: those of the table, then those that only registered kernels serve.
std::vector<std::string> axis_values(const Axis& axis);

// The one spelling of a value: aliases resolved, integers without leading zeros, YAML 1.1 booleans for off/on. Bad
// input (without a place, which the caller adds): no value of this axis, with the nearest one.
Result<std::string> canonical_value(const Axis& axis, std::string_view text);

// Bad input when a name or value is none of the grid's. Fills in what is left out.
Result<AxisValues> with_defaults(const AxisValues& axes);

}  // namespace faultline
