// The attention kernels on a GPU: each build against the model reference and the kernel on the CPU, at small shapes
// (the single-source body) and at GLM-5's head sizes (the tensor-core body where the cache has one).
#include <algorithm>

#include "gpu_twin.h"
#include "ops/kinds.h"

using namespace faultline;
using namespace faultline::test;
using ops::Attention;

namespace {

struct Shape {
  int64_t heads = 4;
  int64_t latent = 32;
  int64_t rope = 16;
  int64_t topk = 16;
  int64_t splits = 1;
};
constexpr Shape kReal{.heads = 64, .latent = 512, .rope = 64, .topk = 200, .splits = 4};

// One request a token, with lengths of its own, over one pool of random rows.
struct Case {
  Case(Dtype dtype, Format format, Shape shape_, const std::vector<int32_t>& lengths_of, uint32_t seed,
       float query_size = 0.5f)
      : random(seed),
        shape(shape_),
        tokens(static_cast<int64_t>(lengths_of.size())),
        columns(lengths_of.empty() ? 1 : std::max(1, *std::max_element(lengths_of.begin(), lengths_of.end()))),
        geometry(geometry_of(format, (columns + 127) / 64 * 64, shape.latent, shape.rope)),
        q(random.values(dtype, {tokens, shape.heads, geometry.width()}, query_size)),
        pool(random_pool(geometry, random)),
        indices(Dtype::kI32, {tokens, shape.topk}),
        page_table(Dtype::kI32, {tokens, columns}),
        rows(Dtype::kI32, {tokens}),
        lengths(integers({tokens}, lengths_of)),
        offsets(Dtype::kI32, {tokens}),
        scratch(Dtype::kF32, {std::max<int64_t>(1, tokens * shape.splits * shape.heads * (shape.latent + 2))}),
        out(dtype, {tokens, shape.heads, shape.latent}),
        op(Attention::kName) {
    for (int64_t t = 0; t < tokens; ++t) {
      const std::vector<int32_t> slots = random.shuffled(geometry.slots);
      rows.view().store_index(t, tokens - 1 - t);
      offsets.view().store_index(t, t % 3);
      for (int64_t c = 0; c < columns; ++c)
        page_table.view().store_index((tokens - 1 - t) * columns + c, slots[static_cast<size_t>(c)]);
      for (int64_t i = 0; i < shape.topk; ++i)
        indices.view().store_index(t * shape.topk + i, i < lengths.integer(t) ? slots[static_cast<size_t>(i)] : -1);
    }
    scratch.fill(0xFF);
    out.fill(0xFF);
    op.add(q)
        .add_cache(pool, geometry)
        .add(indices)
        .add(page_table)
        .add(rows)
        .add(lengths)
        .add(offsets)
        .add(scratch)
        .add(out);
    op.attributes()
        .set("scale", shape.latent == 512 ? 0.0625 : 0.2)
        .set("dense", false)
        .set("index_form", 1)
        .set("topk", shape.topk)
        .set("splits", shape.splits);
  }

  void agree(Device& device, const std::string& kernel) {
    INFO(kernel << " " << format_name(geometry.format) << ", " << tokens << " tokens, " << shape.heads << " heads");
    require_gpu_agreement(device, op, Attention::kName, kernel, {{Attention::kOut, &out}});
  }
  GpuRun run(Device& device, const std::string& kernel, GpuBuild build) {
    out.fill(0xFF);
    return run_on_gpu(device, op, Attention::kName, kernel, build, {{Attention::kOut, &out}});
  }
  // How many of a token's outputs are NaN.
  int64_t nans(int64_t token) const {
    const int64_t row = shape.heads * shape.latent;
    int64_t count = 0;
    for (int64_t i = 0; i < row; ++i) count += std::isnan(out.at(token * row + i)) ? 1 : 0;
    return count;
  }
  int64_t row_values() const { return shape.heads * shape.latent; }

  Random random;
  Shape shape;
  int64_t tokens;
  int64_t columns;
  CacheGeometry geometry;
  Tensor q, pool, indices, page_table, rows, lengths, offsets, scratch, out;
  OpHarness op;
};

struct Served {
  const char* kernel;
  bool dense;
  std::vector<Format> formats;
};
const std::vector<Served> kServed = {
    {"flashmla_sparse", false, {Format::kKvBf16, Format::kKvF32}},
    {"flashmla_kv", false, {Format::kKvPacked, Format::kKvF32}},
    {"trtllm", false, {Format::kKvBf16, Format::kKvPlainFp8, Format::kKvF32}},
    {"triton", true, {Format::kKvBf16, Format::kKvPlainFp8, Format::kKvF32}},
    {"flashinfer", true, {Format::kKvBf16, Format::kKvPlainFp8, Format::kKvF32}},
};

const std::vector<int32_t> kLengths = {1, 199, 200, 240, 0, 63, 64, 65, 128, 31, 33};

}  // namespace

TEST_CASE("attention at small shapes on a GPU", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  uint32_t seed = 1;
  for (const Served& served : kServed)
    for (const Format format : served.formats)
      for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32})
        for (const int64_t heads : {3, 8})
          for (const int form : {1, 2}) {
            if (form == 2 && !served.dense) continue;
            Case c(dtype, format, {.heads = heads, .topk = 200, .splits = 3}, kLengths, seed++);
            c.op.attributes().set("dense", served.dense).set("index_form", form);
            c.agree(*device, served.kernel);
            Case none(dtype, format, {.heads = heads, .topk = 200, .splits = 3}, {}, seed++);
            none.op.attributes().set("dense", served.dense).set("index_form", form);
            none.agree(*device, served.kernel);
          }
}

TEST_CASE("attention at GLM-5's head sizes on a GPU", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  uint32_t seed = 100;
  for (const Served& served : kServed)
    for (const Format format : served.formats)
      for (const int64_t heads : {64, 8})
        for (const int form : {1, 2}) {
          if (form == 2 && !served.dense) continue;
          Shape shape = kReal;
          shape.heads = heads;
          // Few tokens are split over the keys, many are not.
          for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{240}, {64}, {0}, {1, 65, 200}, kLengths}) {
            if (heads == 8 && lengths.size() == 1) continue;
            Case c(Dtype::kBF16, format, shape, lengths, seed++);
            c.op.attributes().set("dense", served.dense).set("index_form", form);
            c.agree(*device, served.kernel);
          }
        }
}

TEST_CASE("attention over 2048 selected keys, and over thousands, on a GPU", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  uint32_t seed = 200;
  Shape shape = kReal;
  shape.topk = 2048;
  for (const Served& served : kServed)
    for (const Format format : served.formats) {
      if (format == Format::kKvF32) continue;
      // Scores of any size: flat, and one key that takes all.
      for (const float query_size : {0.3f, 5.0f}) {
        Case c(Dtype::kBF16, format, shape, {3000}, seed++, query_size);
        c.op.attributes().set("dense", served.dense);
        c.agree(*device, served.kernel);
      }
    }
}

TEST_CASE("many tokens at once on a GPU", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  uint32_t seed = 300;
  Shape shape = kReal;
  shape.topk = 70;
  std::vector<int32_t> lengths;
  for (int32_t t = 0; t < 135; ++t) lengths.push_back(t % 3 == 0 ? t : 30);
  for (const Served& served : kServed)
    for (const Format format : served.formats) {
      if (format == Format::kKvF32) continue;
      Case c(Dtype::kBF16, format, shape, lengths, seed++);
      c.op.attributes().set("dense", served.dense);
      c.agree(*device, served.kernel);
    }
}

TEST_CASE("who masks -1 and slots past the pool on a GPU, and who reads them", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  for (const Shape shape : {Shape{}, kReal}) {
    for (const GpuBuild build : kEveryGpuBuild) {
      for (const auto& [kernel, format] :
           {std::pair{"flashmla_sparse", Format::kKvBf16}, std::pair{"flashmla_kv", Format::kKvPacked}}) {
        Case c(Dtype::kBF16, format, shape, {shape.topk == 16 ? 16 : 150, 16}, 400);
        c.indices.view().store_index(3, -1);
        if (build == GpuBuild::kFast) c.agree(*device, kernel);
        c.run(*device, kernel, build);
        CHECK(c.nans(0) == 0);
      }
    }
    Case sparse(Dtype::kBF16, Format::kKvBf16, shape, {16, 16}, 401);
    sparse.indices.view().store_index(5, static_cast<int32_t>(sparse.geometry.slots) + 2);
    sparse.indices.view().store_index(6, -7);
    sparse.agree(*device, "flashmla_sparse");
    // The readers: what lies there is read, and the checked build says where.
    for (const auto& [kernel, format] :
         {std::pair{"flashmla_kv", Format::kKvPacked}, std::pair{"trtllm", Format::kKvBf16}}) {
      Case c(Dtype::kBF16, format, shape, {16, 16}, 402);
      c.indices.view().store_index(5, static_cast<int32_t>(c.geometry.slots));
      const GpuRun run = c.run(*device, kernel, GpuBuild::kChecked);
      CHECK(run.log.count > 0);
      CHECK(run.log.first[0].operand == Attention::kCache);
      CHECK(run.log.first[0].is_write == kernels::kBadRead);
      CHECK(run.log.first[0].extent == c.geometry.total_bytes());
      CHECK(run.log.first[0].index / c.geometry.row_bytes() == c.geometry.slots);
      CHECK(c.nans(0) == c.row_values());
      CHECK(c.nans(1) == 0);
    }
    // The same read unchecked: a pool in the middle of a larger tensor, with NaN on both sides of it.
    for (const auto& [kernel, format] :
         {std::pair{"flashmla_kv", Format::kKvPacked}, std::pair{"trtllm", Format::kKvBf16},
          std::pair{"trtllm", Format::kKvPlainFp8}}) {
      for (const int32_t slot : {-1, 0}) {
        if (slot == -1 && std::string(kernel) != "trtllm") continue;  // FlashMLA masks it
        Case c(Dtype::kBF16, format, shape, {16, 16}, 403);
        const int64_t row = c.geometry.row_bytes();
        Tensor wide(Dtype::kU8, {c.geometry.total_bytes() + 2 * 1152});
        wide.fill(0xFF);
        std::memcpy(wide.view().data + 1152, c.pool.view().data, c.pool.bytes());
        c.indices.view().store_index(5, slot == -1 ? -1 : static_cast<int32_t>(c.geometry.slots));
        REQUIRE(row <= 1152);
        GpuCall call(*device, [&] {
          c.op.replace(Attention::kCache, wide);
          return c.op.call();
        }());
        for (const GpuBuild build : {GpuBuild::kFast, GpuBuild::kPlain}) {
          OpCall shifted = call.call(build);
          std::vector<Argument> arguments(shifted.arguments.begin(), shifted.arguments.end());
          TensorView inner =
              make_view(arguments[Attention::kCache].view().data + 1152, Dtype::kU8, {c.geometry.total_bytes()});
          arguments[Attention::kCache].views = std::span<const TensorView>(&inner, 1);
          shifted.arguments = arguments;
          REQUIRE(!find_kernel(Attention::kName, kernel)->run(shifted));
          REQUIRE(!device->wait());
          call.fetch(Attention::kOut, c.out);
          INFO(kernel << " " << build_name(build) << " " << slot);
          CHECK(c.nans(0) == c.row_values());
          CHECK(c.nans(1) == 0);
        }
      }
    }
  }
}

TEST_CASE("lengths that are trusted, and NaN keys, on a GPU", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  for (const Shape shape : {Shape{}, kReal}) {
    Case trusting(Dtype::kBF16, Format::kKvBf16, shape, {16, 16}, 410);
    trusting.lengths.view().store_index(0, 7);
    for (const GpuBuild build : kEveryGpuBuild) {
      Case seven(Dtype::kBF16, Format::kKvBf16, shape, {16, 16}, 410);
      for (int64_t i = 7; i < 16; ++i) seven.indices.view().store_index(i, -1);
      seven.run(*device, "flashmla_sparse", build);
      trusting.run(*device, "trtllm", build);
      const Tolerance tolerance = tolerance_for(Attention::kName, Dtype::kBF16);
      CHECK(difference(values_of(trusting.out, nullptr), values_of(seven.out, nullptr), tolerance) == "");
    }
    for (const Served& served : kServed)
      for (const int64_t column : {int64_t{1}, shape.latent + 1})  // of the latent part, of the rope part
        for (const Format format : served.formats) {
          if (format == Format::kKvF32) continue;
          Case c(Dtype::kBF16, format, shape, {16, 16}, 411);
          c.op.attributes().set("dense", served.dense);
          std::vector<float> values(static_cast<size_t>(c.geometry.width()), 1.0f);
          values[static_cast<size_t>(column)] = std::nanf("");
          const int64_t request = c.rows.integer(0);
          const int64_t slot = served.dense ? c.page_table.integer(request * c.columns + 2) : c.indices.integer(2);
          for (int64_t i = 0; i < 16; ++i) {
            const int64_t other = served.dense ? c.rows.integer(1) * c.columns + i : shape.topk + i;
            Tensor& list = served.dense ? c.page_table : c.indices;
            if (list.integer(other) == slot) list.view().store_index(other, list.integer(other == 0 ? 1 : other - 1));
          }
          encode_slot(c.geometry, c.pool.view().data, slot, values.data(), false);
          for (const GpuBuild build : kEveryGpuBuild) {
            c.run(*device, served.kernel, build);
            INFO(served.kernel << " " << format_name(format) << " " << column << " " << build_name(build));
            CHECK(c.nans(0) == c.row_values());
            CHECK(c.nans(1) == 0);
          }
        }
  }
}

TEST_CASE("flashinfer takes packed rows for plain codes on a GPU as on the CPU", "[gpu]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = gpu();
  for (const Shape shape : {Shape{}, kReal}) {
    Case c(Dtype::kBF16, Format::kKvPacked, shape, {50, 3}, 420);
    c.op.attributes().set("dense", true);
    REQUIRE(!c.op.run("flashinfer"));
    const std::vector<float> twin = values_of(c.out, nullptr);
    for (const GpuBuild build : kEveryGpuBuild) {
      CHECK(c.run(*device, "flashinfer", build).log.count == 0);
      const std::vector<float> got = values_of(c.out, nullptr);
      const Tolerance tolerance = tolerance_for(Attention::kName, Dtype::kBF16);
      INFO(build_name(build));
      CHECK(difference(got, twin, tolerance) == "");
    }
  }
}
