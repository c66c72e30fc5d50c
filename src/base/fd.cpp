#include "base/fd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace faultline {

std::string errno_text(int error) {
  return std::generic_category().message(error);
}

Result<Pipe> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return internal_error("pipe: {}", errno_text(errno));
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

namespace {

Result<UniqueFd> make_memory_file(const std::string& name) {
  UniqueFd fd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return internal_error("memfd_create({}): {}", name, errno_text(errno));
  return fd;
}

}  // namespace

Result<UniqueFd> make_shared_memory(const std::string& name, size_t bytes) {
  FAULTLINE_TRY(UniqueFd fd, make_memory_file(name));
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    return internal_error("shared memory {} of {} bytes: {}", name, bytes, errno_text(errno));
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return internal_error("sealing shared memory {}: {}", name, errno_text(errno));
  return fd;
}

Result<UniqueFd> make_sealed_text(const std::string& name, std::string_view text) {
  FAULTLINE_TRY(UniqueFd fd, make_memory_file(name));
  FAULTLINE_TRY_STATUS(write_all(fd.get(), text));
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) != 0)
    return internal_error("sealing {}: {}", name, errno_text(errno));
  if (::lseek(fd.get(), 0, SEEK_SET) != 0) return internal_error("rewinding {}: {}", name, errno_text(errno));
  return fd;
}

Status set_nonblocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0)
    return internal_error("making descriptor {} non-blocking: {}", fd, errno_text(errno));
  return {};
}

Result<ReadState> read_some(int fd, std::string& into, size_t limit) {
  const size_t before = into.size();
  into.resize(before + limit);
  ssize_t got;
  do got = ::read(fd, into.data() + before, limit);
  while (got < 0 && errno == EINTR);
  const int error = errno;
  into.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
  if (got > 0) return ReadState::kData;
  if (got == 0) return ReadState::kEnd;
  if (error == EAGAIN || error == EWOULDBLOCK) return ReadState::kNothingNow;
  return internal_error("reading descriptor {}: {}", fd, errno_text(error));
}

Status write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t wrote = ::write(fd, text.data(), text.size());
    if (wrote < 0) {
      if (errno == EINTR) continue;
      return internal_error("writing descriptor {}: {}", fd, errno_text(errno));
    }
    text.remove_prefix(static_cast<size_t>(wrote));
  }
  return {};
}

Status sync_directory(const std::string& directory) {
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return bad_input("{}: cannot be opened: {}", directory, errno_text(errno));
  // Some file systems cannot sync a directory; nothing more can be done there.
  if (::fsync(fd.get()) != 0 && errno != EINVAL && errno != ENOTSUP)
    return bad_input("{}: cannot be synced: {}", directory, errno_text(errno));
  return {};
}

}  // namespace faultline
