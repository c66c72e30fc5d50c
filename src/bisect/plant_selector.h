// Where and when a planted fault strikes: the text behind the '@' of `--plant NAME@selector`.
//
//   selector := item {"," item}
//   item     := "op=" GLOB                         on op names; '*' any characters, '?' any one
//             | "layer=" N | "row=" N              a layer of the model; a row of the tensor that is broken
//             | "phase=" ("prefill" | "decode")
//             | ("step" | "batch" | "tokens") ("=" | ">=") N
//                                                  passes of the phase so far; requests, token rows of the pass
//             | ("graph" | "warmup" | "checked") ["=" ("on" | "off")]
//                                                  replay of recorded ops; the warm-up; the checked build of a kernel
//             | "p=" P                             there at all in a run: drawn from the run's seed and repeat
//
// N is a decimal number from 0, P one above 0 and up to 1. Each key at most once. All items must hold.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/hooks.h"

namespace faultline {

// Numbers from `first` to `last`, both included.
struct CountRange {
  int64_t first = 0;
  int64_t last = INT64_MAX;
  bool holds(int64_t value) const { return value >= first && value <= last; }
};

struct PlantSelector {
  std::optional<std::string> op;
  std::optional<int64_t> layer;
  std::optional<int64_t> row;
  std::optional<PassPhase> phase;
  std::optional<CountRange> step, batch, tokens;
  std::optional<bool> graph, warmup, checked;
  std::optional<double> probability;

  // Everything but `row`, which the fault itself knows what to do with, and `probability`.
  bool matches(const PassInfo& info, const Op& op_, bool checked_build) const;
  // Whether some pass could make it match the op, or an op of that op's layer.
  bool may_match(const Op& op_) const;
  bool layer_may_match(const Op& op_) const;
  // "op=layers.0.*,phase=decode"; "" when nothing is set.
  std::string text() const;
};

// Keys of a selector, in the order of the grammar.
std::vector<std::string> plant_selector_keys();

// Bad input names the item; `where` says what the selector belongs to. `allowed`: the keys that this plant takes.
Result<PlantSelector> parse_plant_selector(std::string_view text, std::string_view where,
                                           const std::vector<std::string>& allowed);

// Whether a plant ("NAME@selector", already found to be sound) is there in a run: always without a probability,
// otherwise by a draw that depends on the plant, the seed and the number of the repeat alone.
bool plant_is_there(std::string_view spec, uint64_t seed, int64_t repeat);

// '*' stands for any characters, '?' for one, anything else for itself; the whole text must match.
bool glob_matches(std::string_view pattern, std::string_view text);

}  // namespace faultline
