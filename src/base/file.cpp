#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace faultline {
namespace {

namespace fs = std::filesystem;

tl::unexpected<Error> system_failure(std::string_view what, const std::string& path, int error_number) {
  return tl::make_unexpected(Error{ErrorKind::kBadInput, system_error_text(what, path, error_number)});
}

Status write_all(int fd, const void* data, size_t bytes, const std::string& path) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(fd, at, bytes);
    if (written < 0) {
      if (errno == EINTR) continue;
      return system_failure("write", path, errno);
    }
    at += written;
    bytes -= static_cast<size_t>(written);
  }
  return {};
}

// A rename is on disk only once its folder is.
void sync_folder(const fs::path& folder) {
  const UniqueFd fd(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.valid()) ::fsync(fd.get());
}

// Beside `path`, so that the rename stays within one file system.
std::string temporary_name(const std::string& path) {
  const fs::path whole(path);
  return (whole.parent_path() / fmt::format(".{}.partial-{}", whole.filename().string(), ::getpid())).string();
}

std::string without_trailing_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

void UniqueFd::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

std::string system_error_text(std::string_view what, const std::string& path, int error_number) {
  std::string_view advice;
  switch (error_number) {
    case ENOENT:
      advice = "; check the path";
      break;
    case EACCES:
    case EPERM:
      advice = "; check the permissions";
      break;
    case EROFS:
      advice = "; the file system is read-only, choose another place";
      break;
    case ENOSPC:
    case EDQUOT:
      advice = "; the disk is full, free some space or choose another place";
      break;
    case EMFILE:
    case ENFILE:
      advice = "; raise the limit of open files (ulimit -n)";
      break;
    default:
      break;
  }
  return fmt::format("cannot {} {}: {}{}", what, path, std::generic_category().message(error_number), advice);
}

Result<UniqueFd> open_for_reading(const std::string& path) {
  // Non-blocking: opening a FIFO would otherwise wait for its writer.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return system_failure("read", path, errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return system_failure("read", path, errno);
  if (!S_ISREG(info.st_mode)) return bad_input("cannot read {}: not a regular file", path);
  return fd;
}

Result<uint64_t> file_size(int fd, const std::string& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return system_failure("read", path, errno);
  return static_cast<uint64_t>(info.st_size);
}

Result<std::string> read_file(const std::string& path, uint64_t max_bytes) {
  FAULTLINE_TRY(const UniqueFd fd, open_for_reading(path));
  FAULTLINE_TRY(const uint64_t size, file_size(fd.get(), path));
  if (size > max_bytes)
    return bad_input("{}: {} bytes, more than the {} that such a file may have", path, size, max_bytes);
  std::string content(size, '\0');
  size_t filled = 0;
  while (filled < content.size()) {
    const ssize_t got = ::read(fd.get(), content.data() + filled, content.size() - filled);
    if (got < 0) {
      if (errno == EINTR) continue;
      return system_failure("read", path, errno);
    }
    if (got == 0) break;  // shorter than fstat said: somebody truncated it meanwhile
    filled += static_cast<size_t>(got);
  }
  content.resize(filled);
  return content;
}

namespace {

// A device or a pipe (/dev/stdout) is written to, not replaced.
bool is_special(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

Status write_special(const std::string& path, std::string_view content) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd.valid()) return system_failure("write", path, errno);
  return write_all(fd.get(), content.data(), content.size(), path);
}

}  // namespace

Status write_file(const std::string& path, std::string_view content) {
  if (is_special(path)) return write_special(path, content);
  const std::string temporary = temporary_name(path);
  ::unlink(temporary.c_str());  // of an earlier process with this id
  Status status = [&]() -> Status {
    FAULTLINE_TRY(FileWriter writer, FileWriter::create(temporary));
    FAULTLINE_TRY_STATUS(writer.write(content.data(), content.size()));
    FAULTLINE_TRY_STATUS(writer.close());
    if (::rename(temporary.c_str(), path.c_str()) != 0) return system_failure("write", path, errno);
    return {};
  }();
  if (!status) {
    ::unlink(temporary.c_str());
    // The temporary name is ours alone; the user knows the final one.
    std::string& message = status.error().message;
    const size_t at = message.find(temporary);
    if (at != std::string::npos) message.replace(at, temporary.size(), path);
    return status;
  }
  sync_folder(fs::path(path).parent_path());
  return {};
}

Result<FileWriter> FileWriter::create(const std::string& path) {
  constexpr mode_t kEverybodyReads = 0644;
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kEverybodyReads));
  if (!fd.valid()) return system_failure("write", path, errno);
  return FileWriter(std::move(fd), path);
}

Status FileWriter::write(const void* data, size_t bytes) {
  return write_all(fd_.get(), data, bytes, path_);
}

Status FileWriter::close() {
  // EINVAL: a file system that cannot sync (a pipe, /dev/full in tests).
  if (::fsync(fd_.get()) != 0 && errno != EINVAL) return system_failure("write", path_, errno);
  fd_.reset();
  return {};
}

Result<AtomicDirectory> AtomicDirectory::create(const std::string& path) {
  const std::string target = without_trailing_slash(path);
  if (target.empty()) return bad_input("the output folder's name is empty");
  std::error_code error;
  const fs::file_status status = fs::status(target, error);
  if (fs::exists(status)) {
    if (!fs::is_directory(status)) return bad_input("{} exists and is no folder; choose another name", target);
    const bool empty = fs::is_empty(target, error);
    if (error) return system_failure("read", target, error.value());
    if (!empty) return bad_input("{} exists and is not empty; remove it or choose another name", target);
  }
  const std::string temporary = temporary_name(target);
  fs::remove_all(temporary, error);
  constexpr mode_t kEverybodyReads = 0755;
  if (::mkdir(temporary.c_str(), kEverybodyReads) != 0) return system_failure("create", target, errno);
  return AtomicDirectory(target, temporary);
}

AtomicDirectory::~AtomicDirectory() {
  if (temporary_.empty()) return;
  std::error_code ignored;  // a destructor can do nothing about it
  fs::remove_all(temporary_, ignored);
}

Status AtomicDirectory::commit() {
  // rename() replaces an empty directory, and fails on one that somebody filled meanwhile.
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return system_failure("create", path_, errno);
  temporary_.clear();
  sync_folder(fs::path(path_).parent_path());
  return {};
}

}  // namespace faultline
