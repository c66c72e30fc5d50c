// An experiment made of a server's command line: its neighbourhood, as listed rows.
#pragma once

#include <cstddef>
#include <string>

#include "base/error.h"
#include "grid/experiment.h"

namespace faultline {

struct LineQuestion {
  std::string text;
  std::string model;    // empty: the folder that the line's --model-path names, if there is one
  std::string profile;  // empty: the default one
  std::string arch;     // empty: any
  size_t max_rows = 0;  // 0: kDefaultNeighbours
};

// The rows in the order of grid/neighbourhood.h; the first is the line's. Settings of the line that this build cannot
// do (tensor parallelism beyond its ranks, the size of a pool) are left out, so that the line can be run at all; the
// rules of the server do not depend on them. What was left out and what is not modelled is said by warnings_of_line().
// Bad input: as parse_server_args() says; no model.
Result<Experiment> experiment_of_line(const LineQuestion& question);

// Sentences on what the rows of such an experiment do otherwise than the line's server would. Empty for experiments
// that come from no line.
std::vector<std::string> warnings_of_line(const Experiment& experiment);

}  // namespace faultline
