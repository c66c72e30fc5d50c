// Records of the checks on the GPU in the words of the host's checks.
#include <algorithm>
#include <cstring>
#include <map>

#include "check/device_checks.h"
#include "check/device_tasks.h"

namespace faultline {
namespace {

using Records = std::map<DeviceCheck, const DeviceCheckRecord*>;  // of one operand

int64_t columns_of(const TensorView& view) {
  int64_t columns = 1;
  for (int i = 1; i < view.rank; ++i) columns *= view.dim(i);
  return std::max<int64_t>(columns, 1);
}

std::vector<int64_t> index_of(const TensorView& view, int64_t first) {
  return coordinates(view, first / columns_of(view), first % columns_of(view));
}

// The value of an element of a dtype, by its bits.
float value_of(const TensorView& view, Content content, uint32_t bits) {
  if (content == Content::kE4m3Scales || view.dtype == Dtype::kF8E4M3) return e4m3_to_float(static_cast<uint8_t>(bits));
  if (view.dtype == Dtype::kBF16) return to_float(Bf16{static_cast<uint16_t>(bits)});
  if (view.dtype == Dtype::kF16) return to_float(F16{static_cast<uint16_t>(bits)});
  return float_from_bits(bits);
}

OpViolation unwritten(const Argument& argument, const OperandSpec& spec, const DeviceCheckRecord& record) {
  OpViolation found{record.operand,
                    "unwritten",
                    {},
                    "poison",
                    record.bits,
                    record.count,
                    "the element still holds the sentinel that was there before the kernel ran",
                    false};
  if (spec.content == Content::kCache)
    found.index = {record.extra[0], record.first % device_checks::kUnwrittenRow};
  else
    found.index = index_of(argument.view(), record.first);
  const bool plain =
      argument.format == Format::kKvF32 || argument.format == Format::kKvBf16 || argument.format == Format::kIndexF32;
  if (spec.content == Content::kCache ? !plain : argument.view().dtype == Dtype::kU8)
    found.detail = "the bytes still hold this pass's poison, which was there before the kernel ran";
  return found;
}

OpViolation bad_index(const TensorView& view, const IndexRule& rule, const DeviceCheckRecord& record) {
  const int64_t value = record.extra[0];
  const int64_t expected = record.extra[1];
  const std::vector<int64_t> index = index_of(view, record.first);
  const int64_t row = index.front();
  std::string detail;
  switch (record.extra[2]) {
    case device_checks::kTail:
      detail = fmt::format("row {} has {} valid entries; the tail must be -1", row, expected);
      break;
    case device_checks::kRange:
      detail = value == -1 && rule.minus_one_tail
                   ? fmt::format("-1 inside the valid prefix of row {} ({} entries)", row, expected)
                   : fmt::format("outside [{}, {})", rule.begin, rule.end);
      break;
    case device_checks::kTwice:
      detail = fmt::format("row {} holds this entry twice", row);
      break;
    default:
      detail = fmt::format("slot {} is not in the pages of request row {}", value, record.extra[3]);
  }
  return OpViolation{record.operand, "bounds",          index, fmt::format("{}", value), record.bits,
                     record.count,   std::move(detail), false};
}

OpViolation nonfinite(const Argument& argument, const OperandSpec& spec, const DeviceCheckRecord& record) {
  if (spec.content == Content::kCache) {
    const int64_t slot = record.extra[0];
    return OpViolation{record.operand,
                       "nonfinite",
                       {slot, record.first % argument.geometry->width()},
                       value_text(float_from_bits(record.bits)),
                       record.bits,
                       record.count,
                       fmt::format("slot {} of the cache decodes to a value that is not finite", slot),
                       false};
  }
  const TensorView& view = argument.view();
  return OpViolation{
      record.operand,
      "nonfinite",
      index_of(view, record.first),
      value_text(value_of(view, spec.content, record.bits)),
      record.bits,
      record.count,
      spec.content == Content::kE4m3Scales ? "an e4m3 block scale is NaN (0x7F or 0xFF)" : "a value is not finite",
      false};
}

// The host goes over the rows once and asks for a row's sum as long as nothing is wrong.
OpViolation bad_probability(const TensorView& view, const DeviceCheckRecord* negative, const DeviceCheckRecord* sum) {
  const int64_t columns = columns_of(view);
  if (sum == nullptr || (negative != nullptr && negative->first / columns < sum->first))
    return OpViolation{negative->operand,
                       "probability",
                       index_of(view, negative->first),
                       value_text(float_from_bits(negative->bits)),
                       negative->bits,
                       negative->count,
                       "a probability is negative or NaN",
                       false};
  double total = 0;
  memcpy(&total, &sum->extra[0], sizeof total);
  return OpViolation{sum->operand,
                     "probability",
                     {sum->first},
                     value_text(static_cast<float>(total)),
                     float_bits(static_cast<float>(total)),
                     1 + (negative != nullptr ? negative->count : 0),
                     fmt::format("the probabilities of row {} sum to {}", sum->first, total),
                     false};
}

OpViolation neighbour(const DeviceCheckRecord& record) {
  return OpViolation{
      record.operand,
      "bounds",
      {record.first},
      "",
      0,
      1,
      fmt::format("bytes of page {} outside the slots that this op may write have changed", record.first),
      false};
}

// What the host would say of one op.
void describe(const Op& op, int number, const std::map<int, Records>& operands, std::vector<DeviceFinding>& result) {
  const auto get = [](const Records& records, DeviceCheck check) {
    const auto it = records.find(check);
    return it == records.end() ? nullptr : it->second;
  };
  const size_t before = result.size();
  const auto spec_of = [&](int operand) -> const OperandSpec& {
    return op.kind->operands[static_cast<size_t>(operand)];
  };
  for (const auto& [operand, records] : operands)
    if (const DeviceCheckRecord* found = get(records, DeviceCheck::kNeighbour))
      result.push_back({number, neighbour(*found), ""});
  for (const auto& [operand, records] : operands)
    if (const DeviceCheckRecord* found = get(records, DeviceCheck::kBounds))
      result.push_back(
          {number, bad_index(op.arguments[operand].view(), op.index_rules[static_cast<size_t>(operand)], *found), ""});
  if (result.size() != before) return;
  for (const auto& [operand, records] : operands) {
    const Argument& argument = op.arguments[operand];
    if (const DeviceCheckRecord* left = get(records, DeviceCheck::kUnwritten)) {
      result.push_back({number, unwritten(argument, spec_of(operand), *left), ""});
      return;
    }
    if (const DeviceCheckRecord* bad = get(records, DeviceCheck::kNonfinite)) {
      result.push_back({number, nonfinite(argument, spec_of(operand), *bad), ""});
      return;
    }
    const DeviceCheckRecord* negative = get(records, DeviceCheck::kNegative);
    const DeviceCheckRecord* sum = get(records, DeviceCheck::kSum);
    if (negative != nullptr || sum != nullptr) {
      result.push_back({number, bad_probability(argument.view(), negative, sum), ""});
      return;
    }
  }
}

}  // namespace

std::vector<DeviceFinding> findings_of(const DeviceCheckPage& page, const std::vector<Op>& ops,
                                       const std::vector<GuardedBuffer>& buffers) {
  std::map<int, std::map<int, Records>> by_op;
  const DeviceCheckRecord* canary = nullptr;
  int first_group = INT32_MAX;
  for (const DeviceCheckRecord& record : page.records)
    if (record.used != 0) first_group = std::min(first_group, record.group);
  for (const DeviceCheckRecord& record : page.records) {
    if (record.used == 0 || record.group != first_group) continue;
    if (record.op < 0 || static_cast<size_t>(record.op) >= ops.size()) continue;
    if (record.check == DeviceCheck::kCanary)
      canary = &record;
    else if (record.operand >= 0 && record.operand < ops[static_cast<size_t>(record.op)].arguments.size())
      by_op[record.op][record.operand][record.check] = &record;
  }
  std::vector<DeviceFinding> result;
  for (const auto& [op, operands] : by_op) describe(ops[static_cast<size_t>(op)], op, operands, result);
  constexpr int64_t kBytes = 2 * device_checks::kCanaryBytes;
  if (!result.empty() || canary == nullptr || canary->first / kBytes >= static_cast<int64_t>(buffers.size()))
    return result;
  const GuardedBuffer& buffer = buffers[static_cast<size_t>(canary->first / kBytes)];
  const int64_t byte = canary->first % kBytes;
  const int64_t offset = byte < device_checks::kCanaryBytes
                             ? byte - device_checks::kCanaryBytes
                             : static_cast<int64_t>(buffer.bytes) + byte - device_checks::kCanaryBytes;
  result.push_back(
      {canary->op,
       OpViolation{0,
                   "canary",
                   {offset},
                   "",
                   0,
                   1,
                   fmt::format("the bytes around tensor {} were overwritten at byte {}", buffer.name, offset),
                   false},
       buffer.name});
  return result;
}

}  // namespace faultline
