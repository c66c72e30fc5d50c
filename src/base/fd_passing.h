// Messages between processes of one user, with descriptors, over Unix sockets that keep message boundaries
// (SOCK_SEQPACKET).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace faultline {

inline constexpr size_t kMaxMessageBytes = size_t{128} << 10;  // Linux's default socket buffers take 208 KiB
inline constexpr size_t kMaxPassedDescriptors = 253;           // SCM_MAX_FD

struct Message {
  std::string text;
  std::vector<UniqueFd> descriptors;  // close-on-exec
};

struct SocketPair {
  UniqueFd ours;
  UniqueFd theirs;
};
Result<SocketPair> make_socket_pair();

// A socket at `path` that listens. Bad input when the path is too long or there is something already.
Result<UniqueFd> listen_at(const std::string& path);

enum class ConnectState : uint8_t {
  kConnected,
  kNobody,  // something is there, and no process listens
  kAbsent,  // nothing is there
};
// An error: anything else that kept us from connecting, such as another user's process.
Result<ConnectState> connect_to(const std::string& path, UniqueFd& socket);

// The user of the process at the other end.
Result<uid_t> peer_user(int socket);

// Sending and receiving give up after this long; 0: never.
Status set_patience(int socket, double seconds);

// The descriptors stay the sender's, too. An error when the other end is gone.
Status send_message(int socket, std::string_view text, const std::vector<int>& descriptors = {});
// Waits. Nothing: the other end has closed. An error: patience ran out, a message too long, descriptors lost (too many
// open files).
Result<std::optional<Message>> receive_message(int socket);

}  // namespace faultline
