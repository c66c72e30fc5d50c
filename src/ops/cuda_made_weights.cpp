#include "ops/cuda_made_weights.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda_synth.h"
#include "ops/kinds.h"

namespace faultline {
namespace {

using kernels::SynthJob;
using kernels::SynthKind;

SynthJob job_of(const MadeTensor& tensor, int32_t expert) {
  SynthJob job;
  job.out = reinterpret_cast<uint8_t*>(tensor.at);
  job.bytes = static_cast<int64_t>(tensor.bytes);
  job.key = tensor.recipe.key;
  job.spread = tensor.recipe.spread;
  job.expert = expert;
  switch (tensor.recipe.kind) {
    case SynthRecipe::Kind::kCodes:
      job.kind = SynthKind::kCodes;
      break;
    case SynthRecipe::Kind::kBlockScales:
      job.kind = SynthKind::kBlockScales;
      break;
    case SynthRecipe::Kind::kNormals:
      job.kind = SynthKind::kNormals;
      break;
    case SynthRecipe::Kind::kOther:
      FAULTLINE_CHECK(!"a tensor that the GPU cannot make");
  }
  return job;
}

// In device memory, for good: a captured graph may hold the address.
const SynthJob* to_device(const std::vector<SynthJob>& jobs) {
  void* memory = nullptr;
  const size_t bytes = jobs.size() * sizeof(SynthJob);
  if (cudaMalloc(&memory, bytes) != cudaSuccess ||
      cudaMemcpy(memory, jobs.data(), bytes, cudaMemcpyHostToDevice) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return nullptr;
  }
  return static_cast<const SynthJob*>(memory);
}

Status launched() {
  if (const char* refused = kernels::take_launch_error(); refused != nullptr)
    return internal_error("making weights on the GPU: {}", refused);
  return {};
}

MadePerUse*& in_use() {
  static MadePerUse* instance = nullptr;
  return instance;
}

}  // namespace

// One op's, known by its first tensor.
struct MadePerUse::Jobs {
  const std::byte* first = nullptr;
  const SynthJob* jobs = nullptr;
  int64_t count = 0;
};

Status make_on_device(const std::vector<MadeTensor>& tensors, const kernels::LaunchContext& launch) {
  if (tensors.empty()) return {};
  std::vector<SynthJob> jobs;
  for (const MadeTensor& tensor : tensors) jobs.push_back(job_of(tensor, -1));
  const SynthJob* on_device = to_device(jobs);
  if (on_device == nullptr) return cannot_run("no GPU memory for the list of {} tensors", tensors.size());
  kernels::make_synth(launch, on_device, static_cast<int64_t>(jobs.size()), nullptr);
  return launched();
}

MadePerUse::MadePerUse(std::vector<MadeTensor> tensors) : tensors_(std::move(tensors)) {
  std::sort(tensors_.begin(), tensors_.end(), [](const MadeTensor& a, const MadeTensor& b) { return a.at < b.at; });
  FAULTLINE_CHECK(in_use() == nullptr);
  in_use() = this;
}

MadePerUse::~MadePerUse() {
  in_use() = nullptr;
}

const MadePerUse::Jobs* MadePerUse::jobs_of(const OpKind& kind, const OpCall& call) {
  const std::byte* const begin = tensors_.front().at;
  const std::byte* const end = tensors_.back().at + tensors_.back().bytes;
  const auto made = [&](const TensorView& view) { return view.data >= begin && view.data < end; };
  const std::byte* first = nullptr;
  for (size_t o = 0; o < kind.operands.size() && first == nullptr; ++o)
    if (kind.operands[o].content == Content::kWeight && call.arguments[o].present() && made(call.arguments[o].view()))
      first = call.arguments[o].view().data;
  if (first == nullptr) return nullptr;
  const auto known = std::find_if(jobs_.begin(), jobs_.end(), [&](const auto& jobs) { return jobs->first == first; });
  if (known != jobs_.end()) return known->get();

  std::vector<SynthJob> jobs;
  for (size_t o = 0; o < kind.operands.size(); ++o) {
    if (kind.operands[o].content != Content::kWeight) continue;
    const auto views = call.arguments[o].views;
    const int64_t stacked = call.attr().integer_or("stacked", 1);
    for (size_t i = 0; i < views.size(); ++i) {
      if (views[i].data == nullptr || !made(views[i])) continue;
      const auto at =
          std::lower_bound(tensors_.begin(), tensors_.end(), views[i].data,
                           [](const MadeTensor& tensor, const std::byte* data) { return tensor.at < data; });
      FAULTLINE_CHECK(at != tensors_.end() && at->at == views[i].data);
      jobs.push_back(job_of(*at, static_cast<int32_t>(static_cast<int64_t>(i) / stacked)));
    }
  }
  auto made_jobs = std::make_unique<Jobs>();
  made_jobs->first = first;
  made_jobs->jobs = to_device(jobs);
  made_jobs->count = made_jobs->jobs == nullptr ? 0 : static_cast<int64_t>(jobs.size());
  jobs_.push_back(std::move(made_jobs));
  return jobs_.back().get();
}

Status bring_device_weights(const OpKind& kind, const OpCall& call) {
  MadePerUse* const made = in_use();
  if (made == nullptr) return {};
  const MadePerUse::Jobs* jobs = made->jobs_of(kind, call);
  if (jobs == nullptr) return {};
  if (jobs->jobs == nullptr) return internal_error("no GPU memory for a list of weights to be made");
  const int32_t* offsets = nullptr;
  if (kind.name == ops::ExpertLinear::kName) offsets = call.view(ops::ExpertLinear::kOffsets).as<int32_t>();
  if (kind.name == ops::ExpertLinearW4A4::kName) offsets = call.view(ops::ExpertLinearW4A4::kOffsets).as<int32_t>();
  kernels::make_synth(call.launch, jobs->jobs, jobs->count, offsets);
  return launched();
}

}  // namespace faultline
