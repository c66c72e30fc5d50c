#include "model/weight_files.h"

#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>

#include "base/json.h"

namespace faultline {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

using WeightMap = std::map<std::string, std::vector<std::string>>;  // file -> tensors

std::string path_in(const std::string& folder, std::string_view name) {
  return (fs::path(folder) / name).string();
}

Result<WeightMap> read_index(const std::string& path) {
  FAULTLINE_TRY(const std::string text, read_file(path));
  FAULTLINE_TRY(const json root, parse_json(text, path));
  const auto map = root.is_object() ? root.find("weight_map") : root.end();
  if (!root.is_object() || map == root.end() || !map->is_object() || map->empty()) {
    return bad_input("{}: no weight_map of tensors to files", path);
  }
  WeightMap result;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) return bad_input("{}: weight_map of {} is no file name", path, tensor);
    const std::string name = file.get<std::string>();
    // A path could lead anywhere on the machine.
    if (name.empty() || name.find('/') != std::string::npos || name.find('\\') != std::string::npos ||
        name.find('\0') != std::string::npos || !name.ends_with(".safetensors")) {
      return bad_input(
          "{}: tensor {} is said to be in {}; it must be the plain name of a .safetensors file in this folder", path,
          tensor, dump_json(file));
    }
    result[name].push_back(tensor);
  }
  return result;
}

Result<WeightFile> open_weight_file(const std::string& folder, const std::string& name) {
  const std::string path = path_in(folder, name);
  WeightFile file;
  file.name = name;
  FAULTLINE_TRY(file.fd, open_for_reading(path));
  struct stat info {};
  if (::fstat(file.fd.get(), &info) != 0) return bad_input("cannot read {}", path);
  constexpr int64_t kNanoseconds = 1'000'000'000;
  file.modified_ns = info.st_mtim.tv_sec * kNanoseconds + info.st_mtim.tv_nsec;
  const auto bytes = static_cast<uint64_t>(info.st_size);
  FAULTLINE_TRY(file.mapping, Mapping::map(file.fd.get(), bytes, path));
  FAULTLINE_TRY(file.header, parse_safetensors_header({file.mapping.data(), bytes}, bytes, path));
  return file;
}

void compare_with_index(const std::string& folder, const std::string& file_name, const std::vector<std::string>& listed,
                        const WeightFile& file, std::vector<WeightProblem>& problems) {
  std::set<std::string_view> there;
  for (const SafetensorsEntry& entry : file.header.entries) there.insert(entry.name);
  for (const std::string& tensor : listed) {
    if (there.erase(tensor) == 0) {
      problems.push_back({false, fmt::format("{}: tensor {} is missing, though {} says that it is here",
                                             path_in(folder, file_name), tensor, kIndexFileName)});
    }
  }
  for (const std::string_view tensor : there) {
    problems.push_back(
        {false, fmt::format("{}: tensor {} is not listed in {}", path_in(folder, file_name), tensor, kIndexFileName)});
  }
}

void find_duplicates(WeightFiles& result) {
  std::unordered_map<std::string_view, std::string_view> first;
  for (const WeightFile& file : result.files) {
    for (const SafetensorsEntry& entry : file.header.entries) {
      const auto [found, fresh] = first.emplace(entry.name, file.name);
      if (fresh) continue;
      result.problems.push_back({false, fmt::format("tensor {} is in {} and in {}; only one can be right", entry.name,
                                                    found->second, file.name)});
    }
  }
}

std::string missing_files_message(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("model-") && name.ends_with(".safetensors")) {
      return fmt::format("{}: there are shards ({}), but no {}; copy or download it", folder, name, kIndexFileName);
    }
  }
  return fmt::format("{}: neither {} nor {}; this is no folder of a checkpoint, or its weights were not downloaded",
                     folder, kSingleFileName, kIndexFileName);
}

}  // namespace

WeightFiles open_weight_files(const std::string& folder) {
  WeightFiles result;
  std::error_code ignored;
  const std::string index_path = path_in(folder, kIndexFileName);
  const bool sharded = fs::exists(index_path, ignored);
  WeightMap map;
  if (sharded) {
    Result<WeightMap> index = read_index(index_path);
    if (!index) {
      result.problems.push_back({true, index.error().message});
      return result;
    }
    map = std::move(*index);
  } else if (fs::exists(path_in(folder, kSingleFileName), ignored)) {
    map[kSingleFileName];
  } else {
    result.problems.push_back({true, missing_files_message(folder)});
    return result;
  }
  for (const auto& [name, listed] : map) {
    if (!fs::exists(path_in(folder, name), ignored)) {
      result.problems.push_back(
          {true, fmt::format("{}: the shard is missing ({} tensors, {} the first); copy or download it",
                             path_in(folder, name), listed.size(), listed.front())});
      continue;
    }
    Result<WeightFile> file = open_weight_file(folder, name);
    if (!file) {
      result.problems.push_back({true, file.error().message});
      continue;
    }
    for (const std::string& fault : file->header.faults) result.problems.push_back({false, fault});
    if (sharded) compare_with_index(folder, name, listed, *file, result.problems);
    result.files.push_back(std::move(*file));
  }
  find_duplicates(result);
  return result;
}

}  // namespace faultline
