#include "base/fd_passing.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "base/fd.h"
#include "testing.h"

using namespace faultline;

namespace {

std::string temporary_folder() {
  char path[] = "/tmp/faultline-socket-XXXXXX";
  REQUIRE(::mkdtemp(path) != nullptr);
  return path;
}

}  // namespace

TEST_CASE("A message carries its text and working descriptors", "[base][fd_passing]") {
  auto sockets = make_socket_pair();
  REQUIRE(sockets);
  const auto first = make_sealed_text("first", "one");
  const auto second = make_sealed_text("second", "two");
  REQUIRE((first && second));
  REQUIRE(send_message(sockets->ours.get(), "with two", {first->get(), second->get()}));
  REQUIRE(send_message(sockets->ours.get(), "with none"));
  auto message = receive_message(sockets->theirs.get());
  REQUIRE(message);
  REQUIRE(*message);
  CHECK((*message)->text == "with two");
  REQUIRE((*message)->descriptors.size() == 2);
  for (const UniqueFd& fd : (*message)->descriptors) CHECK((::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
  std::string text;
  REQUIRE(read_some((*message)->descriptors[1].get(), text, 16));
  CHECK(text == "two");
  message = receive_message(sockets->theirs.get());
  REQUIRE((message && *message));
  CHECK((*message)->text == "with none");
  CHECK((*message)->descriptors.empty());
}

TEST_CASE("The most descriptors that one message takes arrive", "[base][fd_passing]") {
  auto sockets = make_socket_pair();
  REQUIRE(sockets);
  const auto fd = make_sealed_text("same", "x");
  REQUIRE(fd);
  REQUIRE(send_message(sockets->ours.get(), "many", std::vector<int>(kMaxPassedDescriptors, fd->get())));
  const auto message = receive_message(sockets->theirs.get());
  REQUIRE((message && *message));
  CHECK((*message)->descriptors.size() == kMaxPassedDescriptors);
  CHECK_FALSE(send_message(sockets->ours.get(), "more", std::vector<int>(kMaxPassedDescriptors + 1, fd->get())));
  CHECK_FALSE(send_message(sockets->ours.get(), std::string(kMaxMessageBytes + 1, 'x')));
  CHECK(send_message(sockets->ours.get(), std::string(kMaxMessageBytes, 'x')));
  CHECK((*receive_message(sockets->theirs.get()))->text.size() == kMaxMessageBytes);
}

TEST_CASE("The end of the other side is no message; silence is an error", "[base][fd_passing]") {
  auto sockets = make_socket_pair();
  REQUIRE(sockets);
  REQUIRE(set_patience(sockets->theirs.get(), 0.05));
  const auto silence = receive_message(sockets->theirs.get());
  REQUIRE_FALSE(silence);
  CHECK(silence.error().message.find("no answer") != std::string::npos);
  sockets->ours.reset();
  const auto end = receive_message(sockets->theirs.get());
  REQUIRE(end);
  CHECK_FALSE(*end);
  CHECK_FALSE(send_message(sockets->theirs.get(), "to nobody"));
}

TEST_CASE("A socket's three states are told apart", "[base][fd_passing]") {
  const std::string folder = temporary_folder();
  const std::string path = folder + "/s";
  UniqueFd connection;
  CHECK(connect_to(path, connection).value() == ConnectState::kAbsent);
  {
    const auto listening = listen_at(path);
    REQUIRE(listening);
    CHECK(connect_to(path, connection).value() == ConnectState::kConnected);
    CHECK(peer_user(connection.get()).value() == ::geteuid());
    const auto again = listen_at(path);
    REQUIRE_FALSE(again);
    CHECK(again.error().kind == ErrorKind::kBadInput);
  }
  CHECK(connect_to(path, connection).value() == ConnectState::kNobody);
  CHECK(connect_to(folder, connection).value() == ConnectState::kNobody);  // no socket at all
  const auto long_path = listen_at(folder + "/" + std::string(200, 'x'));
  REQUIRE_FALSE(long_path);
  CHECK(long_path.error().message.find("XDG_RUNTIME_DIR") != std::string::npos);
  ::unlink(path.c_str());
  ::rmdir(folder.c_str());
}
