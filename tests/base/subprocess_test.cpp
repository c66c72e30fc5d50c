#include "base/subprocess.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "base/clock.h"
#include "base/fd.h"
#include "testing.h"

using namespace faultline;

namespace {

SpawnOptions shell(const std::string& script) {
  SpawnOptions options;
  options.program = "/bin/sh";
  options.arguments = {"sh", "-c", script};
  return options;
}

struct Ended {
  ProcessEnd end;
  std::string output;
};

Ended run(const SpawnOptions& options) {
  auto child = Subprocess::spawn(options);
  REQUIRE(child);
  const ProcessEnd end = child->reap();
  return {end, child->output()};
}

bool readable_within(int fd, int milliseconds) {
  pollfd wait{fd, POLLIN, 0};
  return ::poll(&wait, 1, milliseconds) == 1;
}

}  // namespace

TEST_CASE("a child's exit code, signal and output are told") {
  const Ended code = run(shell("echo out; echo err >&2; exit 7"));
  CHECK_FALSE(code.end.signalled);
  CHECK(code.end.code == 7);
  CHECK(code.output == "out\nerr\n");
  CHECK(code.end.max_resident_bytes > 0);
  const Ended killed = run(shell("kill -SEGV $$"));
  CHECK(killed.end.signalled);
  CHECK(killed.end.code == SIGSEGV);
}

TEST_CASE("a child's environment is ours with the changes asked for") {
  ::setenv("FAULTLINE_TEST_KEPT", "kept", 1);
  ::setenv("FAULTLINE_TEST_CHANGED", "before", 1);
  SpawnOptions options = shell("echo $FAULTLINE_TEST_KEPT,$FAULTLINE_TEST_CHANGED,$FAULTLINE_TEST_ADDED");
  options.environment = {"FAULTLINE_TEST_CHANGED=after", "FAULTLINE_TEST_ADDED=added"};
  CHECK(run(options).output == "kept,after,added\n");
  CHECK(std::string(::getenv("FAULTLINE_TEST_CHANGED")) == "before");
}

TEST_CASE("the end of a long output is kept, and a child is never stuck behind it") {
  SpawnOptions options = shell("i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done");
  options.output_tail = 1000;
  const Ended ended = run(options);
  CHECK(ended.end.code == 0);
  CHECK(ended.output.size() == 1000);
  CHECK(ended.output.ends_with("line 19999\n"));
}

TEST_CASE("a tail buffer keeps the last bytes however they come") {
  TailBuffer tail(4);
  tail.append("ab");
  CHECK(tail.text() == "ab");
  CHECK_FALSE(tail.cut());
  tail.append("cd");
  CHECK(tail.text() == "abcd");
  CHECK_FALSE(tail.cut());
  tail.append("e");
  CHECK(tail.text() == "bcde");
  CHECK(tail.cut());
  tail.append("0123456789");
  CHECK(tail.text() == "6789");
}

TEST_CASE("descriptors are passed at their numbers even where these cross, and no other is") {
  const auto a = make_sealed_text("a", "text a");
  const auto b = make_sealed_text("b", "text b");
  REQUIRE(a);
  REQUIRE(b);
  const int stray = ::dup(a->get());  // not close-on-exec
  // Our own numbers, the other way round, so that placing one would overwrite the other.
  SpawnOptions options = shell(
      fmt::format("cat <&{}; echo; cat <&{}; echo; [ -e /proc/self/fd/{} ] && echo leaked", a->get(), b->get(), stray));
  options.fds = {{b->get(), a->get()}, {a->get(), b->get()}};
  REQUIRE(a->get() < 10);  // what this shell can name
  const Ended ended = run(options);
  ::close(stray);
  CHECK(ended.output == "text b\ntext a\n");
}

TEST_CASE("a child reads nothing from our stdin and leaves no core") {
  const Ended ended = run(shell("cat; ulimit -c"));
  CHECK(ended.output == "0\n");
}

TEST_CASE("limits of memory hold in the child alone") {
  SpawnOptions options = shell("ulimit -d; ulimit -v");
  const Ended free = run(options);
  options.data_limit = uint64_t{1} << 30;
  options.address_space_limit = uint64_t{2} << 30;
  const Ended limited = run(options);
  CHECK(limited.output == "1048576\n2097152\n");
  CHECK(free.output != limited.output);
}

TEST_CASE("a child has its own process group and default signal handling") {
  void (*before)(int) = ::signal(SIGPIPE, SIG_IGN);
  // Fields of stat: pid (comm) state ppid pgrp; SigIgn is a mask of ignored signals.
  auto child = Subprocess::spawn(shell("cut -d' ' -f1,5 /proc/$$/stat; grep SigIgn /proc/$$/status"));
  ::signal(SIGPIPE, before);
  REQUIRE(child);
  child->reap();
  CHECK(child->output().find(fmt::format("{0} {0}\n", child->pid())) == 0);
  CHECK(child->output().find("SigIgn:\t0000000000000000\n") != std::string::npos);
}

TEST_CASE("a program that does not exist is an error that will not pass") {
  SpawnOptions options = shell("");
  options.program = "/nonexistent/program";
  const auto child = Subprocess::spawn(options);
  REQUIRE_FALSE(child);
  CHECK_FALSE(child.error().transient);
  CHECK(child.error().error.message.find("/nonexistent/program cannot be started: exec: No such file") == 0);
}

TEST_CASE("the program of the child may be our own binary") {
  SpawnOptions options;
  options.arguments = {"base_test", "--list-test-names-only", "no such test"};
  const Ended ended = run(options);
  CHECK_FALSE(ended.end.signalled);
}

TEST_CASE("killing the group reaches what the child has started") {
  auto pipe = make_pipe();
  REQUIRE(pipe);
  SpawnOptions options = shell("sleep 100 & echo started; wait");
  options.fds = {{pipe->write.get(), 3}};
  auto child = Subprocess::spawn(options);
  REQUIRE(child);
  pipe->write.reset();
  while (child->output() != "started\n") {
    REQUIRE(readable_within(child->output_fd(), 10'000));
    child->read_output();
  }
  CHECK_FALSE(child->try_reap());
  CHECK_FALSE(readable_within(pipe->read.get(), 0));
  child->kill_group();
  CHECK(child->reap().code == SIGKILL);
  CHECK(readable_within(pipe->read.get(), 10'000));  // the end: nobody holds the other side any more
}

TEST_CASE("dropping a child ends it") {
  auto pipe = make_pipe();
  REQUIRE(pipe);
  {
    SpawnOptions options = shell("sleep 100");
    options.fds = {{pipe->write.get(), 3}};
    const auto child = Subprocess::spawn(options);
    REQUIRE(child);
    pipe->write.reset();
    CHECK_FALSE(readable_within(pipe->read.get(), 0));
  }
  CHECK(readable_within(pipe->read.get(), 10'000));
}

TEST_CASE("the exit descriptor tells the end") {
  auto child = Subprocess::spawn(shell("exit 3"));
  REQUIRE(child);
  if (child->exit_fd() < 0) return;  // an old kernel
  CHECK(readable_within(child->exit_fd(), 10'000));
  const auto end = child->try_reap();
  REQUIRE(end);
  CHECK(end->code == 3);
}

TEST_CASE("a parent killed at any moment leaves no child") {
  constexpr int kStep_us = 400;
  constexpr int kChildren = 20;
  for (int moment = 0; moment < 12; ++moment) {
    auto pipe = make_pipe();
    REQUIRE(pipe);
    const pid_t parent = ::fork();
    REQUIRE(parent >= 0);
    if (parent == 0) {
      SpawnOptions options;
      options.program = "/bin/sleep";
      options.arguments = {"sleep", "100"};
      options.fds = {{pipe->write.get(), 3}};
      std::vector<tl::expected<Subprocess, SpawnFailure>> children;
      children.reserve(kChildren);
      for (int i = 0; i < kChildren; ++i) {
        children.push_back(Subprocess::spawn(options));
        ::usleep(kStep_us);
      }
      while (true) ::pause();
    }
    pipe->write.reset();
    ::usleep(moment * kStep_us);
    REQUIRE(::kill(parent, SIGKILL) == 0);
    CHECK(readable_within(pipe->read.get(), 10'000));
    REQUIRE(::waitpid(parent, nullptr, 0) == parent);
  }
}

TEST_CASE("signals have names") {
  CHECK(signal_name(SIGSEGV) == "SIGSEGV");
  CHECK(signal_name(63) == "signal 63");
}
