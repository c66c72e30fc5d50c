#include "ops/kinds.h"
#include "test_weights.h"

using namespace faultline;
using namespace faultline::test;
using ops::Prepare;

namespace {

constexpr int64_t kPool = 5, kColumns = 8;

// Three requests: a chunk of 3 tokens after 2 cached ones, a decode step at length 8, a whole prompt of 2.
struct Fixture {
  Tensor req_to_token{Dtype::kI32, {kPool, kColumns}};
  Tensor req_pool = integers({3}, {4, 0, 2});
  Tensor seq_lens = integers({3}, {5, 8, 2});
  Tensor cu_seqlens_q = integers({4}, {0, 3, 4, 6});
  Tensor positions{Dtype::kI32, {6}};
  Tensor row_to_request{Dtype::kI32, {6}};
  Tensor lengths{Dtype::kI32, {6}};
  Tensor page_table{Dtype::kI32, {3, kColumns}};
  Tensor ragged_offsets{Dtype::kI32, {6}};
  Tensor flat_slots{Dtype::kI32, {3 * kColumns}};
  Tensor live = integers({1}, {3});
  OpHarness op{Prepare::kName};

  Fixture() {
    for (int64_t i = 0; i < kPool * kColumns; ++i) req_to_token.view().store_index(i, 100 + i);
    for (Tensor* out : outputs()) out->fill(0xFF);
    op.add(req_to_token).add(req_pool).add(seq_lens).add(cu_seqlens_q);
    for (Tensor* out : outputs()) op.add(*out);
    op.add(live);
  }
  std::vector<Tensor*> outputs() {
    return {&positions, &row_to_request, &lengths, &page_table, &ragged_offsets, &flat_slots};
  }
  static std::vector<int64_t> numbers(const Tensor& tensor) {
    std::vector<int64_t> result;
    for (int64_t i = 0; i < tensor.view().elements(); ++i) result.push_back(tensor.integer(i));
    return result;
  }
};

}  // namespace

TEST_CASE("prepare says what each token row is") {
  Fixture f;
  REQUIRE(!f.op.run("prepare"));
  CHECK(Fixture::numbers(f.positions) == std::vector<int64_t>{2, 3, 4, 7, 0, 1});
  CHECK(Fixture::numbers(f.row_to_request) == std::vector<int64_t>{0, 0, 0, 1, 2, 2});
  CHECK(Fixture::numbers(f.lengths) == std::vector<int64_t>{3, 4, 5, 8, 1, 2});
  CHECK(Fixture::numbers(f.ragged_offsets) == std::vector<int64_t>{0, 0, 0, 5, 13, 13});
  CHECK(f.page_table.integer(0) == 100 + 4 * kColumns);
  CHECK(f.page_table.integer(kColumns + 7) == 107);
  CHECK(f.page_table.integer(5) == -1);   // past the first request's length: left as it was
  CHECK(f.flat_slots.integer(5) == 100);  // the second request's first slot follows the first one's five
  CHECK(f.flat_slots.integer(14) == 100 + 2 * kColumns + 1);
  CHECK(f.flat_slots.integer(15) == -1);
}

TEST_CASE("prepare agrees with its reference in both builds") {
  Fixture kernel, model;
  REQUIRE(kernel.op.run_checked("prepare", 9).count == 0);
  model.op.run_model();
  const auto got = kernel.outputs();
  const auto expected = model.outputs();
  for (size_t i = 0; i < got.size(); ++i) CHECK(got[i]->same_bytes(*expected[i]));
  Fixture unchecked;
  REQUIRE(!unchecked.op.run("prepare", 4));
  const auto plain = unchecked.outputs();
  for (size_t i = 0; i < got.size(); ++i) CHECK(got[i]->same_bytes(*plain[i]));
}

TEST_CASE("prepare leaves positions of requests that pad a batch as they were, and writes all else of them") {
  for (const bool reference : {false, true}) {
    Fixture f;
    f.live.view().store_index(0, 2);
    if (reference)
      f.op.run_model();
    else
      REQUIRE(!f.op.run("prepare"));
    CHECK(Fixture::numbers(f.positions) == std::vector<int64_t>{2, 3, 4, 7, -1, -1});
    CHECK(Fixture::numbers(f.lengths) == std::vector<int64_t>{3, 4, 5, 8, 1, 2});
    CHECK(f.flat_slots.integer(14) == 100 + 2 * kColumns + 1);
  }
}

TEST_CASE("the checked prepare records a request outside the pool") {
  Fixture f;
  f.req_pool.view().store_index(1, kPool);
  const kernels::AccessLog log = f.op.run_checked("prepare");
  CHECK(log.count == 8);
  CHECK(log.first[0].operand == Prepare::kReqToToken);
  CHECK(log.first[0].block == 1);
  CHECK(log.first[0].index >= kPool * kColumns);
}

TEST_CASE("prepare declares what the checks hold it to") {
  const OpKind& kind = op_kind(Prepare::kName);
  const OperandSpec& table = kind.operands[Prepare::kPageTable];
  CHECK(table.content == Content::kIndices);
  CHECK(table.region.lengths_operand == Prepare::kSeqLens);
  CHECK(table.index.page_table_operand == Prepare::kReqToToken);
  CHECK(table.index.row_to_request_operand == Prepare::kReqPool);
  CHECK(kind.operands[Prepare::kFlatSlots].region.sum_operand == Prepare::kSeqLens);
}
