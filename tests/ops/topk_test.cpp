#include <algorithm>
#include <numeric>
#include <set>

#include "op_harness.h"
#include "ops/kinds.h"

using namespace faultline;
using namespace faultline::test;
using ops::TopK;

namespace {

enum Transform : int64_t { kPositions, kPaged, kRagged };

// Token t belongs to request `tokens - 1 - t`; slots are a permutation shared by all requests, shifted by the request.
struct Case {
  Case(int64_t topk_, Transform transform_, int64_t columns_, const std::vector<int32_t>& lengths_of, uint32_t seed)
      : random(seed),
        topk(topk_),
        transform(transform_),
        columns(columns_),
        tokens(static_cast<int64_t>(lengths_of.size())),
        scores(random.values(Dtype::kF32, {tokens, columns})),
        lengths(integers({tokens}, lengths_of)),
        page_table(Dtype::kI32, {tokens, columns}),
        rows(Dtype::kI32, {tokens}),
        offsets(Dtype::kI32, {tokens}),
        out(Dtype::kI32, {tokens, topk}),
        op(TopK::kName) {
    const std::vector<int32_t> slots = random.shuffled(columns);
    for (int64_t r = 0; r < tokens; ++r) {
      rows.view().store_index(r, tokens - 1 - r);
      offsets.view().store_index(r, 1000 * r);
      for (int64_t c = 0; c < columns; ++c)
        page_table.view().store_index(r * columns + c, slots[static_cast<size_t>(c)] + columns * r);
    }
    op.add(scores).add(lengths);
    if (transform == kPaged)
      op.add(page_table).add(rows);
    else
      op.add_absent().add_absent();
    if (transform == kRagged)
      op.add(offsets);
    else
      op.add_absent();
    op.add(out).attributes().set("topk", topk).set("transform", static_cast<int64_t>(transform));
  }

  int64_t entry(int64_t token, int64_t key) const {
    if (transform == kPositions) return key;
    if (transform == kRagged) return key + 1000 * token;
    return page_table.integer((tokens - 1 - token) * columns + key);
  }
  std::multiset<int64_t> row(int64_t token) const {
    std::multiset<int64_t> result;
    for (int64_t i = 0; i < topk; ++i) result.insert(out.integer(token * topk + i));
    return result;
  }
  std::optional<OpKind::SelectionProblem> problem() const { return op_kind(TopK::kName).selection(op.call(), tokens); }
  int64_t key_of(int64_t token, int64_t value) const {
    for (int64_t key = 0; key < columns; ++key)
      if (entry(token, key) == value) return key;
    return -1;
  }

  Random random;
  int64_t topk;
  Transform transform;
  int64_t columns;
  int64_t tokens;
  Tensor scores;
  Tensor lengths;
  Tensor page_table;
  Tensor rows;
  Tensor offsets;
  Tensor out;
  OpHarness op;
};

}  // namespace

TEST_CASE("top-k takes the best keys under every transform, with lengths around k") {
  for (const Transform transform : {kPositions, kPaged, kRagged})
    for (const int64_t topk : {1, 16, 64}) {
      const auto k = static_cast<int32_t>(topk);
      Case c(topk, transform, 300, {k + 1, k + 30, 200, 300}, 1);
      for (const uint64_t seed : {1, 2, 3}) {
        REQUIRE(!c.op.run("fast_topk", seed));
        for (int64_t t = 0; t < c.tokens; ++t) {
          std::vector<int64_t> keys(static_cast<size_t>(c.lengths.integer(t)));
          std::iota(keys.begin(), keys.end(), int64_t{0});
          std::partial_sort(keys.begin(), keys.begin() + topk, keys.end(), [&](int64_t a, int64_t b) {
            return c.scores.at(t * c.columns + a) > c.scores.at(t * c.columns + b);
          });
          std::multiset<int64_t> expected;
          for (int64_t i = 0; i < topk; ++i) expected.insert(c.entry(t, keys[static_cast<size_t>(i)]));
          CHECK(c.row(t) == expected);
        }
        CHECK(!c.problem());
      }
    }
}

TEST_CASE("up to k keys the scores are not looked at: entry i is key i, then -1") {
  for (const Transform transform : {kPositions, kPaged, kRagged}) {
    Case c(16, transform, 40, {0, 1, 15, 16}, 2);
    for (int64_t i = 0; i < c.scores.view().elements(); ++i) c.scores.view().store(i, std::nanf(""));
    REQUIRE(!c.op.run("fast_topk"));
    for (int64_t t = 0; t < c.tokens; ++t)
      for (int64_t i = 0; i < 16; ++i)
        CHECK(c.out.integer(t * 16 + i) == (i < c.lengths.integer(t) ? c.entry(t, i) : -1));
    CHECK(!c.problem());
    CHECK(c.op.run_checked("fast_topk").count == 0);
  }
}

TEST_CASE("top-k on no token runs") {
  Case c(16, kPositions, 40, {}, 3);
  CHECK(!c.op.run("fast_topk"));
  CHECK(!c.problem());
}

TEST_CASE("ties at the threshold are filled to exactly k distinct keys") {
  Case c(16, kPaged, 200, {200, 100}, 4);
  for (int64_t t = 0; t < 2; ++t)
    for (int64_t key = 0; key < 200; ++key) c.scores.view().store(t * 200 + key, key % 20 == 3 ? 5.0f : 1.0f);
  for (const uint64_t seed : {1, 2, 3, 4}) {
    REQUIRE(c.op.run_checked("fast_topk", seed).count == 0);  // one entry too many would lie past the last row
    REQUIRE(!c.op.run("fast_topk", seed));
    for (int64_t t = 0; t < 2; ++t) {
      const std::multiset<int64_t> row = c.row(t);
      CHECK(std::set<int64_t>(row.begin(), row.end()).size() == 16);
      int64_t best = 0;
      for (const int64_t entry : row) {
        const int64_t key = c.key_of(t, entry);
        REQUIRE(key >= 0);
        REQUIRE(key < c.lengths.integer(t));
        best += key % 20 == 3 ? 1 : 0;
      }
      CHECK(best == (t == 0 ? 10 : 5));
    }
    CHECK(!c.problem());
  }
}

TEST_CASE("negative scores, zeros of both signs and infinities are in order") {
  Case c(4, kPositions, 8, {8}, 5);
  const float infinity = std::numeric_limits<float>::infinity();
  const float values[] = {-1, -infinity, 0.0f, -2, infinity, -1e-40f, -3, 1e-40f};
  for (int64_t i = 0; i < 8; ++i) c.scores.view().store(i, values[i]);
  REQUIRE(!c.op.run("fast_topk"));
  CHECK(c.row(0) == std::multiset<int64_t>{2, 4, 5, 7});
}

TEST_CASE("rows of NaN scores give k distinct keys and do no harm to other rows") {
  for (const float nan : {std::nanf(""), -std::nanf("")}) {
    Case c(16, kPositions, 100, {100, 100}, 6);
    for (int64_t key = 0; key < 100; ++key) c.scores.view().store(key, nan);
    REQUIRE(!c.op.run("fast_topk"));
    const std::multiset<int64_t> row = c.row(0);
    CHECK(std::set<int64_t>(row.begin(), row.end()).size() == 16);
    CHECK(*row.begin() >= 0);
    CHECK(*row.rbegin() < 100);
    const auto problem = c.problem();
    REQUIRE(problem);
    CHECK(problem->at < 16);  // row 0: a NaN score is no good choice
    CHECK(c.op.run_checked("fast_topk").count == 0);
  }
}

TEST_CASE("the model reference passes the selection check, also with a NaN to avoid") {
  for (const Transform transform : {kPositions, kPaged, kRagged}) {
    Case c(16, transform, 100, {5, 17, 100}, 7);
    c.scores.view().store(2 * 100 + 9, std::nanf(""));
    c.op.run_model();
    CHECK(!c.problem());
    CHECK(c.row(2).count(c.entry(2, 9)) == 0);
  }
}

TEST_CASE("the selection check lets infinite scores stand") {
  Case c(16, kPositions, 100, {100}, 7);
  for (int64_t key = 0; key < 40; ++key) c.scores.view().store(key, std::numeric_limits<float>::infinity());
  REQUIRE(!c.op.run("fast_topk"));
  CHECK(!c.problem());
  c.out.view().store_index(3, 70);
  CHECK(c.problem());
}

TEST_CASE("the selection check names a key that is not among the best") {
  for (const Transform transform : {kPositions, kPaged, kRagged}) {
    Case c(16, transform, 100, {10, 100, 100}, 8);
    REQUIRE(!c.op.run("fast_topk"));
    REQUIRE(!c.problem());
    const int64_t worst = std::min_element(c.scores.view().as<float>() + 200, c.scores.view().as<float>() + 300) -
                          (c.scores.view().as<float>() + 200);
    c.out.view().store_index(2 * 16 + 3, c.entry(2, worst));
    const auto problem = c.problem();
    REQUIRE(problem);
    CHECK(problem->operand == TopK::kOut);
    CHECK(problem->at == 2 * 16 + 3);
    CHECK(problem->message.find("row 2") != std::string::npos);
    // A row that does not count has no problem.
    CHECK(!op_kind(TopK::kName).selection(c.op.call(), 2));
  }
}

TEST_CASE("the selection check names an entry that is no key of the row") {
  Case c(16, kPaged, 100, {100, 100}, 9);
  REQUIRE(!c.op.run("fast_topk"));
  c.out.view().store_index(5, c.entry(1, 0));  // a slot of the other request
  const auto problem = c.problem();
  REQUIRE(problem);
  CHECK(problem->at == 5);
  c.out.view().store_index(5, -1);
  CHECK(c.problem());
}

TEST_CASE("a length past the scores' end is recorded by the checked build") {
  Case c(16, kPositions, 40, {40}, 10);
  CHECK(c.op.run_checked("fast_topk").count == 0);
  c.lengths.view().store_index(0, 43);
  const kernels::AccessLog log = c.op.run_checked("fast_topk");
  CHECK(log.count > 0);
  CHECK(log.first[0].operand == TopK::kScores);
  CHECK(log.first[0].extent == 40);
}
