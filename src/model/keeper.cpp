#include "model/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "base/fd.h"
#include "base/fd_passing.h"
#include "base/interrupt.h"
#include "base/json.h"

namespace faultline {
namespace {

// The keeper's descriptors.
constexpr int kListenFd = 3;
constexpr int kPlanFd = 4;  // sealed text: {"socket", "manifest", "descriptors": how many}
constexpr int kFirstHeldFd = 5;
constexpr size_t kMaxPlanBytes = size_t{1} << 20;

constexpr double kPatience_s = 5;        // for an answer of a keeper
constexpr double kClientPatience_s = 1;  // of a keeper with a client that asks nothing
constexpr int kLookInterval_ms = 5000;   // how often a keeper looks whether its socket is still there
constexpr std::string_view kSocketSuffix = ".sock";
constexpr mode_t kOwnerOnly = 0700;

std::string text_at(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

int64_t number_at(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number_integer() ? it->get<int64_t>() : -1;
}

// ---- the keeper's side

struct Kept {
  std::string socket;
  std::string manifest;
  std::vector<UniqueFd> descriptors;
};

Result<Kept> read_plan() {
  std::string text;
  ReadState state = ReadState::kData;
  while (state == ReadState::kData) {
    constexpr size_t kStep = size_t{64} << 10;
    FAULTLINE_TRY(state, read_some(kPlanFd, text, kStep));
    if (text.size() > kMaxPlanBytes) return internal_error("a plan of more than {} bytes", kMaxPlanBytes);
  }
  FAULTLINE_TRY(const nlohmann::json plan, parse_json(text, "the keeper's plan"));
  if (!plan.is_object()) return internal_error("the keeper's plan is no object");
  Kept kept{text_at(plan, "socket"), text_at(plan, "manifest"), {}};
  const int64_t count = number_at(plan, "descriptors");
  if (kept.socket.empty() || count < 0 || count > static_cast<int64_t>(kMaxHeldDescriptors))
    return internal_error("the keeper's plan lacks something");
  for (int i = 0; i < static_cast<int>(count); ++i) {
    if (::fcntl(kFirstHeldFd + i, F_SETFD, FD_CLOEXEC) != 0) return internal_error("descriptor {} is not open", i);
    kept.descriptors.emplace_back(kFirstHeldFd + i);
  }
  return kept;
}

// True: the keeper is to end.
bool answer(int client, Kept& kept) {
  const auto user = peer_user(client);
  if (!user || *user != ::geteuid() || !set_patience(client, kClientPatience_s)) return false;
  const auto request = receive_message(client);
  if (!request || !*request) return false;
  const auto object = parse_json((*request)->text, "a request");
  const std::string wanted = object && object->is_object() ? text_at(*object, "request") : "";
  nlohmann::json reply = {{"pid", ::getpid()}};
  if (wanted == "release") {
    ::unlink(kept.socket.c_str());
    kept.descriptors.clear();
    static_cast<void>(send_message(client, dump_json(reply)));
    return true;
  }
  if (wanted != "describe" && wanted != "take") return false;
  reply["manifest"] = kept.manifest;
  std::vector<int> descriptors;
  if (wanted == "take")
    for (const UniqueFd& fd : kept.descriptors) descriptors.push_back(fd.get());
  static_cast<void>(send_message(client, dump_json(reply), descriptors));
  return false;
}

Status keep() {
  int listens = 0;
  socklen_t size = sizeof listens;
  if (::getsockopt(kListenFd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0 ||
      ::fcntl(kListenFd, F_SETFD, FD_CLOEXEC) != 0 || ::fcntl(kPlanFd, F_SETFD, FD_CLOEXEC) != 0)
    return bad_input("a keeper is started by `faultline hold`, not by hand");
  ::signal(SIGPIPE, SIG_IGN);
  ::prctl(PR_SET_NAME, "faultline-keep");                                        // else ps shows "exe"
  if (::chdir("/") != 0) return internal_error("chdir: {}", errno_text(errno));  // no folder is kept busy
  FAULTLINE_TRY(Kept kept, read_plan());
  struct stat mine {};
  if (::stat(kept.socket.c_str(), &mine) != 0) return internal_error("{}: {}", kept.socket, errno_text(errno));
  const auto still_there = [&] {
    struct stat now {};
    return ::stat(kept.socket.c_str(), &now) == 0 && now.st_ino == mine.st_ino && now.st_dev == mine.st_dev;
  };
  const InterruptGuard guard;
  while (InterruptGuard::signal() == 0 && still_there()) {
    pollfd waits[2] = {{kListenFd, POLLIN, 0}, {InterruptGuard::fd(), POLLIN, 0}};
    if (::poll(waits, 2, kLookInterval_ms) <= 0 || (waits[0].revents & POLLIN) == 0) continue;
    const UniqueFd client(::accept4(kListenFd, nullptr, nullptr, SOCK_CLOEXEC));
    if (client.valid() && answer(client.get(), kept)) return {};
  }
  if (still_there()) ::unlink(kept.socket.c_str());
  return {};
}

// ---- the others' side

// One request and its answer; nothing when no keeper listens (a socket that it left is removed then).
Result<std::optional<Message>> ask(const std::string& socket, const char* request) {
  UniqueFd connection;
  FAULTLINE_TRY(const ConnectState state, connect_to(socket, connection));
  struct stat info {};
  if (state == ConnectState::kNobody && ::lstat(socket.c_str(), &info) == 0 && S_ISSOCK(info.st_mode))
    ::unlink(socket.c_str());
  if (state != ConnectState::kConnected) return std::nullopt;
  FAULTLINE_TRY(const uid_t user, peer_user(connection.get()));
  if (user != ::geteuid()) return bad_input("{}: a process of another user (uid {}) listens there", socket, user);
  FAULTLINE_TRY_STATUS(set_patience(connection.get(), kPatience_s));
  FAULTLINE_TRY_STATUS(send_message(connection.get(), dump_json({{"request", request}})));
  FAULTLINE_TRY(std::optional<Message> message, receive_message(connection.get()));
  if (!message) return internal_error("{}: the keeper ended without an answer", socket);
  return message;
}

Result<HeldModel> held_of(const Message& message, const std::string& socket) {
  FAULTLINE_TRY(const nlohmann::json object, parse_json(message.text, "a keeper's answer"));
  if (!object.is_object()) return internal_error("a keeper's answer is no object");
  HeldModel held;
  held.socket = socket;
  held.pid = static_cast<pid_t>(number_at(object, "pid"));
  FAULTLINE_TRY(held.manifest, parse_weights_manifest(text_at(object, "manifest")));
  return held;
}

tl::unexpected<Error> keeper_gone(const HeldModel& held) {
  return internal_error(
      "the keeper of {} (process {}) is gone, and the weights that it held with it: run the command again, and they "
      "are "
      "loaded anew",
      held.manifest.path, held.pid);
}

std::string directory_path() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  return runtime != nullptr && *runtime != '\0' ? fmt::format("{}/faultline", runtime)
                                                : fmt::format("/tmp/faultline-{}", ::geteuid());
}

// The plan of a posix_spawn whose child gets exactly these descriptors, from kListenFd on.
class SpawnPlan {
 public:
  SpawnPlan() {
    posix_spawn_file_actions_init(&actions_);
    posix_spawnattr_init(&attributes_);
  }
  ~SpawnPlan() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;

  Status pass(const std::vector<int>& descriptors) {
    for (int fd = 0; fd <= STDERR_FILENO; ++fd) posix_spawn_file_actions_addopen(&actions_, fd, "/dev/null", O_RDWR, 0);
    // Numbers may cross, so all are parked above every target first.
    const int above = kListenFd + static_cast<int>(descriptors.size());
    for (const int fd : descriptors) {
      parked_.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, above));
      if (!parked_.back().valid())
        return internal_error("passing {} descriptors to the keeper: {}; raise the limit of open files (ulimit -n)",
                              descriptors.size(), errno_text(errno));
    }
    for (size_t i = 0; i < parked_.size(); ++i)
      posix_spawn_file_actions_adddup2(&actions_, parked_[i].get(), kListenFd + static_cast<int>(i));
    posix_spawn_file_actions_addclosefrom_np(&actions_, above);
    return {};
  }

  Result<pid_t> start(const std::string& program) {
    // Its own session: no terminal's Ctrl-C or hang-up reaches it.
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    std::string name = "faultline";
    std::string command = "keeper";
    char* arguments[] = {name.data(), command.data(), nullptr};
    pid_t pid = -1;
    const int error = ::posix_spawn(&pid, program.c_str(), &actions_, &attributes_, arguments, environ);
    if (error != 0) return internal_error("the keeper cannot be started: {}: {}", program, errno_text(error));
    return pid;
  }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
  std::vector<UniqueFd> parked_;
};

}  // namespace

Result<std::string> keeper_directory() {
  const std::string path = directory_path();
  if (::mkdir(path.c_str(), kOwnerOnly) != 0 && errno != EEXIST)
    return bad_input("{}: the folder of held weights cannot be made: {}", path, errno_text(errno));
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return bad_input("{}: {}", path, errno_text(errno));
  constexpr mode_t kOthers = 077;
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() || (info.st_mode & kOthers) != 0)
    return bad_input(
        "{}: the folder of held weights must be yours, and closed to others (chmod 700); remove what is "
        "there, or set XDG_RUNTIME_DIR",
        path);
  return path;
}

std::string keeper_socket(const std::string& directory, const std::string& model_path, const std::string& device_uuid) {
  const std::string key = model_path + "\n" + device_uuid;
  return fmt::format("{}/{:016x}{}", directory, XXH64(key.data(), key.size(), 0), kSocketSuffix);
}

Result<std::vector<HeldModel>> list_all_held(std::vector<std::string>& notes) {
  struct stat info {};
  if (::lstat(directory_path().c_str(), &info) != 0) return std::vector<HeldModel>();
  FAULTLINE_TRY(const std::string directory, keeper_directory());
  return list_held(directory, notes);
}

Result<std::vector<HeldModel>> list_held(const std::string& directory, std::vector<std::string>& notes) {
  std::vector<HeldModel> all;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string socket = entry.path().string();
    if (!socket.ends_with(kSocketSuffix)) continue;
    const auto message = ask(socket, "describe");
    if (message && !*message) continue;
    auto held = message ? held_of(**message, socket) : Result<HeldModel>(tl::make_unexpected(message.error()));
    if (held)
      all.push_back(std::move(*held));
    else
      notes.push_back(fmt::format("{}: {}", socket, held.error().message));
  }
  if (error) return bad_input("{}: cannot be read: {}", directory, error.message());
  std::sort(all.begin(), all.end(), [](const HeldModel& a, const HeldModel& b) {
    return a.manifest.path != b.manifest.path ? a.manifest.path < b.manifest.path
                                              : a.manifest.device < b.manifest.device;
  });
  return all;
}

Result<HeldDescriptors> take_held(const HeldModel& held) {
  FAULTLINE_TRY(std::optional<Message> message, ask(held.socket, "take"));
  if (!message) return keeper_gone(held);
  FAULTLINE_TRY(const HeldModel now, held_of(*message, held.socket));
  if (now.manifest != held.manifest)
    return internal_error("another process has replaced the held weights of {} in this moment; run the command again",
                          held.manifest.path);
  const uint64_t before = held.manifest.checkpoint_descriptors;
  if (message->descriptors.size() != before + held.manifest.slabs.size())
    return internal_error("the keeper of {} gave {} descriptors, {} were due", held.manifest.path,
                          message->descriptors.size(), before + held.manifest.slabs.size());
  HeldDescriptors result;
  for (size_t i = 0; i < message->descriptors.size(); ++i)
    (i < before ? result.checkpoint : result.slabs).push_back(std::move(message->descriptors[i]));
  return result;
}

Status release_held(const HeldModel& held) {
  FAULTLINE_TRY(const std::optional<Message> message, ask(held.socket, "release"));
  return {};  // a keeper that is gone holds nothing
}

Result<pid_t> start_keeper(const std::string& directory, const WeightsManifest& manifest,
                           const std::vector<int>& descriptors, const std::string& program) {
  if (descriptors.size() != manifest.checkpoint_descriptors + manifest.slabs.size() ||
      descriptors.size() > kMaxHeldDescriptors)
    return internal_error("{} descriptors cannot be held", descriptors.size());
  const std::string text = to_text(manifest);
  if (text.size() > kMaxMessageBytes / 2)  // it travels inside another JSON text
    return bad_input("{}: too many weight files to be held ({})", manifest.path, manifest.files.size());
  const std::string socket = keeper_socket(directory, manifest.path, manifest.device_uuid);
  FAULTLINE_TRY(const std::optional<Message> other, ask(socket, "describe"));
  if (other) return bad_input("{} is held on {} already", manifest.path, manifest.device);
  FAULTLINE_TRY(const UniqueFd listening, listen_at(socket));
  const nlohmann::json plan = {{"socket", socket}, {"manifest", text}, {"descriptors", descriptors.size()}};
  FAULTLINE_TRY(const UniqueFd plan_fd, make_sealed_text("faultline-keeper", dump_json(plan)));
  std::vector<int> all = {listening.get(), plan_fd.get()};
  all.insert(all.end(), descriptors.begin(), descriptors.end());
  SpawnPlan spawn;
  FAULTLINE_TRY_STATUS(spawn.pass(all));
  FAULTLINE_TRY(const pid_t pid, spawn.start(program));
  // It answers, or it never will: then the socket goes, and the weights with it.
  const auto answered = ask(socket, "describe");
  if (!answered || !*answered) {
    ::kill(pid, SIGKILL);
    ::unlink(socket.c_str());
    return internal_error("the keeper did not start: {}", answered ? "no answer" : answered.error().message);
  }
  return pid;
}

int keeper_main() {
  const Status status = keep();
  if (status) return static_cast<int>(ExitCode::kGood);
  fmt::print(stderr, "faultline keeper: {}\n", status.error().message);
  return static_cast<int>(status.error().kind == ErrorKind::kBadInput ? ExitCode::kBadInput : ExitCode::kInternal);
}

}  // namespace faultline
