#include "grid/cover.h"

#include <map>
#include <random>
#include <set>

#include "testing.h"

namespace faultline {
namespace {

std::vector<CodedRow> product(const std::vector<int>& counts) {
  std::vector<CodedRow> rows{{}};
  for (const int count : counts) {
    std::vector<CodedRow> longer;
    for (const CodedRow& row : rows)
      for (int value = 0; value < count; ++value) {
        longer.push_back(row);
        longer.back().push_back(value);
      }
    rows = std::move(longer);
  }
  return rows;
}

using Combination = std::map<size_t, int>;

void combinations_of(const CodedRow& row, size_t strength, size_t from, Combination& chosen,
                     std::set<Combination>& into) {
  if (chosen.size() == strength) {
    into.insert(chosen);
    return;
  }
  for (size_t c = from; c < row.size(); ++c) {
    chosen[c] = row[c];
    combinations_of(row, strength, c + 1, chosen, into);
    chosen.erase(c);
  }
}

std::set<Combination> combinations_of(const std::vector<CodedRow>& rows, const std::vector<size_t>& which,
                                      size_t strength) {
  std::set<Combination> all;
  Combination chosen;
  for (const size_t i : which) combinations_of(rows[i], std::min(strength, rows[i].size()), 0, chosen, all);
  return all;
}

std::vector<size_t> flagged(const std::vector<bool>& flags) {
  std::vector<size_t> result;
  for (size_t i = 0; i < flags.size(); ++i)
    if (flags[i]) result.push_back(i);
  return result;
}

CoverQuery all_of(const std::vector<CodedRow>& rows, size_t strength) {
  CoverQuery query;
  query.strength = strength;
  query.allowed.assign(rows.size(), true);
  return query;
}

}  // namespace

TEST_CASE("a covering array is near its lower bound, the product of the largest columns") {
  // 120 rows: no fewer than 3 x 5 hold every pair.
  const auto grid = product({5, 3, 2, 2, 2});
  REQUIRE(grid.size() == 120);
  CHECK(cover(grid, all_of(grid, 2)).size() <= 16);
  CHECK(cover(grid, all_of(grid, 3)).size() <= 36);  // bound: 30
  const auto binary = product({2, 2, 2, 2, 2, 2, 2});
  CHECK(cover(binary, all_of(binary, 2)).size() <= 8);  // best possible: 6
  const auto wide = product({5, 4, 5, 5, 5, 2, 2});
  CHECK(cover(wide, all_of(wide, 2)).size() <= 40);  // bound: 25
}

TEST_CASE("of any allowed rows, every combination is held by an allowed row, and no row is needless") {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    std::vector<int> counts;
    for (size_t c = 2 + random() % 4; c > 0; --c) counts.push_back(2 + static_cast<int>(random() % 3));
    const auto rows = product(counts);
    CoverQuery query;
    query.strength = 1 + random() % 3;
    const size_t holes = random() % 70;
    for (size_t i = 0; i < rows.size(); ++i) query.allowed.push_back(random() % 100 >= holes);
    const std::vector<size_t> chosen = cover(rows, query);
    const auto wanted = combinations_of(rows, flagged(query.allowed), query.strength);
    CHECK(combinations_of(rows, chosen, query.strength) == wanted);
    CHECK(std::is_sorted(chosen.begin(), chosen.end()));
    for (size_t i = 0; i < chosen.size(); ++i) {
      CHECK(query.allowed[chosen[i]]);
      std::vector<size_t> fewer = chosen;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
      CHECK(combinations_of(rows, fewer, query.strength).size() < wanted.size());
    }
    CHECK(chosen == cover(rows, query));
  }
}

TEST_CASE("what other rows hold already is not covered again") {
  const auto rows = product({3, 3, 2});
  CoverQuery query = all_of(rows, 2);
  const std::vector<size_t> first = cover(rows, query);
  query.met.assign(rows.size(), false);
  for (const size_t i : first) query.met[i] = true;
  CHECK(cover(rows, query).empty());
  query.met[first.front()] = false;
  const std::vector<size_t> rest = cover(rows, query);
  REQUIRE_FALSE(rest.empty());
  std::vector<size_t> both = flagged(query.met);
  both.insert(both.end(), rest.begin(), rest.end());
  CHECK(combinations_of(rows, both, 2) == combinations_of(rows, flagged(query.allowed), 2));
}

TEST_CASE("fewer columns than are to be combined, no row, no column") {
  const auto one = product({4});
  CHECK(cover(one, all_of(one, 3)).size() == 4);
  CHECK(cover({}, {}).empty());
  const std::vector<CodedRow> bare(3);
  CHECK(cover(bare, all_of(bare, 2)).empty());
}

}  // namespace faultline
