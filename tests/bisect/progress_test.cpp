#include "bisect/progress.h"

#include <cstring>
#include <random>

#include "testing.h"

using namespace faultline;

namespace {

struct Page {
  UniqueFd fd = make_progress_memory().value();
  ProgressMapping driver = ProgressMapping::map(fd.get(), false).value();
  ProgressSnapshot read() const { return read_progress(driver.page()); }
  ProgressWriter writer() const { return ProgressWriter(ProgressMapping::map(fd.get(), true).value()); }
};

}  // namespace

TEST_CASE("a page that nobody has written says so") {
  const Page page;
  CHECK_FALSE(page.read().started);
  CHECK(page.read().where() == "before it began");
}

TEST_CASE("marks written through one mapping are read through another") {
  const Page page;
  ProgressWriter writer = page.writer();
  writer.phase(WorkerPhase::kDecode, "graph bucket 8");
  writer.probe(4);
  writer.step(2, true);
  writer.op(17, "layers.3.self_attn.attention", "flashinfer", 3);
  const ProgressSnapshot seen = page.read();
  CHECK(seen.started);
  CHECK_FALSE(seen.torn);
  CHECK(seen.phase == WorkerPhase::kDecode);
  CHECK(seen.probe == 4);
  CHECK(seen.step == 2);
  CHECK(seen.decode_pass);
  CHECK(seen.op_index == 17);
  CHECK(seen.layer == 3);
  CHECK(seen.op == "layers.3.self_attn.attention");
  CHECK(seen.kernel == "flashinfer");
  CHECK(seen.op_state == OpState::kRunning);
  CHECK(seen.where() == "in layers.3.self_attn.attention (kernel flashinfer), decode step 2, probe 4, graph bucket 8");
}

TEST_CASE("what is being done with the op is told") {
  const Page page;
  ProgressWriter writer = page.writer();
  writer.phase(WorkerPhase::kPrefill);
  CHECK(page.read().where() == "in phase prefill");
  writer.op(0, "embed", "reference", -1);
  writer.op_state(OpState::kChecking);
  CHECK(page.read().where() == "while checking embed (kernel reference), prefill");
  writer.op_state(OpState::kDone);
  CHECK(page.read().where() == "after embed (kernel reference), prefill");
}

TEST_CASE("a new phase, probe or step forgets the op") {
  const Page page;
  ProgressWriter writer = page.writer();
  const int which = GENERATE(0, 1, 2);
  writer.op(17, "embed", "reference", -1);
  if (which == 0) writer.phase(WorkerPhase::kLoad);
  if (which == 1) writer.probe(1);
  if (which == 2) writer.step(1);
  CHECK(page.read().op_state == OpState::kNone);
  CHECK(page.read().op.empty());
  CHECK(page.read().op_index == -1);
}

TEST_CASE("every mark is a heartbeat") {
  const Page page;
  ProgressWriter writer = page.writer();
  uint64_t last = page.read().heartbeat;
  const auto beats = [&] {
    const uint64_t now = page.read().heartbeat;
    const bool grew = now > last;
    last = now;
    return grew;
  };
  CHECK_FALSE(beats());
  writer.phase(WorkerPhase::kLoad);
  CHECK(beats());
  writer.probe(0);
  CHECK(beats());
  writer.step(0);
  CHECK(beats());
  writer.op(0, "a", "b", 0);
  CHECK(beats());
  writer.op_state(OpState::kDone);
  CHECK(beats());
  writer.record({});
  CHECK(beats());
  writer.heartbeat();
  CHECK(beats());
  CHECK(page.read().heartbeat_ns > 0);
}

TEST_CASE("long names are cut, names of just the size are not, short ones leave nothing of longer ones") {
  const Page page;
  ProgressWriter writer = page.writer();
  writer.op(0, std::string(200, 'x'), std::string(kKernelNameBytes, 'k'), 0);
  CHECK(page.read().op == std::string(kOpNameBytes, 'x'));
  CHECK(page.read().kernel == std::string(kKernelNameBytes, 'k'));
  for (const size_t length : {size_t{16}, size_t{8}, size_t{7}, size_t{1}, size_t{0}}) {
    writer.op(0, std::string(length, 'y'), "k", 0);
    CHECK(page.read().op == std::string(length, 'y'));
    CHECK(page.read().kernel == "k");
  }
}

TEST_CASE("records come back as written, the newest of many") {
  const Page page;
  ProgressWriter writer = page.writer();
  const CheckRecord first{5, "layers.0.mlp.out", "nonfinite", 3, 77, 0xffc00000};
  writer.record(first);
  CHECK(page.read().records == std::vector{first});
  for (size_t i = 0; i < kProgressRecords + 10; ++i) writer.record({static_cast<int64_t>(i), "t", "bounds", 1, 0, 0});
  const ProgressSnapshot seen = page.read();
  CHECK(seen.records_made == kProgressRecords + 11);
  REQUIRE(seen.records.size() == kProgressRecords);
  CHECK(seen.records.front().op_index == 10);
  CHECK(seen.records.back().op_index == static_cast<int64_t>(kProgressRecords) + 9);
}

TEST_CASE("a page of another version is not read") {
  const Page page;
  const ProgressMapping raw = ProgressMapping::map(page.fd.get(), true).value();
  const ProgressWriter writer = page.writer();
  CHECK(page.read().started);
  raw.page().version.store(kProgressVersion + 1);
  CHECK_FALSE(page.read().started);
}

TEST_CASE("a mark that was not finished is told as torn") {
  const Page page;
  const ProgressMapping raw = ProgressMapping::map(page.fd.get(), true).value();
  ProgressWriter writer = page.writer();
  writer.op(0, "a", "b", 0);
  CHECK_FALSE(page.read().torn);
  raw.page().changing.fetch_add(1);
  CHECK(page.read().torn);
}

TEST_CASE("a page full of garbage is read without harm, and its texts are printable") {
  const Page page;
  const ProgressMapping raw = ProgressMapping::map(page.fd.get(), true).value();
  std::mt19937_64 random(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<unsigned char> bytes(sizeof(ProgressPage));
    for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
    std::memcpy(static_cast<void*>(&raw.page()), bytes.data(), bytes.size());
    raw.page().magic.store(kProgressMagic);
    raw.page().version.store(kProgressVersion);
    const ProgressSnapshot seen = page.read();
    CHECK(seen.started);
    CHECK(seen.records.size() <= kProgressRecords);
    for (const char c : seen.where()) CHECK((c >= ' ' && c <= '~'));
  }
}
