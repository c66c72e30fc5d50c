#include "model/synth_write.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "model/weight_files.h"

namespace faultline {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kShardBytes = uint64_t{5} << 30;  // the limit that exporters use
constexpr uint64_t kChunkBytes = uint64_t{8} << 20;
static_assert(kChunkBytes % kSynthGrain == 0);
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

std::string shard_name(size_t shard, size_t shards) {
  return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards);
}

// Neighbours in name order stay together; each shard takes its share of what is left, and at least one tensor.
std::vector<std::vector<SafetensorsEntry>> split(std::vector<SafetensorsEntry> tensors, size_t shards, uint64_t total) {
  std::vector<std::vector<SafetensorsEntry>> result(shards);
  uint64_t left = total;
  size_t at = 0;
  for (size_t shard = 0; shard < shards; ++shard) {
    const size_t later = shards - shard - 1;
    const uint64_t share = left / (later + 1);
    uint64_t taken = 0;
    while (at < tensors.size() && tensors.size() - at > later) {
      const uint64_t bytes = tensors[at].bytes();
      if (taken > 0 && later > 0 && taken + bytes / 2 > share) break;
      taken += bytes;
      result[shard].push_back(std::move(tensors[at++]));
    }
    left -= taken;
  }
  return result;
}

// Asked beforehand, so that 400 GiB are not written only to find the disk full.
Status check_space(const std::string& folder, uint64_t bytes) {
  std::error_code error;
  const fs::path parent = fs::absolute(folder, error).parent_path();
  const fs::space_info space = fs::space(parent, error);
  if (error || space.available >= bytes) return {};
  return bad_input("{} needs {:.2f} GiB, and the disk has {:.2f} GiB free; choose another place or a smaller shape",
                   folder, static_cast<double>(bytes) / kGiB, static_cast<double>(space.available) / kGiB);
}

class FolderWriter {
 public:
  FolderWriter(const SynthModel& model, std::string folder, uint64_t total, const SynthProgress& progress)
      : model_(model), folder_(std::move(folder)), total_(total), progress_(progress) {}

  Status shard(const std::string& name, std::vector<SafetensorsEntry> tensors) {
    FAULTLINE_TRY(FileWriter file, FileWriter::create((fs::path(folder_) / name).string()));
    const std::string header = lay_out(tensors);
    FAULTLINE_TRY_STATUS(file.write(header.data(), header.size()));
    for (const SafetensorsEntry& tensor : tensors) {
      for (uint64_t first = 0; first < tensor.bytes(); first += kChunkBytes) {
        chunk_.resize(std::min(kChunkBytes, tensor.bytes() - first));
        generate(model_, tensor, first, chunk_);
        FAULTLINE_TRY_STATUS(file.write(chunk_.data(), chunk_.size()));
        done_ += chunk_.size();
        if (!progress_(done_, total_)) return cannot_run("stopped; nothing was written");
      }
      weight_map_[tensor.name] = name;
    }
    return file.close();
  }

  Status text(const std::string& name, const std::string& content) {
    return write_file((fs::path(folder_) / name).string(), content);
  }

  Status index() {
    constexpr int kIndent = 1;
    const json root = {{"metadata", {{"total_size", total_}}}, {"weight_map", weight_map_}};
    return text(kIndexFileName, dump_json(root, kIndent) + "\n");
  }

 private:
  const SynthModel& model_;
  std::string folder_;
  uint64_t total_;
  const SynthProgress& progress_;
  uint64_t done_ = 0;
  std::vector<std::byte> chunk_;
  json weight_map_ = json::object();
};

}  // namespace

Result<SynthFolder> write_synth(const SynthModel& model, const std::string& folder, int64_t shards,
                                const SynthProgress& progress) {
  std::vector<SafetensorsEntry> tensors = synth_tensors(model);
  const auto count = static_cast<int64_t>(tensors.size());
  {
    // lay_out() computes the sizes; its order is a file's, and here the order of names is wanted.
    lay_out(tensors);
    std::sort(tensors.begin(), tensors.end(),
              [](const SafetensorsEntry& a, const SafetensorsEntry& b) { return a.name < b.name; });
  }
  uint64_t total = 0;
  for (const SafetensorsEntry& tensor : tensors) total += tensor.bytes();
  if (shards == 0) shards = std::min(static_cast<int64_t>((total + kShardBytes - 1) / kShardBytes), count);
  if (shards > count) return bad_input("--shards {}: the model has only {} tensors", shards, count);

  FAULTLINE_TRY(AtomicDirectory directory, AtomicDirectory::create(folder));
  FAULTLINE_TRY_STATUS(check_space(folder, total));
  FolderWriter writer(model, directory.temporary_path(), total, progress);
  const Status status = [&]() -> Status {
    FAULTLINE_TRY_STATUS(writer.text(kConfigFileName, model.config_text));
    FAULTLINE_TRY_STATUS(writer.text(kQuantFileName, synth_quant_text(model)));
    auto parts = split(std::move(tensors), static_cast<size_t>(shards), total);
    for (size_t i = 0; i < parts.size(); ++i) {
      FAULTLINE_TRY_STATUS(writer.shard(shard_name(i, parts.size()), std::move(parts[i])));
    }
    return writer.index();
  }();
  if (!status) {
    Error error = status.error();
    // The user knows the final name, not the temporary one.
    const size_t at = error.message.find(directory.temporary_path());
    if (at != std::string::npos) error.message.replace(at, directory.temporary_path().size(), folder);
    return tl::make_unexpected(std::move(error));
  }
  FAULTLINE_TRY_STATUS(directory.commit());
  return SynthFolder{total, count, shards};
}

}  // namespace faultline
