// Checkpoints that tests make and break.
#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "model/synth_write.h"
#include "testing.h"

namespace faultline::fixtures {

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "faultline-model-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  std::string path() const { return path_.string(); }
  std::string operator/(std::string_view name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

// Writes past this many bytes of a file fail in this process, as they do on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    previous_handler_ = ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &previous_);
    const rlimit limit{bytes, previous_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &previous_);
    ::signal(SIGXFSZ, previous_handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit previous_{};
  sighandler_t previous_handler_ = nullptr;
};

inline bool mentions(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

inline std::string golden(const std::string& name) {
  return std::string(FAULTLINE_SOURCE_DIR) + "/tests/goldens/" + name;
}

inline void write_raw(const std::string& path, std::string_view content) {
  std::ofstream file(path, std::ios::binary);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  REQUIRE(file.good());
}

inline std::string read_raw(const std::string& path) {
  const auto content = read_file(path);
  REQUIRE(content);
  return *content;
}

// A safetensors image with any header text and any data.
inline std::string image(std::string_view header, std::string_view data, uint64_t claimed_length) {
  std::string result(8, '\0');
  for (size_t i = 0; i < 8; ++i) result[i] = static_cast<char>(claimed_length >> (8 * i) & 0xFF);
  result += header;
  result += data;
  return result;
}
inline std::string image(std::string_view header, std::string_view data) {
  return image(header, data, header.size());
}

// synth:tiny with two layers in a folder; one of them is MoE.
inline std::string small_checkpoint(const TempFolder& folder, const char* name = "model", int64_t shards = 2,
                                    SynthSettings settings = {}) {
  settings.emplace_back("num_hidden_layers", "2");
  const auto model = make_synth("tiny", settings);
  REQUIRE(model);
  REQUIRE(write_synth(*model, folder / name, shards, [](uint64_t, uint64_t) { return true; }));
  return folder / name;
}

inline std::vector<std::string> shard_paths(const std::string& checkpoint) {
  std::vector<std::string> result;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
    if (entry.path().extension() == ".safetensors") result.push_back(entry.path().string());
  }
  std::sort(result.begin(), result.end());
  return result;
}

struct Place {
  std::string path;
  uint64_t begin = 0;
  uint64_t end = 0;
};

// Where a tensor's bytes are.
inline Place find_tensor(const std::string& checkpoint, const std::string& tensor) {
  for (const std::string& path : shard_paths(checkpoint)) {
    const std::string content = read_raw(path);
    const auto header = parse_safetensors_header({reinterpret_cast<const std::byte*>(content.data()), content.size()},
                                                 content.size(), path);
    REQUIRE(header);
    for (const SafetensorsEntry& entry : header->entries) {
      if (entry.name == tensor) return {path, entry.begin, entry.end};
    }
  }
  FAIL("no tensor " << tensor);
  return {};
}

// Overwrites bytes of a tensor, from byte `offset` of its data.
inline void poke(const std::string& checkpoint, const std::string& tensor, uint64_t offset, const void* bytes,
                 size_t count) {
  const Place place = find_tensor(checkpoint, tensor);
  REQUIRE(place.begin + offset + count <= place.end);
  std::fstream file(place.path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(place.begin + offset));
  file.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(count));
  REQUIRE(file.good());
}
template <class T>
void poke(const std::string& checkpoint, const std::string& tensor, uint64_t offset, T value) {
  poke(checkpoint, tensor, offset, &value, sizeof value);
}

// One safetensors file from tensors and their bytes.
struct RawTensor {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  std::string data;
};
inline std::string pack(const std::vector<RawTensor>& tensors) {
  std::vector<SafetensorsEntry> entries;
  std::string data;
  for (const RawTensor& tensor : tensors) {
    SafetensorsEntry entry;
    entry.name = tensor.name;
    entry.dtype = tensor.dtype;
    entry.rank = static_cast<int>(tensor.shape.size());
    std::copy(tensor.shape.begin(), tensor.shape.end(), entry.shape.begin());
    entry.begin = data.size();
    data += tensor.data;
    entry.end = data.size();
    entries.push_back(entry);
  }
  return make_safetensors_header(entries) + data;
}

inline nlohmann::json config_of(const std::string& checkpoint) {
  const auto config = parse_json(read_raw(checkpoint + "/config.json"), "config.json");
  REQUIRE(config);
  return *config;
}

}  // namespace faultline::fixtures
