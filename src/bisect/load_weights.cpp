#include "bisect/load_weights.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>

#include <cerrno>
#include <csignal>

#include "base/clock.h"
#include "base/fd.h"
#include "base/fd_passing.h"
#include "base/json.h"
#include "base/status_line.h"
#include "base/subprocess.h"
#include "base/text.h"
#include "device/slabs.h"
#include "engine/load_slabs.h"

namespace faultline {
namespace {

// The loader's descriptors.
constexpr int kSocketFd = 3;
constexpr int kTaskFd = 4;  // sealed text: {"manifest": the checkpoint's, "descriptors": how many, "device"}
constexpr int kFirstCheckpointFd = 5;

constexpr double kGB = 1e9;
constexpr double kRateAfter_s = 0.25;  // a rate of less says nothing

// What the loader sends: {"done", "total"} now and again, then {"manifest"} with the slabs or {"error", "kind"}.

std::string_view kind_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kBadInput:
      return "bad_input";
    case ErrorKind::kCannotRun:
      return "cannot_run";
    case ErrorKind::kInternal:
      break;
  }
  return "internal";
}

ErrorKind kind_of(const std::string& name) {
  if (name == kind_name(ErrorKind::kBadInput)) return ErrorKind::kBadInput;
  if (name == kind_name(ErrorKind::kCannotRun)) return ErrorKind::kCannotRun;
  return ErrorKind::kInternal;
}

std::string text_at(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

uint64_t number_at(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number_unsigned() ? it->get<uint64_t>() : 0;
}

// ---- the loader

Result<Checkpoint> checkpoint_of(const nlohmann::json& task) {
  std::vector<UniqueFd> descriptors;
  for (uint64_t i = 0; i < number_at(task, "descriptors"); ++i)
    descriptors.emplace_back(kFirstCheckpointFd + static_cast<int>(i));
  return Checkpoint::adopt(text_at(task, "manifest"), std::move(descriptors));
}

Status load() {
  std::string text;
  ReadState state = ReadState::kData;
  while (state == ReadState::kData) {
    constexpr size_t kStep = size_t{64} << 10;
    FAULTLINE_TRY(state, read_some(kTaskFd, text, kStep));
  }
  FAULTLINE_TRY(const nlohmann::json task, parse_json(text, "the loader's task"));
  FAULTLINE_TRY(const Checkpoint checkpoint, checkpoint_of(task));
  LoadOptions options;
  options.device = text_at(task, "device");
  options.progress = [](uint64_t done, uint64_t total) {
    // Nobody is left to tell when this fails; then the kernel ends us with our parent.
    static_cast<void>(send_message(kSocketFd, dump_json({{"done", done}, {"total", total}})));
  };
  std::unique_ptr<SlabWriter> slabs;
  if (options.device == kMemorySlabs) {
    slabs = make_memory_slabs();
  } else {
    FAULTLINE_TRY(const int ordinal, cuda_ordinal(options.device));
    FAULTLINE_TRY(slabs, make_cuda_slabs(ordinal));
  }
  FAULTLINE_TRY(const WeightsManifest manifest, load_slabs(checkpoint, *slabs, options));
  FAULTLINE_TRY(const std::vector<UniqueFd> exported, slabs->export_descriptors());
  std::vector<int> descriptors;
  for (const UniqueFd& fd : exported) descriptors.push_back(fd.get());
  return send_message(kSocketFd, dump_json({{"manifest", to_text(manifest)}}), descriptors);
}

}  // namespace

std::string load_progress_text(uint64_t done, uint64_t total, double seconds) {
  std::string text = fmt::format("{} of {}", bytes_text(done), bytes_text(total));
  if (done == 0 || !(seconds > kRateAfter_s)) return text;
  const double rate = static_cast<double>(done) / seconds;
  text += fmt::format(", {:.1f} GB/s", rate / kGB);
  if (done < total) text += fmt::format(", {} left", duration_text(static_cast<double>(total - done) / rate));
  return text;
}

int loader_main() {
  for (const int fd : {kSocketFd, kTaskFd})
    if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
      fmt::print(stderr, "faultline load-weights: started by Faultline itself, not by hand\n");
      return static_cast<int>(ExitCode::kBadInput);
    }
  ::signal(SIGPIPE, SIG_IGN);
  ::prctl(PR_SET_NAME, "faultline-load");  // else ps shows "exe"
  Status status;
  try {
    status = load();
  } catch (const std::exception& error) {
    status = internal_error("{}", error.what());
  }
  if (status) return static_cast<int>(ExitCode::kGood);
  static_cast<void>(send_message(
      kSocketFd, dump_json({{"error", status.error().message}, {"kind", kind_name(status.error().kind)}})));
  return static_cast<int>(ExitCode::kInternal);
}

Result<LoadedWeights> load_weights_apart(const Checkpoint& checkpoint, const std::string& device, bool quiet,
                                         const std::string& program) {
  FAULTLINE_TRY(SocketPair sockets, make_socket_pair());
  const std::vector<int> descriptors = checkpoint.descriptors();
  const nlohmann::json task = {
      {"manifest", checkpoint.manifest()}, {"descriptors", descriptors.size()}, {"device", device}};
  FAULTLINE_TRY(const UniqueFd task_fd, make_sealed_text("faultline-load", dump_json(task)));
  SpawnOptions spawn;
  spawn.program = program;
  spawn.arguments = {"faultline", "load-weights"};
  spawn.fds = {{sockets.theirs.get(), kSocketFd}, {task_fd.get(), kTaskFd}};
  for (const int fd : descriptors)
    spawn.fds.push_back({fd, kFirstCheckpointFd + static_cast<int>(spawn.fds.size()) - 2});
  auto started = Subprocess::spawn(spawn);
  if (!started) return tl::make_unexpected(std::move(started.error().error));
  Subprocess child = std::move(*started);
  sockets.theirs.reset();

  StatusLine status;
  std::optional<Stopwatch> since_first_byte;
  while (true) {
    pollfd waits[2] = {{sockets.ours.get(), POLLIN, 0}, {child.output_fd(), POLLIN, 0}};
    if (::poll(waits, 2, -1) < 0 && errno != EINTR) return internal_error("poll: {}", errno_text(errno));
    child.read_output();
    if (waits[0].revents == 0) continue;
    FAULTLINE_TRY(std::optional<Message> message, receive_message(sockets.ours.get()));
    if (!message) {
      const ProcessEnd end = child.reap();
      return internal_error("the loader of the weights ended without a word ({} {}): {}",
                            end.signalled ? "signal" : "exit code", end.code, child.output());
    }
    FAULTLINE_TRY(const nlohmann::json object, parse_json(message->text, "a message of the loader"));
    if (const std::string error = text_at(object, "error"); !error.empty())
      return tl::make_unexpected(Error{kind_of(text_at(object, "kind")), error});
    if (const std::string manifest = text_at(object, "manifest"); !manifest.empty()) {
      LoadedWeights loaded;
      FAULTLINE_TRY(loaded.manifest, parse_weights_manifest(manifest));
      loaded.slabs = std::move(message->descriptors);
      if (loaded.slabs.size() != loaded.manifest.slabs.size())
        return internal_error("the loader gave {} descriptors, {} were due", loaded.slabs.size(),
                              loaded.manifest.slabs.size());
      status.finish();
      child.reap();  // its context is gone when we go on
      return loaded;
    }
    const uint64_t done = number_at(object, "done");
    // Making the context and pinning memory come before: no part of the rate.
    if (!since_first_byte) since_first_byte.emplace();
    if (!quiet)
      status.update(
          {}, "loading weights: " + load_progress_text(done, number_at(object, "total"), since_first_byte->seconds()));
  }
}

}  // namespace faultline
