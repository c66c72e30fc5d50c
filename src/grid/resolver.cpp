#include "grid/resolver.h"

#include <algorithm>

#include "grid/axes.h"
#include "grid/build_features.h"

namespace faultline {

Resolver::Resolver(const AxisValues& requested, const Profile& profile, const Target& target, const ShapeInfo& shape)
    : profile_(profile), target_(target), shape_(shape) {
  auto filled = with_defaults(requested);
  FAULTLINE_CHECK(filled.has_value());
  result_.requested = std::move(*filled);
  reference_ = asked("kernels") == "reference";
}

void Resolver::refuse(Stage stage, TargetStatus status, std::string reason, std::string source) {
  if (stage > stage_) return;
  if (stage == stage_) {
    const bool lists = stage == Stage::kMissing || stage == Stage::kNotBuilt;
    if (!lists || result_.reason.find(reason) != std::string::npos) return;
    result_.reason += "; " + reason;
    if (!source.empty() && result_.source.find(source) == std::string::npos)
      result_.source += (result_.source.empty() ? "" : "; ") + source;
    return;
  }
  stage_ = stage;
  result_.status = status;
  result_.reason = std::move(reason);
  result_.source = std::move(source);
}

void Resolver::guard(Stage stage, std::string reason, std::string source) {
  if (!reference_) refuse(stage, TargetStatus::kGuard, std::move(reason), std::move(source));
}

void Resolver::missing(std::string reason, std::string source) {
  refuse(Stage::kMissing, TargetStatus::kUnsupported, std::move(reason), std::move(source));
}

void Resolver::not_built(std::string reason, std::string source) {
  result_.has_kernels = false;
  if (shape_.any_build) return;
  refuse(Stage::kNotBuilt, TargetStatus::kUnsupported, std::move(reason), std::move(source));
}

int64_t Resolver::number(std::string_view axis) const {
  const std::string& text = asked(axis);
  return text == kAuto || text == kProbe ? 0 : std::stoll(text);
}

int64_t Resolver::heads() const {
  return std::max<int64_t>(1, shape_.num_attention_heads / number("tp"));
}

int64_t Resolver::prefill_launch() const {
  const int64_t chunk = number("chunked_prefill_size");
  return chunk > 0 ? chunk : shape_.largest_prefill;
}

int64_t Resolver::decode_batch() const {
  return number("batch") > 0 ? number("batch") : shape_.largest_batch;
}

std::string Resolver::asked_or_default(std::string_view axis) const {
  return asked(axis) == kAuto ? default_for(*defaults_of(profile_, axis), target_.arch).value : asked(axis);
}

void Resolver::require(std::string_view axis, std::string_view key, const std::string& value) {
  effect(key) = value;
  if (!build_does(key, value)) not_built(fmt::format("{}={}: this build's engine does not do it", axis, asked(axis)));
}

void Resolver::prefer(std::string_view key, const std::string& wanted, const std::string& nearest, const Cited& rule,
                      std::string_view who) {
  if (build_does(key, wanted))
    effect(key) = wanted;
  else
    approximate(key, nearest, rule, who);
}

void Resolver::approximate(std::string_view key, const std::string& nearest, const Cited& rule, std::string_view who) {
  effect(key) = nearest;
  approximations_ += fmt::format("{}{}={}, where ({}) {} [{}]", approximations_.empty() ? "" : "; ", key, nearest, who,
                                 rule.text, rule.source);
}

}  // namespace faultline
