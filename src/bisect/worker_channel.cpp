#include "bisect/worker_channel.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <exception>
#include <new>

#include "base/fd.h"
#include "bisect/protocol.h"

namespace faultline {

namespace {

constexpr size_t kReadStep = size_t{64} << 10;

Status send_frame(const nlohmann::json& event) {
  FAULTLINE_TRY(const std::string frame, encode_frame(event));
  return write_all(kEventsFd, frame);
}

// Nobody is left to tell when this fails; the exit code says it too.
void send_last(const nlohmann::json& event) {
  static_cast<void>(send_frame(event));
}

int end_by_exception(const std::exception_ptr& exception) {
  std::string what = "an exception that is no std::exception";
  try {
    std::rethrow_exception(exception);
  } catch (const std::bad_array_new_length& error) {
    what = error.what();  // a negative or absurd size is a mistake, not a lack of memory
  } catch (const std::bad_alloc&) {
    return kOomExit;
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {  // NOLINT(bugprone-empty-catch): `what` says so already
  }
  send_last({{"event", event::kException}, {"what", what}});
  return kExceptionExit;
}

// Exceptions that no handler can reach: of other threads, and out of functions that may not throw.
[[noreturn]] void on_terminate() {
  const std::exception_ptr exception = std::current_exception();
  if (!exception) std::abort();
  ::_exit(end_by_exception(exception));
}

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

Result<nlohmann::json> read_task() {
  FrameDecoder decoder;
  std::string bytes;
  while (true) {
    FAULTLINE_TRY(std::optional<nlohmann::json> task, decoder.next());
    if (task) return std::move(*task);
    bytes.clear();
    FAULTLINE_TRY(const ReadState state, read_some(kTaskFd, bytes, kReadStep));
    if (state != ReadState::kData) return internal_error("the task ended after {} bytes", decoder.pending());
    decoder.append(bytes);
  }
}

}  // namespace

Status WorkerChannel::send(const nlohmann::json& event) {
  return send_frame(event);
}

Result<WorkerChannel> open_worker_channel() {
  for (const int fd : {kTaskFd, kEventsFd, kProgressFd})
    if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
      return bad_input("descriptor {} is not open: a worker is started by Faultline itself, not by hand", fd);
  ::signal(SIGPIPE, SIG_IGN);
  ::prctl(PR_SET_NAME, "faultline-work");  // else ps shows "exe"
  FAULTLINE_TRY(ProgressMapping mapping, ProgressMapping::map(kProgressFd, true));
  ProgressWriter progress(std::move(mapping));
  FAULTLINE_TRY(nlohmann::json task, read_task());
  return WorkerChannel(std::move(task), std::move(progress));
}

int run_worker(const std::function<Status(WorkerChannel&)>& body) {
  auto channel = open_worker_channel();
  if (!channel) {
    fmt::print(stderr, "faultline worker: {}\n", channel.error().message);
    return static_cast<int>(channel.error().kind == ErrorKind::kBadInput ? ExitCode::kBadInput : ExitCode::kInternal);
  }
  std::set_terminate(on_terminate);
  try {
    const Status status = body(*channel);
    if (!status) {
      send_last(
          {{"event", event::kError}, {"kind", kind_name(status.error().kind)}, {"message", status.error().message}});
      return kErrorExit;
    }
    if (!channel->send({{"event", event::kDone}})) return kErrorExit;
    return 0;
  } catch (...) {
    return end_by_exception(std::current_exception());
  }
}

}  // namespace faultline
