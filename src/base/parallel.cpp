#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace faultline {
namespace {

std::atomic<int> wanted_threads{1};

class Pool {
 public:
  void run(int64_t count, const std::function<void(int64_t)>& work, int threads) {
    const std::unique_lock<std::mutex> alone(loop_, std::try_to_lock);
    if (!alone) {
      for (int64_t i = 0; i < count; ++i) work(i);
      return;
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      while (started_ < threads - 1) {
        std::thread([this, index = started_] { serve(index); }).detach();
        ++started_;
      }
      work_ = &work;
      count_ = count;
      next_ = 0;
      helpers_ = threads - 1;
      ++loop_number_;
    }
    begin_.notify_all();
    help(work, count);
    std::unique_lock<std::mutex> lock(mutex_);
    work_ = nullptr;  // whoever wakes only now finds nothing to do
    done_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  void help(const std::function<void(int64_t)>& work, int64_t count) {
    for (int64_t i = next_++; i < count; i = next_++) work(i);
  }

  void serve(int index) {
    uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      begin_.wait(lock, [&] { return loop_number_ != seen && work_ != nullptr; });
      seen = loop_number_;
      if (index >= helpers_) continue;
      const auto& work = *work_;
      const int64_t count = count_;
      ++busy_;
      lock.unlock();
      help(work, count);
      lock.lock();
      if (--busy_ == 0) done_.notify_all();
    }
  }

  std::mutex loop_;  // held by the thread whose loop runs
  std::mutex mutex_;
  std::condition_variable begin_, done_;
  const std::function<void(int64_t)>* work_ = nullptr;
  int64_t count_ = 0;
  std::atomic<int64_t> next_{0};
  uint64_t loop_number_ = 0;
  int helpers_ = 0;
  int started_ = 0;
  int busy_ = 0;
};

// Never destroyed: its threads wait there until the process ends.
Pool& pool() {
  static auto* const instance = new Pool;
  return *instance;
}

}  // namespace

void set_parallel_threads(int threads) {
  wanted_threads = std::max(1, threads);
}

int parallel_threads() {
  return wanted_threads;
}

void parallel_for(int64_t count, const std::function<void(int64_t)>& work) {
  const int threads = static_cast<int>(std::min<int64_t>(count, parallel_threads()));
  if (threads > 1) {
    pool().run(count, work, threads);
    return;
  }
  for (int64_t i = 0; i < count; ++i) work(i);
}

}  // namespace faultline
