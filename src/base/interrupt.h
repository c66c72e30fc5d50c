// Turns SIGINT, SIGTERM and SIGHUP into something that an event loop can poll, while a guard lives.
#pragma once

namespace faultline {

// Guards nest: the outermost installs the handlers and puts the old ones back. A signal that was ignored (nohup) stays
// ignored. The second signal ends the process at once with exit code 130; workers die with it (see subprocess.h).
// Main thread only.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  // Readable from the first signal on, for as long as the guard lives. -1 when no pipe could be made.
  static int fd();
  // The first signal that came while a guard was alive; 0: none.
  static int signal();
};

}  // namespace faultline
