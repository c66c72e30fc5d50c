#include "engine/load_slabs.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/cpus.h"
#include "base/fd.h"
#include "base/text.h"
#include "device/slab_checksum.h"

namespace faultline {
namespace {

constexpr uint64_t kChunkBytes = uint64_t{4} << 20;    // of staging memory: 0.08 ms on its way to a GPU
constexpr uint64_t kPieceBytes = uint64_t{256} << 10;  // read, then summed while it is in the core's cache
constexpr auto kProgressInterval = std::chrono::milliseconds(100);
// Of a worker: its context, its caches and activations. What the weights leave free must be more.
constexpr uint64_t kWorkerReserve = uint64_t{1} << 30;

// "model.layers.17.mlp…" → 17; -1: of no layer.
int64_t layer_of(const std::string& name) {
  constexpr std::string_view kPrefix = "model.layers.";
  constexpr size_t kMostDigits = 9;
  if (!name.starts_with(kPrefix)) return -1;
  const size_t end = name.find_first_not_of("0123456789", kPrefix.size());
  if (end == std::string::npos || end == kPrefix.size() || end - kPrefix.size() > kMostDigits) return -1;
  return std::stoll(name.substr(kPrefix.size(), end - kPrefix.size()));
}

// How many layers fit into `bytes` beside what is in no layer; -1: not even that.
int64_t layers_that_fit(const Checkpoint& checkpoint, uint64_t bytes) {
  std::vector<uint64_t> layers(static_cast<size_t>(checkpoint.config().num_hidden_layers), 0);
  uint64_t rest = 0;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    const int64_t layer = layer_of(tensor.name);
    const uint64_t size = tensor_bytes(tensor.view) + kPlacementAlignment;
    if (layer >= 0 && layer < checkpoint.config().num_hidden_layers)
      layers[static_cast<size_t>(layer)] += size;
    else
      rest += size;
  }
  if (rest > bytes) return -1;
  bytes -= rest;
  int64_t fit = 0;
  for (const uint64_t layer : layers) {
    if (layer > bytes) break;
    bytes -= layer;
    ++fit;
  }
  return fit;
}

Status check_memory(const Checkpoint& checkpoint, const SlabWriter& slabs, uint64_t bytes) {
  const Device::Memory memory = slabs.memory();
  if (memory.total == 0 || bytes + kWorkerReserve <= memory.free) return {};
  const uint64_t room = memory.free > kWorkerReserve ? memory.free - kWorkerReserve : 0;
  const int64_t fit = layers_that_fit(checkpoint, room);
  std::string advice = fit > 0 ? fmt::format(
                                     "{} of the {} layers would fit (a checkpoint of fewer: "
                                     "num_hidden_layers={} in its config, or synth:NAME?num_hidden_layers={})",
                                     fit, checkpoint.config().num_hidden_layers, fit, fit)
                               : "not even one layer would fit";
  return cannot_run(
      "{}: the weights of {} need {} and a worker about {} more; {} of {} are free. {}; `faultline hold --list` shows "
      "what is held there",
      slabs.device_name(), checkpoint.spec(), bytes_text(bytes), bytes_text(kWorkerReserve), bytes_text(memory.free),
      bytes_text(memory.total), advice);
}

class SlabLoader {
 public:
  SlabLoader(const Checkpoint& checkpoint, const Placement& placement, SlabWriter& slabs)
      : tensors_(checkpoint.tensors()),
        descriptors_(checkpoint.descriptors()),
        spec_(checkpoint.spec()),
        placement_(placement),
        slabs_(slabs),
        chunks_((placement.bytes + kChunkBytes - 1) / kChunkBytes) {}

  // The checksum of what was sent.
  Result<uint64_t> run(int threads, const std::function<void(uint64_t, uint64_t)>& progress) {
    threads = static_cast<int>(std::min<uint64_t>(static_cast<uint64_t>(threads), chunks_));
    std::vector<std::thread> pool;
    running_ = threads;
    for (int i = 0; i < threads; ++i)
      pool.emplace_back([this] {
        const Status status = work();
        const std::lock_guard lock(mutex_);
        if (!status && !error_) error_ = status.error();
        --running_;
        ended_.notify_all();
      });
    {
      std::unique_lock lock(mutex_);
      while (!ended_.wait_for(lock, kProgressInterval, [this] { return running_ == 0; })) {
        lock.unlock();
        if (progress) progress(done_.load(), placement_.bytes);
        lock.lock();
      }
    }
    for (std::thread& thread : pool) thread.join();
    if (error_) return tl::make_unexpected(*error_);
    if (progress) progress(placement_.bytes, placement_.bytes);
    return sum_.load();
  }

 private:
  Status work() {
    FAULTLINE_TRY(const auto lane, slabs_.open_lane(kChunkBytes));
    while (!failed_.load()) {
      const uint64_t chunk = next_.fetch_add(1);
      if (chunk >= chunks_) break;
      const Status status = one_chunk(*lane, chunk * kChunkBytes);
      if (!status) {
        failed_.store(true);
        return status;
      }
    }
    return lane->finish();
  }

  Status one_chunk(SlabWriter::Lane& lane, uint64_t begin) {
    const uint64_t bytes = std::min(kChunkBytes, placement_.bytes - begin);
    FAULTLINE_TRY(std::byte * staging, lane.staging());
    for (uint64_t at = 0; at < bytes; at += kPieceBytes) {
      const uint64_t piece = std::min(kPieceBytes, bytes - at);
      FAULTLINE_TRY_STATUS(fill(begin + at, piece, staging + at));
      sum_.fetch_add(checksum_of_words(reinterpret_cast<const uint64_t*>(staging + at), piece / kChecksumWordBytes,
                                       (begin + at) / kChecksumWordBytes));
    }
    FAULTLINE_TRY_STATUS(lane.send(begin, bytes));
    done_.fetch_add(bytes);
    return {};
  }

  // The image of [begin, begin + bytes) of the slabs: tensors, and zeros between them.
  Status fill(uint64_t begin, uint64_t bytes, std::byte* into) {
    // The last tensor that starts at or before it.
    auto tensor = static_cast<size_t>(std::upper_bound(placement_.offsets.begin(), placement_.offsets.end(), begin) -
                                      placement_.offsets.begin() - 1);
    for (; tensor < tensors_.size() && placement_.offsets[tensor] < begin + bytes; ++tensor) {
      const uint64_t offset = placement_.offsets[tensor];
      const uint64_t size = tensor_bytes(tensors_[tensor].view);
      const uint64_t next = tensor + 1 < tensors_.size() ? placement_.offsets[tensor + 1] : placement_.bytes;
      const uint64_t from = std::max(begin, offset);
      const uint64_t data_end = std::clamp(offset + size, from, begin + bytes);
      FAULTLINE_TRY_STATUS(read(tensor, from - offset, data_end - from, into + (from - begin)));
      const uint64_t end = std::min(next, begin + bytes);
      std::memset(into + (data_end - begin), 0, end - data_end);
    }
    return {};
  }

  // Reading beats the mapping: no page faults, and a file that shrank is an error, not a signal.
  Status read(size_t tensor, uint64_t at, uint64_t bytes, std::byte* into) {
    const StoredTensor& stored = tensors_[tensor];
    uint64_t position = stored.begin + at;
    while (bytes > 0) {
      const ssize_t got = ::pread(descriptors_[stored.file + 1], into, bytes, static_cast<off_t>(position));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return bad_input("{}: {} cannot be read: {}", spec_, stored.name, errno_text(errno));
      if (got == 0)
        return bad_input("{}: the file of {} has become shorter; it changed while it was loaded", spec_, stored.name);
      into += got;
      position += static_cast<uint64_t>(got);
      bytes -= static_cast<uint64_t>(got);
    }
    return {};
  }

  const std::vector<StoredTensor>& tensors_;
  const std::vector<int> descriptors_;
  const std::string spec_;
  const Placement& placement_;
  SlabWriter& slabs_;
  const uint64_t chunks_;
  std::atomic<uint64_t> next_{0};
  std::atomic<uint64_t> done_{0};
  std::atomic<uint64_t> sum_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::condition_variable ended_;
  int running_ = 0;
  std::optional<Error> error_;
};

}  // namespace

Result<WeightsManifest> load_slabs(const Checkpoint& checkpoint, SlabWriter& slabs, const LoadOptions& options) {
  const Stopwatch watch;
  FAULTLINE_TRY(const Placement placement, place_tensors(checkpoint));
  WeightsManifest manifest;
  manifest.spec = checkpoint.spec();
  FAULTLINE_TRY(manifest.path, model_path(checkpoint.spec()));
  manifest.identity = checkpoint.identity();
  manifest.device = options.device;
  manifest.device_name = slabs.device_name();
  manifest.device_uuid = slabs.uuid();
  manifest.bytes = placement.bytes;
  manifest.placement = placement.hash();
  FAULTLINE_TRY(manifest.slabs, slab_sizes(placement.bytes, slabs.granularity()));
  FAULTLINE_TRY(manifest.files, file_states(checkpoint));
  uint64_t whole = 0;
  for (const uint64_t slab : manifest.slabs) whole += slab;
  FAULTLINE_TRY_STATUS(check_memory(checkpoint, slabs, whole));
  FAULTLINE_TRY_STATUS(slabs.allocate(manifest.slabs));
  const int threads = options.threads > 0 ? options.threads : std::min(usable_cpus(), kMaxLoadThreads);
  SlabLoader loader(checkpoint, placement, slabs);
  FAULTLINE_TRY(const uint64_t sent, loader.run(threads, options.progress));
  FAULTLINE_TRY(const uint64_t arrived, slabs.checksum(placement.bytes));
  if (sent != arrived)
    return internal_error("{}: the weights arrived damaged in its memory (checksum {:016x}, {:016x} was sent)",
                          slabs.device_name(), arrived, sent);
  manifest.checksum = fmt::format("{:016x}", sent);
  manifest.loaded = utc_timestamp();
  manifest.load_seconds = watch.seconds();
  return manifest;
}

}  // namespace faultline
