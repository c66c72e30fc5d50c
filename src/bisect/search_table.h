// The rows of one pass as numbers, so that "the row that differs from this one in that axis alone" is one lookup.
// Private to search*.cpp.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bisect/search.h"

namespace faultline::search_detail {

// Pairs of rows listed as evidence for one statement.
inline constexpr size_t kMaxPairs = 8;

using AxisSet = std::vector<bool>;  // by axis number

class Table {
 public:
  // Axes with one value in these rows are not factors: they are left out.
  explicit Table(std::vector<const SearchRow*> rows);

  size_t rows() const { return rows_.size(); }
  size_t axes() const { return axes_.size(); }
  const SearchRow& row(size_t i) const { return *rows_[i]; }
  const std::string& axis(size_t a) const { return axes_[a]; }
  const std::vector<std::string>& values(size_t a) const { return values_[a]; }  // in order of appearance
  int value(size_t row, size_t a) const { return codes_[row][a]; }

  // Rows that differ from `row` in axis `a` alone.
  std::vector<size_t> flips(size_t row, size_t a) const;
  std::optional<size_t> find(const AxisValues& axes) const;
  bool agree(size_t left, size_t right, const AxisSet& on) const;
  size_t distance(size_t left, size_t right) const;
  AxisValues project(size_t row, const AxisSet& on) const;
  // What to change in `from` to get `to`.
  AxisValues changes(size_t from, size_t to) const;

 private:
  std::vector<int> encode(const AxisValues& axes, bool& known) const;

  std::vector<const SearchRow*> rows_;
  std::vector<std::string> axes_;
  std::vector<std::vector<std::string>> values_;
  std::vector<std::vector<int>> codes_;
  std::map<std::vector<int>, std::vector<size_t>> by_code_;
};

// The rows of one pass and what is said of them.
struct Pass {
  std::string plant;
  Table table;
};

struct Combination {
  AxisSet axes;
  AxisSet untested;
  size_t row = 0;  // the failing row it was derived from
};

// What a row says of one signature.
enum class State : uint8_t { kFailsFirst, kFailsLater, kAbsent, kUnknown };

struct SignatureView {
  std::string signature;
  std::vector<State> states;   // by row
  std::vector<size_t> known;   // rows whose failure the unplanted pass has too
  std::vector<size_t> masked;  // failing rows that say nothing of this signature
  bool fails(size_t row) const { return states[row] == State::kFailsFirst || states[row] == State::kFailsLater; }
};

std::vector<Pass> passes_of(const std::vector<SearchRow>& rows);
std::vector<SignatureView> signatures_of(const Pass& pass, const Pass* unplanted);
std::vector<Combination> combinations_of(const Table& table, const SignatureView& view);

std::vector<Inert> inert_axes(const Table& table);
std::vector<Workaround> workarounds_of(const Table& table, const SignatureView& view,
                                       const std::vector<Combination>& combinations);

// True when both resolve alike, the axis's own effect included. False where that cannot be told.
bool resolve_alike(const SearchRow& left, const SearchRow& right, const std::string& axis);

std::string words(const AxisValues& axes);                              // "a=1, b=2"
std::string words(const std::vector<std::string>& list, size_t limit);  // "c001, c002 and 5 more"

}  // namespace faultline::search_detail
