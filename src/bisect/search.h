// From a grid's verdicts to what they mean (DESIGN, "From failure to cause", 1 and 2): the smallest combinations of
// requested settings that fail, what is ruled out, what never mattered, which neighbour works, what to run next.
// Pure functions over rows; nothing here runs anything.
//
// The words. A *row* is one configuration of one pass (the unplanted pass, or that of one plant). For one signature S a
// row *fails* (S is its first violation, or a later one), shows S *absent* (it passed, or failed first at a later point
// than S does), or is *unknown*: guard, unsupported, skipped, not run, or masked by another, earlier failure. Unknown
// is never evidence.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "report/findings.h"

namespace faultline {

enum class RowStatus : uint8_t { kPasses, kFails, kUntestable, kNotRun };  // kNotRun: could be

struct SearchRow {
  std::string id;
  AxisValues axes;      // requested, one value an axis
  AxisValues resolved;  // what takes effect; an axis without effect maps to "-". May be empty: then nothing is said of
                        // inertness
  RowStatus status = RowStatus::kPasses;
  std::string signature;          // failing rows: of the first violation
  std::vector<std::string> also;  // signatures of later violations of the same run: S persisted though it was not first
  int64_t order = -1;             // launch-order place of the first violation, comparable between rows; -1: not known
  bool complete = false;  // failing rows: the run went to its end all the same, so what it does not show is absent
  std::string verdict;    // "guard", "unsupported", …: for sentences
  std::string reason;
  std::string plant;
  bool runs_on_target = true;  // false: passed here, but cannot run on the target; not a work-around
};

struct SearchOptions {
  std::string checks;  // the run's check level; "" when not known
};

// A failure of a planted pass that the unplanted pass has too: not the plant's doing.
struct KnownUnderPlant {
  std::string plant;
  std::string signature;
  std::vector<std::string> rows;
};

// A failing row that another signature hides for this one.
struct MaskedRows {
  std::string signature;
  std::string plant;
  std::vector<std::string> rows;
};

struct SearchResult {
  std::vector<MinimalCombination> minimal_combinations;
  std::vector<RuledOut> ruled_out;
  std::vector<Inert> inert;
  std::vector<Workaround> workarounds;  // unplanted failures; for a combination the nearest first
  std::vector<std::string> next_experiments;
  std::vector<KnownUnderPlant> known_under_plant;
  std::vector<MaskedRows> masked;
};

// Rows of all passes, in grid order. Ids are unique.
SearchResult search(const std::vector<SearchRow>& rows, const SearchOptions& options = {});

}  // namespace faultline
