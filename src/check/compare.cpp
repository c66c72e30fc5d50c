#include "check/compare.h"

#include <algorithm>
#include <cmath>

namespace faultline {
namespace {

// What a format may cost against the model: e4m3 carries 3 mantissa bits (2^-4 relative), its products add up over a
// row. Only structural differences are compared within this, and those are of the size of the values themselves.
constexpr Tolerance kModelTolerance{0.05, 0.1};

void note(std::optional<OpViolation>& found, int operand, std::vector<int64_t> index, float out, uint32_t bits,
          float ref, Tolerance tolerance, const char* against) {
  if (!found) {
    found = OpViolation{operand,
                        "mismatch",
                        std::move(index),
                        value_text(out),
                        bits,
                        0,
                        fmt::format("{} where the {} gives {} (tolerance {} + {} x |ref|)", value_text(out), against,
                                    value_text(ref), tolerance.atol, tolerance.rtol),
                        false};
  }
  ++found->count;
}

bool apart(float out, float ref, Tolerance tolerance) {
  if (std::isnan(ref) && std::isnan(out)) return false;  // the finite check's business; both agree on the NaN
  if (out == ref) return false;                          // equal infinities
  return !(std::abs(out - ref) <= tolerance.atol + tolerance.rtol * std::abs(ref));
}

std::optional<OpViolation> compare_operand(const Op& op, const OpCall& call, const Argument& reference, int operand,
                                           const LiveCounts& live, Tolerance tolerance, const char* against) {
  const OperandSpec& spec = op.kind->operands[static_cast<size_t>(operand)];
  const TensorView& out = call.view(operand);
  const TensorView& ref = reference.view();
  std::optional<OpViolation> found;
  if (spec.content == Content::kCache) {
    const CacheGeometry& geometry = *call.argument(operand).geometry;
    std::vector<float> a(static_cast<size_t>(geometry.width()));
    std::vector<float> b(static_cast<size_t>(geometry.width()));
    for (const int64_t slot : slots_written(call, spec, operand, live)) {
      decode_slot(geometry, out.data, slot, a.data());
      decode_slot(geometry, ref.data, slot, b.data());
      for (size_t column = 0; column < a.size(); ++column)
        if (apart(a[column], b[column], tolerance))
          note(found, operand, {slot, static_cast<int64_t>(column)}, a[column], float_bits(a[column]), b[column],
               tolerance, against);
    }
    return found;
  }
  if (spec.content == Content::kFp4Codes) {
    for_each_live(call, spec, operand, live, [&](int64_t at, int64_t row, int64_t column) {
      const uint8_t a = out.as<uint8_t>()[at];
      const uint8_t b = ref.as<uint8_t>()[at];
      for (const int shift : {0, 4}) {
        const float x = e2m1_to_float(static_cast<uint8_t>((a >> shift) & 15));
        const float y = e2m1_to_float(static_cast<uint8_t>((b >> shift) & 15));
        // A neighbouring code is a rounding tie of the scaled value; anything further is an error.
        if (apart(x, y, Tolerance{std::max(0.5, 0.34 * std::abs(static_cast<double>(y))), 0}))
          note(found, operand, coordinates(out, row, 2 * column + (shift >> 2)), x, a, y, tolerance, against);
      }
      return true;
    });
    return found;
  }
  const bool integers = out.dtype == Dtype::kI32 || out.dtype == Dtype::kI64;
  const bool codes = spec.content == Content::kE4m3Scales;
  for_each_live(call, spec, operand, live, [&](int64_t at, int64_t row, int64_t column) {
    if (integers) {
      const int64_t a = out.load_index(at);
      const int64_t b = ref.load_index(at);
      if (a != b)
        note(found, operand, coordinates(out, row, column), static_cast<float>(a), static_cast<uint32_t>(a),
             static_cast<float>(b), Tolerance{}, against);
      return true;
    }
    const float a = codes ? e4m3_to_float(out.as<uint8_t>()[at]) : out.load(at);
    const float b = codes ? e4m3_to_float(ref.as<uint8_t>()[at]) : ref.load(at);
    if (apart(a, b, tolerance))
      note(found, operand, coordinates(out, row, column), a, raw_bits(out, at), b, tolerance, against);
    return true;
  });
  return found;
}

size_t operand_bytes(const Argument& argument) {
  if (argument.geometry != nullptr) return static_cast<size_t>(argument.geometry->total_bytes());
  return static_cast<size_t>(argument.view().extent()) * dtype_bytes(argument.view().dtype);
}

}  // namespace

ReferenceFn spec_of(const Op& op) {
  return op.kernel->spec != nullptr ? op.kernel->spec : op.kind->model;
}

ScratchOutputs::ScratchOutputs(const Op& op, const ArgumentList* inputs)
    : arguments_(inputs != nullptr ? inputs->clone() : op.arguments.clone()) {
  for (int i = 0; i < arguments_.size(); ++i) {
    if (op.kind->operands[static_cast<size_t>(i)].direction != Direction::kOut || !arguments_[i].present()) continue;
    const size_t bytes = operand_bytes(arguments_[i]);
    memory_.push_back(std::make_unique<std::byte[]>(std::max<size_t>(bytes, 1)));
    TensorView view = arguments_[i].view();
    view.data = memory_.back().get();
    arguments_.replace(i, {view});
  }
}

OpCall ScratchOutputs::call(const Attributes& attributes) const {
  return OpCall{arguments_.get(), &attributes, {}, false};
}

std::optional<OpViolation> compare_to_spec(const Op& op, const LiveCounts& live) {
  const OpCall call = op.call();
  if (op.kind->selection != nullptr) {
    const LiveCounts limits = live;
    if (const auto problem = op.kind->selection(call, limits.tokens)) {
      const TensorView& view = call.view(problem->operand);
      const int64_t row = view.rank == 1 ? problem->at : problem->at / std::max<int64_t>(view.stride[0], 1);
      const int64_t column = view.rank == 1 ? 0 : problem->at % std::max<int64_t>(view.stride[0], 1);
      const bool index = op.kind->operands[static_cast<size_t>(problem->operand)].content == Content::kIndices;
      return OpViolation{problem->operand,
                         "mismatch",
                         coordinates(view, row, column),
                         index ? fmt::format("{}", view.load_index(problem->at)) : value_text(view.load(problem->at)),
                         index ? static_cast<uint32_t>(view.load_index(problem->at)) : raw_bits(view, problem->at),
                         1,
                         problem->message,
                         false};
    }
  }
  const ScratchOutputs scratch(op);
  spec_of(op)(scratch.call(op.attributes));
  for (int i = 0; i < static_cast<int>(op.kind->operands.size()); ++i) {
    const OperandSpec& spec = op.kind->operands[static_cast<size_t>(i)];
    if (spec.direction != Direction::kOut || spec.content == Content::kScratch || !call.argument(i).present()) continue;
    if (op.kind->selection != nullptr) continue;  // a tie may fall either way; what depends on the choice falls with it
    if (auto found = compare_operand(op, call, scratch.argument(i), i, live, op.kernel->tolerance, "spec reference"))
      return found;
  }
  return std::nullopt;
}

std::optional<std::string> structural_difference(const Op& op) {
  for (const std::string& name : op.kind->structure) {
    const auto find = [&](const Attributes& attributes) {
      const auto& entries = attributes.entries();
      const auto it = std::find_if(entries.begin(), entries.end(), [&](const auto& e) { return e.key == name; });
      return it == entries.end() ? Attributes::Entry{} : *it;
    };
    if (!(find(op.attributes) == find(op.model_attributes))) return name;
  }
  return std::nullopt;
}

std::optional<OpViolation> compare_to_model(const Op& op, const LiveCounts& live) {
  const auto difference = structural_difference(op);
  if (!difference) return std::nullopt;
  const OpCall call = op.call();
  const ScratchOutputs scratch(op, op.model_arguments ? &*op.model_arguments : nullptr);
  op.kind->model(scratch.call(op.model_attributes));
  for (int i = 0; i < static_cast<int>(op.kind->operands.size()); ++i) {
    const OperandSpec& spec = op.kind->operands[static_cast<size_t>(i)];
    if (spec.direction != Direction::kOut || spec.content == Content::kScratch || !call.argument(i).present()) continue;
    if (auto found = compare_operand(op, call, scratch.argument(i), i, live, kModelTolerance, "model reference")) {
      found->setting = true;
      found->attribute = *difference;
      found->detail += fmt::format("; the row resolves to another '{}' than the model's", *difference);
      return found;
    }
  }
  return std::nullopt;
}

}  // namespace faultline
