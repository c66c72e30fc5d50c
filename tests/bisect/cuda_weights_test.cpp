// Weights in a GPU's memory that several processes share, one after another.
#include <sys/wait.h>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "bisect/held_weights.h"
#include "bisect/load_weights.h"
#include "engine/device_weights.h"
#include "gpu_testing.h"
#include "model/keeper.h"
#include "testing.h"
#ifdef FAULTLINE_WEIGHTS_STUB
#include "bisect/weights_stub.h"

using namespace faultline;

namespace {

Checkpoint open_tiny() {
  auto opened = Checkpoint::open("synth:tiny");
  REQUIRE(opened);
  return std::move(*opened);
}

LoadedWeights load(const Checkpoint& checkpoint) {
  auto loaded = load_weights_apart(checkpoint, "cuda:0", true, FAULTLINE_PROGRAM);
  if (!loaded) FAIL(loaded.error().message);
  return std::move(*loaded);
}

StubEnd stub(const Checkpoint& checkpoint, const LoadedWeights& loaded, const std::string& action) {
  auto end = run_weights_stub(FAULTLINE_WEIGHTS_STUB, checkpoint, loaded.manifest, loaded.slabs, action);
  REQUIRE(end);
  INFO(end->said.dump());
  REQUIRE(end->said.is_object());
  CHECK_FALSE(end->said.contains("error"));
  return std::move(*end);
}

std::vector<int> numbers(const std::vector<UniqueFd>& fds) {
  std::vector<int> result;
  for (const UniqueFd& fd : fds) result.push_back(fd.get());
  return result;
}

// Memory of processes that have ended comes back a moment later.
bool comes_back(Device& device, uint64_t free) {
  constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    if (device.memory().free >= free) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return false;
}

}  // namespace

TEST_CASE("Weights outlive their loader, and every process sees the same bytes", "[gpu][weights]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = make_device("cuda");
  REQUIRE(device);
  const Checkpoint checkpoint = open_tiny();
  uint64_t free_before = 0;
  // Twice: the first time loads this process's own kernels, which stay.
  for (int round = 0; round < 2; ++round) {
    free_before = (*device)->memory().free;
    const LoadedWeights loaded = load(checkpoint);  // its process has ended
    CHECK((*device)->memory().free < free_before);
    CHECK(stub(checkpoint, loaded, "read").said["result"] == "cudaSuccess");
    auto weights = DeviceWeights::attach(**device, checkpoint, to_text(loaded.manifest), numbers(loaded.slabs));
    if (!weights) FAIL(weights.error().message);
    CHECK(weights->verify());
    for (const StoredTensor& tensor : checkpoint.tensors()) {
      const auto view = weights->to_device(tensor.view);
      REQUIRE(view);
      std::vector<std::byte> back(tensor_bytes(tensor.view));
      (*device)->copy(back.data(), view->data, back.size());
      CHECK(std::memcmp(back.data(), tensor.view.data, back.size()) == 0);
    }
    CHECK_FALSE((*device)->wait());
  }
  CHECK(comes_back(**device, free_before));
}

TEST_CASE("A stray write into the weights is a fault of its own process, and changes nothing", "[gpu][weights]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const Checkpoint checkpoint = open_tiny();
  const LoadedWeights loaded = load(checkpoint);
  for (int i = 0; i < 3; ++i) {
    CHECK(stub(checkpoint, loaded, "write").said["result"] == "cudaErrorIllegalAddress");
    // The next process proves the checksum before its kernel.
    CHECK(stub(checkpoint, loaded, "read").said["result"] == "cudaSuccess");
  }
}

TEST_CASE("A keeper holds weights without a context, and gives the memory back", "[gpu][weights]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = make_device("cuda");
  REQUIRE(device);
  const Checkpoint checkpoint = open_tiny();
  char directory[] = "/tmp/faultline-gpu-XXXXXX";
  REQUIRE(::mkdtemp(directory) != nullptr);
  const uint64_t free_before = (*device)->memory().free;
  pid_t keeper = 0;
  {
    const LoadedWeights loaded = load(checkpoint);
    const auto started = start_keeper(directory, loaded.manifest, numbers(loaded.slabs), FAULTLINE_PROGRAM);
    if (!started) FAIL(started.error().message);
    keeper = *started;
  }
  const auto held = [&] {
    std::vector<std::string> notes;
    auto all = list_held(directory, notes);
    REQUIRE(all);
    REQUIRE(all->size() == 1);
    CHECK(notes.empty());
    return all->front();
  };
  for (int i = 0; i < 2; ++i) {
    auto taken = take_held(held());
    REQUIRE(taken);
    const LoadedWeights again{held().manifest, std::move(taken->slabs)};
    CHECK(stub(checkpoint, again, i == 0 ? "write" : "read").said["result"] ==
          (i == 0 ? "cudaErrorIllegalAddress" : "cudaSuccess"));
  }
  CHECK((*device)->memory().free < free_before);
  SECTION("when it is asked to") {
    REQUIRE(release_held(held()));
    CHECK(comes_back(**device, free_before));
    int status = 0;
    CHECK(::waitpid(keeper, &status, 0) == keeper);
    CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  }
  SECTION("when it is killed, and who asks it is told") {
    const HeldModel model = held();
    ::kill(keeper, SIGKILL);
    ::waitpid(keeper, nullptr, 0);
    CHECK(comes_back(**device, free_before));
    const auto taken = take_held(model);
    REQUIRE_FALSE(taken);
    CHECK(taken.error().message.find("is gone") != std::string::npos);
  }
  ::rmdir(directory);
}

TEST_CASE("Weights for which a GPU has no room are refused, with figures", "[gpu][weights]") {
  if (!cuda_usable(0)) return skipped_without_gpu();
  const auto device = make_device("cuda");
  REQUIRE(device);
  const Checkpoint checkpoint = open_tiny();
  constexpr uint64_t kLeft = uint64_t{900} << 20;  // less than a worker's reserve; enough for the loader's context
  {
    const auto most = (*device)->allocate((*device)->memory().free - kLeft);
    REQUIRE(most);
    REQUIRE_FALSE((*device)->wait());
    const auto loaded = load_weights_apart(checkpoint, "cuda:0", true, FAULTLINE_PROGRAM);
    REQUIRE_FALSE(loaded);
    CHECK(loaded.error().kind == ErrorKind::kCannotRun);
    CHECK(loaded.error().message.find("the weights of synth:tiny need") != std::string::npos);
    CHECK(loaded.error().message.find("are free") != std::string::npos);
  }
  CHECK(load_weights_apart(checkpoint, "cuda:0", true, FAULTLINE_PROGRAM));
}
#endif
