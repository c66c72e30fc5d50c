#include "ops/cuda_reference.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <type_traits>

#include "ops/cuda_reference_operands.cuh"
#include "ops/kinds.h"

namespace faultline {
namespace {

namespace device = cuda_reference;

// Tables in device memory, one for each content that was ever asked for: an op asks for the same one in every pass.
// Kept as long as the process lives, as the weights are that they list.
class Tables {
 public:
  // Memory that runs out throws std::bad_alloc (device/device.h). Null when the device has died: the reason is kept as
  // that of a refused launch, and no kernel will run.
  const void* get(const void* content, size_t bytes, void* stream) {
    std::string key(static_cast<const char*>(content), bytes);
    const std::lock_guard lock(mutex_);
    const auto found = tables_.find(key);
    if (found != tables_.end()) return found->second;
    void* table = nullptr;
    cudaError_t error = cudaMalloc(&table, bytes);
    if (error == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      throw std::bad_alloc();
    }
    // From pageable memory: the content has been read when the call returns.
    if (error == cudaSuccess)
      error = cudaMemcpyAsync(table, content, bytes, cudaMemcpyHostToDevice, static_cast<cudaStream_t>(stream));
    if (error != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      kernels::note_launch_error(cudaGetErrorString(error));
      return nullptr;
    }
    return tables_.emplace(std::move(key), table).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, void*> tables_;
};

const void* device_table(const OpCall& call, const void* content, size_t bytes) {
  static Tables tables;
  return bytes == 0 ? nullptr : tables.get(content, bytes, call.launch.stream);
}

static_assert(std::has_unique_object_representations_v<device::Tensor>);
device::Tensor tensor_of(const TensorView& view) {
  device::Tensor tensor{};
  tensor.data = view.data;
  tensor.dtype = view.dtype;
  std::copy(view.shape.begin(), view.shape.end(), tensor.shape);
  std::copy(view.stride.begin(), view.stride.end(), tensor.stride);
  return tensor;
}

device::Tensor operand(const OpCall& call, int at) {
  return tensor_of(call.view(at));
}

device::Tensor output(const OpCall& call, int at) {
  FAULTLINE_CHECK(call.view(at).dtype != Dtype::kF16);  // no activation or output is F16; only weights are
  return operand(call, at);
}

device::List list(const OpCall& call, int at) {
  const std::span<const TensorView> views = call.argument(at).views;
  std::vector<device::Tensor> tensors;
  std::transform(views.begin(), views.end(), std::back_inserter(tensors), tensor_of);
  const void* table = device_table(call, tensors.data(), tensors.size() * sizeof(device::Tensor));
  return device::List{static_cast<const device::Tensor*>(table),
                      table == nullptr ? 0 : static_cast<int64_t>(tensors.size())};
}

device::Weights weights(const OpCall& call, int values, int block_scale, int global_scale) {
  return device::Weights{list(call, values), list(call, block_scale), list(call, global_scale),
                         call.argument(values).format == Format::kNvfp4};
}

device::Activations plain_rows(const OpCall& call, int x) {
  return device::Activations{operand(call, x), {}, {}, false, false, call.view(x).dim(1), 0};
}
device::Activations coded_rows(const OpCall& call, int codes, int scales, int input_scale, ReferenceOf which) {
  return device::Activations{operand(call, codes),
                             operand(call, scales),
                             list(call, input_scale),
                             true,
                             which == ReferenceOf::kSpec,
                             call.view(codes).dim(1) * 2,
                             call.attr().integer_or("per_expert", 0) != 0 ? call.attr().integer("stacked") : 0};
}

device::Cache cache(const OpCall& call, int at) {
  const CacheGeometry& geometry = *call.argument(at).geometry;
  device::Cache result{call.view(at).as<uint8_t>(),
                       device::RowFormat::kFloats,
                       geometry.slots,
                       geometry.page_size,
                       geometry.latent,
                       geometry.rope,
                       geometry.format == Format::kIndexFp8 ? geometry.row_bytes() : geometry.stride_bytes()};
  switch (geometry.format) {
    case Format::kKvF32:
    case Format::kIndexF32:
      return result;
    case Format::kKvBf16:
      result.format = device::RowFormat::kBf16;
      return result;
    case Format::kKvPacked:
      result.format = device::RowFormat::kPacked;
      return result;
    case Format::kKvPlainFp8:
      result.format = device::RowFormat::kPlainFp8;
      return result;
    case Format::kIndexFp8:
      result.format = device::RowFormat::kIndexFp8;
      return result;
    case Format::kPlain:
    case Format::kNvfp4:
      break;
  }
  FAULTLINE_CHECK(!"a cache has no such format");
  return result;
}

// --- one function a kind

void prepare(const OpCall& call, ReferenceOf) {
  using P = ops::Prepare;
  device::prepare(call.launch.stream,
                  {operand(call, P::kReqToToken), operand(call, P::kReqPool), operand(call, P::kSeqLens),
                   operand(call, P::kCuSeqlensQ), output(call, P::kPositions), output(call, P::kRowToRequest),
                   output(call, P::kLengths), output(call, P::kPageTable), output(call, P::kRaggedOffsets),
                   output(call, P::kFlatSlots), operand(call, P::kLive)});
}

void embed(const OpCall& call, ReferenceOf) {
  using E = ops::Embed;
  device::take_rows(call.launch.stream, operand(call, E::kTable), operand(call, E::kIds), output(call, E::kOut));
}

void gather_rows(const OpCall& call, ReferenceOf) {
  using G = ops::GatherRows;
  device::take_rows(call.launch.stream, operand(call, G::kX), operand(call, G::kRows), output(call, G::kOut));
}

void add(const OpCall& call, ReferenceOf) {
  using A = ops::Add;
  device::add(call.launch.stream, operand(call, A::kA), operand(call, A::kB), output(call, A::kOut));
}

void silu_mul(const OpCall& call, ReferenceOf) {
  using S = ops::SiluMul;
  device::silu_mul(call.launch.stream, operand(call, S::kX), output(call, S::kOut));
}

void rmsnorm(const OpCall& call, ReferenceOf) {
  using N = ops::RmsNorm;
  device::rmsnorm(call.launch.stream, operand(call, N::kX), operand(call, N::kWeight), output(call, N::kOut),
                  call.attr().real("eps"));
}

void layernorm(const OpCall& call, ReferenceOf) {
  using N = ops::LayerNorm;
  device::layernorm(call.launch.stream, operand(call, N::kX), operand(call, N::kWeight), operand(call, N::kBias),
                    output(call, N::kOut), call.attr().real("eps"));
}

// The frequencies are the host's: at position 200,000 their last bit moves the angle by 0.01.
void rope(const OpCall& call, ReferenceOf) {
  using R = ops::Rope;
  const int64_t rope_dim = call.attr().flag("enabled") ? call.attr().integer("rope_dim") : 0;
  std::vector<float> frequency;
  for (int64_t i = 0; i < rope_dim / 2; ++i)
    frequency.push_back(static_cast<float>(
        std::pow(call.attr().real("theta"), -2.0 * static_cast<double>(i) / static_cast<double>(rope_dim))));
  const void* table = device_table(call, frequency.data(), frequency.size() * sizeof(float));
  if (table == nullptr && !frequency.empty()) return;
  device::rope(call.launch.stream, operand(call, R::kX), operand(call, R::kPositions), output(call, R::kOut),
               static_cast<const float*>(table), rope_dim, call.attr().flag("interleaved"));
}

void quantize_fp4(const OpCall& call, ReferenceOf) {
  using Q = ops::QuantizeFp4;
  device::quantize_fp4(call.launch.stream, operand(call, Q::kX), list(call, Q::kInputScale), output(call, Q::kCodes),
                       output(call, Q::kScales));
}

void quantize_fp4_experts(const OpCall& call, ReferenceOf) {
  using Q = ops::QuantizeFp4Experts;
  device::quantize_fp4_experts(call.launch.stream, operand(call, Q::kX), operand(call, Q::kIds),
                               list(call, Q::kInputScale), output(call, Q::kCodes), output(call, Q::kScales),
                               call.attr().flag("x_per_token") ? call.attr().integer("k") : 1,
                               call.attr().integer("stacked"));
}

void round_fp8(const OpCall& call, ReferenceOf) {
  using R = ops::RoundFp8;
  device::round_fp8(call.launch.stream, operand(call, R::kX), output(call, R::kOut));
}

void hadamard(const OpCall& call, ReferenceOf) {
  using H = ops::Hadamard;
  device::hadamard(call.launch.stream, operand(call, H::kX), output(call, H::kOut));
}

void linear(const OpCall& call, ReferenceOf) {
  using L = ops::Linear;
  device::linear(call.launch.stream, plain_rows(call, L::kX),
                 weights(call, L::kWeight, L::kBlockScale, L::kGlobalScale), output(call, L::kOut));
}

void linear_w4a4(const OpCall& call, ReferenceOf which) {
  using L = ops::LinearW4A4;
  device::linear(call.launch.stream, coded_rows(call, L::kCodes, L::kScales, L::kInputScale, which),
                 weights(call, L::kWeight, L::kBlockScale, L::kGlobalScale), output(call, L::kOut));
}

void batched_linear(const OpCall& call, ReferenceOf) {
  using B = ops::BatchedLinear;
  device::batched_linear(call.launch.stream, operand(call, B::kX), operand(call, B::kWeight), output(call, B::kOut),
                         call.attr().flag("weight_kn"));
}

void experts(const OpCall& call, const device::Activations& x, int order, int offsets, const device::Weights& w,
             int out) {
  device::expert_linear(call.launch.stream,
                        {x, operand(call, order), operand(call, offsets), w, output(call, out),
                         call.attr().integer("k"), call.attr().integer("stacked"), call.attr().flag("x_per_token")});
}

void expert_linear(const OpCall& call, ReferenceOf) {
  using E = ops::ExpertLinear;
  experts(call, plain_rows(call, E::kX), E::kOrder, E::kOffsets,
          weights(call, E::kWeight, E::kBlockScale, E::kGlobalScale), E::kOut);
}

void expert_linear_w4a4(const OpCall& call, ReferenceOf which) {
  using E = ops::ExpertLinearW4A4;
  experts(call, coded_rows(call, E::kCodes, E::kScales, E::kInputScale, which), E::kOrder, E::kOffsets,
          weights(call, E::kWeight, E::kBlockScale, E::kGlobalScale), E::kOut);
}

void moe_combine(const OpCall& call, ReferenceOf) {
  using M = ops::MoeCombine;
  device::moe_combine(call.launch.stream, operand(call, M::kX), operand(call, M::kWeights), output(call, M::kOut));
}

void moe_permute(const OpCall& call, ReferenceOf) {
  using M = ops::MoePermute;
  device::moe_permute(call.launch.stream, operand(call, M::kIds), output(call, M::kOrder), output(call, M::kOffsets));
}

void cache_write(const OpCall& call, ReferenceOf) {
  using W = ops::CacheWrite;
  device::cache_write(call.launch.stream, operand(call, W::kX), operand(call, W::kSlots), cache(call, W::kCache),
                      call.attr().integer_or("floorless", 0) != 0, call.attr().integer_or("ue8m0", 0) != 0);
}

void cache_gather(const OpCall& call, ReferenceOf) {
  using G = ops::CacheGather;
  device::cache_gather(call.launch.stream, cache(call, G::kCache), operand(call, G::kSlots), operand(call, G::kSeqLens),
                       output(call, G::kOut));
}

// The server's quantize_k_cache has no floor; the model's has.
void cache_requantize(const OpCall& call, ReferenceOf which) {
  using R = ops::CacheRequantize;
  device::cache_requantize(call.launch.stream, cache(call, R::kCache), cache(call, R::kPacked),
                           which == ReferenceOf::kSpec);
}

void index_scores(const OpCall& call, ReferenceOf) {
  using S = ops::IndexScores;
  device::index_scores(
      call.launch.stream,
      {operand(call, S::kQ), operand(call, S::kHeadWeights), cache(call, S::kCache), operand(call, S::kPageTable),
       operand(call, S::kRowToRequest), operand(call, S::kLengths), output(call, S::kOut),
       call.attr().integer_or("query_fp8", 0) != 0, call.attr().integer_or("query_ue8m0", 0) != 0});
}

// The values of the attribute "transform" (ops/kinds.h, TopK).
void topk(const OpCall& call, ReferenceOf) {
  using T = ops::TopK;
  constexpr device::EntryOf kTransforms[] = {device::EntryOf::kPosition, device::EntryOf::kPaged,
                                             device::EntryOf::kRagged};
  const auto transform = static_cast<size_t>(call.attr().integer("transform"));
  FAULTLINE_CHECK(transform < std::size(kTransforms));
  device::topk(call.launch.stream, {operand(call, T::kScores), operand(call, T::kLengths), operand(call, T::kPageTable),
                                    operand(call, T::kRowToRequest), operand(call, T::kRaggedOffsets),
                                    output(call, T::kOut), call.attr().integer("topk"), kTransforms[transform]});
}

void attention(const OpCall& call, ReferenceOf) {
  using A = ops::Attention;
  constexpr int64_t kRaggedForm = 2;  // the attribute "index_form" (ops/kinds.h, Attention)
  device::KeysOf keys = device::KeysOf::kIndices;
  if (call.attr().integer_or("dense", 0) != 0)
    keys = call.attr().integer("index_form") == kRaggedForm ? device::KeysOf::kRagged : device::KeysOf::kPageTable;
  device::attention(call.launch.stream,
                    {operand(call, A::kQ), cache(call, A::kCache), operand(call, A::kIndices),
                     operand(call, A::kPageTable), operand(call, A::kRowToRequest), operand(call, A::kLengths),
                     operand(call, A::kRaggedOffsets), output(call, A::kOut), keys, call.attr().real("scale")});
}

void router(const OpCall& call, ReferenceOf) {
  using R = ops::Router;
  device::router(call.launch.stream,
                 {operand(call, R::kLogits), operand(call, R::kBias), output(call, R::kIds), output(call, R::kWeights),
                  call.attr().integer("k"), call.attr().integer("n_group"), call.attr().integer("topk_group"),
                  call.attr().flag("norm_topk"), static_cast<float>(call.attr().real("scaling")),
                  call.attr().integer_or("router_bias", 0) != 0, call.attr().integer_or("fused_shared", 0) != 0});
}

void softmax(const OpCall& call, ReferenceOf) {
  using S = ops::Softmax;
  FAULTLINE_CHECK(call.view(S::kProbs).dtype == Dtype::kF32);
  device::softmax(call.launch.stream, operand(call, S::kLogits), output(call, S::kProbs),
                  static_cast<float>(call.attr().real("temperature")), call.attr().real("top_p"));
}

void sample(const OpCall& call, ReferenceOf) {
  using S = ops::Sample;
  device::sample(call.launch.stream, operand(call, S::kProbs), operand(call, S::kUniform), output(call, S::kTokens));
}

void argmax(const OpCall& call, ReferenceOf) {
  using A = ops::Argmax;
  device::argmax(call.launch.stream, operand(call, A::kLogits), output(call, A::kTokens));
}

// A kind's reference, and whose spec reference it also computes: nobody's, where no kernel of the kind has one.
struct Entry {
  std::string_view kind;
  void (*run)(const OpCall& call, ReferenceOf which);
  std::string_view spec_of = {};
};

constexpr Entry kEntries[] = {
    {ops::Prepare::kName, prepare},
    {ops::Embed::kName, embed},
    {ops::RmsNorm::kName, rmsnorm},
    {ops::LayerNorm::kName, layernorm},
    {ops::Linear::kName, linear},
    {ops::LinearW4A4::kName, linear_w4a4, "flashinfer_cutlass"},
    {ops::QuantizeFp4::kName, quantize_fp4},
    {ops::QuantizeFp4Experts::kName, quantize_fp4_experts},
    {ops::RoundFp8::kName, round_fp8},
    {ops::Hadamard::kName, hadamard},
    {ops::BatchedLinear::kName, batched_linear},
    {ops::Rope::kName, rope},
    {ops::CacheWrite::kName, cache_write},
    {ops::CacheGather::kName, cache_gather},
    {ops::CacheRequantize::kName, cache_requantize, "quantize_k_cache"},
    {ops::IndexScores::kName, index_scores},
    {ops::TopK::kName, topk},
    {ops::Attention::kName, attention},
    {ops::SiluMul::kName, silu_mul},
    {ops::Add::kName, add},
    {ops::GatherRows::kName, gather_rows},
    {ops::Router::kName, router},
    {ops::MoePermute::kName, moe_permute},
    {ops::ExpertLinear::kName, expert_linear},
    {ops::ExpertLinearW4A4::kName, expert_linear_w4a4, "flashinfer_cutlass"},
    {ops::MoeCombine::kName, moe_combine},
    {ops::Softmax::kName, softmax},
    {ops::Sample::kName, sample},
    {ops::Argmax::kName, argmax},
};

bool wants_spec(const Kernel* kernel, ReferenceOf which) {
  return which == ReferenceOf::kSpec && kernel != nullptr && kernel->spec != nullptr;
}

const Entry* find_entry(const OpKind& kind, const Kernel* kernel, ReferenceOf which) {
  const auto* entry = std::find_if(std::begin(kEntries), std::end(kEntries),
                                   [&](const Entry& candidate) { return candidate.kind == kind.name; });
  if (entry == std::end(kEntries)) return nullptr;
  return wants_spec(kernel, which) && entry->spec_of != kernel->name ? nullptr : entry;
}

}  // namespace

bool has_cuda_reference(const OpKind& kind, const Kernel* kernel, ReferenceOf which) {
  return find_entry(kind, kernel, which) != nullptr;
}

bool run_cuda_reference(const OpKind& kind, const Kernel* kernel, ReferenceOf which, const OpCall& call) {
  const Entry* entry = find_entry(kind, kernel, which);
  if (entry == nullptr) return false;
  entry->run(call, wants_spec(kernel, which) ? ReferenceOf::kSpec : ReferenceOf::kModel);
  return true;
}

void compare_on_cuda(const TensorView& out, const TensorView& ref, int64_t live_rows, const TensorView& lengths,
                     Tolerance tolerance, Closeness* result, void* stream) {
  FAULTLINE_CHECK(out.rank >= 1 && out.rank <= 3 && out.rank == ref.rank);
  FAULTLINE_CHECK(out.shape == ref.shape && out.stride == ref.stride);
  const int64_t inner = out.rank == 1 ? 1 : out.dim(out.rank - 1);
  const int64_t columns = out.rank == 3 ? out.dim(1) * inner : inner;
  device::compare(stream, {tensor_of(out), tensor_of(ref), tensor_of(lengths), std::min(live_rows, out.dim(0)), columns,
                           inner, out.rank == 3 ? out.stride[1] : 0, tolerance.atol, tolerance.rtol, &result->count,
                           &result->first, &result->out, &result->ref});
}

}  // namespace faultline
