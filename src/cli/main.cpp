// faultline: finds out which kernel breaks a model. Each subcommand is a file of its own in this folder.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "bisect/load_weights.h"
#include "bisect/worker.h"
#include "cli/bisect.h"
#include "cli/forward.h"
#include "cli/hold.h"
#include "cli/inspect.h"
#include "cli/preflight.h"
#include "cli/replay.h"
#include "cli/report.h"
#include "cli/selftest.h"
#include "cli/synth.h"
#include "model/keeper.h"

namespace {

// A descriptor 0, 1 or 2 that we were started without would be taken by the next file opened, and then written to as
// stdout.
void open_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd)
    if (fcntl(fd, F_GETFD) == -1) {
      const int opened = open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY);  // the lowest free one: fd itself
      if (opened != fd) _exit(static_cast<int>(faultline::ExitCode::kInternal));
    }
}

}  // namespace

int main(int argc, char** argv) {
  using namespace faultline;
  open_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit then is an error of the write, with a message
  // Started by Faultline itself only: no help, no options.
  if (argc == 2 && std::strcmp(argv[1], "worker") == 0) return worker_main();
  if (argc == 2 && std::strcmp(argv[1], "load-weights") == 0) return loader_main();
  if (argc == 2 && std::strcmp(argv[1], "keeper") == 0) return keeper_main();

  CLI::App app("Faultline finds out which kernel, layout, weight or setting breaks a GLM-5 model, and proves it.",
               "faultline");
  app.set_version_flag("--version", FAULTLINE_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 all configurations good; 1 failures, all localized; 2 bad input; 3 internal error; 4 failures, "
      "some not\n"
      "localized; 5 nothing could be run; 125 (replay) cannot run here; 130 interrupted.");
  int exit_code = static_cast<int>(ExitCode::kInternal);
  add_bisect_command(app, exit_code);
  add_replay_command(app, exit_code);
  add_report_command(app, exit_code);
  add_preflight_command(app, exit_code);
  add_selftest_command(app, exit_code);
  add_hold_command(app, exit_code);
  add_inspect_command(app, exit_code);
  add_synth_command(app, exit_code);
  add_forward_command(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(ExitCode::kBadInput);
  } catch (const std::exception& error) {
    fmt::print(stderr, "faultline: internal error: {}\n", error.what());
    return static_cast<int>(ExitCode::kInternal);
  }
  // What a full disk or a closed pipe kept from being written shows here at the latest.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    fmt::print(stderr, "faultline: cannot write to stdout: {}\n", std::strerror(errno));
    return static_cast<int>(ExitCode::kBadInput);
  }
  return exit_code;
}
