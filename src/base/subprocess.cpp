#include "base/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

namespace faultline {

namespace {

constexpr int kStartFailed = 127;  // as a shell reports a command that could not be started

// All that the child reads and writes between vfork and exec. It runs on our memory while this thread sleeps, so it may
// neither allocate nor touch anything else.
struct ChildPlan {
  const char* program = nullptr;
  char* const* arguments = nullptr;
  char* const* environment = nullptr;
  const PassedFd* fds = nullptr;  // sorted by `to`
  int* parked = nullptr;          // room for a number a passed descriptor
  size_t fd_count = 0;
  int null_fd = -1;
  int output_fd = -1;
  pid_t parent = -1;
  rlim_t data_limit = 0;
  rlim_t address_space_limit = 0;
  volatile int error = 0;               // errno of what failed
  const char* volatile step = nullptr;  // and its name
};

int close_range_of(unsigned first, unsigned last) {
#ifdef SYS_close_range
  return static_cast<int>(::syscall(SYS_close_range, first, last, 0u));
#else
  static_cast<void>(first), static_cast<void>(last);
  errno = ENOSYS;
  return -1;
#endif
}

// Closes [first, last]; `last` may be UINT_MAX.
void close_between(unsigned first, unsigned last) {
  if (first > last || close_range_of(first, last) == 0) return;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const unsigned open_files = static_cast<unsigned>(std::min<rlim_t>(limit.rlim_max, 1u << 20));
  for (unsigned fd = first; fd <= last && fd < open_files; ++fd) ::close(static_cast<int>(fd));
}

bool limit_resource(__rlimit_resource resource, rlim_t value) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0) return false;
  limit.rlim_max = std::min(limit.rlim_max, value);  // a tighter limit that we run under stays
  limit.rlim_cur = limit.rlim_max;
  return ::setrlimit(resource, &limit) == 0;
}

// Numbers may cross (from 4 to 3, from 3 to 4), so all are parked above every target first.
bool place_descriptors(const ChildPlan& plan) {
  const int above = plan.fd_count == 0 ? kFirstPassedFd : plan.fds[plan.fd_count - 1].to + 1;
  for (size_t i = 0; i < plan.fd_count; ++i) {
    plan.parked[i] = ::fcntl(plan.fds[i].from, F_DUPFD_CLOEXEC, above);
    if (plan.parked[i] < 0) return false;
  }
  if (::dup2(plan.null_fd, STDIN_FILENO) < 0 || ::dup2(plan.output_fd, STDOUT_FILENO) < 0 ||
      ::dup2(plan.output_fd, STDERR_FILENO) < 0)
    return false;
  unsigned next = kFirstPassedFd;
  for (size_t i = 0; i < plan.fd_count; ++i) {
    const int to = plan.fds[i].to;
    if (::dup2(plan.parked[i], to) < 0) return false;
    if (to > 0 && static_cast<unsigned>(to) > next) close_between(next, static_cast<unsigned>(to) - 1);
    next = static_cast<unsigned>(to) + 1;
  }
  close_between(next, ~0u);
  return true;
}

void reset_signals() {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) ::sigaction(signal, &action, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
}

[[noreturn]] void fail(ChildPlan& plan, const char* step) {
  plan.error = errno;
  plan.step = step;
  ::_exit(kStartFailed);
}

[[noreturn]] void run_child(ChildPlan& plan) {
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) fail(plan, "prctl(PR_SET_PDEATHSIG)");
  // The parent may have died before the line above: then nobody is told, and nobody would miss us.
  if (::getppid() != plan.parent) ::_exit(kStartFailed);
  if (::setpgid(0, 0) != 0) fail(plan, "setpgid");
  if (!place_descriptors(plan)) fail(plan, "passing descriptors");
  if (!limit_resource(RLIMIT_CORE, 0)) fail(plan, "setrlimit(RLIMIT_CORE)");
  if (plan.data_limit != 0 && !limit_resource(RLIMIT_DATA, plan.data_limit)) fail(plan, "setrlimit(RLIMIT_DATA)");
  if (plan.address_space_limit != 0 && !limit_resource(RLIMIT_AS, plan.address_space_limit))
    fail(plan, "setrlimit(RLIMIT_AS)");
  reset_signals();
  ::execve(plan.program, plan.arguments, plan.environment);
  fail(plan, "exec");
}

// A function of its own: its frame outlives the child's use of it, and no local of ours lives across vfork.
pid_t start_child(ChildPlan& plan) {
  const pid_t pid = ::vfork();  // NOLINT: see the header
  if (pid == 0) run_child(plan);
  return pid;
}

bool is_transient(int error) {
  return error == EAGAIN || error == ENOMEM || error == EMFILE || error == ENFILE;
}

tl::unexpected<SpawnFailure> failure(int error, const std::string& program, std::string_view step) {
  return tl::make_unexpected(SpawnFailure{
      Error{ErrorKind::kInternal, fmt::format("{} cannot be started: {}: {}", program, step, errno_text(error))},
      is_transient(error)});
}

// Our environment with the changes; null at its end. The texts of `changes` are pointed into.
std::vector<char*> environment_with(std::vector<std::string>& changes) {
  std::vector<char*> result;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view ours = *entry;
    const bool replaced = std::any_of(changes.begin(), changes.end(), [&](const std::string& change) {
      const size_t name = change.find('=');
      return name != std::string::npos && ours.substr(0, name + 1) == std::string_view(change).substr(0, name + 1);
    });
    if (!replaced) result.push_back(*entry);
  }
  for (std::string& change : changes) result.push_back(change.data());
  result.push_back(nullptr);
  return result;
}

UniqueFd open_process(pid_t pid) {
#ifdef SYS_pidfd_open
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0u)));  // close-on-exec by itself
#else
  static_cast<void>(pid);
  return UniqueFd();
#endif
}

double to_seconds(const timeval& time) {
  constexpr double kMicroseconds = 1e6;
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / kMicroseconds;
}

}  // namespace

void TailBuffer::append(std::string_view text) {
  if (text.size() >= limit_) {
    cut_ = cut_ || !text_.empty() || text.size() > limit_;
    text_.assign(text.substr(text.size() - limit_));
    return;
  }
  if (text_.size() + text.size() > limit_) {
    cut_ = true;
    text_.erase(0, text_.size() + text.size() - limit_);
  }
  text_.append(text);
}

Subprocess::Subprocess(pid_t pid, UniqueFd exit_fd, UniqueFd output_fd, size_t output_tail)
    : pid_(pid), exit_fd_(std::move(exit_fd)), output_fd_(std::move(output_fd)), output_(output_tail) {}

Subprocess::Subprocess(Subprocess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      exit_fd_(std::move(other.exit_fd_)),
      output_fd_(std::move(other.output_fd_)),
      output_(std::move(other.output_)),
      end_(other.end_) {}

Subprocess::~Subprocess() {
  if (pid_ < 0 || end_) return;
  kill_group();
  reap();
}

tl::expected<Subprocess, SpawnFailure> Subprocess::spawn(const SpawnOptions& options) {
  FAULTLINE_CHECK(!options.arguments.empty());
  std::vector<PassedFd> fds = options.fds;
  std::sort(fds.begin(), fds.end(), [](const PassedFd& a, const PassedFd& b) { return a.to < b.to; });
  for (size_t i = 0; i < fds.size(); ++i)
    FAULTLINE_CHECK(fds[i].to >= kFirstPassedFd && (i == 0 || fds[i].to != fds[i - 1].to));

  std::vector<std::string> texts = options.arguments;
  std::vector<char*> arguments;
  arguments.reserve(texts.size() + 1);
  for (std::string& text : texts) arguments.push_back(text.data());
  arguments.push_back(nullptr);
  std::vector<std::string> changes = options.environment;
  const std::vector<char*> environment = environment_with(changes);

  const UniqueFd null_fd(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null_fd.valid()) return failure(errno, options.program, "opening /dev/null");
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return failure(errno, options.program, "pipe");
  UniqueFd output_read(ends[0]);
  const UniqueFd output_write(ends[1]);
  if (auto status = set_nonblocking(output_read.get()); !status)
    return tl::make_unexpected(SpawnFailure{status.error(), false});

  std::vector<int> parked(fds.size() + 1);
  ChildPlan plan;
  plan.program = options.program.c_str();
  plan.arguments = arguments.data();
  plan.environment = environment.data();
  plan.fds = fds.data();
  plan.parked = parked.data();
  plan.fd_count = fds.size();
  plan.null_fd = null_fd.get();
  plan.output_fd = output_write.get();
  plan.parent = ::getpid();
  plan.data_limit = static_cast<rlim_t>(options.data_limit);
  plan.address_space_limit = static_cast<rlim_t>(options.address_space_limit);

  // No handler of ours may run in the child, which shares our memory.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = start_child(plan);
  const int fork_error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);

  if (pid < 0) return failure(fork_error, options.program, "vfork");
  Subprocess child(pid, open_process(pid), std::move(output_read), options.output_tail);
  if (plan.error != 0) {
    child.reap();
    return failure(plan.error, options.program, plan.step);
  }
  return child;
}

void Subprocess::read_output() {
  constexpr size_t kStep = size_t{16} << 10;
  constexpr int kStepsAtOnce = 16;  // a chatty child must not keep the caller here
  for (int i = 0; i < kStepsAtOnce && output_fd_.valid(); ++i) {
    std::string text;
    const auto state = read_some(output_fd_.get(), text, kStep);
    output_.append(text);
    if (!state || *state == ReadState::kEnd) output_fd_.reset();
    if (!state || *state != ReadState::kData) return;
  }
}

void Subprocess::kill_group() {
  if (pid_ > 0 && !end_) ::kill(-pid_, SIGKILL);
}

// The child has ended and is still a zombie, so its number, and its group's, cannot belong to anybody else.
ProcessEnd Subprocess::collect() {
  ::kill(-pid_, SIGKILL);
  int status = 0;
  rusage usage{};
  pid_t got;
  do got = ::wait4(pid_, &status, 0, &usage);
  while (got < 0 && errno == EINTR);
  FAULTLINE_CHECK(got == pid_);
  ProcessEnd end;
  end.signalled = WIFSIGNALED(status);
  end.code = end.signalled ? WTERMSIG(status) : WEXITSTATUS(status);
  end.user_seconds = to_seconds(usage.ru_utime);
  end.system_seconds = to_seconds(usage.ru_stime);
  constexpr int64_t kKibibyte = 1024;
  end.max_resident_bytes = static_cast<int64_t>(usage.ru_maxrss) * kKibibyte;
  end_ = end;
  read_output();
  return end;
}

std::optional<ProcessEnd> Subprocess::try_reap() {
  if (end_) return end_;
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
    return std::nullopt;
  return collect();
}

ProcessEnd Subprocess::reap() {
  if (end_) return *end_;
  siginfo_t info{};
  while (true) {
    // The child may wait for us to read its output.
    pollfd waits[2] = {{exit_fd(), POLLIN, 0}, {output_fd(), POLLIN, 0}};
    constexpr int kMilliseconds = 20;  // where there is no exit_fd
    ::poll(waits, 2, exit_fd_.valid() ? -1 : kMilliseconds);
    read_output();
    if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0)
      return collect();
  }
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

}  // namespace faultline
