#include "bisect/capsule.h"

#define XXH_INLINE_ALL  // the header alone, no library to link
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "bisect/capsule_format.h"
#include "bisect/task.h"
#include "model/safetensors.h"

namespace faultline {
namespace {

using nlohmann::json;

// Where a view's bytes lie in a checkpoint.
class CheckpointMap {
 public:
  explicit CheckpointMap(const Checkpoint& checkpoint) {
    for (const StoredTensor& tensor : checkpoint.tensors()) tensors_.push_back(&tensor);
    std::sort(tensors_.begin(), tensors_.end(),
              [](const StoredTensor* a, const StoredTensor* b) { return a->view.data < b->view.data; });
  }
  // The tensor that holds all that the view reaches; null: none does (a planted or a dequantized copy).
  const StoredTensor* holding(const TensorView& view) const {
    auto it =
        std::upper_bound(tensors_.begin(), tensors_.end(), view.data,
                         [](const std::byte* data, const StoredTensor* tensor) { return data < tensor->view.data; });
    if (it == tensors_.begin()) return nullptr;
    const StoredTensor* tensor = *--it;
    const auto end = [](const TensorView& v) {
      return v.data + static_cast<size_t>(v.extent()) * dtype_bytes(v.dtype);
    };
    return end(view) <= end(tensor->view) ? tensor : nullptr;
  }

 private:
  std::vector<const StoredTensor*> tensors_;
};

uint64_t view_bytes(const TensorView& view) {
  return static_cast<uint64_t>(view.elements()) * dtype_bytes(view.dtype);
}

json shape_json(const TensorView& view) {
  return {{"dtype", dtype_name(view.dtype)},
          {"shape", std::vector<int64_t>(view.shape.begin(), view.shape.begin() + view.rank)}};
}

json geometry_json(const CacheGeometry& g) {
  return {{"format", format_name(g.format)},
          {"slots", g.slots},
          {"page_size", g.page_size},
          {"latent", g.latent},
          {"rope", g.rope},
          {"row_stride_bytes", g.row_stride_bytes}};
}

// Of weights that are made on use: one tensor at a time always has room (Checkpoint::open has seen to that).
void bring(const TensorView& view) {
  const WeightRange range{view.data, static_cast<uint64_t>(view.extent()) * dtype_bytes(view.dtype)};
  FAULTLINE_CHECK(need_weights({&range, 1}).has_value());
}

// Appends the elements of a strided view, one after the other.
void append_contiguous(const TensorView& view, std::string& out) {
  const size_t size = dtype_bytes(view.dtype);
  if (view.elements() == 0) return;
  if (view.contiguous()) {
    out.append(reinterpret_cast<const char*>(view.data), view_bytes(view));
    return;
  }
  std::array<int64_t, kMaxRank> at{};
  while (true) {
    int64_t offset = 0;
    for (int i = 0; i < view.rank; ++i) offset += at[static_cast<size_t>(i)] * view.stride[static_cast<size_t>(i)];
    out.append(reinterpret_cast<const char*>(view.data + offset * static_cast<int64_t>(size)), size);
    int i = view.rank - 1;
    while (i >= 0 && ++at[static_cast<size_t>(i)] == view.shape[static_cast<size_t>(i)])
      at[static_cast<size_t>(i--)] = 0;
    if (i < 0) return;
  }
}

class Encoder {
 public:
  explicit Encoder(const CapsuleSource& source) : source_(source), op_(source.op), map_(source.checkpoint) {}

  Result<std::string> run() {
    if (find_kernel(op_.kind->name, op_.kernel->name) == nullptr)
      return cannot_run("{} runs on {}, which no other program could find by its name", op_.name, op_.kernel->name);
    uint64_t weights = 0;
    for (int o = 0; o < op_.arguments.size(); ++o)
      if (is_weight(o))
        for (const TensorView& view : op_.arguments[o].views)
          if (view.data != nullptr) weights += view_bytes(view);
    embed_weights_ = weights <= source_.embed_weights;
    json operands = json::array();
    for (int o = 0; o < op_.arguments.size(); ++o) operands.push_back(operand(o));
    if (embedded_ > kMaxEmbeddedBytes)
      return cannot_run("the inputs of {} are {} bytes, more than the {} that a capsule holds", op_.name, embedded_,
                        kMaxEmbeddedBytes);
    json attributes = json::object();
    for (const Attributes::Entry& entry : op_.attributes.entries()) {
      if (entry.is_real && !std::isfinite(entry.real))
        return cannot_run("attribute '{}' of {} is not a finite number", entry.key, op_.name);
      attributes[entry.key] = entry.is_real ? json{{"real", entry.real}} : json{{"integer", entry.integer}};
    }
    const PassInfo& info = source_.info;
    json capsule = {{"op", op_.name},
                    {"layer", op_.layer},
                    {"kind", op_.kind->name},
                    {"kernel", op_.kernel->name},
                    {"provenance", provenance_name(op_.kernel->provenance)},
                    {"program", FAULTLINE_VERSION},
                    {"device", source_.device},
                    {"tolerance", {{"atol", op_.kernel->tolerance.atol}, {"rtol", op_.kernel->tolerance.rtol}}},
                    {"attributes", attributes},
                    {"pass",
                     {{"phase", pass_phase_name(info.phase)},
                      {"step", info.step},
                      {"tokens", info.live.tokens},
                      {"requests", info.live.requests},
                      {"graph", info.graph},
                      {"warmup", info.warmup}}},
                    {"operands", operands},
                    {"violation", to_json(source_.violation)},
                    {"configuration", source_.configuration},
                    {"model", source_.checkpoint.spec()},
                    {"checkpoint", source_.checkpoint.identity()},
                    {"plant", source_.plant},
                    {"seed", static_cast<int64_t>(source_.seed)}};
    if (source_.alone) capsule["alone"] = {{"broken", source_.alone->broken}, {"runs", source_.alone->runs}};
    return file(dump_json(capsule));
  }

 private:
  struct Piece {
    std::string name;
    TensorView view;
  };

  const OperandSpec& spec(int o) const { return op_.kind->operands[static_cast<size_t>(o)]; }
  bool is_weight(int o) const { return spec(o).content == Content::kWeight && spec(o).direction == Direction::kIn; }

  json operand(int o) {
    const Argument& argument = op_.arguments[o];
    json result = {{"name", spec(o).name},
                   {"tensor", op_.tensor_names[static_cast<size_t>(o)]},
                   {"format", format_name(argument.format)}};
    if (argument.geometry != nullptr) result["read"] = geometry_json(*argument.geometry);
    if (const auto& written = op_.written[static_cast<size_t>(o)]) result["written"] = geometry_json(*written);
    if (spec(o).content == Content::kIndices) {
      const IndexRule& rule = op_.index_rules[static_cast<size_t>(o)];
      result["range"] = {rule.begin, rule.end};
      result["owned"] = rule.page_table_operand >= 0;
    }
    json views = json::array();
    for (size_t i = 0; i < argument.views.size(); ++i) views.push_back(view_json(o, i, argument.views[i]));
    result["views"] = views;
    return result;
  }

  json view_json(int o, size_t at, const TensorView& view) {
    if (view.data == nullptr) return nullptr;
    json result = shape_json(view);
    if (spec(o).direction == Direction::kOut) return result;
    const StoredTensor* stored = is_weight(o) && !embed_weights_ ? map_.holding(view) : nullptr;
    if (stored != nullptr) {
      const uint64_t bytes = view_bytes(stored->view);
      bring(stored->view);
      result["stride"] = std::vector<int64_t>(view.stride.begin(), view.stride.begin() + view.rank);
      result["weight"] = stored->name;
      result["offset"] = view.data - stored->view.data;
      result["bytes"] = bytes;
      result["xxh64"] = fmt::format("{:016x}", XXH64(stored->view.data, bytes, 0));
      return result;
    }
    const std::string name = spec(o).many ? fmt::format("{}.{}", spec(o).name, at) : spec(o).name;
    result["data"] = name;
    pieces_.push_back({name, view});
    embedded_ += view_bytes(view);
    return result;
  }

  std::string file(const std::string& text) {
    // The widest elements first: then every tensor is aligned without gaps.
    std::stable_sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
      return dtype_bytes(a.view.dtype) > dtype_bytes(b.view.dtype);
    });
    std::vector<SafetensorsEntry> entries;
    std::string data;
    for (const Piece& piece : pieces_) {
      bring(piece.view);
      SafetensorsEntry entry{piece.name, piece.view.dtype, piece.view.rank, piece.view.shape, data.size(), 0};
      append_contiguous(piece.view, data);
      entry.end = data.size();
      entries.push_back(std::move(entry));
    }
    return make_safetensors_header(entries, {{"format", kCapsuleFormat},
                                             {"schema", kCapsuleSchema},
                                             {"capsule", text},
                                             {"xxh64", capsule_checksum(text, data)}}) +
           data;
  }

  const CapsuleSource& source_;
  const Op& op_;
  const CheckpointMap map_;
  std::vector<Piece> pieces_;
  uint64_t embedded_ = 0;
  bool embed_weights_ = true;
};

}  // namespace

std::string capsule_checksum(std::string_view text, std::string_view data) {
  return fmt::format("{:016x}", XXH64(data.data(), data.size(), XXH64(text.data(), text.size(), 0)));
}

Result<std::string> encode_capsule(const CapsuleSource& source) {
  return Encoder(source).run();
}

Status write_capsule(const std::string& path, const CapsuleSource& source) {
  FAULTLINE_TRY(const std::string bytes, encode_capsule(source));
  std::error_code ignored;  // write_file says what is wrong with the folder
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  return write_file(path, bytes);
}

}  // namespace faultline
