// From a run's rows, convictions and search to the findings that every report is written from.
#pragma once

#include "bisect/convict.h"
#include "bisect/driver.h"
#include "bisect/screen.h"
#include "bisect/search.h"

namespace faultline {

std::vector<SearchRow> search_rows(const std::vector<ScreenRow>& rows);

// One a (plant, signature), in the order of its first row, the unplanted pass first. A signature that the unplanted
// pass has too is not the plant's doing and is not searched again.
std::vector<Suspicion> suspicions_of(const std::vector<ScreenRow>& rows);

Findings findings_of_run(const PreparedExperiment& prepared, const std::vector<ScreenRow>& rows,
                         const std::vector<Localized>& localized, const SearchResult& search);

ExitCode exit_code_of(const Findings& findings);

}  // namespace faultline
