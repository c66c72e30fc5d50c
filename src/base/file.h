// Files: whole reads, atomic writes, and directories that appear whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace faultline {

// A file descriptor, closed with its owner.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

inline constexpr uint64_t kMaxTextFileBytes = uint64_t{256} << 20;  // of JSON and YAML files; more is refused unread

// Opens for reading. Bad input when the file is missing, unreadable or no regular file.
Result<UniqueFd> open_for_reading(const std::string& path);
Result<uint64_t> file_size(int fd, const std::string& path);

// The whole content. Bad input when the file is missing, unreadable, no regular file or larger than `max_bytes`.
Result<std::string> read_file(const std::string& path, uint64_t max_bytes = kMaxTextFileBytes);

// Replaces or creates `path` in one step: a temporary file beside it, synced, then renamed. On error (read-only or full
// disk, missing folder: bad input) nothing is left behind and an older file at `path` is unchanged. A device or a pipe
// is written to as it is.
Status write_file(const std::string& path, std::string_view content);

// A file written piece by piece; it keeps the first error. Used inside an AtomicDirectory, or where a torn file is
// harmless.
class FileWriter {
 public:
  static Result<FileWriter> create(const std::string& path);  // fails when the file exists
  Status write(const void* data, size_t bytes);
  Status close();  // syncs; a full disk may only show here

 private:
  FileWriter(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  UniqueFd fd_;
  std::string path_;
};

// A directory that is filled under a temporary name beside its final one. commit() renames it; without a commit the
// destructor removes it, so that nothing half-written stays.
class AtomicDirectory {
 public:
  // Bad input when `path` exists and is not an empty directory, or when its parent is missing or cannot be written.
  static Result<AtomicDirectory> create(const std::string& path);
  AtomicDirectory(AtomicDirectory&& other) noexcept
      : path_(std::exchange(other.path_, {})), temporary_(std::exchange(other.temporary_, {})) {}
  AtomicDirectory& operator=(AtomicDirectory&&) = delete;
  AtomicDirectory(const AtomicDirectory&) = delete;
  ~AtomicDirectory();

  const std::string& temporary_path() const { return temporary_; }
  Status commit();

 private:
  AtomicDirectory(std::string path, std::string temporary) : path_(std::move(path)), temporary_(std::move(temporary)) {}
  std::string path_;
  std::string temporary_;  // empty once committed
};

// What to tell the user about a failed system call on `path`: "cannot write /x/y: the disk is full; free some space …".
std::string system_error_text(std::string_view what, const std::string& path, int error_number);

}  // namespace faultline
