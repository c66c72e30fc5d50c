#include "bisect/assume_fixed.h"

#include "testing.h"

namespace faultline {
namespace {

Op op_of(const std::string& name, int layer, const Kernel& kernel, const OpKind& kind) {
  Op op;
  op.name = name;
  op.layer = layer;
  op.kind = &kind;
  op.kernel = &kernel;
  return op;
}

Localized convicted(const std::string& culprit, const std::string& op, const std::string& plant = "") {
  Localized one;
  one.culprit = culprit;
  one.op = op;
  one.plant = plant;
  return one;
}

}  // namespace

TEST_CASE("a name means ops with or without their layer, kernels, and backends that kernels serve") {
  const OpKind kind;
  Kernel kernel;
  kernel.name = "own_sparse";
  kernel.serves = {{"nsa_decode_backend", "flashmla_kv"}};
  const Op op = op_of("layers.3.self_attn.attention", 3, kernel, kind);
  for (const char* name : {"self_attn.attention", "layers.3.self_attn.attention", "layers.*.attention", "self_attn.*",
                           "own_sparse", "flashmla_kv", "flashmla_*"}) {
    INFO(name);
    CHECK(assumed_fixed({name}, op));
  }
  for (const char* name : {"attention", "layers.2.self_attn.attention", "self_attn", "own", "flashmla", "weights"}) {
    INFO(name);
    CHECK_FALSE(assumed_fixed({name}, op));
  }
  CHECK_FALSE(assumed_fixed({}, op));
  CHECK(assumed_fixed({"nothing", "self_attn.attention"}, op));
  // Numbers within the name stand for any.
  CHECK(assumed_fixed({"mlp.experts.*.down"}, op_of("layers.1.mlp.experts.7.down", 1, kernel, kind)));
}

TEST_CASE("an op that runs on the reference is meant by its name, not by its kernel's") {
  const OpKind kind;
  Kernel reference;
  reference.name = "reference";
  reference.provenance = Provenance::kReference;
  const Op op = op_of("layers.0.mlp.router", 0, reference, kind);
  CHECK(assumed_fixed({"mlp.router"}, op));
  CHECK_FALSE(assumed_fixed({"reference"}, op));
}

TEST_CASE("what to assume fixed next: convicted ops of the unplanted pass, else those of plants") {
  CHECK(assume_fixed_options({}).empty());
  CHECK(assume_fixed_options({convicted("", "layers.0.mlp.router")}).empty());
  CHECK(assume_fixed_options({convicted("setting", "layers.0.self_attn.rope")}).empty());
  CHECK(assume_fixed_options({convicted("kernel", "layers.0.mlp.router"), convicted("layout", "layers.2.mlp.router"),
                              convicted("weights", "layers.0.mlp.down"), convicted("kernel", "lm_head", "p")}) ==
        " --assume-fixed mlp.router --assume-fixed weights");
  CHECK(assume_fixed_options({convicted("kernel", "lm_head", "p")}) == " --assume-fixed lm_head");
}

}  // namespace faultline
