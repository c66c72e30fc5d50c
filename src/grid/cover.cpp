#include "grid/cover.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <utility>

#include "base/error.h"
#include "base/rng.h"

namespace faultline {
namespace {

// Orders of equally good rows that are tried: as many as this much work allows, at least one.
constexpr size_t kWork = 4'000'000;  // combinations looked at in the first round of each
constexpr size_t kMostOrders = 32;

// Every combination of `strength` columns and their values as one number.
class Combinations {
 public:
  Combinations(const std::vector<CodedRow>& rows, size_t strength) : rows_(rows) {
    const size_t columns = rows.front().size();
    counts_.assign(columns, 1);
    for (const CodedRow& row : rows) {
      FAULTLINE_CHECK(row.size() == columns);
      for (size_t c = 0; c < columns; ++c) counts_[c] = std::max(counts_[c], static_cast<size_t>(row[c]) + 1);
    }
    std::vector<size_t> chosen;
    choose(std::min(strength, columns), 0, chosen);
  }

  size_t size() const { return size_; }
  size_t per_row() const { return sets_.size(); }

  template <class Visitor>
  void visit(size_t row, Visitor&& visitor) const {
    const CodedRow& code = rows_[row];
    for (const Columns& set : sets_) {
      size_t at = 0;
      for (const size_t column : set.columns) at = at * counts_[column] + static_cast<size_t>(code[column]);
      visitor(set.offset + at);
    }
  }

 private:
  struct Columns {
    std::vector<size_t> columns;
    size_t offset;
  };

  void choose(size_t left, size_t from, std::vector<size_t>& chosen) {
    if (left == 0) {
      if (chosen.empty()) return;
      sets_.push_back({chosen, size_});
      size_t values = 1;
      for (const size_t column : chosen) values *= counts_[column];
      size_ += values;
      return;
    }
    for (size_t column = from; column + left <= counts_.size(); ++column) {
      chosen.push_back(column);
      choose(left - 1, column + 1, chosen);
      chosen.pop_back();
    }
  }

  const std::vector<CodedRow>& rows_;
  std::vector<size_t> counts_;  // values of each column
  std::vector<Columns> sets_;
  size_t size_ = 0;
};

class Greedy {
 public:
  Greedy(const std::vector<CodedRow>& rows, const CoverQuery& query)
      : query_(query), combinations_(rows, query.strength), held_(combinations_.size()) {
    for (size_t row = 0; row < query.met.size(); ++row)
      if (query.met[row]) combinations_.visit(row, [&](size_t at) { held_[at] = 1; });
    for (size_t row = 0; row < rows.size(); ++row)
      if (query.allowed[row]) candidates_.push_back(row);
  }

  size_t orders() const {
    const size_t once = std::max<size_t>(1, candidates_.size() * combinations_.per_row());
    return std::clamp<size_t>(kWork / once, 1, kMostOrders);
  }

  bool done() const {
    return std::all_of(candidates_.begin(), candidates_.end(), [&](size_t row) { return gain(row, held_) == 0; });
  }

  // `rank`: among rows that add as much, the lowest goes first.
  std::vector<size_t> select(const std::vector<size_t>& rank) const {
    std::vector<int> held = held_;
    using Entry = std::pair<size_t, size_t>;  // gain, row
    const auto worse = [&](const Entry& a, const Entry& b) {
      return a.first != b.first ? a.first < b.first : rank[a.second] > rank[b.second];
    };
    // Gains only shrink, so a row whose fresh gain still heads the queue is the best one.
    std::priority_queue<Entry, std::vector<Entry>, decltype(worse)> queue(worse);
    for (const size_t row : candidates_) queue.emplace(gain(row, held), row);
    std::vector<size_t> chosen;
    while (!queue.empty()) {
      const size_t row = queue.top().second;
      queue.pop();
      const Entry fresh{gain(row, held), row};
      if (fresh.first == 0) continue;
      if (!queue.empty() && worse(fresh, queue.top())) {
        queue.push(fresh);
        continue;
      }
      combinations_.visit(row, [&](size_t at) { ++held[at]; });
      chosen.push_back(row);
    }
    drop_needless(chosen, held);
    std::sort(chosen.begin(), chosen.end());
    return chosen;
  }

 private:
  size_t gain(size_t row, const std::vector<int>& held) const {
    size_t count = 0;
    combinations_.visit(row, [&](size_t at) { count += held[at] == 0 ? 1 : 0; });
    return count;
  }

  // What an early row was chosen for may all be held by later ones.
  void drop_needless(std::vector<size_t>& chosen, std::vector<int>& held) const {
    const auto needless = [&](size_t row) {
      bool all_twice = true;
      combinations_.visit(row, [&](size_t at) { all_twice = all_twice && held[at] > 1; });
      if (all_twice) combinations_.visit(row, [&](size_t at) { --held[at]; });
      return all_twice;
    };
    chosen.erase(std::remove_if(chosen.begin(), chosen.end(), needless), chosen.end());
  }

  const CoverQuery& query_;
  const Combinations combinations_;
  std::vector<int> held_;  // how many rows hold each combination
  std::vector<size_t> candidates_;
};

void check_query(const std::vector<CodedRow>& rows, const CoverQuery& query) {
  FAULTLINE_CHECK(query.allowed.size() == rows.size());
  FAULTLINE_CHECK(query.met.empty() || query.met.size() == rows.size());
  FAULTLINE_CHECK(query.strength >= 1 && query.strength <= kMaxStrength);
}

}  // namespace

bool is_covered(const std::vector<CodedRow>& rows, const CoverQuery& query) {
  check_query(rows, query);
  return rows.empty() || Greedy(rows, query).done();
}

std::vector<size_t> cover(const std::vector<CodedRow>& rows, const CoverQuery& query) {
  check_query(rows, query);
  if (rows.empty()) return {};
  const Greedy greedy(rows, query);
  std::vector<size_t> rank(rows.size());
  std::iota(rank.begin(), rank.end(), size_t{0});
  std::vector<size_t> best = greedy.select(rank);
  for (size_t order = 1; order < greedy.orders(); ++order) {
    const CounterRng random(order, "order of rows");
    for (size_t i = rank.size(); i > 1; --i) std::swap(rank[i - 1], rank[random.below(i, static_cast<uint32_t>(i))]);
    std::vector<size_t> other = greedy.select(rank);
    if (other.size() < best.size()) best = std::move(other);
  }
  return best;
}

}  // namespace faultline
