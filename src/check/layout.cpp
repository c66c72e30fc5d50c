#include "check/layout.h"

#include <cmath>

namespace faultline {

bool same_layout(const CacheGeometry& a, const CacheGeometry& b) {
  return a.format == b.format && a.latent == b.latent && a.rope == b.rope && a.page_size == b.page_size;
}

std::optional<OpViolation> find_layout_conflict(const Argument& argument, const CacheGeometry& written, int operand,
                                                const std::vector<int64_t>& slots) {
  const CacheGeometry& read = *argument.geometry;
  if (same_layout(read, written)) return std::nullopt;
  std::vector<float> as_written(static_cast<size_t>(written.width()));
  std::vector<float> as_read(static_cast<size_t>(read.width()));
  std::optional<OpViolation> found;
  bool found_nan = false;
  int64_t count = 0;
  for (const int64_t slot : slots) {
    decode_slot(written, argument.view().data, slot, as_written.data());
    decode_slot(read, argument.view().data, slot, as_read.data());
    for (size_t column = 0; column < std::min(as_read.size(), as_written.size()); ++column) {
      const float value = as_read[column];
      if (float_bits(value) == float_bits(as_written[column])) continue;
      ++count;
      const bool nan = std::isnan(value);
      if (found && (found_nan || !nan)) continue;
      found_nan = nan;
      found = OpViolation{
          operand,
          "layout",
          {slot, static_cast<int64_t>(column)},
          value_text(value),
          float_bits(value),
          0,
          fmt::format("written as {} ({} bytes a token), read as {}: slot {} column {} decodes to {} instead of {}",
                      format_name(written.format), written.row_bytes(), format_name(read.format), slot, column,
                      value_text(value), value_text(as_written[column])),
          false};
    }
  }
  if (found) found->count = count;
  return found;
}

}  // namespace faultline
