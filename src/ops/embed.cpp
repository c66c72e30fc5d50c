// embed: rows of the embedding table.
#include "ops/kinds.h"
#include "ops/operands.h"

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

const RegisterKind kRegisterKind(OpKind{
    .name = Embed::kName,
    .operands = {index_input("ids", kTokenRows), weight("table"), output("out")},  // ids end: V
    .model = model});

}  // namespace
}  // namespace faultline
