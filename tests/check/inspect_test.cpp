#include "check/inspect.h"

#include <cmath>

#include "call_fixture.h"

using namespace faultline;

namespace {

OperandSpec spec_of(Content content) {
  return OperandSpec{"x", Direction::kOut, content, Region{Rows::kTokens}, {}, false};
}

}  // namespace

TEST_CASE("a value that is not finite is found with its coordinates, bits and count") {
  const float bad = GENERATE(NAN, INFINITY, -INFINITY);
  CallFixture f;
  f.add(f.floats({2, 3}, {0, 1, 2, 3, bad, bad}));
  const auto found = find_nonfinite(f.call(), spec_of(Content::kValues), 0, LiveCounts{2, 2});
  REQUIRE(found);
  CHECK(found->kind == "nonfinite");
  CHECK(found->index == std::vector<int64_t>{1, 1});
  CHECK(found->count == 2);
  CHECK(found->bits == float_bits(bad));
}

TEST_CASE("finite values, and bad ones in padded rows, are silent") {
  CallFixture f;
  f.add(f.floats({2, 2}, {0, -1e30f, NAN, INFINITY}));
  CHECK_FALSE(find_nonfinite(f.call(), spec_of(Content::kValues), 0, LiveCounts{1, 1}));
}

TEST_CASE("e4m3 block scales: only 0x7F and 0xFF are NaN") {
  CallFixture f;
  const TensorView scales = f.tensor(Dtype::kF8E4M3, {1, 4});
  f.add(scales);
  for (int i = 0; i < 4; ++i) scales.as<uint8_t>()[i] = static_cast<uint8_t>(i == 0 ? 0x7E : 0xFE);
  CHECK_FALSE(find_nonfinite(f.call(), spec_of(Content::kE4m3Scales), 0, LiveCounts{1, 1}));
  scales.as<uint8_t>()[2] = GENERATE(uint8_t{0x7F}, uint8_t{0xFF});
  const auto found = find_nonfinite(f.call(), spec_of(Content::kE4m3Scales), 0, LiveCounts{1, 1});
  REQUIRE(found);
  CHECK(found->index == std::vector<int64_t>{0, 2});
}

TEST_CASE("probability rows: negative, NaN, or not summing to one") {
  const auto check = [](std::vector<float> row) {
    CallFixture f;
    f.add(f.floats({1, 3}, row));
    return find_bad_probability(f.call(), spec_of(Content::kProbabilities), 0, LiveCounts{1, 1});
  };
  CHECK_FALSE(check({0.25f, 0.5f, 0.25f}));
  CHECK(check({-0.25f, 1.0f, 0.25f}));
  CHECK(check({NAN, 0.5f, 0.5f}));
  CHECK(check({0.25f, 0.25f, 0.25f}));
  CHECK(check({0.0f, 0.0f, 0.0f}));
}

TEST_CASE("index rules: range, -1 only in the tail, count, uniqueness, ownership") {
  // Two rows of three entries; request 0 owns slots 8, 9, 10, request 1 owns 4, 5.
  const auto check = [](std::vector<int32_t> entries, std::vector<int32_t> lengths) {
    CallFixture f;
    f.add(f.integers({2, 3}, entries));
    f.add(f.integers({2}, lengths));
    f.add(f.integers({2, 3}, {8, 9, 10, 4, 5, 0}));
    f.add(f.integers({2}, {0, 1}));
    IndexRule rule;
    rule.end = 12;
    rule.minus_one_tail = true;
    rule.unique = true;
    rule.count_lengths_operand = 1;
    rule.page_table_operand = 2;
    rule.row_to_request_operand = 3;
    rule.owner_lengths_operand = 1;
    return find_bad_index(f.call(), spec_of(Content::kIndices), rule, 0, LiveCounts{2, 2});
  };
  CHECK_FALSE(check({10, 8, 9, 5, 4, -1}, {3, 2}));
  SECTION("past the pool") {
    const auto found = check({10, 12, 9, 5, 4, -1}, {3, 2});
    REQUIRE(found);
    CHECK(found->kind == "bounds");
    CHECK(found->index == std::vector<int64_t>{0, 1});
    CHECK(found->value == "12");
  }
  SECTION("-1 inside the prefix") {
    const auto found = check({10, -1, 9, 5, 4, -1}, {3, 2});
    REQUIRE(found);
    CHECK(found->detail.find("inside the valid prefix") != std::string::npos);
  }
  SECTION("an entry in the tail") {
    CHECK(check({10, 8, 9, 5, 4, 4}, {3, 2}));
  }
  SECTION("twice the same") {
    CHECK(check({10, 8, 8, 5, 4, -1}, {3, 2}));
  }
  SECTION("another request's slot") {
    const auto found = check({10, 8, 9, 5, 8, -1}, {3, 2});
    REQUIRE(found);
    CHECK(found->index == std::vector<int64_t>{1, 1});
    CHECK(found->detail.find("not in the pages") != std::string::npos);
  }
}

TEST_CASE("scalar scales of the checkpoint must be positive and finite; of input scales the largest counts") {
  const auto check = [](std::vector<float> values, bool maximum) {
    std::vector<TensorView> views;
    for (float& value : values) views.push_back(make_view(&value, Dtype::kF32, {1}));
    Argument argument;
    argument.views = views;
    return find_bad_scalar_scale(argument, 0, maximum).has_value();
  };
  CHECK_FALSE(check({0.5f, 1.0f}, false));
  CHECK(check({0.5f, 0.0f}, false));
  CHECK(check({NAN, 1.0f}, false));
  CHECK(check({-1.0f, 1.0f}, false));
  CHECK_FALSE(check({0.0f, 1.0f}, true));
  CHECK(check({0.0f, 0.0f}, true));
  CHECK(check({1.0f, INFINITY}, true));
  CHECK(check({1.0f, NAN}, true));
}
