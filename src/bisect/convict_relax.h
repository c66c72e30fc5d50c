// Relaxing one thing at a time: which one of several edges (or buffers), forced to wait (or written anew), makes the
// failure go? By halves, so that a failure is the proof: all are relaxed but one half, and where the case fails all the
// same, the one that matters is in that half. (A clean run proves little; it may be luck.)
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/repeat_statistics.h"

namespace faultline {

class RelaxSearch {
 public:
  // `items`, those likeliest to matter first.
  explicit RelaxSearch(std::vector<std::string> items = {}) : items_(std::move(items)), left_(items_) {}

  const std::vector<std::string>& items() const { return items_; }
  bool single() const { return left_.size() == 1; }
  const std::string& found() const { return left_.front(); }  // where single()
  // Whether a failure with everything else relaxed has shown that it is the one.
  bool proven() const { return proven_; }

  // What to relax next: all but the first half of what is left (where one is left, all but that one).
  std::vector<std::string> all_but_half() const {
    const size_t half = (left_.size() + 1) / 2;
    std::vector<std::string> result;
    for (const std::string& item : items_)
      if (std::find(left_.begin(), left_.begin() + static_cast<std::ptrdiff_t>(half), item) ==
          left_.begin() + static_cast<std::ptrdiff_t>(half))
        result.push_back(item);
    return result;
  }
  // What that came to.
  void take(const RunCount& count) {
    add(all_but_half(), count);
    const auto half = static_cast<std::ptrdiff_t>((left_.size() + 1) / 2);
    proven_ = count.failures > 0 && half == 1;
    if (count.failures > 0)
      left_.erase(left_.begin() + half, left_.end());
    else if (!single())
      left_.erase(left_.begin(), left_.begin() + half);
  }
  // Runs with a set relaxed that were not asked for by take().
  void add(std::vector<std::string> relaxed, const RunCount& count) { tried_.emplace_back(std::move(relaxed), count); }

  // Runs in which what was found was relaxed, alone or with others, and those in which it was not.
  RunCount with_it() const { return sum(true); }
  RunCount without_it() const { return sum(false); }

 private:
  RunCount sum(bool with) const {
    RunCount result;
    for (const auto& [set, count] : tried_)
      if ((std::find(set.begin(), set.end(), found()) != set.end()) == with) result += count;
    return result;
  }

  std::vector<std::string> items_;
  std::vector<std::string> left_;
  std::vector<std::pair<std::vector<std::string>, RunCount>> tried_;
  bool proven_ = false;
};

// How likely luck is to make one of `items` look as if it were the one, if in truth the case fails at some rate
// whatever is relaxed: of `failed` runs without it all fail, of `clean` runs with it none, at the rate that makes this
// likeliest; any of the items could have.
inline double likelihood_of_luck(size_t items, int64_t failed, int64_t clean) {
  const auto a = static_cast<double>(failed);
  const auto b = static_cast<double>(clean);
  const double rate = a / (a + b);
  return static_cast<double>(items) * std::pow(rate, a) * std::pow(1 - rate, b);
}

}  // namespace faultline
