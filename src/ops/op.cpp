#include "ops/op.h"

#include <algorithm>
#include <map>
#include <memory>

namespace faultline {
namespace {

struct Registry {
  std::map<std::string, OpKind, std::less<>> kinds;
  std::map<std::pair<std::string, std::string>, Kernel> kernels;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

}  // namespace

std::string_view provenance_name(Provenance provenance) {
  switch (provenance) {
    case Provenance::kReference:
      return "reference";
    case Provenance::kOwn:
      return "own";
    case Provenance::kThirdParty:
      return "third-party";
  }
  return "?";
}

Attributes& Attributes::put(Entry entry) {
  const auto it = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.key == entry.key; });
  if (it == entries_.end())
    entries_.push_back(std::move(entry));
  else
    *it = std::move(entry);
  return *this;
}

Attributes& Attributes::set(std::string_view key, int64_t value) {
  return put(Entry{std::string(key), false, value, 0});
}

Attributes& Attributes::set(std::string_view key, double value) {
  return put(Entry{std::string(key), true, 0, value});
}

const Attributes::Entry* Attributes::find(std::string_view key) const {
  const auto it = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.key == key; });
  return it == entries_.end() ? nullptr : &*it;
}

int64_t Attributes::integer(std::string_view key) const {
  const Entry* entry = find(key);
  FAULTLINE_CHECK(entry != nullptr && !entry->is_real);
  return entry->integer;
}

int64_t Attributes::integer_or(std::string_view key, int64_t fallback) const {
  const Entry* entry = find(key);
  return entry == nullptr ? fallback : entry->integer;
}

double Attributes::real(std::string_view key) const {
  const Entry* entry = find(key);
  FAULTLINE_CHECK(entry != nullptr && entry->is_real);
  return entry->real;
}

void ArgumentList::add(std::vector<TensorView> views, Format format, const std::optional<CacheGeometry>& geometry) {
  views_.push_back(std::make_unique<std::vector<TensorView>>(std::move(views)));
  geometries_.push_back(geometry ? std::make_unique<CacheGeometry>(*geometry) : nullptr);
  arguments_.push_back(Argument{*views_.back(), format, geometries_.back().get()});
}

void ArgumentList::replace(int operand, std::vector<TensorView> views) {
  const auto at = static_cast<size_t>(operand);
  *views_[at] = std::move(views);
  arguments_[at].views = *views_[at];
}

void ArgumentList::replace(int operand, std::vector<TensorView> views, Format format, const CacheGeometry& geometry) {
  replace(operand, std::move(views));
  const auto at = static_cast<size_t>(operand);
  geometries_[at] = std::make_unique<CacheGeometry>(geometry);
  arguments_[at].format = format;
  arguments_[at].geometry = geometries_[at].get();
}

ArgumentList ArgumentList::clone() const {
  ArgumentList copy;
  for (const Argument& argument : arguments_)
    copy.add({argument.views.begin(), argument.views.end()}, argument.format,
             argument.geometry ? std::optional<CacheGeometry>(*argument.geometry) : std::nullopt);
  return copy;
}

RegisterKind::RegisterKind(OpKind kind) {
  const std::string name = kind.name;
  const bool inserted = registry().kinds.emplace(name, std::move(kind)).second;
  FAULTLINE_CHECK(inserted);
}

RegisterKernel::RegisterKernel(Kernel kernel) {
  FAULTLINE_CHECK(kernel.run != nullptr);
  auto key = std::make_pair(kernel.kind, kernel.name);
  const bool inserted = registry().kernels.emplace(std::move(key), std::move(kernel)).second;
  FAULTLINE_CHECK(inserted);
}

const OpKind& op_kind(std::string_view name) {
  const auto it = registry().kinds.find(name);
  FAULTLINE_CHECK(it != registry().kinds.end());
  return it->second;
}

std::vector<const OpKind*> op_kinds() {
  std::vector<const OpKind*> result;
  for (const auto& [name, kind] : registry().kinds) result.push_back(&kind);
  return result;
}

const Kernel* find_kernel(std::string_view kind, std::string_view name) {
  const auto it = registry().kernels.find(std::make_pair(std::string(kind), std::string(name)));
  return it == registry().kernels.end() ? nullptr : &it->second;
}

std::vector<const Kernel*> kernels_of(std::string_view kind) {
  std::vector<const Kernel*> result;
  for (const auto& [key, kernel] : registry().kernels)
    if (key.first == kind) result.push_back(&kernel);
  return result;
}

const Kernel* kernel_serving(std::string_view axis, std::string_view value, std::string_view kind) {
  for (const auto& [key, kernel] : registry().kernels) {
    if (key.first != kind) continue;
    for (const AxisBinding& binding : kernel.serves)
      if (binding.axis == axis && binding.value == value) return &kernel;
  }
  return nullptr;
}

std::vector<std::string> values_served(std::string_view axis) {
  std::vector<std::string> result;
  for (const auto& [key, kernel] : registry().kernels)
    for (const AxisBinding& binding : kernel.serves)
      if (binding.axis == axis) result.push_back(binding.value);
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

}  // namespace faultline
