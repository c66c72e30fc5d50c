// Times: monotonic for deadlines and durations, calendar time for names and reports.
#pragma once

#include <cstdint>
#include <string>

namespace faultline {

int64_t monotonic_ns();
double monotonic_seconds();

// "2025-01-31T14:22:33Z"
std::string utc_timestamp();
// "20250131-142233", local time: sorts, and is legal in a file name.
std::string file_timestamp();

// "0.8 s", "12 s", "3 min 05 s", "2 h 07 min": for people.
std::string duration_text(double seconds);

class Stopwatch {
 public:
  double seconds() const { return monotonic_seconds() - start_; }
  void restart() { start_ = monotonic_seconds(); }

 private:
  double start_ = monotonic_seconds();
};

}  // namespace faultline
