#include "model/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace faultline {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

uint64_t physical_memory() {
  struct sysinfo info {};
  return ::sysinfo(&info) == 0 ? static_cast<uint64_t>(info.totalram) * info.mem_unit : UINT64_MAX;
}

}  // namespace

Result<Mapping> Mapping::map(int fd, uint64_t bytes, const std::string& what) {
  Mapping mapping;
  if (bytes == 0) return mapping;
  // Private, since older kernels refuse a shared mapping of memory that is sealed against writes; nothing is ever
  // written, so no page is copied.
  void* data = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
  if (data == MAP_FAILED)
    return tl::make_unexpected(Error{ErrorKind::kInternal, system_error_text("map", what, errno)});
  mapping.data_ = static_cast<std::byte*>(data);
  mapping.bytes_ = bytes;
  return mapping;
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    unmap();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

Mapping::~Mapping() {
  unmap();
}

void Mapping::unmap() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
  data_ = nullptr;
}

Result<MemoryFile> MemoryFile::create(const std::string& name, uint64_t bytes) {
  if (bytes > physical_memory()) {
    return cannot_run(
        "{} needs {:.1f} GiB of memory, and this machine has {:.1f} GiB; choose a smaller shape (fewer layers: "
        "num_hidden_layers=N, fewer experts: n_routed_experts=N)",
        name, static_cast<double>(bytes) / kGiB, static_cast<double>(physical_memory()) / kGiB);
  }
  UniqueFd fd(::memfd_create(name.substr(0, 200).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid() || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return internal_error("cannot create {} bytes of shared memory for {}: {}", bytes, name, std::strerror(errno));
  }
  if (bytes == 0) return MemoryFile(std::move(fd), nullptr, 0);
  // Filling the page table in one go is several times faster than a fault a page.
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (data == MAP_FAILED) return internal_error("cannot map {} bytes for {}: {}", bytes, name, std::strerror(errno));
  return MemoryFile(std::move(fd), static_cast<std::byte*>(data), bytes);
}

MemoryFile::MemoryFile(MemoryFile&& other) noexcept
    : fd_(std::move(other.fd_)), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

MemoryFile::~MemoryFile() {
  unmap();
}

void MemoryFile::unmap() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
  data_ = nullptr;
}

Result<UniqueFd> MemoryFile::seal() {
  unmap();
  // A write seal needs every writable mapping gone.
  if (::fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) != 0) {
    return internal_error("cannot seal shared memory: {}", std::strerror(errno));
  }
  return std::move(fd_);
}

}  // namespace faultline
