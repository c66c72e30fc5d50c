#include "base/interrupt.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>

#include "base/error.h"
#include "base/fd.h"

namespace faultline {

namespace {

constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP};

struct State {
  int depth = 0;
  Pipe pipe;
  std::array<struct sigaction, kSignals.size()> previous{};
};

State& state() {
  static State instance;
  return instance;
}

// What the handler touches, and nothing else.
std::atomic<int> g_first_signal{0};
std::atomic<int> g_wake_fd{-1};
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int signal) {
  const int saved = errno;
  int none = 0;
  if (!g_first_signal.compare_exchange_strong(none, signal)) ::_exit(static_cast<int>(ExitCode::kInterrupted));
  const char byte = 1;
  // The pipe is empty: this write cannot fail for want of space.
  [[maybe_unused]] const ssize_t wrote = ::write(g_wake_fd.load(), &byte, 1);
  errno = saved;
}

}  // namespace

InterruptGuard::InterruptGuard() {
  State& now = state();
  if (now.depth++ > 0) return;
  g_first_signal = 0;
  if (auto pipe = make_pipe()) now.pipe = std::move(*pipe);
  g_wake_fd = now.pipe.write.get();
  for (size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], nullptr, &now.previous[i]);
    if (now.previous[i].sa_handler == SIG_IGN) continue;
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(kSignals[i], &action, nullptr);
  }
}

InterruptGuard::~InterruptGuard() {
  State& now = state();
  if (--now.depth > 0) return;
  for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &now.previous[i], nullptr);
  g_wake_fd = -1;
  now.pipe = Pipe{};
}

int InterruptGuard::fd() {
  return state().pipe.read.get();
}
int InterruptGuard::signal() {
  return g_first_signal.load();
}

}  // namespace faultline
