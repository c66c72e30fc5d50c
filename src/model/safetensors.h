// safetensors headers, from files that somebody else wrote.
//
// A file is: 8 bytes, little-endian length N of the header; N bytes of JSON {"name": {"dtype", "shape", "data_offsets":
// [begin, end]}, …, "__metadata__": {…}}; the data, to which the offsets are relative. Tensors must cover the data
// without gap or overlap (huggingface/safetensors, README "Format").
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "base/tensor.h"

namespace faultline {

struct SafetensorsEntry {
  std::string name;
  Dtype dtype = Dtype::kF32;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{};
  uint64_t begin = 0;  // bytes from the start of the file
  uint64_t end = 0;

  uint64_t bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the order of their data
  std::map<std::string, std::string> metadata;
  uint64_t data_begin = 0;
  // Layout faults of a header that could be read: tensors that reach past the end of the file (a short file), overlap,
  // leave a gap, or do not start at a multiple of their element size. One sentence each.
  std::vector<std::string> faults;
};

inline constexpr uint64_t kSafetensorsLengthBytes = 8;
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;  // the limit of the reference implementation

// Reads the header of a file of `file_bytes` bytes whose first bytes are `start` (all of them, or at least the header).
// `where` names the file. Bad input: a length past the file or the limit, invalid JSON, duplicate names, unknown
// dtypes, more than kMaxRank dimensions, negative or overflowing shapes, offsets that do not fit the shape.
Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> start, uint64_t file_bytes,
                                                   std::string_view where);

// The bytes in front of the data: length and JSON, padded with blanks to a multiple of 8. Entries' offsets are taken
// relative to the first entry's `begin`; entries must be in the order of their data.
std::string make_safetensors_header(std::span<const SafetensorsEntry> entries,
                                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace faultline
