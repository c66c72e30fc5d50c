#include <cmath>
#include <limits>

#include "check/device_checks.h"
#include "testing.h"

using namespace faultline;

namespace {

// Two ops of two groups: values [4, 8] F32, and probabilities [4, 8] F32 beside indices [4, 8] I32.
struct Ops {
  Ops() {
    static float memory[3 * 32];
    for (const auto& [kind, contents] : {std::pair{&first, std::vector{Content::kValues}},
                                         std::pair{&second, std::vector{Content::kProbabilities, Content::kIndices}}}) {
      Op op;
      op.kind = kind;
      for (const Content content : contents) {
        kind->operands.push_back(OperandSpec{"out", Direction::kOut, content, {}, {}, false});
        op.arguments.add({make_view(memory, content == Content::kIndices ? Dtype::kI32 : Dtype::kF32, {4, 8})});
        IndexRule rule;
        rule.end = 100;
        op.index_rules.push_back(rule);
      }
      list.push_back(std::move(op));
    }
  }
  OpKind first, second;
  std::vector<Op> list;
};

struct Page {
  std::unique_ptr<DeviceCheckPage> page = std::make_unique<DeviceCheckPage>();
  int used = 0;
  DeviceCheckRecord& add(int group, int op, int operand, DeviceCheck check, int64_t first, int64_t count) {
    DeviceCheckRecord& record = page->records[used++];
    record.used = 1;
    record.group = group;
    record.op = op;
    record.operand = operand;
    record.check = check;
    record.first = first;
    record.count = count;
    return record;
  }
};

}  // namespace

TEST_CASE("an empty page of device records says nothing") {
  const Ops ops;
  CHECK(findings_of(DeviceCheckPage{}, ops.list, {}).empty());
}

TEST_CASE("of device records the first broken group is told, unwritten before not finite") {
  const Ops ops;
  Page page;
  page.add(2, 1, 1, DeviceCheck::kBounds, 0, 1);
  page.add(1, 0, 0, DeviceCheck::kNonfinite, 10, 4).bits = float_bits(INFINITY);
  const auto alone = findings_of(*page.page, ops.list, {});
  REQUIRE(alone.size() == 1);
  CHECK(alone[0].op == 0);
  CHECK(alone[0].violation.kind == "nonfinite");
  CHECK(alone[0].violation.index == std::vector<int64_t>{1, 2});
  CHECK(alone[0].violation.value == "inf");
  CHECK(alone[0].violation.count == 4);
  page.add(1, 0, 0, DeviceCheck::kUnwritten, 11, 2);
  const auto both = findings_of(*page.page, ops.list, {});
  REQUIRE(both.size() == 1);
  CHECK(both[0].violation.kind == "unwritten");
}

TEST_CASE("a bad index of an op hides what else is wrong with its outputs, and says why it is bad") {
  const Ops ops;
  Page page;
  page.add(2, 1, 0, DeviceCheck::kNegative, 3, 1);
  DeviceCheckRecord& bad = page.add(2, 1, 1, DeviceCheck::kBounds, 17, 3);
  bad.extra[0] = 100;
  bad.extra[1] = 8;
  bad.extra[2] = 2;  // range
  const auto found = findings_of(*page.page, ops.list, {});
  REQUIRE(found.size() == 1);
  CHECK(found[0].violation.operand == 1);
  CHECK(found[0].violation.value == "100");
  CHECK(found[0].violation.detail == "outside [0, 100)");
}

TEST_CASE("a row's sum counts where no row before it has a negative entry") {
  const Ops ops;
  const int64_t negative_row = GENERATE(0, 3);
  Page page;
  page.add(2, 1, 0, DeviceCheck::kNegative, negative_row * 8 + 2, 5).bits = float_bits(-1.0f);
  const double sum = 1.5;
  memcpy(page.add(2, 1, 0, DeviceCheck::kSum, 1, 1).extra, &sum, sizeof sum);
  const auto found = findings_of(*page.page, ops.list, {});
  REQUIRE(found.size() == 1);
  CHECK(found[0].violation.kind == "probability");
  CHECK(found[0].violation.index == (negative_row == 0 ? std::vector<int64_t>{0, 2} : std::vector<int64_t>{1}));
  CHECK(found[0].violation.value == (negative_row == 0 ? "-1" : "1.5"));
  CHECK(found[0].violation.count == (negative_row == 0 ? 5 : 6));
}

TEST_CASE("a canary is told where nothing else is wrong, and records that fit no op are dropped") {
  const Ops ops;
  Page page;
  page.add(1, 0, 0, DeviceCheck::kCanary, 128 + 64, 1);
  page.add(1, 7, 0, DeviceCheck::kNonfinite, 0, 1);
  page.add(1, 0, 9, DeviceCheck::kNonfinite, 0, 1);
  const std::vector<GuardedBuffer> buffers{{nullptr, 10, "a"}, {nullptr, 20, "b"}};
  const auto found = findings_of(*page.page, ops.list, buffers);
  REQUIRE(found.size() == 1);
  CHECK(found[0].buffer == "b");
  CHECK(found[0].violation.index == std::vector<int64_t>{20});
  CHECK(findings_of(*page.page, ops.list, {}).empty());
  page.add(1, 0, 0, DeviceCheck::kNonfinite, 0, 1);
  REQUIRE(findings_of(*page.page, ops.list, buffers).size() == 1);
  CHECK(findings_of(*page.page, ops.list, buffers)[0].violation.kind == "nonfinite");
}
