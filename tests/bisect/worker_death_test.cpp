#include "bisect/worker_death.h"

#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "bisect/protocol.h"
#include "testing.h"

using namespace faultline;

namespace {

WorkerFacts ended(bool signalled, int code) {
  WorkerFacts facts;
  facts.end.signalled = signalled;
  facts.end.code = code;
  return facts;
}

bool mentions(const Death& death, const std::string& text) {
  return death.message.find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("exit 0 after the last event is a good end, exit 1 is not") {
  WorkerFacts facts = ended(false, 0);
  facts.done = true;
  CHECK(explain_death(facts).ended_well());
  facts.end.code = 1;
  const Death death = explain_death(facts);
  CHECK(death.verdict == "crash");
  CHECK(mentions(death, "after its last probe"));
}

TEST_CASE("a SIGKILL that is not ours is the kernel's when its counter moved") {
  WorkerFacts facts = ended(true, SIGKILL);
  facts.kernel_oom_kill = true;
  CHECK(explain_death(facts).verdict == "oom");
  facts.kernel_oom_kill = false;
  const Death outside = explain_death(facts);
  CHECK(outside.verdict == "crash");
  CHECK(mentions(outside, "from outside"));
  facts.kernel_oom_kill.reset();
  const Death presumed = explain_death(facts);
  CHECK(presumed.verdict == "oom");
  CHECK(mentions(presumed, "presumably"));
}

TEST_CASE("a worker that crashed just before the watchdog's signal has crashed") {
  WorkerFacts facts = ended(true, SIGKILL);
  facts.stopped = StopReason::kWatchdog;
  facts.limit_s = 30;
  CHECK(explain_death(facts).verdict == "hang");
  CHECK(mentions(explain_death(facts), "no progress for 30 s"));
  facts.end.code = SIGSEGV;
  CHECK(explain_death(facts).verdict == "crash");
}

TEST_CASE("a corrupt event is not made good by exit code 0, nor does it hide a signal") {
  WorkerFacts facts = ended(false, 0);
  facts.done = true;
  facts.stopped = StopReason::kCorruptEvent;
  facts.detail = "no text";
  CHECK(explain_death(facts).verdict == "crash");
  CHECK(mentions(explain_death(facts), "no text"));
  facts.end = ended(true, SIGSEGV).end;
  CHECK(mentions(explain_death(facts), "SIGSEGV"));
}

TEST_CASE("last words are one short line without control characters") {
  WorkerFacts facts = ended(false, 1);
  facts.output = "first\n\x1b[31mlast " + std::string(500, 'x') + "\n\n";
  const Death death = explain_death(facts);
  CHECK(mentions(death, "last output:  [31mlast xxx"));
  CHECK_FALSE(mentions(death, "first"));
  CHECK(death.message.size() < 400);
  facts.output = " \n";
  CHECK_FALSE(mentions(explain_death(facts), "last output"));
}

TEST_CASE("a death survives the journal") {
  WorkerFacts facts = ended(true, SIGSEGV);
  facts.seconds = 1.5;
  facts.output = "words";
  facts.progress.started = true;
  facts.progress.phase = WorkerPhase::kDecode;
  facts.progress.op_state = OpState::kChecking;
  facts.progress.op = "layers.1.mlp";
  facts.progress.kernel = "own";
  facts.progress.layer = 1;
  facts.progress.records = {{3, "t", "bounds", 1, 2, 0x80000000}};
  const Death death = explain_death(facts);
  const auto back = death_from_json(nlohmann::json::parse(death_to_json(death).dump()), "line 3");
  REQUIRE(back);
  CHECK(back->verdict == "crash");
  CHECK(back->message == death.message);
  CHECK(back->facts.end.code == SIGSEGV);
  CHECK(back->facts.progress.where() == death.facts.progress.where());
  CHECK(back->facts.progress.records == facts.progress.records);
  CHECK(death_to_json(*back) == death_to_json(death));
}

TEST_CASE("a death that is none is bad input that says where") {
  nlohmann::json json = death_to_json(explain_death(ended(false, 1)));
  CHECK(death_from_json(json, "line 3"));
  json["code"] = "one";
  const auto death = death_from_json(json, "line 3");
  REQUIRE_FALSE(death);
  CHECK(death.error().kind == ErrorKind::kBadInput);
  CHECK(death.error().message.find("line 3") == 0);
  json["code"] = 1;
  json["stopped"] = 99;
  CHECK_FALSE(death_from_json(json, "line 3"));
}

TEST_CASE("the kernel's counter of out-of-memory kills is found among the others") {
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("faultline-vmstat-{}", ::getpid())).string();
  std::ofstream(path) << "nr_free_pages 12\noom_kill 4\nnuma_hit 9\n";
  CHECK(kernel_oom_kills(path) == 4);
  std::ofstream(path) << "nr_free_pages 12\n";
  CHECK_FALSE(kernel_oom_kills(path));
  std::filesystem::remove(path);
  CHECK_FALSE(kernel_oom_kills(path));
}
