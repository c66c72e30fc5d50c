// Kernels that compute another function than they were told: finite and wrong.
#include <cmath>

#include "bisect/plant_fault.h"
#include "ops/kinds.h"

namespace faultline::plants {

KernelResult rotate_twice(Blow& blow) {
  using R = ops::Rope;
  if (!blow.is<R>() || !blow.call.attr().flag("enabled")) return blow.miss();
  KernelResult result = blow.kernel();
  if (result) return result;
  TensorCopy once(blow.gpu(), blow.call.view(R::kOut));
  ArgumentList arguments = copy_arguments(blow.call);
  arguments.replace(R::kX, {once.publish()});
  return blow.kernel(arguments);
}

KernelResult do_not_rotate(Blow& blow) {
  if (!blow.is<ops::Rope>() || !blow.call.attr().flag("enabled")) return blow.miss();
  return with_attributes(blow, [](Attributes& a) { a.set("enabled", false); });
}

// What a config without rope_parameters gives.
KernelResult lose_theta(Blow& blow) {
  constexpr double kDefaultTheta = 10000.0;
  if (!blow.is<ops::Rope>() || blow.call.attr().real("theta") == kDefaultTheta) return blow.miss();
  return with_attributes(blow, [](Attributes& a) { a.set("theta", kDefaultTheta); });
}

KernelResult rotate_in_the_other_layout(Blow& blow) {
  if (!blow.is<ops::Rope>() || !blow.call.attr().flag("enabled")) return blow.miss();
  return with_attributes(blow, [](Attributes& a) { a.set("interleaved", !a.flag("interleaved")); });
}

KernelResult take_another_eps(Blow& blow) {
  constexpr double kEps = 0.1;
  if (!blow.is<ops::RmsNorm>()) return blow.miss();
  return with_attributes(blow, [](Attributes& a) { a.set("eps", kEps); });
}

KernelResult scale_twice(Blow& blow) {
  if (!blow.is<ops::Router>() || blow.call.attr().real("scaling") == 1.0) return blow.miss();
  return with_attributes(blow, [](Attributes& a) { a.set("scaling", a.real("scaling") * a.real("scaling")); });
}

// Nothing is struck where every choice is the same all the same.
KernelResult round_the_bias(Blow& blow) {
  using R = ops::Router;
  if (!blow.is<R>() || blow.call.attr().integer_or("router_bias", 0) != 0) return blow.miss();
  const TensorView& ids = blow.call.view(R::kIds);
  KernelResult result = blow.kernel();
  if (result) return result;
  const TensorCopy exact(blow.gpu(), ids);
  result = with_attributes(blow, [](Attributes& a) { a.set("router_bias", true); });
  if (result) return result;
  const HostTensor rounded(blow.gpu(), ids);
  blow.struck = false;
  for (int64_t t = 0; t < blow.live_rows_of(R::kIds); ++t)
    for (int64_t j = 0; j < ids.dim(1); ++j) {
      const int64_t at = ids.offset(t, j);
      blow.struck = blow.struck || exact.host().load_index(at) != rounded.view().load_index(at);
    }
  return result;
}

KernelResult swap_gate_and_up(Blow& blow) {
  using S = ops::SiluMul;
  if (!blow.is<S>()) return blow.miss();
  return with_input(blow, S::kX, [](const TensorView& x) {
    const int64_t half = x.dim(1) / 2;
    for (int64_t t = 0; t < x.dim(0); ++t)
      for (int64_t c = 0; c < half; ++c) {
        const float gate = x.load(x.offset(t, c));
        x.store(x.offset(t, c), x.load(x.offset(t, c + half)));
        x.store(x.offset(t, c + half), gate);
      }
  });
}

// Heads are padded to what the kernel is built for, and the result of a padding head, which is zero, is taken for that
// of the last real one.
KernelResult read_a_padding_head(Blow& blow) {
  using A = ops::Attention;
  if (!blow.is<A>()) return blow.miss();
  const int64_t rows = blow.live_rows_of(A::kOut);
  return with_output(blow, A::kOut, [&](const TensorView& out) {
    for (int64_t t = 0; t < rows; ++t)
      for (int64_t c = 0; c < out.dim(2); ++c) out.store(out.offset(t, out.dim(1) - 1, c), 0.0f);
  });
}

// The keys of the last split take no part: the results of the others are merged alone.
KernelResult leave_a_split_out(Blow& blow) {
  using A = ops::Attention;
  if (!blow.is<A>()) return blow.miss();
  const int64_t splits = blow.call.attr().integer("splits");
  const HostTensor lengths(blow.gpu(), blow.call.view(A::kLengths));
  const int64_t rows = blow.live_rows_of(A::kOut);
  const auto kept = [&](int64_t row, int64_t most) {
    const int64_t keys = std::min(lengths.view().load_index(row), most);
    return keys - keys / splits;
  };
  if (!blow.call.argument(A::kIndices).present())
    return with_input(blow, A::kLengths, [&](const TensorView& fewer) {
      for (int64_t t = 0; t < rows; ++t) fewer.store_index(t, kept(t, fewer.load_index(t)));
    });
  return with_input(blow, A::kIndices, [&](const TensorView& indices) {
    for (int64_t t = 0; t < rows; ++t)
      for (int64_t i = kept(t, indices.dim(1)); i < indices.dim(1); ++i) indices.store_index(indices.offset(t, i), -1);
  });
}

}  // namespace faultline::plants
