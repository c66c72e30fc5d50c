#include "check/poison.h"

#include <algorithm>

namespace faultline {
namespace {

bool eight_bit_cache(const Argument& argument) {
  const Format format = argument.format;
  return format == Format::kKvPacked || format == Format::kKvPlainFp8 || format == Format::kIndexFp8;
}

bool holds_sentinel(const TensorView& view, int64_t at) {
  switch (view.dtype) {
    case Dtype::kF32:
      return raw_bits(view, at) == kFloatSentinel;
    case Dtype::kBF16:
      return raw_bits(view, at) == kBf16Sentinel;
    case Dtype::kI32:
      return view.as<int32_t>()[at] == kIntSentinel;
    default:
      return false;
  }
}

}  // namespace

bool needs_two_poisons(const OperandSpec& spec, const Argument& argument) {
  if (spec.direction != Direction::kOut || !argument.present()) return false;
  if (spec.content == Content::kCache) return eight_bit_cache(argument);
  return dtype_bytes(argument.view().dtype) == 1;
}

void poison_output(const OpCall& call, const OperandSpec& spec, int operand, int round) {
  const Argument& argument = call.argument(operand);
  const TensorView& view = argument.view();
  const uint8_t code = kCodePoison[static_cast<size_t>(round)];
  if (spec.content == Content::kCache) {
    const CacheGeometry& geometry = *argument.geometry;
    // The padded rows' slots too: they are written as the live ones are.
    const LiveCounts all{call.view(spec.region.slots_operand).elements(), INT64_MAX};
    for (const int64_t slot : slots_written(call, spec, operand, all)) {
      for (const ByteRange& range : slot_bytes(geometry, slot)) {
        if (eight_bit_cache(argument)) {
          std::fill(view.data + range.begin, view.data + range.end, std::byte{code});
        } else if (geometry.format == Format::kKvBf16) {
          std::fill(view.as<uint16_t>() + range.begin / 2, view.as<uint16_t>() + range.end / 2, kBf16Sentinel);
        } else {
          std::fill(view.as<uint32_t>() + range.begin / 4, view.as<uint32_t>() + range.end / 4, kFloatSentinel);
        }
      }
    }
    return;
  }
  OperandSpec whole = spec;
  whole.region = Region{Rows::kAll};
  for_each_live(call, whole, operand, LiveCounts{}, [&](int64_t at, int64_t, int64_t) {
    switch (dtype_bytes(view.dtype)) {
      case 1:
        view.as<uint8_t>()[at] = code;
        break;
      case 2:
        view.as<uint16_t>()[at] = kBf16Sentinel;
        break;
      default:
        view.as<uint32_t>()[at] = view.dtype == Dtype::kF32 ? kFloatSentinel : static_cast<uint32_t>(kIntSentinel);
    }
    return true;
  });
}

std::optional<OpViolation> find_unwritten(const OpCall& call, const OperandSpec& spec, int operand,
                                          const LiveCounts& live) {
  const Argument& argument = call.argument(operand);
  const TensorView& view = argument.view();
  std::optional<OpViolation> found;
  const auto note = [&](std::vector<int64_t> index, uint32_t bits) {
    if (!found) {
      found = OpViolation{operand,
                          "unwritten",
                          std::move(index),
                          "poison",
                          bits,
                          0,
                          "the element still holds the sentinel that was there before the kernel ran",
                          false};
    }
    ++found->count;
  };
  if (spec.content == Content::kCache) {
    const CacheGeometry& geometry = *argument.geometry;
    for (const int64_t slot : slots_written(call, spec, operand, live)) {
      const ByteRange range = slot_bytes(geometry, slot)[0];
      const int64_t size = geometry.format == Format::kKvBf16 ? 2 : 4;
      for (int64_t at = range.begin; at < range.end; at += size) {
        const uint32_t bits = size == 2 ? view.as<uint16_t>()[at / 2] : view.as<uint32_t>()[at / 4];
        if (bits == (size == 2 ? kBf16Sentinel : kFloatSentinel)) note({slot, (at - range.begin) / size}, bits);
      }
    }
    return found;
  }
  for_each_live(call, spec, operand, live, [&](int64_t at, int64_t row, int64_t column) {
    if (holds_sentinel(view, at)) note(coordinates(view, row, column), raw_bits(view, at));
    return true;
  });
  return found;
}

std::optional<OpViolation> find_unwritten_codes(const OpCall& call, const OperandSpec& spec, int operand,
                                                const LiveCounts& live, const std::byte* first) {
  const Argument& argument = call.argument(operand);
  const TensorView& view = argument.view();
  std::optional<OpViolation> found;
  const auto test = [&](int64_t at, const auto& index) {
    if (first[at] != std::byte{kCodePoison[0]} || view.data[at] != std::byte{kCodePoison[1]}) return;
    if (!found) {
      found = OpViolation{operand,
                          "unwritten",
                          index(),
                          "poison",
                          static_cast<uint32_t>(view.data[at]),
                          0,
                          "the byte kept each of two poisons in two runs",
                          false};
    }
    ++found->count;
  };
  if (spec.content == Content::kCache) {
    const CacheGeometry& geometry = *argument.geometry;
    for (const int64_t slot : slots_written(call, spec, operand, live)) {
      int64_t byte = 0;
      for (const ByteRange& range : slot_bytes(geometry, slot))
        for (int64_t at = range.begin; at < range.end; ++at, ++byte)
          test(at, [&] { return std::vector<int64_t>{slot, byte}; });
    }
    return found;
  }
  for_each_live(call, spec, operand, live, [&](int64_t at, int64_t row, int64_t column) {
    test(at, [&] { return coordinates(view, row, column); });
    return true;
  });
  return found;
}

}  // namespace faultline
