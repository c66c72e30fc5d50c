// embed: rows of the embedding table.
#include "kernels/elementwise.h"
#include "ops/kernel_operands.h"
#include "ops/kinds.h"
#include "ops/operands.h"
#include "ops/tolerances.h"

namespace faultline {
namespace {

using ops::Embed;

void model(const OpCall& call) {
  const TensorView& table = call.view(Embed::kTable);
  const TensorView& out = call.view(Embed::kOut);
  for (int64_t t = 0; t < out.dim(0); ++t) {
    const int64_t id = call.view(Embed::kIds).load_index(t);
    for (int64_t c = 0; c < out.dim(1); ++c) out.store(out.offset(t, c), table.load(table.offset(id, c)));
  }
}

KernelResult run(const OpCall& call) {
  const TensorView& out = call.view(Embed::kOut);
  with_build(call, out.dtype, [&](auto build) {
    using T = typename decltype(build)::Element;
    kernels::launch_elementwise(
        call.launch, out.dim(0),
        kernels::EmbedBody<T, decltype(build)::kChecked>{.ids = kernel_operand<int32_t>(call, Embed::kIds),
                                                         .table = kernel_scalar(call, Embed::kTable),
                                                         .out = kernel_operand<T>(call, Embed::kOut),
                                                         .columns = out.dim(1),
                                                         .table_stride = call.view(Embed::kTable).stride[0],
                                                         .out_stride = out.stride[0],
                                                         .log = call.launch.log});
  });
  return std::nullopt;
}

const RegisterKind kRegisterKind(OpKind{
    .name = Embed::kName,
    .operands = {index_input("ids", kTokenRows), weight("table"), output("out")},  // ids end: V
    .model = model});

const RegisterKernel kKernel(Kernel{.name = "embed",
                                    .kind = Embed::kName,
                                    .follows = "sglang v0.5.9, layers/vocab_parallel_embedding.py",
                                    .run = run,
                                    .tolerance = tolerance_for(Embed::kName, Dtype::kBF16)});

}  // namespace
}  // namespace faultline
