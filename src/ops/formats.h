// Storage formats: how the bytes of a tensor mean values. Two formats of one tensor are two different things: a reader
// that assumes another format than the writer's is a `layout` violation.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/tensor.h"

namespace faultline {

enum class Format : uint8_t {
  kPlain,       // the dtype says all
  kNvfp4,       // two e2m1 codes a byte, low nibble = even column
  kKvF32,       // latent cache, rows of kv_lora_rank + rope floats
  kKvBf16,      // the same in bf16 (1152 bytes a token at the real size)
  kKvPacked,    // e4m3 latent, 4 fp32 scales (one a quarter of the latent, amax / 448), bf16 rope (656 bytes)
  kKvPlainFp8,  // e4m3 latent and rope, one scalar scale of 1 (576 bytes)
  kIndexF32,    // index keys as floats
  kIndexFp8,    // pages of 64: 64 x dim e4m3 codes, then 64 fp32 scales (8448 bytes a page at dim 128)
};

// "plain", "nvfp4", "kv_f32", "kv_bf16", "kv_packed", "kv_plain_fp8", "index_f32", "index_fp8".
std::string_view format_name(Format format);

// What a paged cache looks like. `page_size` tokens a page; slot = page * page_size + offset.
struct CacheGeometry {
  Format format = Format::kKvBf16;
  int64_t slots = 0;  // capacity, a multiple of page_size
  int64_t page_size = 64;
  int64_t latent = 0;  // kv_lora_rank; for index caches the index head dim
  int64_t rope = 0;    // qk_rope_head_dim; 0 for index caches
  // Bytes from one slot to the next where a reader walks rows that were written in a longer format (flashinfer takes
  // the packed rows of 656 bytes for plain ones of 576); 0: row_bytes(). KV caches only.
  int64_t row_stride_bytes = 0;

  int64_t width() const { return latent + rope; }  // values a token
  int64_t row_bytes() const;                       // bytes that hold a token's values
  int64_t stride_bytes() const { return row_stride_bytes != 0 ? row_stride_bytes : row_bytes(); }
  int64_t total_bytes() const { return slots * stride_bytes(); }
  bool is_index() const { return format == Format::kIndexF32 || format == Format::kIndexFp8; }
};

inline constexpr int kPackedScales = 4;  // fp32 scales a packed row; one covers latent / 4 values

// The byte ranges [begin, end) that hold one slot (at most two: index pages keep scales apart from codes).
struct ByteRange {
  int64_t begin = 0;
  int64_t end = 0;
};
std::array<ByteRange, 2> slot_bytes(const CacheGeometry& geometry, int64_t slot);

// Decodes one slot into width() floats, plainly: the definition that every kernel is held to.
void decode_slot(const CacheGeometry& geometry, const std::byte* cache, int64_t slot, float* out);
// Encodes width() floats into one slot, plainly. `floorless`: amax 0 divides by zero, as the server's writer does;
// otherwise amax is at least 1e-4 (index keys always have the floor).
// `ue8m0`: scales of index keys are powers of two, of amax * (1 / 448) rounded up.
void encode_slot(const CacheGeometry& geometry, std::byte* cache, int64_t slot, const float* values, bool floorless,
                 bool ue8m0 = false);

// Values as e4m3 codes would give them back, with one scale for all of them that is not applied: values become codes,
// and the scale is returned. The arithmetic of an index key.
float quantize_index_values(float* values, int64_t count, bool ue8m0);

}  // namespace faultline
