// Values, codes, regions, canaries, marks, graphs; rows and caches are in cuda_check_rows_test.cpp.
#ifdef FAULTLINE_HAVE_CUDA
#include <algorithm>
#include <cmath>
#include <limits>

#include "device_fixture.h"

using namespace faultline;

TEST_CASE("GPU: values of every dtype and lay-out: what is not finite, and what was not written", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  std::mt19937 random(GENERATE(1u, 2u));
  const Dtype dtype = GENERATE(Dtype::kF32, Dtype::kBF16, Dtype::kF16);
  const int layout = GENERATE(0, 1, 2, 3, 4, 5);
  DeviceFixture f;
  TensorView view;
  if (layout == 0) view = f.tensor(dtype, {37, 51});                        // one piece, odd
  if (layout == 1) view = slice_last(f.tensor(dtype, {9, 96}), 32, 32);     // whole vectors of short rows
  if (layout == 2) view = slice_last(f.tensor(dtype, {9, 35}), 3, 17);      // no vectors
  if (layout == 3) view = slice_last(f.tensor(dtype, {5, 9000}), 8, 8888);  // long rows
  if (layout == 4)
    view = slice_last(split_last(f.tensor(dtype, {6, 4 * 40}), 4, 40), 16, 24);  // rank 3, a part of each head
  if (layout == 5) view = slice_last(f.tensor(dtype, {5, 9001}), 3, 8990);       // long rows, no vectors
  f.writes(view);
  const LiveCounts live{view.dim(0) - 2, 1};
  const auto last = [&](int64_t row) {
    return view.offset(row) + (view.rank == 2 ? view.dim(1) - 1 : (view.dim(1) - 1) * view.stride[1] + view.dim(2) - 1);
  };
  const auto sound = f.run(live, [&] { fill(view, random); });
  CHECK(sound.empty());

  const auto padded = f.run(live, [&] {
    fill(view, random);
    put(view, last(view.dim(0) - 1), NAN);
    put(view, view.offset(view.dim(0) - 2), INFINITY);
  });
  CHECK(padded.empty());

  const float bad = GENERATE(std::numeric_limits<float>::quiet_NaN(), INFINITY, -INFINITY);
  const auto broken = f.run(live, [&] {
    fill(view, random);
    put(view, last(1), bad);
    put(view, last(2), bad);
  });
  REQUIRE(broken.size() == 1);
  CHECK(broken[0].violation.count == 2);
  require_same(broken, f.expected(live));

  const auto left = f.run(live, [&] {
    const uint32_t sentinel = raw_bits(view, last(1));
    fill(view, random);
    if (dtype == Dtype::kF32)
      view.as<uint32_t>()[last(1)] = sentinel;
    else
      view.as<uint16_t>()[last(1)] = static_cast<uint16_t>(sentinel);
  });
  REQUIRE(left.size() == 1);
  CHECK(left[0].violation.kind == (dtype == Dtype::kF16 ? "nonfinite" : "unwritten"));
  require_same(left, f.expected(live));
}

TEST_CASE("GPU: the poison covers a whole view and nothing beside it", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  std::mt19937 random(3);
  const Dtype dtype = GENERATE(Dtype::kF32, Dtype::kBF16, Dtype::kU8, Dtype::kF8E4M3, Dtype::kI32);
  const int64_t begin = GENERATE(0, 3, 16);
  const int64_t count = GENERATE(16, 45, 5000);
  DeviceFixture f;
  const TensorView whole = f.tensor(dtype, {5, 5100});
  const TensorView view = slice_last(whole, begin, count);
  f.writes(view, dtype == Dtype::kU8 ? Content::kFp4Codes
                                     : (dtype == Dtype::kF8E4M3 ? Content::kE4m3Scales : Content::kValues));
  fill(whole, random);
  const size_t bytes = static_cast<size_t>(whole.elements()) * dtype_bytes(dtype);
  const std::vector<std::byte> old(whole.data, whole.data + bytes);
  const auto found = f.run(kAllLive, [&] {});
  REQUIRE(found.size() == 1);
  CHECK(found[0].violation.kind == "unwritten");
  require_same(found, f.expected(kAllLive));
  int64_t beside = 0;
  int64_t kept = 0;
  for (int64_t row = 0; row < 5; ++row)
    for (int64_t c = 0; c < 5100; ++c) {
      const size_t size = dtype_bytes(dtype);
      const size_t at = static_cast<size_t>(row * 5100 + c) * size;
      const bool same = memcmp(old.data() + at, whole.data + at, size) == 0;
      if (c < begin || c >= begin + count)
        beside += same ? 0 : 1;
      else
        kept += same ? 1 : 0;
    }
  CHECK(beside == 0);
  CHECK(kept <= (dtype == Dtype::kU8 ? count / 2 : 0));  // of 5 x count: a random byte may be its own poison
}

TEST_CASE("GPU: of a large tensor a sector of each 1024 bytes is poisoned, and a row that was not written is found",
          "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  std::mt19937 random(15);
  const Dtype dtype = GENERATE(Dtype::kF32, Dtype::kBF16);
  constexpr int64_t kRows = 8;
  constexpr int64_t kColumns = 2048;
  DeviceFixture f;
  const TensorView out = f.tensor(dtype, {kRows, kColumns});
  f.writes(out);
  DeviceCheckOptions options;
  options.sparse_from_bytes = kRows * kColumns * static_cast<int64_t>(dtype_bytes(dtype));
  auto checks = f.make(options);
  int64_t poisoned = 0;
  const auto sound = f.run(
      kAllLive,
      [&] {
        for (int64_t i = 0; i < kRows * kColumns; ++i)
          poisoned += raw_bits(out, i) == (dtype == Dtype::kF32 ? kFloatSentinel : kBf16Sentinel) ? 1 : 0;
        fill(out, random);
      },
      checks.get());
  CHECK(sound.empty());
  const int64_t pieces = kRows * kColumns * static_cast<int64_t>(dtype_bytes(dtype)) / 1024;
  const int64_t of_a_sector = 32 / static_cast<int64_t>(dtype_bytes(dtype));
  CHECK(poisoned <= (pieces + 1) * of_a_sector);
  CHECK(poisoned >= (pieces - 1) * of_a_sector);  // the pieces at its ends may be cut
  const auto found = f.run(
      kAllLive,
      [&] {
        const std::vector<std::byte> old(out.data,
                                         out.data + kRows * kColumns * static_cast<int64_t>(dtype_bytes(dtype)));
        fill(out, random);
        const size_t begin = 3 * kColumns * dtype_bytes(dtype);
        std::copy(old.begin() + static_cast<int64_t>(begin), old.begin() + static_cast<int64_t>(begin / 3 * 4),
                  out.data + begin);
      },
      checks.get());
  REQUIRE(found.size() == 1);
  CHECK(found[0].violation.kind == "unwritten");
  CHECK(found[0].violation.index.front() == 3);
  require_same(found, f.expected(kAllLive));
  // A part of a line that is left in every row: in some row its sector was the one.
  const auto column = f.run(
      kAllLive,
      [&] {
        const std::vector<std::byte> old(out.data,
                                         out.data + kRows * kColumns * static_cast<int64_t>(dtype_bytes(dtype)));
        fill(out, random);
        for (size_t line = 0; line < old.size(); line += 128)
          std::copy(old.begin() + static_cast<int64_t>(line), old.begin() + static_cast<int64_t>(line + 32),
                    out.data + line);
      },
      checks.get());
  REQUIRE(column.size() == 1);
  CHECK(column[0].violation.kind == "unwritten");
}

TEST_CASE("GPU: e4m3 block scales", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  std::mt19937 random(4);
  DeviceFixture f;
  const TensorView scales = f.tensor(Dtype::kF8E4M3, {7, 24});
  f.writes(scales, Content::kE4m3Scales);
  const LiveCounts live{6, 1};
  CHECK(f.run(live, [&] {
           fill(scales, random);
           scales.as<uint8_t>()[6 * 24] = 0x7F;
         }).empty());
  const auto broken = f.run(live, [&] {
    fill(scales, random);
    scales.as<uint8_t>()[5 * 24 + 3] = 0x7F;
  });
  REQUIRE(broken.size() == 1);
  CHECK(broken[0].violation.kind == "nonfinite");
  require_same(broken, f.expected(live));
  const auto left = f.run(live, [&] {
    const uint8_t kept = scales.as<uint8_t>()[30];
    fill(scales, random);
    scales.as<uint8_t>()[30] = kept;
  });
  REQUIRE(left.size() == 1);
  CHECK(left[0].violation.kind == "unwritten");
  require_same(left, f.expected(live));
}

TEST_CASE("GPU: code bytes that kept this pass's poison", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  std::mt19937 random(5);
  const int64_t columns = GENERATE(64, 20, 12);
  const bool sliced = GENERATE(false, true);
  const bool reference = GENERATE(false, true);
  DeviceFixture f;
  TensorView codes = f.tensor(Dtype::kU8, {6, columns});
  if (sliced) codes = slice_last(codes, 2, columns - 2);
  f.op(0, {{OperandSpec{"codes", Direction::kOut, Content::kFp4Codes, {}, {}, false}, codes, {}, {}}}, {}, reference);
  const LiveCounts live{5, 1};
  CHECK(f.run(live, [&] { fill(codes, random); }).empty());
  const auto left = f.run(live, [&] {
    std::vector<uint8_t> row(codes.as<uint8_t>() + codes.offset(3),
                             codes.as<uint8_t>() + codes.offset(3) + codes.dim(1));
    fill(codes, random);
    std::copy(row.begin(), row.end(), codes.as<uint8_t>() + codes.offset(3));
  });
  if (reference) {
    CHECK(left.empty());  // as on the host, which runs a reference once
  } else {
    require_same(left, f.expected(live));
    REQUIRE(left.size() == (codes.dim(1) < 15 && f.expected(live).empty() ? 0 : 1));
  }
  // The same bytes in the next pass are no poison any more.
  const std::vector<std::byte> old(codes.data, codes.data + codes.extent());
  CHECK(f.run(live, [&] { std::copy(old.begin(), old.end(), codes.data); }).empty());
}

TEST_CASE("GPU: integers that were not written", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  std::mt19937 random(6);
  DeviceFixture f;
  const TensorView numbers = f.tensor(Dtype::kI32, {11});
  f.writes(numbers, Content::kMetadata, Region{Rows::kRequests});
  const LiveCounts live{1, 9};
  CHECK(f.run(live, [&] {
           const int32_t kept = numbers.as<int32_t>()[9];
           fill(numbers, random);
           numbers.as<int32_t>()[9] = kept;
         }).empty());
  const auto left = f.run(live, [&] {
    const int32_t kept = numbers.as<int32_t>()[8];
    fill(numbers, random);
    numbers.as<int32_t>()[8] = kept;
  });
  REQUIRE(left.size() == 1);
  require_same(left, f.expected(live));
}

TEST_CASE("GPU: live rows by top-k, by lengths and by sums are device data", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  std::mt19937 random(7);
  DeviceFixture f;
  SECTION("rows of a token's experts") {
    const bool per_token = GENERATE(false, true);
    const TensorView x = f.tensor(Dtype::kBF16, {12, 24});
    Region region;
    region.multiplier = per_token ? Region::kTopKUnlessPerToken : Region::kTopK;
    Attributes attributes;
    attributes.set("k", 3).set("x_per_token", per_token);
    f.op(0, {{OperandSpec{"x", Direction::kOut, Content::kValues, region, {}, false}, x, {}, {}}}, attributes);
    const int64_t rows = per_token ? 2 : 6;
    for (const bool inside : {false, true}) {
      const auto found = f.run(LiveCounts{2, 1}, [&] {
        fill(x, random);
        x.store(x.offset(inside ? rows - 1 : rows, 5), NAN);
      });
      CHECK(found.size() == (inside ? 1 : 0));
      require_same(found, f.expected(LiveCounts{2, 1}));
    }
  }
  SECTION("columns up to a row's length") {
    const int64_t columns = GENERATE(40, 9000);
    const int32_t first = static_cast<int32_t>(columns) - 3;
    const TensorView scores = f.tensor(Dtype::kF32, {4, columns});
    const TensorView lengths = f.integers({4}, {first, 7, 0, 1});
    Region region;
    region.lengths_operand = 1;
    f.op(0, {{OperandSpec{"scores", Direction::kOut, Content::kValues, region, {}, false}, scores, {}, {}},
             plain_input(lengths)});
    const auto write = [&] {
      for (int64_t row = 0; row < 4; ++row)
        for (int64_t c = 0; c < lengths.as<int32_t>()[row]; ++c) scores.store(scores.offset(row, c), 1.0f);
    };
    CHECK(f.run(LiveCounts{4, 4}, write).empty());
    const auto found = f.run(LiveCounts{4, 4}, [&] {
      write();
      scores.store(scores.offset(1, 6), NAN);
      scores.store(scores.offset(0, first - 1), INFINITY);
      scores.store(scores.offset(0, first), NAN);  // past the length
      scores.store(scores.offset(2, 0), NAN);
    });
    REQUIRE(found.size() == 1);
    CHECK(found[0].violation.count == 2);
    require_same(found, f.expected(LiveCounts{4, 4}));
    CHECK(f.run(LiveCounts{1, 1}, [&] {
             write();
             scores.store(scores.offset(1, 6), NAN);
           }).empty());
  }
  SECTION("as many rows as lengths sum to") {
    const TensorView rows = f.tensor(Dtype::kBF16, {40, 16});
    const TensorView lengths = f.integers({3}, {4, 9, 5});
    Region region;
    region.rows = Rows::kRequests;
    region.sum_operand = 1;
    f.op(0, {{OperandSpec{"rows", Direction::kOut, Content::kValues, region, {}, false}, rows, {}, {}},
             plain_input(lengths)});
    for (const int64_t requests : {2, 3}) {
      const LiveCounts live{1, requests};
      const auto found = f.run(live, [&] {
        fill(rows, random);
        rows.store(rows.offset(13, 2), NAN);
      });
      CHECK(found.size() == (requests == 3 ? 1 : 0));
      require_same(found, f.expected(live));
    }
  }
}

TEST_CASE("GPU: canaries around buffers", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  std::mt19937 random(14);
  DeviceFixture f;
  const TensorView out = f.tensor(Dtype::kF32, {4, 8});
  f.writes(out);
  auto guarded = f.device().allocate(100);
  auto other = f.device().allocate(1000);
  REQUIRE(guarded);
  REQUIRE(other);
  auto checks = f.make({}, {{(*other)->data(), 1000, "other"}, {(*guarded)->data(), 100, "guarded"}});
  CHECK(f.run(
             kAllLive, [&] { fill(out, random); }, checks.get())
            .empty());
  const int64_t offset = GENERATE(-64, -1, 100, 163);
  const std::byte zero{0};
  f.device().copy((*guarded)->data() + offset, &zero, 1);
  const auto found = f.run(
      kAllLive, [&] { fill(out, random); }, checks.get());
  REQUIRE(found.size() == 1);
  CHECK(found[0].violation.kind == "canary");
  CHECK(found[0].violation.index == std::vector<int64_t>{offset});
  CHECK(found[0].buffer == "guarded");
  int64_t as_host = 0;
  REQUIRE((*guarded)->canary_broken(as_host));
  CHECK(as_host == offset);
}

TEST_CASE("GPU: checks: finite looks for values and probabilities only, and lays no poison", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  DeviceFixture f;
  const TensorView out = f.tensor(Dtype::kF32, {2, 8});
  const TensorView ids = f.integers({2}, {5, 6});
  f.writes(out);
  IndexRule rule;
  rule.end = 3;
  f.op(0, {{OperandSpec{"ids", Direction::kOut, Content::kIndices, {}, {}, false}, ids, {}, rule}});
  DeviceCheckOptions options;
  options.full = false;
  auto checks = f.make(options);
  CHECK_FALSE(checks->has_indices(1));
  CHECK(f.run(
             kAllLive, [] {}, checks.get())
            .empty());
  const auto found = f.run(
      kAllLive, [&] { out.as<uint32_t>()[9] = kFloatSentinel; }, checks.get());
  REQUIRE(found.size() == 1);
  CHECK(found[0].violation.kind == "nonfinite");
}

TEST_CASE("GPU: the first broken group is told, then forgotten", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  DeviceFixture f;
  const TensorView a = f.tensor(Dtype::kF32, {2, 8});
  const TensorView b = f.tensor(Dtype::kBF16, {2, 8});
  const TensorView c = f.tensor(Dtype::kF32, {2, 8});
  const auto out = [](const TensorView& view) {
    return DeviceFixture::Operand{OperandSpec{"out", Direction::kOut, Content::kValues, {}, {}, false}, view, {}, {}};
  };
  f.op(0, {out(a)});
  f.op(1, {out(b)});
  f.op(2, {out(c), out(a)});
  DeviceChecks& checks = f.checks();
  const auto pass = [&](float value_a, float value_b, float value_c) {
    checks.set_live({2, 2});
    for (int group = 0; group < 3; ++group) {
      checks.poison(group);
      for (const auto& [view, value] : {std::pair{a, value_a}, {b, value_b}, {c, value_c}})
        for (int64_t i = 0; i < 16; ++i) view.store(i, value);
      f.upload();
      checks.check(group);
    }
    REQUIRE_FALSE(f.device().wait());
    return checks.read();
  };
  CHECK(pass(1, 1, 1).empty());
  const auto found = pass(1, NAN, INFINITY);
  REQUIRE(found.size() == 1);
  CHECK(found[0].op == 1);
  CHECK(found[0].violation.count == 16);
  CHECK(checks.page().progress.group_done == 2);
  CHECK(checks.page().progress.pass == 2);
  CHECK(pass(1, 1, 1).empty());
  const auto last = pass(1, 1, NAN);
  REQUIRE(last.size() == 1);
  CHECK(last[0].op == 2);
}

TEST_CASE("GPU: marks of groups and ops", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  DeviceFixture f;
  f.writes(f.tensor(Dtype::kF32, {2, 8}));
  DeviceChecks& checks = f.checks();
  checks.set_live({2, 2});
  checks.mark_group(5, false);
  checks.mark_op(7, false);
  REQUIRE_FALSE(f.device().wait());
  CHECK(checks.page().progress.group_begun == 5);
  CHECK(checks.page().progress.op_begun == 7);
  checks.mark_op(7, true);
  checks.mark_group(5, true);
  REQUIRE_FALSE(f.device().wait());
  CHECK(checks.page().progress.op_done == 7);
  CHECK(checks.page().progress.group_done == 5);
  CHECK(checks.page().progress.pass == 1);
}

TEST_CASE("GPU: lengths that the group itself makes are not asked when it begins", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  DeviceFixture f;
  const TensorView lengths = f.tensor(Dtype::kI32, {2});
  const TensorView table = f.tensor(Dtype::kI32, {2, 1000});
  IndexRule any;
  any.end = 1000;
  Region region;
  region.lengths_operand = 1;
  f.op(0, {{OperandSpec{"table", Direction::kOut, Content::kIndices, region, {}, false}, table, {}, any},
           {OperandSpec{"lengths", Direction::kOut, Content::kIndices, {}, {}, false}, lengths, {}, any}});
  const auto found = f.run(kAllLive, [&] {
    CHECK(table.as<int32_t>()[1999] == kIntSentinel);
    lengths.as<int32_t>()[0] = 3;
    lengths.as<int32_t>()[1] = 900;
    for (int i = 0; i < 1000; ++i) {
      table.as<int32_t>()[i] = i < 3 ? i : table.as<int32_t>()[i];
      table.as<int32_t>()[1000 + i] = i < 900 ? i : table.as<int32_t>()[1000 + i];
    }
  });
  CHECK(found.empty());
}

TEST_CASE("GPU: a captured pass reads live counts when it is replayed", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  DeviceFixture f;
  const TensorView out = f.tensor(Dtype::kBF16, {8, 64});
  const TensorView source = f.tensor(Dtype::kBF16, {8, 64});
  const TensorView ids = f.tensor(Dtype::kI32, {8, 4});
  const TensorView id_source = f.tensor(Dtype::kI32, {8, 4});
  f.writes(out);
  IndexRule rule;
  rule.end = 16;
  rule.unique = true;
  f.op(0, {{OperandSpec{"ids", Direction::kOut, Content::kIndices, {}, {}, false}, ids, {}, rule}});
  for (int64_t i = 0; i < 8 * 64; ++i) source.store(i, i < 5 * 64 ? 1.0f : NAN);
  for (int64_t i = 0; i < 8 * 4; ++i) id_source.as<int32_t>()[i] = static_cast<int32_t>(i < 7 * 4 ? i % 4 : 3);
  f.upload();
  DeviceChecks& checks = f.checks();
  REQUIRE_FALSE(f.device().wait());
  REQUIRE(f.device().begin_capture());
  checks.poison(0);
  f.device().copy_async(f.device_address(out.data), f.device_address(source.data), 8 * 64 * 2);
  f.device().copy_async(f.device_address(ids.data), f.device_address(id_source.data), 8 * 4 * 4);
  checks.check_indices(1);
  checks.check(0);
  auto graph = f.device().end_capture();
  REQUIRE(graph);
  for (const int64_t tokens : {5, 6, 5, 8, 1}) {
    checks.set_live({tokens, tokens});
    REQUIRE(f.device().launch(**graph));
    REQUIRE_FALSE(f.device().wait());
    const auto found = checks.read();
    f.download();
    require_same(found, f.expected({tokens, tokens}));
    CHECK(found.size() == static_cast<size_t>(tokens > 7 ? 2 : (tokens > 5 ? 1 : 0)));
  }
}

TEST_CASE("GPU: random ops with random corruption: the device says what the host says", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  int broken = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const auto below = [&](int64_t end) { return static_cast<int64_t>(random() % static_cast<uint64_t>(end)); };
    DeviceFixture f;
    const int64_t rows = 1 + below(12);
    const LiveCounts live{1 + below(rows), 1 + below(rows)};
    std::vector<std::pair<TensorView, Content>> outputs;
    const int64_t ops = 1 + below(5);
    for (int64_t i = 0; i < ops; ++i) {
      const Dtype dtype =
          std::array{Dtype::kF32, Dtype::kBF16, Dtype::kU8, Dtype::kF8E4M3, Dtype::kI32}[static_cast<size_t>(below(5))];
      const int64_t columns = std::array<int64_t, 5>{1, 24, 64, 129, 4500}[static_cast<size_t>(below(5))];
      const int64_t skip = std::array<int64_t, 3>{0, 16, 5}[static_cast<size_t>(below(3))];
      const TensorView view = slice_last(f.tensor(dtype, {rows, columns + 2 * skip}), skip, columns);
      const Content content = dtype == Dtype::kU8       ? Content::kFp4Codes
                              : dtype == Dtype::kF8E4M3 ? Content::kE4m3Scales
                              : dtype == Dtype::kI32    ? Content::kIndices
                                                        : Content::kValues;
      IndexRule rule;
      rule.end = 1000;
      rule.unique = below(2) == 0 && columns < 100;
      Region region;
      region.rows = std::array{Rows::kAll, Rows::kTokens, Rows::kRequests}[static_cast<size_t>(below(3))];
      std::vector<DeviceFixture::Operand> operands{
          {OperandSpec{"out", Direction::kOut, content, region, {}, false}, view, {}, rule}};
      if (dtype != Dtype::kU8 && below(3) == 0) {
        std::vector<int32_t> lengths;
        for (int64_t r = 0; r < rows; ++r) lengths.push_back(static_cast<int32_t>(below(columns + 3)));
        operands[0].spec.region.lengths_operand = 1;
        operands.push_back(plain_input(f.integers({rows}, lengths)));
      }
      f.op(0, operands);
      outputs.emplace_back(view, content);
    }
    const auto found = f.run(live, [&] {
      for (const auto& [view, content] : outputs) {
        const std::vector<std::byte> poisoned(view.data,
                                              view.data + static_cast<size_t>(view.extent()) * dtype_bytes(view.dtype));
        fill(view, random);
        if (content == Content::kIndices)
          for (int64_t r = 0; r < rows; ++r)
            for (int64_t c = 0; c < view.dim(1); ++c)
              view.as<int32_t>()[view.offset(r, c)] = static_cast<int32_t>((c * 7 + r) % 1000);
        if (below(2) == 0) continue;
        for (int64_t n = below(4); n >= 0; --n) {
          const int64_t at = view.offset(below(rows), below(view.dim(1)));
          const size_t size = dtype_bytes(view.dtype);
          if (below(2) == 0) {  // some of it is left as it was
            const int64_t run = std::min<int64_t>(1 + below(40), view.extent() - at);
            memcpy(view.data + static_cast<size_t>(at) * size, poisoned.data() + static_cast<size_t>(at) * size,
                   static_cast<size_t>(run) * size);
          } else if (content == Content::kIndices) {
            view.as<int32_t>()[at] = static_cast<int32_t>(below(1200)) - 100;
          } else if (content == Content::kE4m3Scales) {
            view.as<uint8_t>()[at] = 0x7F;
          } else if (content == Content::kValues) {
            view.store(at, below(2) == 0 ? NAN : -INFINITY);
          }
        }
      }
    });
    const auto expected = f.expected(live);
    broken += expected.empty() ? 0 : 1;
    require_same(found, expected);
  }
  CHECK(broken > 20);
}

#endif  // FAULTLINE_HAVE_CUDA
