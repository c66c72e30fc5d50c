// An attention op over random tensors, for the tests of its kernels.
#pragma once

#include <algorithm>
#include <vector>

#include "op_harness.h"
#include "ops/kinds.h"

namespace faultline::test {

struct AttentionShape {
  int64_t heads = 4;
  int64_t latent = 32;
  int64_t rope = 16;
  int64_t topk = 16;
  int64_t splits = 1;
};

// One request a token, with lengths of its own, over one pool of random rows.
struct AttentionCase {
  AttentionCase(Dtype dtype, Format format, AttentionShape shape_, const std::vector<int32_t>& lengths_of,
                uint32_t seed = 1)
      : random(seed),
        shape(shape_),
        tokens(static_cast<int64_t>(lengths_of.size())),
        columns(lengths_of.empty() ? 1 : std::max(1, *std::max_element(lengths_of.begin(), lengths_of.end()))),
        geometry(geometry_of(format, (columns + 127) / 64 * 64, shape.latent, shape.rope)),
        q(random.values(dtype, {tokens, shape.heads, geometry.width()}, 0.5f)),
        pool(random_pool(geometry, random)),
        indices(Dtype::kI32, {tokens, shape.topk}),
        page_table(Dtype::kI32, {tokens, columns}),
        rows(Dtype::kI32, {tokens}),
        lengths(integers({tokens}, lengths_of)),
        offsets(Dtype::kI32, {tokens}),
        scratch(Dtype::kF32, {std::max<int64_t>(1, tokens * shape.splits * shape.heads * (shape.latent + 2))}),
        out(dtype, {tokens, shape.heads, shape.latent}),
        op(ops::Attention::kName) {
    for (int64_t t = 0; t < tokens; ++t) {
      const std::vector<int32_t> slots = random.shuffled(geometry.slots);
      rows.view().store_index(t, tokens - 1 - t);
      offsets.view().store_index(t, t % 3);
      for (int64_t c = 0; c < columns; ++c)
        page_table.view().store_index((tokens - 1 - t) * columns + c, slots[static_cast<size_t>(c)]);
      for (int64_t i = 0; i < shape.topk; ++i)
        indices.view().store_index(t * shape.topk + i, i < lengths.integer(t) ? slots[static_cast<size_t>(i)] : -1);
    }
    for (int64_t i = 0; i < scratch.view().elements(); ++i) scratch.view().store(i, std::nanf(""));
    for (int64_t i = 0; i < out.view().elements(); ++i) out.view().store(i, 77);
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
        .set("scale", 0.2)
        .set("dense", false)
        .set("index_form", 1)
        .set("topk", shape.topk)
        .set("splits", shape.splits);
  }

  Random random;
  AttentionShape shape;
  int64_t tokens;
  int64_t columns;
  CacheGeometry geometry;
  Tensor q;
  Tensor pool;
  Tensor indices;
  Tensor page_table;
  Tensor rows;
  Tensor lengths;
  Tensor offsets;
  Tensor scratch;
  Tensor out;
  OpHarness op;
};

// The values of index_form: through the page table, in a contiguous buffer.
inline constexpr int kPaged = 1, kRagged = 2;

// Slots in whole pages, as a server hands them out: key c lies at place c % 64 of its page.
inline void lay_out_pages(AttentionCase& c) {
  const int64_t page = c.geometry.page_size;
  for (int64_t t = 0; t < c.tokens; ++t) {
    const std::vector<int32_t> pages = c.random.shuffled(c.geometry.slots / page);
    for (int64_t k = 0; k < c.columns; ++k)
      c.page_table.view().store_index(t * c.columns + k, pages[static_cast<size_t>(k / page)] * page + k % page);
  }
}

// A dense one, through pages or over a contiguous buffer.
inline AttentionCase dense_attention_case(Dtype dtype, Format format, AttentionShape shape,
                                          const std::vector<int32_t>& lengths, int form = kPaged) {
  AttentionCase c(dtype, format, shape, lengths);
  if (form == kPaged) lay_out_pages(c);
  c.op.attributes().set("dense", true).set("index_form", form);
  return c;
}

}  // namespace faultline::test
