// What each attention backend needs and does: the cache formats it takes, how it stores and reads, where its kernel
// exists and what limits its launch. One table with citations (backends.cpp); the kernel of this build that follows a
// backend is found through the registry (Kernel::serves). Values that are not in the table but served by a registered
// kernel are taken by what the registration says.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grid/profile.h"
#include "ops/formats.h"
#include "ops/op.h"

namespace faultline {

// Names of cache formats in resolved configurations: "kv_f32", "kv_bf16", "kv_packed", "kv_plain_fp8".
std::string_view resolved_format_name(Format format);  // "?" for formats that are no latent cache's
std::optional<Format> format_from_resolved(std::string_view name);

enum class AttentionPhase : uint8_t { kPrefill, kDecode };

struct Backend {
  std::string value;                   // of the axis
  std::string served_by;               // another value, whose kernel runs for it in this phase; empty: its own
  const Kernel* kernel = nullptr;      // of this build; null: none follows the backend
  bool sparse = false;                 // reads top-k indices: the indexer runs
  std::vector<Format> formats;         // of the cache that its kernel takes; empty: any
  bool stores_by_assertion = false;    // stores by set_kv_buffer, which asserts that the pool is not packed
  bool reads_packed_as_plain = false;  // stores packed, reads plain e4m3
  bool prefill_from_rows = false;      // a prefill without a prefix attends the new rows, not the cache
  bool gathers_packed = false;         // a prefill with a prefix decodes a packed pool into a contiguous buffer first
  bool requantizes_bf16 = false;       // packs a BF16 pool anew before each call
  bool pads_heads = false;             // heads are padded to 64 (sm_90) or 128, which their number must divide
  bool needs_width_576 = false;        // latent + rope must be 576
  bool quantizes_query = false;        // with a plain FP8 cache the query is quantised to e4m3 too
  std::vector<int64_t> heads;          // of one rank that its kernel takes; empty: any
  std::vector<int64_t> topk;           // that its kernel takes; empty: any
  int64_t most_tokens = 0;             // of one launch (grid limit); 0: no limit
  std::string most_tokens_source;
  std::vector<Arch> archs;          // where the kernel exists; empty: everywhere
  std::string elsewhere;            // what the user sees on another architecture
  bool launched_anywhere = false;   // elsewhere its launch is tried all the same, and shared memory stops it first
  std::vector<Arch> refused_archs;  // where the server itself refuses it; empty: nowhere
  std::string refusal_there;
  std::vector<std::pair<int64_t, int64_t>> shared_bytes;  // from this many heads on, bytes of one block; ascending
  std::string packed_refusal;  // what happens on a packed pool that `formats` lacks; empty: a type error
  std::string refused;         // not empty: the server refuses the value in any configuration
  std::string source;          // of all this

  int64_t shared_bytes_at(int64_t heads_per_rank) const;  // 0: within every limit, or not known
};

// The backend that a value of attention_backend, nsa_prefill_backend or nsa_decode_backend names. A recognised value
// without a kernel in this build has none.
Backend find_backend(std::string_view axis, std::string_view value, AttentionPhase phase);

// Shared memory that one block may opt into, in bytes.
int64_t shared_memory_limit(Arch arch);

}  // namespace faultline
