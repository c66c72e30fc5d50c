#include "bisect/screen_repeats.h"

#include <algorithm>
#include <set>

namespace faultline {
namespace {

constexpr int64_t kRunsAlike = 5;   // all failing: the fault is taken for one that is there each time
constexpr int64_t kRunsABatch = 8;  // of a row, before looking again: what fails on the way ends it early

}  // namespace

std::vector<int64_t> repeats_to_run(const std::vector<RepeatedRow>& rows) {
  std::vector<int64_t> more(rows.size(), 0);
  std::set<std::string> seen;
  bool undecided = false;
  bool every_time = true;
  for (size_t i = 0; i < rows.size(); ++i) {
    const RepeatedRow& row = rows[i];
    if (row.signature.empty()) continue;
    every_time = every_time && !row.count.mixed();
    if (!seen.insert(row.signature).second || !row.open) continue;
    if (row.count.mixed() || row.count.runs >= kRunsAlike) continue;
    more[i] = kRunsAlike - row.count.runs;
    undecided = true;
  }
  if (undecided) return more;
  const bool certain = !seen.empty() && every_time;
  const double rate = certain ? rate_at_least({kRunsAlike, kRunsAlike}) : kDesignFailureRate;
  const int64_t wanted = clean_runs_needed(rate);
  for (size_t i = 0; i < rows.size(); ++i)
    if (rows[i].open && rows[i].signature.empty())
      more[i] = std::clamp<int64_t>(wanted - rows[i].count.runs, 0, kRunsABatch);
  return more;
}

}  // namespace faultline
