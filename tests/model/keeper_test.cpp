#include "model/keeper.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/fd.h"
#include "base/fd_passing.h"
#include "testing.h"

using namespace faultline;

namespace {

namespace fs = std::filesystem;

struct Folder {
  std::string path;
  Folder() {
    char name[] = "/tmp/faultline-keeper-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    path = name;
  }
  ~Folder() { fs::remove_all(path); }
};

WeightsManifest manifest(const std::string& model = "/models/x", const std::string& device = "memory") {
  WeightsManifest m;
  m.spec = model;
  m.path = model;
  m.identity = "identity of " + model;
  m.device = device;
  m.device_name = "cpu";
  m.device_uuid = device;
  m.bytes = 512;
  m.placement = "0123456789abcdef";
  m.checksum = "fedcba9876543210";
  m.slabs = {4096, 4096};
  m.loaded = "2026-01-01T00:00:00Z";
  return m;
}

// A keeper of two pieces of memory that say "first" and "second", ended and reaped with its owner.
struct Keeper {
  pid_t pid = -1;
  Keeper(const Folder& folder, const WeightsManifest& of) {
    const auto first = make_sealed_text("first", "first");
    const auto second = make_sealed_text("second", "second");
    REQUIRE((first && second));
    const auto started = start_keeper(folder.path, of, {first->get(), second->get()}, FAULTLINE_PROGRAM);
    if (!started) FAIL(started.error().message);
    pid = *started;
  }  // our own descriptors are closed from here on
  ~Keeper() {
    if (pid > 0) ::kill(pid, SIGKILL);
    ended();
  }
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;
  // The exit code; -1: by a signal.
  int ended() {
    int status = 0;
    if (pid <= 0 || ::waitpid(pid, &status, 0) != pid) return -1;
    pid = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
};

std::vector<HeldModel> held_in(const Folder& folder) {
  std::vector<std::string> notes;
  auto all = list_held(folder.path, notes);
  REQUIRE(all);
  CHECK(notes.empty());
  return std::move(*all);
}

std::string content(const UniqueFd& fd) {
  char text[16] = {};
  return ::pread(fd.get(), text, sizeof text - 1, 0) >= 0 ? text : "unreadable";
}

std::string file_of(int pid, const std::string& name) {
  std::string text;
  FILE* file = std::fopen(fmt::format("/proc/{}/{}", pid, name).c_str(), "r");
  REQUIRE(file != nullptr);
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text.push_back(static_cast<char>(c));
  std::fclose(file);
  return text;
}

}  // namespace

TEST_CASE("A keeper gives its descriptors to whoever asks, again and again", "[model][keeper]") {
  const Folder folder;
  Keeper keeper(folder, manifest());
  for (int i = 0; i < 3; ++i) {
    const std::vector<HeldModel> held = held_in(folder);
    REQUIRE(held.size() == 1);
    CHECK(held[0].manifest == manifest());
    CHECK(held[0].pid == keeper.pid);
    const auto taken = take_held(held[0]);
    REQUIRE(taken);
    CHECK(taken->checkpoint.empty());
    REQUIRE(taken->slabs.size() == 2);
    CHECK(content(taken->slabs[0]) == "first");
    CHECK(content(taken->slabs[1]) == "second");
  }
}

TEST_CASE("A checkpoint's descriptors come apart from the slabs", "[model][keeper]") {
  const Folder folder;
  WeightsManifest m = manifest("synth:x");
  m.checkpoint = "{}";
  m.checkpoint_descriptors = 1;
  m.slabs = {4096};
  Keeper keeper(folder, m);
  const auto taken = take_held(held_in(folder).at(0));
  REQUIRE(taken);
  REQUIRE(taken->checkpoint.size() == 1);
  REQUIRE(taken->slabs.size() == 1);
  CHECK(content(taken->checkpoint[0]) == "first");
  CHECK(content(taken->slabs[0]) == "second");
}

TEST_CASE("A released keeper ends, and leaves nothing", "[model][keeper]") {
  const Folder folder;
  Keeper keeper(folder, manifest());
  REQUIRE(release_held(held_in(folder).at(0)));
  CHECK(keeper.ended() == 0);
  CHECK(fs::is_empty(folder.path));
  CHECK(held_in(folder).empty());
}

TEST_CASE("Several models are held at once, one process each", "[model][keeper]") {
  const Folder folder;
  Keeper one(folder, manifest("/models/a"));
  Keeper two(folder, manifest("/models/b"));
  Keeper other_device(folder, manifest("/models/a", "other"));
  CHECK(held_in(folder).size() == 3);
  REQUIRE(release_held(held_in(folder).at(2)));
  CHECK(two.ended() == 0);
  CHECK(held_in(folder).size() == 2);
}

TEST_CASE("What is held already is not held again", "[model][keeper]") {
  const Folder folder;
  Keeper keeper(folder, manifest());
  const auto fd = make_sealed_text("x", "x");
  REQUIRE(fd);
  const auto again = start_keeper(folder.path, manifest(), {fd->get(), fd->get()}, FAULTLINE_PROGRAM);
  REQUIRE_FALSE(again);
  CHECK(again.error().kind == ErrorKind::kBadInput);
  CHECK(held_in(folder).size() == 1);
  // Nor what the manifest does not speak of.
  CHECK_FALSE(start_keeper(folder.path, manifest("/models/y"), {fd->get()}, FAULTLINE_PROGRAM));
}

TEST_CASE("A killed keeper's socket is cleaned up, and who relied on it is told", "[model][keeper]") {
  const Folder folder;
  Keeper keeper(folder, manifest());
  const HeldModel held = held_in(folder).at(0);
  ::kill(keeper.pid, SIGKILL);
  keeper.ended();
  CHECK_FALSE(fs::is_empty(folder.path));
  const auto taken = take_held(held);
  REQUIRE_FALSE(taken);
  CHECK(taken.error().message.find("is gone") != std::string::npos);
  CHECK(taken.error().message.find("loaded anew") != std::string::npos);
  CHECK(held_in(folder).empty());
  CHECK(fs::is_empty(folder.path));
  CHECK(release_held(held));        // a keeper that is gone holds nothing
  Keeper next(folder, manifest());  // its place is free
  CHECK(held_in(folder).size() == 1);
}

TEST_CASE("A keeper that is asked to end, or whose socket is gone, ends", "[model][keeper]") {
  const Folder folder;
  Keeper keeper(folder, manifest());
  SECTION("by SIGTERM: the socket goes, too") {
    ::kill(keeper.pid, SIGTERM);
    CHECK(keeper.ended() == 0);
    CHECK(fs::is_empty(folder.path));
  }
  SECTION("by its socket's removal") {
    const std::string socket = held_in(folder).at(0).socket;
    UniqueFd waiting;  // wakes it up, so that the test need not wait for its next look
    REQUIRE(connect_to(socket, waiting));
    ::unlink(socket.c_str());
    waiting.reset();
    CHECK(keeper.ended() == 0);
  }
}

TEST_CASE("A keeper takes nonsense calmly", "[model][keeper]") {
  const Folder folder;
  Keeper keeper(folder, manifest());
  const std::string socket = held_in(folder).at(0).socket;
  for (const char* text : {"", "{", "[]", "{\"request\": 7}", "{\"request\": \"everything\"}", "{\"take\": true}"}) {
    UniqueFd connection;
    REQUIRE(connect_to(socket, connection).value() == ConnectState::kConnected);
    if (*text != '\0') REQUIRE(send_message(connection.get(), text));
    if (*text == '\0') continue;  // a client that says nothing and goes
    const auto answer = receive_message(connection.get());
    REQUIRE(answer);
    CHECK_FALSE(*answer);
  }
  // Descriptors that nobody asked for are closed.
  const auto fd = make_sealed_text("x", "x");
  UniqueFd connection;
  REQUIRE(connect_to(socket, connection));
  REQUIRE(send_message(connection.get(), "{\"request\": \"describe\"}", std::vector<int>(100, fd->get())));
  REQUIRE(receive_message(connection.get()));
  CHECK(held_in(folder).size() == 1);
  size_t open = 0;
  for (const auto& entry : fs::directory_iterator(fmt::format("/proc/{}/fd", keeper.pid))) {
    static_cast<void>(entry);
    ++open;
  }
  CHECK(open < 20);
}

TEST_CASE("A socket that answers as no keeper does is noted, not believed", "[model][keeper]") {
  const Folder folder;
  const auto listening = listen_at(folder.path + "/impostor.sock");
  REQUIRE(listening);
  std::thread impostor([&] {
    const UniqueFd client(::accept4(listening->get(), nullptr, nullptr, SOCK_CLOEXEC));
    static_cast<void>(receive_message(client.get()));
    static_cast<void>(send_message(client.get(), "{\"pid\": 1, \"manifest\": \"{}\"}"));
  });
  std::vector<std::string> notes;
  const auto all = list_held(folder.path, notes);
  impostor.join();
  REQUIRE(all);
  CHECK(all->empty());
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].find("impostor.sock") != std::string::npos);
}

TEST_CASE("A keeper is detached: its own session, no folder, no streams of ours", "[model][keeper]") {
  const Folder folder;
  int leak[2];
  REQUIRE(::pipe(leak) == 0);  // inheritable, as a careless parent's descriptors are
  Keeper keeper(folder, manifest());
  CHECK(::getsid(keeper.pid) == keeper.pid);
  CHECK(fs::read_symlink(fmt::format("/proc/{}/cwd", keeper.pid)) == "/");
  for (const char* stream : {"0", "1", "2"})
    CHECK(fs::read_symlink(fmt::format("/proc/{}/fd/{}", keeper.pid, stream)) == "/dev/null");
  ::close(leak[1]);
  char byte;
  CHECK(::read(leak[0], &byte, 1) == 0);  // nobody else has the other end
  ::close(leak[0]);
  CHECK(file_of(keeper.pid, "comm") == "faultline-keep\n");
  // It maps no driver's library: it has no CUDA context.
  CHECK(file_of(keeper.pid, "maps").find("libcuda") == std::string::npos);
}

TEST_CASE("The folder of keepers is the user's alone", "[model][keeper]") {
  const Folder folder;
  const char* old = std::getenv("XDG_RUNTIME_DIR");
  const std::string before = old == nullptr ? "" : old;
  ::setenv("XDG_RUNTIME_DIR", folder.path.c_str(), 1);
  const auto made = keeper_directory();
  REQUIRE(made);
  CHECK(*made == folder.path + "/faultline");
  struct stat info {};
  REQUIRE(::stat(made->c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);
  CHECK(keeper_directory());  // again
  REQUIRE(::chmod(made->c_str(), 0755) == 0);
  const auto open = keeper_directory();
  REQUIRE_FALSE(open);
  CHECK(open.error().kind == ErrorKind::kBadInput);
  CHECK(open.error().message.find("chmod 700") != std::string::npos);
  ::rmdir(made->c_str());
  REQUIRE(::symlink("/tmp", made->c_str()) == 0);
  CHECK_FALSE(keeper_directory());
  ::setenv("XDG_RUNTIME_DIR", (folder.path + "/missing").c_str(), 1);
  CHECK_FALSE(keeper_directory());
  ::unsetenv("XDG_RUNTIME_DIR");
  CHECK(keeper_directory().value() == fmt::format("/tmp/faultline-{}", ::geteuid()));
  if (old != nullptr) ::setenv("XDG_RUNTIME_DIR", before.c_str(), 1);
}

TEST_CASE("A keeper is not started by hand", "[model][keeper]") {
  const std::string command = fmt::format("{} keeper < /dev/null > /dev/null 2>&1", FAULTLINE_PROGRAM);
  const int status = std::system(command.c_str());
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == static_cast<int>(ExitCode::kBadInput));
}
