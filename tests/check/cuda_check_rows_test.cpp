// Indices, probabilities and cache slots on the device against the host's checks.
#ifdef FAULTLINE_HAVE_CUDA
#include <algorithm>
#include <cmath>
#include <limits>

#include "device_fixture.h"

using namespace faultline;

TEST_CASE("GPU: probability rows", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  std::mt19937 random(8);
  const int64_t columns = GENERATE(5, 4097, 20000);
  DeviceFixture f;
  const TensorView probs = f.tensor(Dtype::kF32, {4, columns});
  f.writes(probs, Content::kProbabilities, Region{Rows::kRequests});
  const LiveCounts live{1, 3};
  const auto write = [&] {
    std::uniform_real_distribution<float> value(0, 1);
    for (int64_t row = 0; row < 4; ++row) {
      double sum = 0;
      for (int64_t c = 0; c < columns; ++c) sum += probs.as<float>()[row * columns + c] = value(random);
      for (int64_t c = 0; c < columns; ++c) probs.as<float>()[row * columns + c] /= static_cast<float>(sum);
    }
  };
  CHECK(f.run(live, [&] {
           write();
           probs.as<float>()[3 * columns] = -1;  // a padded row
           probs.as<float>()[1] = -0.0f * probs.as<float>()[1] + probs.as<float>()[1];
         }).empty());
  struct Case {
    std::vector<std::pair<int64_t, float>> changes;
    const char* kind;
  };
  const Case c =
      GENERATE_COPY(Case{{{columns + 2, -0.5f}}, "probability"}, Case{{{columns + 2, NAN}}, "nonfinite"},
                    Case{{{2, INFINITY}}, "nonfinite"}, Case{{{columns, 0.5f}}, "probability"},
                    Case{{{0, 3.0f}, {2 * columns + 1, -1.0f}, {2 * columns + 3, -1.0f}}, "probability"},
                    Case{{{1, -1.0f}, {columns, 0.9f}}, "probability"}, Case{{{1, -1.0f}, {2, 2.0f}}, "probability"});
  const auto found = f.run(live, [&] {
    write();
    for (const auto& [at, value] : c.changes) probs.as<float>()[at] = value;
  });
  REQUIRE(found.size() == 1);
  CHECK(found[0].violation.kind == c.kind);
  require_same(found, f.expected(live));
  const auto left = f.run(live, [&] {
    const uint32_t kept = probs.as<uint32_t>()[columns + 1];
    write();
    probs.as<uint32_t>()[columns + 1] = kept;
  });
  REQUIRE(left.size() == 1);
  CHECK(left[0].violation.kind == "unwritten");
  require_same(left, f.expected(live));
}

TEST_CASE("GPU: index rules", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  std::mt19937 random(9);
  const int64_t pool = GENERATE(600, 300000);  // the second takes more than one window of the bitmaps
  const int64_t topk = GENERATE(8, 300);
  const int64_t context = 400;
  DeviceFixture f;
  const TensorView entries = f.tensor(Dtype::kI32, {4, topk});
  const TensorView lengths = f.integers({4}, {400, 5, 290, 1});
  const TensorView table = f.tensor(Dtype::kI32, {2, context});
  const TensorView map = f.integers({4}, {0, 1, 1, 0});
  // Request 0 has the even slots, request 1 the odd ones, spread over the pool.
  const int64_t step = pool / context / 2 * 2;
  for (int64_t r = 0; r < 2; ++r)
    for (int64_t c = 0; c < context; ++c)
      table.as<int32_t>()[r * context + c] =
          static_cast<int32_t>(std::min<int64_t>(pool / 2 - 1, c * std::max<int64_t>(step / 2, 1)) * 2 + r);
  IndexRule rule;
  rule.end = pool;
  rule.minus_one_tail = true;
  rule.unique = true;
  rule.count_lengths_operand = 1;
  rule.page_table_operand = 2;
  rule.row_to_request_operand = 3;
  rule.owner_lengths_operand = 1;
  f.op(0, {{OperandSpec{"indices", Direction::kOut, Content::kIndices, {}, {}, false}, entries, {}, rule},
           plain_input(lengths),
           plain_input(table),
           plain_input(map)});
  const auto write = [&] {
    for (int64_t row = 0; row < 4; ++row) {
      const int64_t valid = std::min<int64_t>(lengths.as<int32_t>()[row], topk);
      std::vector<int32_t> slots;
      for (int64_t c = 0; c < lengths.as<int32_t>()[row]; ++c)
        slots.push_back(table.as<int32_t>()[map.as<int32_t>()[row] * context + c]);
      std::sort(slots.begin(), slots.end());
      slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
      REQUIRE(static_cast<int64_t>(slots.size()) >= valid);
      std::shuffle(slots.begin(), slots.end(), random);
      for (int64_t c = 0; c < topk; ++c)
        entries.as<int32_t>()[row * topk + c] = c < valid ? slots[static_cast<size_t>(c)] : -1;
    }
  };
  const LiveCounts live{3, 2};
  CHECK(f.run(live, write).empty());
  CHECK(f.run(live, [&] {
           write();
           entries.as<int32_t>()[3 * topk] = -7;  // padded
         }).empty());
  const int cause = GENERATE(0, 1, 2, 3, 4, 5, 6);
  const auto found = f.run(live, [&] {
    const int32_t poison = entries.as<int32_t>()[topk + 2];
    write();
    int32_t* e = entries.as<int32_t>();
    if (cause == 0) e[3] = static_cast<int32_t>(pool);
    if (cause == 1) e[topk + 1] = -1;
    if (cause == 2) e[topk + 5] = e[topk + 4];
    if (cause == 3) e[2 * topk + topk - 1] = e[2 * topk];
    if (cause == 4) e[topk] = 8;  // request 0's
    if (cause == 5) e[topk + 2] = poison;
    if (cause == 6) {
      e[4] = e[5];
      e[6] = e[5];
      e[7] = -2;
      e[topk] = static_cast<int32_t>(pool) + 5;
      e[topk + 6] = 3;
    }
  });
  REQUIRE(found.size() == 1);
  CHECK(found[0].violation.kind == "bounds");
  require_same(found, f.expected(live));
}

TEST_CASE("GPU: flat index tensors", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  std::mt19937 random(10);
  const bool unique = GENERATE(false, true);
  const int64_t count = GENERATE(7, 5000);
  DeviceFixture f;
  const TensorView order = f.tensor(Dtype::kI32, {count});
  IndexRule rule;
  rule.end = count;
  rule.unique = unique;
  f.op(0, {{OperandSpec{"order", Direction::kOut, Content::kIndices, Region{Rows::kAll}, {}, false}, order, {}, rule}});
  const auto write = [&] {
    for (int64_t i = 0; i < count; ++i) order.as<int32_t>()[i] = static_cast<int32_t>(i);
    std::shuffle(order.as<int32_t>(), order.as<int32_t>() + count, random);
  };
  CHECK(f.run(kAllLive, write).empty());
  const auto twice = f.run(kAllLive, [&] {
    write();
    order.as<int32_t>()[count - 1] = order.as<int32_t>()[1];
  });
  CHECK(twice.size() == (unique ? 1 : 0));
  require_same(twice, f.expected(kAllLive));
  const auto outside = f.run(kAllLive, [&] {
    write();
    order.as<int32_t>()[count - 2] = -1;
    order.as<int32_t>()[count - 1] = static_cast<int32_t>(count);
  });
  REQUIRE(outside.size() == 1);
  require_same(outside, f.expected(kAllLive));
}

TEST_CASE("GPU: the slots of every cache format", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  std::mt19937 random(11);
  const Format format = GENERATE(Format::kKvF32, Format::kKvBf16, Format::kKvPacked, Format::kKvPlainFp8,
                                 Format::kIndexF32, Format::kIndexFp8);
  const CacheGeometry geometry = geometry_of(format);
  DeviceFixture f;
  const TensorView cache = f.cache(geometry);
  const std::vector<int32_t> slots{17, 4, 30, 18, 0, 0};  // the last two rows are padded
  const TensorView listed = f.integers({6}, slots);
  f.op(0, {plain_input(listed), cache_output(cache, geometry, 0)});
  std::vector<int32_t> every(64);
  for (int32_t i = 0; i < 64; ++i) every[static_cast<size_t>(i)] = i;
  write_slots(geometry, cache, every, random);
  const LiveCounts live{4, 4};
  const auto write = [&] { write_slots(geometry, cache, slots, random); };
  CHECK(f.run(live, write).empty());
  CHECK(f.run(live, [&] {
           write();
           for (const ByteRange& range : slot_bytes(geometry, 0))
             for (int64_t at = range.begin; at < range.end; ++at) cache.data[at] = std::byte{0xFF};  // padded
         }).empty());
  SECTION("not finite") {
    const int piece = GENERATE(0, 1, 2);
    const auto found = f.run(live, [&] {
      write();
      const auto ranges = slot_bytes(geometry, 4);
      std::byte* row = cache.data + ranges[0].begin;
      if (piece == 0) row[3] = std::byte{0x7F}, row[2] = std::byte{0xC0};  // a code, or the high half of a float
      if (piece == 1) {                                                    // a scale, or another value
        const float bad = INFINITY;
        std::byte* at = format == Format::kKvPacked   ? row + geometry.latent + 8
                        : format == Format::kIndexFp8 ? cache.data + ranges[1].begin
                                                      : row + 16;
        memcpy(at, &bad, sizeof bad);
        if (format == Format::kKvPlainFp8) row[16] = std::byte{0xFF};
      }
      if (piece == 2) {  // the last bytes, in two slots
        row[geometry.row_bytes() - 1 - (format == Format::kIndexFp8 ? 4 : 0)] = std::byte{0x7F};
        row[geometry.row_bytes() - 2 - (format == Format::kIndexFp8 ? 4 : 0)] = std::byte{0xFF};
        std::byte* other = cache.data + slot_bytes(geometry, 18)[0].begin;
        other[3] = std::byte{0x7F};
        other[2] = std::byte{0xFF};
      }
    });
    REQUIRE(found.size() == 1);
    CHECK(found[0].violation.kind == "nonfinite");
    require_same(found, f.expected(live));
  }
  SECTION("not written") {
    const int64_t from = GENERATE(0, 1, 2);  // whole, the second half, the last 8 bytes
    const auto found = f.run(live, [&] {
      const std::vector<std::byte> poisoned(cache.data, cache.data + geometry.total_bytes());
      write();
      for (const ByteRange& range : slot_bytes(geometry, 30)) {
        const int64_t size = range.end - range.begin;
        const int64_t skip = from == 0 ? 0 : (from == 1 ? size / 2 / 8 * 8 : std::max<int64_t>(size - 8, 0));
        for (int64_t at = range.begin + skip; at < range.end; ++at) cache.data[at] = poisoned[static_cast<size_t>(at)];
      }
    });
    REQUIRE(found.size() == 1);
    CHECK(found[0].violation.kind == "unwritten");
    require_same(found, f.expected(live));
  }
  SECTION("a neighbour's byte") {
    const int64_t slot = GENERATE(19, 5, 1, 47, 31);
    const auto found = f.run(live, [&] {
      write();
      const auto ranges = slot_bytes(geometry, slot);
      cache.data[ranges[0].end - 1] ^= std::byte{0x01};
    });
    if (slot == 47) {
      CHECK(found.empty());  // of a page that is not touched
    } else {
      REQUIRE(found.size() == 1);
      CHECK(found[0].violation.kind == "bounds");
      CHECK(found[0].violation.operand == 1);
      CHECK(found[0].violation.index == std::vector<int64_t>{slot / 8});
      CHECK(found[0].violation.count == 1);
    }
  }
  SECTION("a neighbour's scale in another place of the page") {
    const auto found = f.run(live, [&] {
      write();
      const auto ranges = slot_bytes(geometry, 16);
      cache.data[(format == Format::kIndexFp8 ? ranges[1] : ranges[0]).begin] ^= std::byte{0x80};
    });
    REQUIRE(found.size() == 1);
    CHECK(found[0].violation.index == std::vector<int64_t>{2});
  }
}

TEST_CASE("GPU: slots that are out of the pool are the index check's business", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  std::mt19937 random(12);
  const CacheGeometry geometry = geometry_of(Format::kKvBf16);
  DeviceFixture f;
  const TensorView cache = f.cache(geometry);
  const TensorView listed = f.integers({3}, {-1, 64, 9});
  f.op(0, {plain_input(listed), cache_output(cache, geometry, 0)});
  CHECK(f.run(kAllLive, [&] { write_slots(geometry, cache, {9}, random); }).empty());
}

TEST_CASE("GPU: a cache that is packed anew has as many live slots as lengths sum to", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  std::mt19937 random(13);
  const CacheGeometry geometry = geometry_of(Format::kKvPacked);
  DeviceFixture f;
  const TensorView cache = f.cache(geometry);
  const TensorView listed = f.integers({8}, {5, 6, 20, 21, 22, 1000000, 7, 7});
  const TensorView lengths = f.integers({2}, {2, 3});
  Region region;
  region.rows = Rows::kRequests;
  region.slots_operand = 0;
  region.sum_operand = 1;
  f.op(0, {plain_input(listed),
           plain_input(lengths),
           {OperandSpec{"packed", Direction::kOut, Content::kCache, region, {}, false}, cache, geometry, {}}});
  for (const int64_t requests : {1, 2}) {
    const LiveCounts live{1, requests};
    CHECK(f.run(live, [&] { write_slots(geometry, cache, {5, 6, 20, 21, 22}, random); }).empty());
    const auto found = f.run(live, [&] { write_slots(geometry, cache, {5, 6, 20, 22}, random); });
    CHECK(found.size() == (requests == 2 ? 1 : 0));
    require_same(found, f.expected(live));
  }
}

#endif  // FAULTLINE_HAVE_CUDA
