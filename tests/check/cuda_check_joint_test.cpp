// A group's check and the next one's poison in one launch; large tensors of which a sample is looked at.
#ifdef FAULTLINE_HAVE_CUDA
#include <algorithm>
#include <cmath>

#include "check/cuda_check_tables.h"
#include "device_fixture.h"

using namespace faultline;
using device_checks::Task;
using device_checks::TaskKind;
using device_checks::Walk;
using device_checks::Work;

namespace {

bool is_poison(const TensorView& view, int64_t at) {
  return raw_bits(view, at) == (view.dtype == Dtype::kF32    ? kFloatSentinel
                                : view.dtype == Dtype::kBF16 ? kBf16Sentinel
                                                             : static_cast<uint32_t>(kIntSentinel));
}

// A task over rows of bf16 at an address that nobody reads.
Task rows_at(uintptr_t address, Work work, int64_t columns = 64, int64_t stride = 64, int64_t rows = 4) {
  Task task;
  task.kind = TaskKind::kFloats;
  task.work = work;
  task.walk = stride == columns ? Walk::kFlat : Walk::kVectors;
  task.element_bytes = 2;
  task.data = reinterpret_cast<std::byte*>(address);
  task.rows = rows;
  task.columns = columns;
  task.row_stride = stride;
  return task;
}

}  // namespace

TEST_CASE("a check and a poison share a launch unless one would poison what another reads") {
  const auto check = [](uintptr_t at, int64_t columns = 64, int64_t stride = 64) {
    return rows_at(at, Work::kCheck, columns, stride);
  };
  const auto poison = [](uintptr_t at, int64_t columns = 64, int64_t stride = 64) {
    return rows_at(at, Work::kPoison, columns, stride);
  };
  SECTION("the same memory: the block that looks is the one that poisons") {
    const auto both = device_checks::join({check(4096)}, {poison(4096)});
    REQUIRE(both.size() == 1);
    CHECK(both[0].work == Work::kBoth);
  }
  SECTION("memory of their own") {
    const auto both = device_checks::join({check(4096)}, {poison(8192)});
    REQUIRE(both.size() == 2);
    CHECK(both[0].work == Work::kCheck);
    CHECK(both[1].work == Work::kPoison);
  }
  SECTION("columns of the same rows, side by side") {
    CHECK(device_checks::join({check(4096, 64, 96), check(4096 + 128, 32, 96)},
                              {poison(4096, 64, 96), poison(4096 + 128, 32, 96)})
              .size() == 2);
    CHECK(device_checks::join({check(4096, 64, 96)}, {poison(4096 + 128, 32, 96)}).size() == 2);
    CHECK(device_checks::join({check(4096 + 128, 32, 96)}, {poison(4096, 64, 96)}).size() == 2);
  }
  SECTION("columns that overlap, another shape, a part") {
    CHECK(device_checks::join({check(4096, 64, 96)}, {poison(4096 + 64, 32, 96)}).empty());
    CHECK(device_checks::join({check(4096)}, {poison(4096, 32, 32)}).empty());
    CHECK(device_checks::join({check(4096)}, {poison(4096 + 64)}).empty());
    CHECK(device_checks::join({check(4096), check(4096)}, {poison(4096)}).empty());
  }
  SECTION("rows that are not whole vectors are not shared out alike") {
    CHECK(device_checks::join({check(4096, 60, 60)}, {poison(4096, 60, 60)}).empty());
  }
  SECTION("lengths that the next group makes") {
    Task lengths = check(4096);
    lengths.lengths = {reinterpret_cast<const int32_t*>(uintptr_t{8192}), 4, 1};
    CHECK(device_checks::join({lengths}, {poison(8192)}).empty());
    CHECK(device_checks::join({lengths}, {poison(16384)}).size() == 2);
  }
  SECTION("a cache of which slots are poisoned while others are looked at") {
    Task slots = check(4096);
    slots.kind = TaskKind::kSlots;
    slots.capacity = 16;
    slots.stride_bytes = 64;
    Task next = slots;
    next.work = Work::kPoison;
    CHECK(device_checks::join({slots}, {next}).empty());
    next.data += 16 * 64;
    CHECK(device_checks::join({slots}, {next}).size() == 2);
  }
  SECTION("large tensors") {
    Task large = check(4096);
    large.sparse = true;
    CHECK(device_checks::join({large}, {poison(8192)}).empty());
  }
}

TEST_CASE("GPU: a group is checked and the next one's poison is laid", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  std::mt19937 random(21);
  // Of 60 columns the parts would not agree: two launches then, with the same results.
  const int64_t columns = GENERATE(64, 60, 4096);
  const bool padded = GENERATE(false, true);
  constexpr int64_t kRows = 6;
  DeviceFixture f;
  const TensorView a = f.tensor(Dtype::kF32, {kRows, columns});
  const TensorView parts = f.tensor(Dtype::kBF16, {kRows, 96});
  const TensorView ids = f.tensor(Dtype::kI32, {kRows, 8});
  const TensorView codes = f.tensor(Dtype::kU8, {kRows, 64});
  const TensorView scores = f.tensor(Dtype::kF32, {kRows, 3000});
  const TensorView lengths = f.integers({kRows}, {3000, 7, 0, 1, 2999, 64});
  const TensorView last = f.tensor(Dtype::kF32, {kRows, 8});  // of the first group alone
  IndexRule rule;
  rule.end = 100;
  rule.unique = true;
  Region region;
  region.lengths_operand = 1;
  const std::vector<TensorView> poisoned{a, slice_last(parts, 0, 64), slice_last(parts, 64, 32), ids};
  constexpr int kOps = 7;  // of the first group; the second one has not the last
  for (const int group : {0, 1}) {
    f.op(group, {output_of(a)});
    f.op(group, {output_of(slice_last(parts, 0, 64))});
    f.op(group, {output_of(slice_last(parts, 64, 32))});
    f.op(group, {output_of(ids, Content::kIndices, {}, rule)});
    f.op(group, {output_of(codes, Content::kFp4Codes)});
    f.op(group, {output_of(scores, Content::kValues, region), plain_input(lengths)});
    if (group == 0) f.op(group, {output_of(last)});
  }
  const LiveCounts live{padded ? kRows - 2 : kRows, kRows};
  DeviceChecks& checks = f.checks();
  const auto write = [&] {
    for (const TensorView& view : {a, parts, codes, scores, last}) fill(view, random);
    for (int64_t i = 0; i < kRows * 8; ++i) ids.as<int32_t>()[i] = static_cast<int32_t>((i * 3) % 100);
  };
  const auto pass = [&](const auto& corrupt) {
    f.upload();
    checks.set_live(live);
    checks.poison(0);
    REQUIRE_FALSE(f.device().wait());
    f.download();
    f.snapshot();
    write();
    corrupt();
    f.upload();
    auto expected = f.expected(live);
    expected.erase(
        std::remove_if(expected.begin(), expected.end(), [](const DeviceFinding& found) { return found.op >= kOps; }),
        expected.end());
    checks.check_indices(0, kOps);
    checks.check_and_poison(0, 1);
    REQUIRE_FALSE(f.device().wait());
    require_same(checks.read(), expected);
    f.download();
    int64_t kept = 0;
    for (const TensorView& view : poisoned)
      for (int64_t row = 0; row < view.dim(0); ++row)
        for (int64_t c = 0; c < view.dim(1); ++c) kept += is_poison(view, view.offset(row, c)) ? 0 : 1;
    CHECK(kept == 0);
    CHECK_FALSE(is_poison(last, 0));
    CHECK(checks.page().progress.group_begun == 1);
    // The next group finds its poison where nothing is written.
    f.snapshot();
    checks.check_indices(kOps, 2 * kOps - 1);
    checks.check(1);
    REQUIRE_FALSE(f.device().wait());
    const auto unwritten = checks.read();
    REQUIRE_FALSE(unwritten.empty());
    CHECK(unwritten[0].op == kOps);
    CHECK(unwritten[0].violation.kind == "unwritten");
    CHECK(unwritten[0].violation.count == live.tokens * columns);
    write();
    f.upload();
    checks.check(1);
    REQUIRE_FALSE(f.device().wait());
    CHECK(checks.read().empty());
    return expected.size();
  };
  CHECK(pass([] {}) == 0);
  CHECK(pass([&] {
          a.store(a.offset(1, columns - 1), NAN);
          parts.store(parts.offset(2, 95), INFINITY);
          ids.as<int32_t>()[9] = ids.as<int32_t>()[8];
          ids.as<int32_t>()[10] = 100;
          scores.store(scores.offset(0, 2999), NAN);
          last.store(3, NAN);
        }) == 5);
}

TEST_CASE("GPU: a large tensor whose faults show in a later one is looked at in samples, and whole where they do",
          "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  std::mt19937 random(22);
  constexpr int64_t kRows = 16;
  constexpr int64_t kColumns = 2048;
  DeviceFixture f;
  const TensorView a = f.tensor(Dtype::kBF16, {kRows, kColumns});
  const TensorView b = f.tensor(Dtype::kBF16, {kRows, kColumns});
  f.op(0, {output_of(a)});
  f.op(0, {plain_input(a), plain_input(a), output_of(b)}, {}, false, "add");
  DeviceCheckOptions options;
  options.sparse_from_bytes = kRows * kColumns * 2;
  auto checks = f.make(options);
  const LiveCounts live{kRows - 1, 1};
  const auto run = [&](const auto& corrupt) {
    return f.run(
        live,
        [&] {
          const std::vector<std::byte> poison(a.data, a.data + kRows * kColumns * 2);
          fill(a, random);
          fill(b, random);
          corrupt(poison);
        },
        checks.get());
  };
  CHECK(run([](const auto&) {}).empty());
  const auto carried = run([&](const auto&) {
    for (const TensorView& view : {a, b}) {
      view.store(view.offset(5, 1000), NAN);
      view.store(view.offset(7, 3), INFINITY);
      view.store(view.offset(kRows - 1, 3), NAN);  // a padded row
    }
  });
  REQUIRE(carried.size() == 2);
  CHECK(carried[0].violation.count == 2);
  require_same(carried, f.expected(live));
  // Rows that were left as they were are found without the other tensor's help, however it looks.
  const auto left = run([&](const std::vector<std::byte>& poison) {
    std::copy(poison.begin() + 3 * kColumns * 2, poison.begin() + 5 * kColumns * 2, a.data + 3 * kColumns * 2);
  });
  REQUIRE(left.size() == 1);
  CHECK(left[0].op == 0);
  CHECK(left[0].violation.kind == "unwritten");
  CHECK(left[0].violation.index.front() == 3);
  require_same(left, f.expected(live));
  CHECK(run([](const auto&) {}).empty());
}

#endif  // FAULTLINE_HAVE_CUDA
