#include "base/clock.h"

#include <fmt/format.h>

#include <cmath>
#include <ctime>

namespace faultline {

namespace {

constexpr int64_t kNanoseconds = 1'000'000'000;

std::string formatted(const std::tm& time, const char* format) {
  char text[32];
  return {text, std::strftime(text, sizeof text, format, &time)};
}

}  // namespace

int64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<int64_t>(now.tv_sec) * kNanoseconds + now.tv_nsec;
}

double monotonic_seconds() {
  return static_cast<double>(monotonic_ns()) / static_cast<double>(kNanoseconds);
}

std::string utc_timestamp() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  return formatted(parts, "%Y-%m-%dT%H:%M:%SZ");
}

std::string file_timestamp() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&now, &parts);
  return formatted(parts, "%Y%m%d-%H%M%S");
}

std::string duration_text(double seconds) {
  if (!(seconds >= 0) || std::isinf(seconds)) return "?";
  constexpr double kTenthsBelow = 9.95;
  if (seconds < kTenthsBelow) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  constexpr int64_t kMinute = 60;
  constexpr int64_t kHour = 60 * kMinute;
  if (whole < kMinute) return fmt::format("{} s", whole);
  if (whole < kHour) return fmt::format("{} min {:02} s", whole / kMinute, whole % kMinute);
  return fmt::format("{} h {:02} min", whole / kHour, whole % kHour / kMinute);
}

}  // namespace faultline
