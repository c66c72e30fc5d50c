// Screening: the grid's rows, unplanted and then once for each plant, as tasks; their results as verdicts.
#pragma once

#include <string>
#include <vector>

#include "base/repeat_statistics.h"
#include "bisect/session.h"
#include "bisect/task.h"
#include "grid/expand.h"
#include "grid/experiment.h"
#include "grid/resolve.h"

namespace faultline {

// One configuration of one pass over the grid.
struct ScreenRow {
  std::string id;  // "c017", "c017+late_tile"
  GridRow grid;
  ResolvedConfiguration resolved;
  std::string plant;
  std::vector<WorkerTask> tasks;    // one a repeat; empty: not to be run
  std::vector<TaskResult> results;  // one a task
  ConfigurationResult outcome;
  int64_t launch_order = -1;  // of the first violation, comparable between rows
};

// The probe plan of a row: the experiment's, with the row's own batch and chunk.
Result<ProbePlan> probe_plan(const Experiment& experiment, const AxisValues& resolved);

// What stands for a plant in row ids: the names of its faults, with a number where the experiment has planted them
// before with other selectors ("late_tile", "late_tile.2", "late_tile+wrong_rope").
std::string plant_label(const std::vector<std::string>& plants, const std::string& plant);

// Rows of the grid for one plant ("" for none), resolved, with their tasks. `label` as plant_label gives it.
Result<std::vector<ScreenRow>> screen_rows(const Experiment& experiment, const std::vector<GridRow>& rows,
                                           const Profile& profile, const Target& target, const ShapeInfo& shape,
                                           const std::string& plant);

// Runs the tasks of all rows, with `repeats: auto` as many more as screen_repeats.h says, and fills in results and
// outcomes.
Status screen(std::vector<ScreenRow>& rows, const Experiment& experiment, Session& session, const std::string& label);

// A failure of a row that is searched on its own: the first broken contract, or a setting that the row computes
// otherwise.
struct Failure {
  Violation violation;
  std::string signature;
  int64_t probe = -1;
};
std::vector<Failure> failures_of(const ScreenRow& row);
// Runs of the row, and those that failed so.
RunCount runs_that_show(const ScreenRow& row, const std::string& signature);

}  // namespace faultline
