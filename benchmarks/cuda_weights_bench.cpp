// Weights in a GPU's memory: how fast they are loaded from the page cache, how fast a worker has them, and how long it
// takes from a worker's death to the next one's first kernel.
//
//   cuda_weights_bench [GiB] [program] [stub]     64 GiB; faultline and tests/weights_stub of the same build
#include <fmt/format.h>

#include <sys/mman.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "base/clock.h"
#include "base/cpus.h"
#include "bisect/load_weights.h"
#include "model/mapping.h"
#include "model/tensor_table.h"
#include "tests/bisect/weights_stub.h"

namespace faultline {
namespace {

constexpr uint64_t kTensorBytes = uint64_t{32} << 20;
constexpr int kDeaths = 5;
constexpr double kGB = 1e9;

void fill_random(std::byte* data, uint64_t bytes) {
  const int threads = usable_cpus();
  std::vector<std::thread> pool;
  const uint64_t words = bytes / sizeof(uint64_t);
  for (int t = 0; t < threads; ++t)
    pool.emplace_back([=] {
      auto* out = reinterpret_cast<uint64_t*>(data);
      const uint64_t begin = words * static_cast<uint64_t>(t) / static_cast<uint64_t>(threads);
      const uint64_t end = words * static_cast<uint64_t>(t + 1) / static_cast<uint64_t>(threads);
      uint64_t x = begin * 2 + 1;
      for (uint64_t i = begin; i < end; ++i) {
        x ^= x << 13;  // xorshift64
        x ^= x >> 7;
        x ^= x << 17;
        out[i] = x;
      }
    });
  for (std::thread& thread : pool) thread.join();
}

// A checkpoint of random bytes in page cache; the tensors are no model's.
Result<Checkpoint> random_checkpoint(uint64_t gib) {
  FAULTLINE_TRY(const Checkpoint tiny, Checkpoint::open("synth:tiny"));
  FAULTLINE_TRY(const uint64_t table_bytes, file_size(tiny.descriptors()[0], "the table"));
  FAULTLINE_TRY(const Mapping block, Mapping::map(tiny.descriptors()[0], table_bytes, "the table"));
  FAULTLINE_TRY(TensorTable table, unpack_table({block.data(), block.bytes()}));
  table.identity = fmt::format("{} GiB of random bytes", gib);
  const uint64_t bytes = gib << 30;
  table.file_bytes = {bytes};
  table.rows.clear();
  for (uint64_t at = 0; at < bytes; at += kTensorBytes) {
    SafetensorsEntry entry;
    entry.name = fmt::format("t{}", at / kTensorBytes);
    entry.dtype = Dtype::kU8;
    entry.rank = 1;
    entry.shape[0] = static_cast<int64_t>(kTensorBytes);
    entry.begin = at;
    entry.end = at + kTensorBytes;
    table.rows.push_back({entry, 0});
  }
  FAULTLINE_TRY(UniqueFd data, make_shared_memory("random", bytes));
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, data.get(), 0);
  if (memory == MAP_FAILED) return internal_error("no memory for {} GiB", gib);
  fill_random(static_cast<std::byte*>(memory), bytes);
  ::munmap(memory, bytes);
  FAULTLINE_TRY(UniqueFd packed, make_sealed_text("table", pack_table(table)));
  const std::string manifest = dump_json({{"identity", table.identity}, {"descriptors", 2}});
  std::vector<UniqueFd> descriptors;
  descriptors.push_back(std::move(packed));
  descriptors.push_back(std::move(data));
  return Checkpoint::adopt(manifest, std::move(descriptors));
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Status run(uint64_t gib, const std::string& program, const std::string& stub) {
  Stopwatch watch;
  FAULTLINE_TRY(const Checkpoint checkpoint, random_checkpoint(gib));
  fmt::print("{} GiB of random bytes in page cache, made in {:.1f} s\n", gib, watch.seconds());
  watch.restart();
  FAULTLINE_TRY(const LoadedWeights loaded, load_weights_apart(checkpoint, "cuda:0", true, program));
  const double total = watch.seconds();
  const auto bytes = static_cast<double>(loaded.manifest.bytes);
  fmt::print("load: {:.2f} s in {} slabs, {:.1f} GB/s with its proof; with process, context and its end {:.2f} s\n",
             loaded.manifest.load_seconds, loaded.slabs.size(), bytes / kGB / loaded.manifest.load_seconds, total);
  std::vector<double> attach, prove, next, starts, contexts;
  double died = 0;
  for (int i = 0; i <= kDeaths; ++i) {
    FAULTLINE_TRY(const StubEnd end, run_weights_stub(stub, checkpoint, loaded.manifest, loaded.slabs, "write"));
    if (!end.said.is_object() || end.said.contains("error") || end.said["result"] != "cudaErrorIllegalAddress")
      return internal_error("the stub said {}", end.said.dump());
    const auto at = [&](const char* key) { return end.said[key].get<double>(); };
    if (died > 0) {
      starts.push_back(at("started") - died);
      contexts.push_back(at("context") - at("started"));
      attach.push_back(at("attached") - at("context"));
      prove.push_back(at("proven") - at("attached"));
      // The kernel that faults is the first one after the proof.
      next.push_back(at("kernel") - died);
    }
    died = at("kernel");  // the fault is known to the worker; its end and the next one's start follow
  }
  fmt::print(
      "from a fault to the next process's first kernel: {:.3f} s (median of {}; slowest {:.3f} s): its end and a "
      "new process {:.3f}, context {:.3f}, attach {:.4f}, proof {:.4f} ({:.0f} GB/s)\n",
      median(next), kDeaths, *std::max_element(next.begin(), next.end()), median(starts), median(contexts),
      median(attach), median(prove), bytes / kGB / median(prove));
  FAULTLINE_TRY(const StubEnd end, run_weights_stub(stub, checkpoint, loaded.manifest, loaded.slabs, "read"));
  fmt::print("after {} stray writes: {}\n", kDeaths + 1,
             end.said.contains("error") ? end.said["error"].get<std::string>() : "weights bit-identical");
  return {};
}

}  // namespace
}  // namespace faultline

int main(int argc, char** argv) {
  const std::filesystem::path build = std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
  const uint64_t gib = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 64;
  const std::string program = argc > 2 ? argv[2] : (build / "faultline").string();
  const std::string stub = argc > 3 ? argv[3] : (build / "tests" / "weights_stub").string();
  const faultline::Status status = faultline::run(gib, program, stub);
  if (!status) fmt::print(stderr, "{}\n", status.error().message);
  return status ? 0 : 1;
}
