// Pipes, shared memory, and the few system calls on descriptors that must survive EINTR and short transfers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file.h"

namespace faultline {

// Every descriptor made here is close-on-exec.
struct Pipe {
  UniqueFd read;
  UniqueFd write;
};
Result<Pipe> make_pipe();

// Anonymous shared memory of `bytes` zero bytes. Sealed against growing and shrinking, so that a reader's mapping can
// never fault, whatever another holder of the descriptor does.
Result<UniqueFd> make_shared_memory(const std::string& name, size_t bytes);
// Anonymous memory that holds `text` and cannot be written any more; its offset is 0.
Result<UniqueFd> make_sealed_text(const std::string& name, std::string_view text);

Status set_nonblocking(int fd);

enum class ReadState : uint8_t { kData, kNothingNow, kEnd };
// Appends at most `limit` bytes to `into`. kNothingNow: a non-blocking descriptor has nothing at the moment.
Result<ReadState> read_some(int fd, std::string& into, size_t limit);
// Blocks until all of `text` is written. The caller ignores SIGPIPE.
Status write_all(int fd, std::string_view text);

// "No space left on device": the text of an errno value.
std::string errno_text(int error);

// Makes a rename or a creation inside `directory` durable.
Status sync_directory(const std::string& directory);

}  // namespace faultline
