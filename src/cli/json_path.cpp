#include "cli/json_path.h"

#include <unistd.h>

#include <filesystem>

namespace faultline {

Status check_json_path(const std::string& path) {
  if (path.empty() || path == "-") return {};
  const std::filesystem::path file(path);
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) return bad_input("--json {}: that is a folder; name a file", path);
  if (!std::filesystem::is_directory(folder, error) || access(folder.c_str(), W_OK) != 0)
    return bad_input("--json {}: no file can be made in {}", path, folder.string());
  return {};
}

}  // namespace faultline
