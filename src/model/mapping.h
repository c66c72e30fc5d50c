// Memory that a file descriptor stands for: a file's bytes mapped read-only, or anonymous memory made once and then
// sealed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/file.h"

namespace faultline {

// A read-only view of a whole file. Movable; unmapped with its owner. Empty files have no data.
class Mapping {
 public:
  Mapping() = default;
  // Maps descriptor `fd` (`bytes` long; the descriptor may be closed afterwards). `what` names it in errors.
  static Result<Mapping> map(int fd, uint64_t bytes, const std::string& what);
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  const std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  void unmap();
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// Anonymous shared memory behind a descriptor (memfd): written once through `data`, then sealed against any change, so
// that another process can map it and be sure of what it reads.
class MemoryFile {
 public:
  // Cannot-run when the machine's memory does not suffice.
  static Result<MemoryFile> create(const std::string& name, uint64_t bytes);
  MemoryFile(MemoryFile&& other) noexcept;
  MemoryFile& operator=(MemoryFile&&) = delete;
  MemoryFile(const MemoryFile&) = delete;
  ~MemoryFile();

  std::byte* data() { return data_; }
  // Ends writing; `data` is gone afterwards.
  Result<UniqueFd> seal();

 private:
  MemoryFile(UniqueFd fd, std::byte* data, uint64_t bytes) : fd_(std::move(fd)), data_(data), bytes_(bytes) {}
  void unmap();
  UniqueFd fd_;
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace faultline
