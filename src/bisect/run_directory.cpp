#include "bisect/run_directory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <filesystem>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/json.h"

namespace faultline {

namespace {

constexpr mode_t kMode = 0777;
constexpr int kMaxRunsOfASecond = 1000;

std::string safe_name(std::string_view experiment) {
  constexpr size_t kLongest = 100;  // file systems end at 255, with the time and files beside it
  std::string name(experiment.substr(0, kLongest));
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '_' && c != '.') c = '_';
  if (name.empty() || name.front() == '.' || name.front() == '-') name.insert(name.begin(), '_');
  return name;
}

}  // namespace

Result<RunDirectory> RunDirectory::create(const std::string& parent, std::string_view experiment) {
  std::error_code error;
  std::filesystem::create_directories(parent, error);
  if (error) return bad_input("{}", system_error_text("create", parent, error.value()));
  const std::string base = (std::filesystem::path(parent) / (safe_name(experiment) + "-" + file_timestamp())).string();
  for (int i = 1; i <= kMaxRunsOfASecond; ++i) {
    const std::string path = i == 1 ? base : fmt::format("{}-{}", base, i);
    if (::mkdir(path.c_str(), kMode) == 0) {
      FAULTLINE_TRY_STATUS(sync_directory(parent));
      return RunDirectory(path);
    }
    if (errno != EEXIST) return bad_input("{}", system_error_text("create", path, errno));
  }
  return bad_input("{}: {} runs have this name already; remove some, or choose another folder", base,
                   kMaxRunsOfASecond);
}

Result<RunDirectory> RunDirectory::open(const std::string& path) {
  std::string trimmed = path;
  while (trimmed.size() > 1 && trimmed.back() == '/') trimmed.pop_back();
  RunDirectory run(std::move(trimmed));
  struct stat info {};
  if (::stat(run.journal_path().c_str(), &info) != 0)
    return bad_input("{}: not the folder of a run: {} cannot be read ({})", path, run.journal_path(),
                     errno_text(errno));
  return run;
}

std::string RunDirectory::id() const {
  return std::filesystem::path(path_).filename().string();
}

std::string RunDirectory::file(std::string_view name) const {
  return fmt::format("{}/{}", path_, name);
}

Result<std::string> RunDirectory::subfolder(std::string_view name) const {
  std::string folder = file(name);
  if (::mkdir(folder.c_str(), kMode) != 0 && errno != EEXIST)
    return bad_input("{}", system_error_text("create", folder, errno));
  return folder;
}

Status RunDirectory::write_run_json(const nlohmann::json& run) const {
  constexpr int kIndent = 2;
  return write_file(file("run.json"), dump_json(run, kIndent) + "\n");
}

Result<nlohmann::json> RunDirectory::read_run_json() const {
  const std::string path = file("run.json");
  FAULTLINE_TRY(const std::string text, read_file(path));
  return parse_json(text, path);
}

}  // namespace faultline
