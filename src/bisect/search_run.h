// Screens the passes of an experiment, unplanted and once for each plant, by its strategy.
#pragma once

#include <string>
#include <vector>

#include "bisect/screen.h"
#include "bisect/search.h"

namespace faultline {

// One pass over the grid. All of its rows are here, resolved; the strategy chooses which are screened.
struct GridPass {
  std::string plant;            // empty: none
  std::vector<ScreenRow> rows;  // of the whole grid, in its order
  std::vector<bool> screened;   // one flag a row: has an outcome

  std::vector<ScreenRow> outcomes() const;  // the screened rows, in order
};

// Screens the unplanted pass, which is the first, and then those of plants, side by side. `full` screens every row,
// `pairs` a covering array of those that can run, `adaptive` what search_plan.h asks for; there rows of the unplanted
// pass may be screened that tell a plant's failure from one of its own. Ends early when the session does.
Status screen_passes(std::vector<GridPass>& passes, const Experiment& experiment, Session& session);

// The whole grid as the search sees it: what was not screened is RowStatus::kNotRun, or kUntestable where it cannot
// run.
std::vector<SearchRow> search_rows(const GridPass& pass);

// What of the grid the unplanted pass saw, for the report.
SearchCoverage coverage_of(const GridPass& pass, const std::string& strategy);
// What rows that were not run leave open, as one sentence; empty where every row ran.
std::string open_sentence(const SearchCoverage& coverage);

}  // namespace faultline
