// What a worker needs to know of a checkpoint besides its bytes: config, names, shapes and places of the tensors, as
// one block that is mapped, not parsed as JSON (59,000 tensors in a few milliseconds). Made and read by the same
// program in the same run: native byte order, no versions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/safetensors.h"

namespace faultline {

struct TensorTable {
  std::string spec;
  std::string identity;
  std::string config_text;
  int64_t mtp_tensors = 0;
  std::vector<uint64_t> file_bytes;
  struct Row {
    SafetensorsEntry entry;
    uint64_t file = 0;
  };
  std::vector<Row> rows;
};

std::string pack_table(const TensorTable& table);
// Internal error when the block is cut short or a tensor lies outside its file.
Result<TensorTable> unpack_table(std::span<const std::byte> block);

}  // namespace faultline
