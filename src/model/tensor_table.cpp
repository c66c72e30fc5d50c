#include "model/tensor_table.h"

#include <cstring>
#include <utility>

namespace faultline {
namespace {

class Writer {
 public:
  void number(uint64_t value) { out_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void text(const std::string& value) {
    number(value.size());
    out_ += value;
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

// After the first read past the end everything is zero or empty, and good() says so.
class BlockReader {
 public:
  explicit BlockReader(std::span<const std::byte> block) : rest_(block) {}
  uint64_t number() {
    uint64_t value = 0;
    if (take(sizeof value)) std::memcpy(&value, taken_.data(), sizeof value);
    return value;
  }
  std::string text() {
    const uint64_t size = number();
    return take(size) ? std::string(reinterpret_cast<const char*>(taken_.data()), size) : std::string();
  }
  bool good() const { return good_; }
  uint64_t left() const { return rest_.size(); }

 private:
  bool take(uint64_t bytes) {
    if (bytes > rest_.size()) {
      good_ = false;
      rest_ = {};
      return false;
    }
    taken_ = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    return true;
  }
  std::span<const std::byte> rest_;
  std::span<const std::byte> taken_;
  bool good_ = true;
};

constexpr uint64_t kSmallestRow = 6 * sizeof(uint64_t);

}  // namespace

std::string pack_table(const TensorTable& table) {
  Writer writer;
  writer.text(table.spec);
  writer.text(table.identity);
  writer.text(table.config_text);
  writer.number(static_cast<uint64_t>(table.mtp_tensors));
  writer.number(table.file_bytes.size());
  for (const uint64_t bytes : table.file_bytes) writer.number(bytes);
  writer.number(table.rows.size());
  for (const TensorTable::Row& row : table.rows) {
    writer.text(row.entry.name);
    writer.number(static_cast<uint64_t>(row.entry.dtype));
    writer.number(row.file);
    writer.number(row.entry.begin);
    writer.number(row.entry.end);
    writer.number(static_cast<uint64_t>(row.entry.rank));
    for (int i = 0; i < row.entry.rank; ++i)
      writer.number(static_cast<uint64_t>(row.entry.shape[static_cast<size_t>(i)]));
  }
  return writer.take();
}

Result<TensorTable> unpack_table(std::span<const std::byte> block) {
  BlockReader reader(block);
  TensorTable table;
  table.spec = reader.text();
  table.identity = reader.text();
  table.config_text = reader.text();
  table.mtp_tensors = static_cast<int64_t>(reader.number());
  const uint64_t files = reader.number();
  for (uint64_t i = 0; i < files && reader.good(); ++i) table.file_bytes.push_back(reader.number());
  const uint64_t rows = reader.number();
  if (!reader.good() || rows > reader.left() / kSmallestRow) return internal_error("the table of tensors is damaged");
  table.rows.reserve(rows);
  for (uint64_t i = 0; i < rows; ++i) {
    TensorTable::Row row;
    row.entry.name = reader.text();
    const uint64_t dtype = reader.number();
    row.file = reader.number();
    row.entry.begin = reader.number();
    row.entry.end = reader.number();
    const uint64_t rank = reader.number();
    const bool inside = row.file < table.file_bytes.size() && row.entry.begin <= row.entry.end &&
                        row.entry.end <= table.file_bytes[row.file];
    if (!reader.good() || !inside || rank > static_cast<uint64_t>(kMaxRank) ||
        dtype > static_cast<uint64_t>(Dtype::kI64)) {
      return internal_error("the table of tensors is damaged at tensor {}", i);
    }
    row.entry.dtype = static_cast<Dtype>(dtype);
    row.entry.rank = static_cast<int>(rank);
    for (size_t k = 0; k < rank; ++k) row.entry.shape[k] = static_cast<int64_t>(reader.number());
    if (!reader.good()) return internal_error("the table of tensors is damaged at tensor {}", i);
    table.rows.push_back(std::move(row));
  }
  return table;
}

}  // namespace faultline
