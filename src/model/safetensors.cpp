#include "model/safetensors.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/json.h"

namespace faultline {
namespace {

using nlohmann::json;

constexpr std::string_view kMetadataKey = "__metadata__";

std::string shown(const json& value) {
  constexpr size_t kLongest = 60;
  std::string text = dump_json(value);
  return text.size() > kLongest ? text.substr(0, kLongest) + "…" : text;
}

std::optional<uint64_t> unsigned_value(const json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  return value.get<uint64_t>();
}

Result<SafetensorsEntry> read_entry(const std::string& name, const json& value, uint64_t data_begin,
                                    std::string_view where) {
  if (name.empty()) return bad_input("{}: a tensor has an empty name; the file is damaged", where);
  if (!value.is_object())
    return bad_input("{}: tensor {} is {}, not an object; the file is damaged", where, name, shown(value));
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!value.contains(key)) return bad_input("{}: tensor {} has no {}; the file is damaged", where, name, key);
  }
  SafetensorsEntry entry;
  entry.name = name;
  const json& dtype = value["dtype"];
  const auto known = dtype.is_string() ? dtype_from_name(dtype.get_ref<const std::string&>()) : std::nullopt;
  if (!known) {
    return bad_input("{}: tensor {} has dtype {}; known are F32, F16, BF16, F8_E4M3, U8, I32 and I64", where, name,
                     shown(dtype));
  }
  entry.dtype = *known;

  const json& shape = value["shape"];
  if (!shape.is_array() || shape.size() > static_cast<size_t>(kMaxRank)) {
    return bad_input("{}: tensor {} has shape {}; it must be a list of at most {} sizes", where, name, shown(shape),
                     kMaxRank);
  }
  int64_t bytes = static_cast<int64_t>(dtype_bytes(entry.dtype));
  for (const json& dimension : shape) {
    const auto size = unsigned_value(dimension);
    if (!size)
      return bad_input("{}: tensor {} has shape {}; sizes are whole numbers from 0", where, name, shown(shape));
    if (*size > static_cast<uint64_t>(INT64_MAX) ||
        __builtin_mul_overflow(bytes, static_cast<int64_t>(*size), &bytes)) {
      return bad_input("{}: tensor {} has shape {}, whose product overflows; the file is damaged or hostile", where,
                       name, shown(shape));
    }
    entry.shape[static_cast<size_t>(entry.rank++)] = static_cast<int64_t>(*size);
  }

  const json& offsets = value["data_offsets"];
  const bool pair = offsets.is_array() && offsets.size() == 2;
  const auto begin = pair ? unsigned_value(offsets[0]) : std::nullopt;
  const auto end = pair ? unsigned_value(offsets[1]) : std::nullopt;
  if (!begin || !end || *begin > *end || *end > static_cast<uint64_t>(INT64_MAX) - data_begin) {
    return bad_input("{}: tensor {} has data_offsets {}; they must be [begin, end], begin <= end", where, name,
                     shown(offsets));
  }
  if (*end - *begin != static_cast<uint64_t>(bytes)) {
    return bad_input("{}: tensor {} has {} bytes of data, but {} {} needs {}; the file is damaged", where, name,
                     *end - *begin, dtype_name(entry.dtype), shown(shape), bytes);
  }
  entry.begin = data_begin + *begin;
  entry.end = data_begin + *end;
  return entry;
}

void find_layout_faults(SafetensorsHeader& header, uint64_t file_bytes, std::string_view where) {
  uint64_t reached = header.data_begin;
  std::string_view previous;
  for (const SafetensorsEntry& entry : header.entries) {
    if (entry.begin < reached) {
      header.faults.push_back(
          fmt::format("{}: tensors {} and {} overlap ({} bytes, file offset {}); the file is damaged", where, previous,
                      entry.name, reached - entry.begin, entry.begin));
    } else if (entry.begin > reached) {
      header.faults.push_back(
          fmt::format("{}: {} bytes at file offset {}, before tensor {}, belong to no tensor; the "
                      "file is damaged",
                      where, entry.begin - reached, reached, entry.name));
    }
    if (entry.end > file_bytes) {
      header.faults.push_back(
          fmt::format("{}: tensor {} ends at byte {}, but the file has {}; it is cut short, copy or "
                      "download it again",
                      where, entry.name, entry.end, file_bytes));
    }
    if (entry.begin % dtype_bytes(entry.dtype) != 0) {
      header.faults.push_back(
          fmt::format("{}: tensor {} starts at byte {}, no multiple of the {} bytes of a {}; write "
                      "the file again with a newer safetensors",
                      where, entry.name, entry.begin, dtype_bytes(entry.dtype), dtype_name(entry.dtype)));
    }
    if (entry.end >= reached) {
      reached = entry.end;
      previous = entry.name;
    }
  }
  if (reached < file_bytes) {
    header.faults.push_back(fmt::format("{}: {} bytes after the last tensor belong to no tensor; the file is damaged",
                                        where, file_bytes - reached));
  }
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> start, uint64_t file_bytes,
                                                   std::string_view where) {
  if (start.size() < kSafetensorsLengthBytes) {
    return bad_input("{}: {} bytes, too short for a safetensors file; copy or download it again", where, file_bytes);
  }
  uint64_t length = 0;
  for (size_t i = 0; i < kSafetensorsLengthBytes; ++i) length |= static_cast<uint64_t>(start[i]) << (8 * i);
  if (length > kMaxSafetensorsHeaderBytes) {
    return bad_input(
        "{}: the header claims {} bytes, more than the {} that safetensors allows; this is no safetensors file, "
        "or it is damaged",
        where, length, kMaxSafetensorsHeaderBytes);
  }
  if (length > start.size() - kSafetensorsLengthBytes) {
    return bad_input(
        "{}: the header claims {} bytes, but the file has only {}; it is cut short, copy or download it again", where,
        length, file_bytes);
  }
  const std::string_view text(reinterpret_cast<const char*>(start.data()) + kSafetensorsLengthBytes, length);
  FAULTLINE_TRY(const json root, parse_json(text, fmt::format("{} (header)", where)));
  if (!root.is_object())
    return bad_input("{}: the header is {}, not an object; the file is damaged", where, shown(root));

  SafetensorsHeader header;
  header.data_begin = kSafetensorsLengthBytes + length;
  header.entries.reserve(root.size());
  for (const auto& [name, value] : root.items()) {
    if (name == kMetadataKey) {
      if (!value.is_object()) return bad_input("{}: __metadata__ is {}, not an object", where, shown(value));
      for (const auto& [key, text_value] : value.items()) {
        if (!text_value.is_string())
          return bad_input("{}: __metadata__.{} is {}, not a text", where, key, shown(text_value));
        header.metadata[key] = text_value.get<std::string>();
      }
      continue;
    }
    FAULTLINE_TRY(SafetensorsEntry entry, read_entry(name, value, header.data_begin, where));
    header.entries.push_back(std::move(entry));
  }
  std::sort(header.entries.begin(), header.entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end != b.end ? a.end < b.end : a.name < b.name;
  });
  find_layout_faults(header, file_bytes, where);
  return header;
}

std::string make_safetensors_header(std::span<const SafetensorsEntry> entries,
                                    const std::map<std::string, std::string>& metadata) {
  const uint64_t base = entries.empty() ? 0 : entries.front().begin;
  std::string text = fmt::format(R"({{"__metadata__":{})", dump_json(json(metadata)));
  for (const SafetensorsEntry& entry : entries) {
    text += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", dump_json(json(entry.name)),
                        dtype_name(entry.dtype), fmt::join(entry.shape.begin(), entry.shape.begin() + entry.rank, ","),
                        entry.begin - base, entry.end - base);
  }
  text += '}';
  // The data starts aligned for every dtype.
  constexpr size_t kAlignment = 8;
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  std::string result(kSafetensorsLengthBytes, '\0');
  for (size_t i = 0; i < kSafetensorsLengthBytes; ++i) result[i] = static_cast<char>(text.size() >> (8 * i) & 0xFF);
  return result + text;
}

}  // namespace faultline
