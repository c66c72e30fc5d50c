#include "base/status_line.h"

#include <unistd.h>

#include <cstdlib>

#include "base/fd.h"
#include "testing.h"

using namespace faultline;

namespace {

// A status line whose output and clock are ours.
struct Screen {
  explicit Screen(bool terminal, int width = 80) : pipe(make_pipe().value()) {
    static_cast<void>(set_nonblocking(pipe.read.get()));
    options.fd = pipe.write.get();
    options.terminal = terminal;
    options.color = false;
    options.width = width;
    options.now = [this] { return now; };
  }
  std::string shown() {
    std::string text;
    static_cast<void>(read_some(pipe.read.get(), text, 100'000));
    return text;
  }
  Pipe pipe;
  StatusOptions options;
  double now = 100;
};

}  // namespace

TEST_CASE("a terminal gets one line that rewrites itself and is gone at the end") {
  Screen screen(true);
  StatusLine status(screen.options);
  status.update({0, 4, 0}, "c000 prefill");
  CHECK(screen.shown() == "\r\x1b[K[0/4] c000 prefill");
  screen.now += 10;
  status.update({1, 4, 1}, "c001 decode");
  CHECK(screen.shown() == "\r\x1b[K[1/4] 1 failing, 30 s left: c001 decode");
  status.finish();
  CHECK(screen.shown() == "\r\x1b[K");
}

TEST_CASE("a terminal is not rewritten more often than it can be read") {
  Screen screen(true);
  StatusLine status(screen.options);
  status.update({0, 4, 0}, "a");
  screen.shown();
  screen.now += 0.05;
  status.update({0, 4, 0}, "b");
  CHECK(screen.shown().empty());
  screen.now += 0.06;
  status.update({0, 4, 0}, "c");
  CHECK(screen.shown() == "\r\x1b[K[0/4] c");
}

TEST_CASE("elsewhere plain lines come now and again, the last state at the end") {
  Screen screen(false);
  StatusLine status(screen.options);
  status.update({0, 4, 0}, "a");
  CHECK(screen.shown() == "[0/4] a\n");
  screen.now += 4;
  status.update({1, 4, 0}, "b");
  CHECK(screen.shown().empty());
  screen.now += 2;
  status.update({2, 4, 0}, "c");
  CHECK(screen.shown() == "[2/4] 6.0 s left: c\n");
  status.update({4, 4, 0}, "d");
  CHECK(screen.shown().empty());
  status.finish();
  CHECK(screen.shown() == "[4/4] d\n");
  status.finish();
  CHECK(screen.shown().empty());
}

TEST_CASE("a note stays above the status") {
  Screen screen(true);
  StatusLine status(screen.options);
  status.note("before");
  CHECK(screen.shown() == "before\n");
  status.update({0, 4, 0}, "a");
  screen.shown();
  status.note("c001: layout");
  CHECK(screen.shown() == "\r\x1b[Kc001: layout\n\r\x1b[K[0/4] a");
}

TEST_CASE("what was done before a resumed run does not count in its estimate") {
  Screen screen(true);
  StatusLine status(screen.options);
  status.update({90, 100, 0}, "a");
  screen.shown();
  screen.now += 10;
  status.update({91, 100, 0}, "a");
  CHECK(screen.shown() == "\r\x1b[K[91/100] 1 min 30 s left: a");
}

TEST_CASE("a long line is cut in its middle to the width") {
  Screen screen(true, 21);
  StatusLine status(screen.options);
  status.update({0, 4, 0}, "layers.3.self_attn.attention");
  CHECK(screen.shown() == "\r\x1b[K[0/4] lay...ttention");
}

TEST_CASE("a text's control characters do not reach the terminal") {
  Screen screen(true);
  StatusLine status(screen.options);
  status.update({0, 0, 0}, "a\x1b[2J\nb");
  CHECK(screen.shown() == "\r\x1b[Ka [2J b");
}

TEST_CASE("failures are red, unless NO_COLOR is set") {
  const bool no_color = GENERATE(false, true);
  no_color ? ::setenv("NO_COLOR", "1", 1) : ::unsetenv("NO_COLOR");
  Screen screen(true);
  screen.options.color.reset();
  {
    StatusLine status(screen.options);
    status.update({1, 2, 1}, "a");
  }
  ::unsetenv("NO_COLOR");
  CHECK((screen.shown().find("\x1b[31m") == std::string::npos) == no_color);
}

TEST_CASE("eliding counts code points, not bytes") {
  CHECK(elide_middle("äöüäöüäöü", 9) == "äöüäöüäöü");
  CHECK(elide_middle("äöüäöüäöü", 7) == "äö...öü");
  CHECK(elide_middle("abcdef", 2) == "ab");
  CHECK(elide_middle("abcdef", 0).empty());
  CHECK(elide_middle("abc", -1).empty());
}
