// A safetensors file of arbitrary bytes: what is accepted without a fault covers the file's data exactly and can be
// written again.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace faultline;
  const auto header =
      parse_safetensors_header({reinterpret_cast<const std::byte*>(data), size}, size, "fuzz.safetensors");
  if (!header) {
    FAULTLINE_CHECK(!header.error().message.empty());
    return 0;
  }
  if (!header->faults.empty()) return 0;
  uint64_t at = header->data_begin;
  for (const SafetensorsEntry& entry : header->entries) {
    FAULTLINE_CHECK(entry.begin == at && entry.end >= entry.begin && entry.end <= size);
    uint64_t bytes = dtype_bytes(entry.dtype);
    for (int i = 0; i < entry.rank; ++i) bytes *= static_cast<uint64_t>(entry.shape[static_cast<size_t>(i)]);
    FAULTLINE_CHECK(bytes == entry.bytes());
    at = entry.end;
  }
  FAULTLINE_CHECK(at == size);
  const std::string written = make_safetensors_header(header->entries);
  const uint64_t file_bytes = written.size() + (size - header->data_begin);
  const auto again = parse_safetensors_header({reinterpret_cast<const std::byte*>(written.data()), written.size()},
                                              file_bytes, "again");
  FAULTLINE_CHECK(again.has_value() && again->entries.size() == header->entries.size());
  return 0;
}
