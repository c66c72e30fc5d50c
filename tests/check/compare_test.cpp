#include "check/compare.h"

#include <cmath>

#include "call_fixture.h"
#include "ops/kinds.h"

using namespace faultline;

namespace {

// The op `out = a + b` on three rows, of which two are live.
struct AddOp {
  explicit AddOp(const std::vector<float>& result) {
    const TensorView a = f.floats({3, 2}, {1, 2, 3, 4, 5, 6});
    const TensorView b = f.floats({3, 2}, {1, 1, 1, 1, 1, 1});
    op.name = "add";
    op.kind = &op_kind(ops::Add::kName);
    op.kernel = find_kernel(ops::Add::kName, "add");
    for (const TensorView& view : {a, b, f.floats({3, 2}, result)}) {
      op.arguments.add({view});
      op.tensor_names.emplace_back();
      op.written.emplace_back();
    }
    for (const OperandSpec& spec : op.kind->operands) op.index_rules.push_back(spec.index);
  }
  CallFixture f;
  Op op;
  LiveCounts live{2, 2};
};

}  // namespace

TEST_CASE("a kernel's output that its spec reference gives is silent, whatever padded rows hold") {
  AddOp add({2, 3, 4, 5, NAN, 1e9f});
  CHECK_FALSE(compare_to_spec(add.op, add.live));
}

TEST_CASE("a finite wrong value is a mismatch with coordinates") {
  AddOp add({2, 3, 4, 5.5f, 6, 7});
  const auto found = compare_to_spec(add.op, add.live);
  REQUIRE(found);
  CHECK(found->kind == "mismatch");
  CHECK(found->index == std::vector<int64_t>{1, 1});
  CHECK_FALSE(found->setting);
}

TEST_CASE("NaN where the reference is finite is a mismatch") {
  AddOp add({2, 3, NAN, 5, 6, 7});
  REQUIRE(compare_to_spec(add.op, add.live));
}

TEST_CASE("a structural attribute that differs from the model's makes a gap a setting, an equal one never does") {
  CallFixture f;
  const TensorView x = f.floats({2, 1, 4}, {1, 2, 3, 4, 1, 2, 3, 4});
  const TensorView positions = f.integers({2}, {0, 5});
  const TensorView out = f.tensor(Dtype::kF32, {2, 1, 4});
  Op op;
  op.name = "rope";
  op.kind = &op_kind(ops::Rope::kName);
  op.kernel = find_kernel(ops::Rope::kName, "rope");
  for (const TensorView& view : {x, positions, out}) {
    op.arguments.add({view});
    op.tensor_names.emplace_back();
    op.written.emplace_back();
  }
  for (const OperandSpec& spec : op.kind->operands) op.index_rules.push_back(spec.index);
  op.attributes.set("theta", 10000.0).set("rope_dim", 4).set("interleaved", true).set("enabled", true);
  op.model_attributes = op.attributes;
  REQUIRE_FALSE(op.kernel->run(op.call()));
  const LiveCounts live{2, 2};
  CHECK_FALSE(structural_difference(op));
  CHECK_FALSE(compare_to_model(op, live));

  op.model_attributes.set("theta", 10.0);
  CHECK(structural_difference(op) == "theta");
  CHECK_FALSE(compare_to_spec(op, live));  // the kernel does what it was told
  const auto found = compare_to_model(op, live);
  REQUIRE(found);
  CHECK(found->setting);
  CHECK(found->attribute == "theta");
  CHECK(found->index.front() == 1);  // position 0 turns by nothing
}
