#include "bisect/held_weights.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "device/slabs.h"
#include "engine/device_weights.h"
#include "model/synth.h"
#include "model/synth_write.h"
#include "testing.h"

using namespace faultline;

namespace {

namespace fs = std::filesystem;

const std::string kMemory(kMemorySlabs);

// A folder of keepers, and of a checkpoint, of this test alone. What is held at the end is killed.
struct Place {
  std::string path;
  std::string before;
  std::vector<pid_t> keepers;

  Place() {
    char name[] = "/tmp/faultline-held-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    path = name;
    if (const char* old = std::getenv("XDG_RUNTIME_DIR")) before = old;
    ::setenv("XDG_RUNTIME_DIR", path.c_str(), 1);
  }
  ~Place() {
    for (const pid_t pid : keepers) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    if (before.empty())
      ::unsetenv("XDG_RUNTIME_DIR");
    else
      ::setenv("XDG_RUNTIME_DIR", before.c_str(), 1);
    fs::remove_all(path);
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  std::string write_model() const {
    const auto model = parse_synth_spec("synth:tiny");
    REQUIRE(model);
    REQUIRE(write_synth(*model, path + "/model", 0, [](uint64_t, uint64_t) { return true; }));
    return path + "/model";
  }
  // As `faultline hold` does.
  void hold(const Checkpoint& checkpoint) {
    auto loaded = load_weights_apart(checkpoint, kMemory, true, FAULTLINE_PROGRAM);
    REQUIRE(loaded);
    std::vector<int> descriptors;
    if (checkpoint.spec().starts_with(kSynthPrefix)) {
      descriptors = checkpoint.descriptors();
      loaded->manifest.checkpoint = checkpoint.manifest();
      loaded->manifest.checkpoint_descriptors = descriptors.size();
    }
    for (const UniqueFd& fd : loaded->slabs) descriptors.push_back(fd.get());
    const auto pid = start_keeper(keeper_directory().value(), loaded->manifest, descriptors, FAULTLINE_PROGRAM);
    REQUIRE(pid);
    keepers.push_back(*pid);
  }
};

Checkpoint open(const std::string& spec) {
  auto opened = open_checkpoint(spec);
  REQUIRE(opened);
  return std::move(*opened);
}

RunWeights obtain(const Checkpoint& checkpoint) {
  auto weights = obtain_weights(checkpoint, kMemory, true, FAULTLINE_PROGRAM);
  REQUIRE(weights);
  return std::move(*weights);
}

bool attaches(const Checkpoint& checkpoint, const RunWeights& weights) {
  std::vector<int> fds;
  for (const UniqueFd& fd : weights.slabs) fds.push_back(fd.get());
  const auto device = make_cpu_device();
  const auto attached = DeviceWeights::attach(*device, checkpoint, to_text(weights.manifest), fds);
  return attached && attached->verify();
}

}  // namespace

TEST_CASE("Weights that nobody holds are loaded by a process of its own, and go with the run", "[bisect][weights]") {
  const Place place;
  const Checkpoint checkpoint = open("synth:tiny");
  const RunWeights weights = obtain(checkpoint);
  CHECK_FALSE(weights.held);
  CHECK(weights.origin.find("loaded in") != std::string::npos);
  CHECK(attaches(checkpoint, weights));
  CHECK(fs::is_empty(place.path));  // no folder for keepers was made
}

TEST_CASE("Held weights are taken, not loaded", "[bisect][weights]") {
  Place place;
  const std::string model = place.write_model();
  place.hold(open(model));
  for (int i = 0; i < 2; ++i) {
    const Checkpoint checkpoint = open(model);
    const RunWeights weights = obtain(checkpoint);
    CHECK(weights.held);
    CHECK(weights.origin.find(fmt::format("held by process {}", place.keepers[0])) != std::string::npos);
    CHECK(attaches(checkpoint, weights));
  }
}

TEST_CASE("Held synthetic weights bring their checkpoint along", "[bisect][weights]") {
  Place place;
  const Checkpoint made = open("synth:tiny?seed=5");
  place.hold(made);
  const Checkpoint taken = open("synth:tiny?seed=5");
  CHECK(taken.identity() == made.identity());
  // The same memory, not the same bytes made again.
  struct stat first {};
  struct stat second {};
  REQUIRE(::fstat(made.descriptors().at(1), &first) == 0);
  REQUIRE(::fstat(taken.descriptors().at(1), &second) == 0);
  CHECK(first.st_ino == second.st_ino);
  CHECK(obtain(taken).held);
  CHECK(attaches(taken, obtain(taken)));
  const Checkpoint other = open("synth:tiny?seed=6");
  CHECK_FALSE(obtain(other).held);
}

TEST_CASE("A checkpoint that changed while it was held is loaded anew, and it is said what changed",
          "[bisect][weights]") {
  Place place;
  const std::string model = place.write_model();
  place.hold(open(model));
  std::string file;
  for (const auto& entry : fs::directory_iterator(model))
    if (entry.path().extension() == ".safetensors") file = entry.path().string();
  REQUIRE(::utimensat(AT_FDCWD, file.c_str(), nullptr, 0) == 0);  // now
  const Checkpoint checkpoint = open(model);
  const HeldState state = find_held(checkpoint, kMemory).value();
  REQUIRE(state.held);
  CHECK(state.changed.find("has another time") != std::string::npos);
  const RunWeights weights = obtain(checkpoint);
  CHECK_FALSE(weights.held);
  CHECK(attaches(checkpoint, weights));
  CHECK_FALSE(find_held(checkpoint, "another device").value().held);
}

TEST_CASE("A keeper that was killed is no obstacle", "[bisect][weights]") {
  Place place;
  const Checkpoint checkpoint = open("synth:tiny");
  place.hold(checkpoint);
  ::kill(place.keepers[0], SIGKILL);
  ::waitpid(place.keepers[0], nullptr, 0);
  place.keepers.clear();
  CHECK_FALSE(obtain(open("synth:tiny")).held);
}

TEST_CASE("What the loader cannot do is its caller's error", "[bisect][weights]") {
  const Place place;
  const Checkpoint checkpoint = open("synth:tiny");
  const auto no_device = load_weights_apart(checkpoint, "gpu7", true, FAULTLINE_PROGRAM);
  REQUIRE_FALSE(no_device);
  CHECK(no_device.error().kind == ErrorKind::kBadInput);
  if (!cuda_usable(0)) {
    const auto no_gpu = load_weights_apart(checkpoint, "cuda:0", true, FAULTLINE_PROGRAM);
    REQUIRE_FALSE(no_gpu);
    CHECK(no_gpu.error().kind == ErrorKind::kCannotRun);
  }
  const auto wrong_program = load_weights_apart(checkpoint, kMemory, true, "/bin/true");
  REQUIRE_FALSE(wrong_program);
  CHECK(wrong_program.error().message.find("ended without a word") != std::string::npos);
  // A file that has become shorter since the checkpoint was opened.
  const std::string model = place.write_model();
  const Checkpoint shorter = open(model);
  for (const auto& entry : fs::directory_iterator(model))
    if (entry.path().extension() == ".safetensors") fs::resize_file(entry.path(), fs::file_size(entry.path()) - 4096);
  const auto cut = load_weights_apart(shorter, kMemory, true, FAULTLINE_PROGRAM);
  REQUIRE_FALSE(cut);
  CHECK(cut.error().kind == ErrorKind::kBadInput);
}

TEST_CASE("The progress of loading is told in bytes, rate and time", "[bisect][weights]") {
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  CHECK(load_progress_text(0, 64 * kGiB, 0) == "0 B of 64.0 GiB");
  CHECK(load_progress_text(16 * kGiB, 64 * kGiB, 0.01) == "16.0 GiB of 64.0 GiB");  // too soon for a rate
  CHECK(load_progress_text(16 * kGiB, 64 * kGiB, 1) == "16.0 GiB of 64.0 GiB, 17.2 GB/s, 3.0 s left");
  CHECK(load_progress_text(64 * kGiB, 64 * kGiB, 4) == "64.0 GiB of 64.0 GiB, 17.2 GB/s");
}
