#include "base/fd_passing.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>

#include "base/fd.h"

namespace faultline {
namespace {

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return bad_input("{}: a socket's path may have {} bytes; set XDG_RUNTIME_DIR to a shorter folder", path,
                     sizeof address.sun_path - 1);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

}  // namespace

Result<SocketPair> make_socket_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return internal_error("socketpair: {}", errno_text(errno));
  return SocketPair{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

Result<UniqueFd> listen_at(const std::string& path) {
  constexpr int kBacklog = 16;
  FAULTLINE_TRY(const sockaddr_un address, address_of(path));
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return internal_error("socket: {}", errno_text(errno));
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return bad_input("{}: no socket can be made there: {}", path, errno_text(errno));
  if (::listen(socket.get(), kBacklog) != 0) {
    const int error = errno;
    ::unlink(path.c_str());
    return internal_error("{}: listen: {}", path, errno_text(error));
  }
  return socket;
}

Result<ConnectState> connect_to(const std::string& path, UniqueFd& socket) {
  FAULTLINE_TRY(const sockaddr_un address, address_of(path));
  UniqueFd made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!made.valid()) return internal_error("socket: {}", errno_text(errno));
  int result;
  do result = ::connect(made.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  while (result != 0 && errno == EINTR);
  if (result == 0) {
    socket = std::move(made);
    return ConnectState::kConnected;
  }
  if (errno == ECONNREFUSED) return ConnectState::kNobody;
  if (errno == ENOENT) return ConnectState::kAbsent;
  return bad_input("{}: cannot be connected to: {}", path, errno_text(errno));
}

Result<uid_t> peer_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    return internal_error("SO_PEERCRED: {}", errno_text(errno));
  return peer.uid;
}

Status set_patience(int socket, double seconds) {
  timeval time{};
  time.tv_sec = static_cast<time_t>(seconds);
  constexpr double kMicroseconds = 1e6;
  time.tv_usec = static_cast<suseconds_t>((seconds - std::floor(seconds)) * kMicroseconds);
  for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO})
    if (::setsockopt(socket, SOL_SOCKET, option, &time, sizeof time) != 0)
      return internal_error("setsockopt: {}", errno_text(errno));
  return {};
}

Status send_message(int socket, std::string_view text, const std::vector<int>& descriptors) {
  if (text.size() > kMaxMessageBytes || text.empty() || descriptors.size() > kMaxPassedDescriptors)
    return internal_error("a message of {} bytes with {} descriptors cannot be sent", text.size(), descriptors.size());
  iovec part{const_cast<char*>(text.data()), text.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxPassedDescriptors * sizeof(int))] = {};
  if (!descriptors.empty()) {
    const size_t bytes = descriptors.size() * sizeof(int);
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(bytes);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(bytes);
    std::memcpy(CMSG_DATA(header), descriptors.data(), bytes);
  }
  ssize_t sent;
  do sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  if (sent < 0) return internal_error("sending a message: {}", errno_text(errno));
  return {};
}

Result<std::optional<Message>> receive_message(int socket) {
  Message message;
  message.text.resize(kMaxMessageBytes);
  iovec part{message.text.data(), message.text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxPassedDescriptors * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  ssize_t got;
  do got = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  if (got < 0 && errno == ECONNRESET) return std::nullopt;
  if (got < 0) {
    const bool patience = errno == EAGAIN || errno == EWOULDBLOCK;
    return internal_error("receiving a message: {}", patience ? "no answer" : errno_text(errno));
  }
  for (cmsghdr* item = CMSG_FIRSTHDR(&header); item != nullptr; item = CMSG_NXTHDR(&header, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(item) + i * sizeof(int), sizeof fd);
      message.descriptors.emplace_back(fd);
    }
  }
  if (got == 0) return std::nullopt;
  if ((header.msg_flags & MSG_CTRUNC) != 0)
    return internal_error("descriptors were lost on their way: raise the limit of open files (ulimit -n)");
  if ((header.msg_flags & MSG_TRUNC) != 0) return internal_error("a message of more than {} bytes", kMaxMessageBytes);
  message.text.resize(static_cast<size_t>(got));
  return message;
}

}  // namespace faultline
