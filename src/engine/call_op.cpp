#include "engine/call_op.h"

#include "check/compare.h"
#include "ops/weights_in_use.h"
#ifdef FAULTLINE_HAVE_CUDA
#include "ops/cuda_reference.h"
#endif

namespace faultline {
namespace {

size_t operand_bytes(const Argument& argument) {
  return static_cast<size_t>(argument.view().extent()) * dtype_bytes(argument.view().dtype);
}

std::optional<KernelFault> refused_launch(const Op& op) {
  const char* refused = kernels::take_launch_error();
  if (refused == nullptr) return std::nullopt;
  return KernelFault{"launch-failure", fmt::format("{}: {}", op.kernel->name, refused)};
}

KernelResult call_kernel(const PassInfo& info, FaultInjector* injector, const Op& op, const OpCall& call,
                         bool serialized) {
  if (call.launch.cuda) {
    if (const Status there = bring_weights(*op.kind, call); !there)
      return KernelFault{"launch-failure", there.error().message};
  }
  KernelResult result = injector != nullptr ? injector->run(info, op, call, serialized) : op.kernel->run(call);
  if (!result && call.launch.cuda) result = refused_launch(op);
  return result;
}

}  // namespace

bool OpCaller::swapped(const Op& op, int64_t launch) const {
  return !op.shadow && hooks_.use_reference && hooks_.use_reference(op, launch);
}

bool OpCaller::serialized(const Op& op) const {
  return hooks_.serialize_all || hooks_.op_by_op || hooks_.serialize.count(op.name) != 0;
}

bool OpCaller::hosted(const Op& op) const {
  return hooks_.injector != nullptr && op.kernel->provenance != Provenance::kReference && hooks_.injector->touches(op);
}

OpCall OpCaller::call(const Op& op, uint64_t seed, bool checked) {
  OpCall result = op.call();
  result.launch.seed = seed;
  result.checked = checked;
  if (pass_.on_gpu()) {
    result.launch.cuda = true;
    result.launch.stream = pass_.mirror->device().stream();
    if (checked) log_ = pass_.mirror->access_log();
  }
  if (checked) *log_ = kernels::AccessLog{};
  result.launch.log = log_;
  return result;
}

KernelResult OpCaller::run(const Op& op, const OpCall& call, bool in_place) {
  if (in_place) {
    run_reference(op);
    return std::nullopt;
  }
  if (op.kernel->provenance == Provenance::kReference) {
    run_model(op, call);
    return std::nullopt;
  }
  return call_kernel(info_, hooks_.injector, op, call, serialized(op));
}

void OpCaller::run_model(const Op& op, const OpCall& call) {
  if (!pass_.on_gpu()) {
    op.kind->model(call);
    return;
  }
#ifdef FAULTLINE_HAVE_CUDA
  OpCall on_stream = call;
  on_stream.launch.cuda = true;
  on_stream.launch.stream = pass_.mirror->device().stream();
  FAULTLINE_CHECK(bring_weights(*op.kind, on_stream).has_value());
  if (run_cuda_reference(*op.kind, op.kernel, ReferenceOf::kModel, on_stream)) return;
#endif
  run_on_host(*pass_.mirror, *op.kind, op.kind->model, call);
}

void OpCaller::run_reference(const Op& op) {
  if (op.model_arguments) {
    run_model(op, OpCall{op.model_arguments->get(), &op.model_attributes, {}, false});
    return;
  }
  ArgumentList arguments = op.arguments.clone();
  for (int i = 0; i < arguments.size(); ++i) {
    const auto& written = op.written[static_cast<size_t>(i)];
    if (written) arguments.replace(i, {arguments[i].view()}, written->format, *written);
  }
  Attributes attributes = op.model_attributes;
  if (structural_difference(op) == "dense") attributes = op.attributes;  // no shadow selection to be sparse with
  run_model(op, OpCall{arguments.get(), &attributes, {}, false});
}

void run_on_host(HostMirror& mirror, const OpKind& kind, ReferenceFn function, const OpCall& call) {
  ArgumentList arguments;
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    const Argument& argument = call.arguments[i];
    std::vector<TensorView> views;
    for (const TensorView& view : argument.views)
      views.push_back(kind.operands[i].content == Content::kWeight ? mirror.view(view) : mirror.pull(view));
    arguments.add(std::move(views), argument.format,
                  argument.geometry != nullptr ? std::optional<CacheGeometry>(*argument.geometry) : std::nullopt);
  }
  const OpCall on_host{arguments.get(), call.attributes, {}, false};
  FAULTLINE_CHECK(bring_weights(kind, on_host).has_value());
  function(on_host);
  for (size_t i = 0; i < call.arguments.size(); ++i)
    if (kind.operands[i].direction == Direction::kOut && call.arguments[i].present())
      mirror.push(call.arguments[i].view());
}

KernelResult run_on_device(Device& device, const PassInfo& info, FaultInjector* injector, const Op& op,
                           const OpCall& host_call, const Op* weights) {
  if (!device.is_cuda()) return call_kernel(info, injector, op, host_call, true);
  HostMirror mirror(device);
  std::vector<std::unique_ptr<Buffer>> memory;
  const auto upload = [&](const TensorView& host, size_t bytes) {
    TensorView result = host;
    if (host.data == nullptr || bytes == 0) return result;
    auto buffer = device.allocate(bytes);
    const WeightRange range{host.data, bytes};
    if (!buffer || !need_weights({&range, 1})) throw std::bad_alloc();
    result.data = (*buffer)->data();
    device.copy(result.data, host.data, bytes);
    memory.push_back(std::move(*buffer));
    return result;
  };
  ArgumentList arguments;
  for (int i = 0; i < static_cast<int>(host_call.arguments.size()); ++i) {
    const Argument& argument = host_call.argument(i);
    const bool weight = op.kind->operands[static_cast<size_t>(i)].content == Content::kWeight;
    std::vector<TensorView> views;
    for (size_t v = 0; v < argument.views.size(); ++v) {
      const TensorView& view = argument.views[v];
      views.push_back(weight && weights != nullptr
                          ? weights->arguments[i].views[v]
                          : upload(view, static_cast<size_t>(view.extent()) * dtype_bytes(view.dtype)));
    }
    arguments.add(std::move(views), argument.format,
                  argument.geometry != nullptr ? std::optional<CacheGeometry>(*argument.geometry) : std::nullopt);
  }
  OpCall call = host_call;
  call.arguments = arguments.get();
  call.launch.cuda = true;
  call.launch.stream = device.stream();
  kernels::AccessLog* log = mirror.access_log();
  if (host_call.launch.log != nullptr) *log = *host_call.launch.log;
  call.launch.log = log;
  KernelResult result = call_kernel(info, injector, op, call, true);
  if (const auto fault = device.wait()) return KernelFault{fault->verdict, fault->message};
  if (host_call.launch.log != nullptr) *host_call.launch.log = *log;
  for (int i = 0; i < arguments.size(); ++i)
    if (op.kind->operands[static_cast<size_t>(i)].direction == Direction::kOut && host_call.argument(i).present())
      device.copy(host_call.view(i).data, arguments[i].view().data, operand_bytes(arguments[i]));
  return result;
}

}  // namespace faultline
