#include "bisect/plant.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "bisect/plant_table.h"
#include "grid/plant_spec.h"

namespace faultline {
namespace {

using plants::Entry;
using plants::Keys;
using plants::Layer;
using plants::Site;
using plants::Target;

std::string target_text(const Target& target) {
  PlantSelector selector;
  selector.op = target.layer == Layer::kNone ? std::string(target.op) : fmt::format("layers.N.{}", target.op);
  selector.phase = target.phase;
  selector.tokens = target.tokens;
  selector.step = target.step;
  selector.graph = target.graph;
  static constexpr const char* kWhich[] = {"", "first layer", "first MoE layer", "first layer with an indexer"};
  std::string text = selector.text();
  if (target.layer != Layer::kNone) text += fmt::format("; N: the {}", kWhich[static_cast<size_t>(target.layer)]);
  if (!target.moe_op.empty()) text += fmt::format(" (in an MoE layer: {})", target.moe_op);
  return text;
}

std::vector<std::string> keys_of(Keys keys) {
  if (keys == Keys::kWeights) return {"op", "layer"};
  std::vector<std::string> result = plant_selector_keys();
  if (keys == Keys::kNoRow) std::erase(result, "row");
  return result;
}

const std::vector<Entry>& entries() {
  static const std::vector<Entry> kEntries = [] {
    std::vector<Entry> all;
    for (auto make : {plants::index_entries, plants::format_entries, plants::value_entries, plants::process_entries})
      for (Entry& entry : make()) all.push_back(std::move(entry));
    for (Entry& entry : all) {
      entry.info.target = target_text(entry.target);
      entry.info.keys = keys_of(entry.keys);
    }
    std::sort(all.begin(), all.end(), [](const Entry& a, const Entry& b) { return a.info.name < b.info.name; });
    return all;
  }();
  return kEntries;
}

std::string_view name_in(std::string_view spec) {
  return spec.substr(0, spec.find('@'));
}

const Entry* find_entry(std::string_view spec) {
  for (const Entry& entry : entries())
    if (entry.info.name == name_in(spec)) return &entry;
  return nullptr;
}

Result<PlantSelector> selector_of(std::string_view spec, const Entry& entry) {
  const size_t at = spec.find('@');
  if (at == std::string_view::npos) return PlantSelector{};
  return parse_plant_selector(spec.substr(at + 1), fmt::format("plant '{}'", quotable(spec)), entry.info.keys);
}

Result<const Entry*> known_entry(std::string_view spec) {
  const Entry* entry = find_entry(spec);
  if (entry == nullptr)
    return bad_input("unknown plant '{}'{}", quotable(name_in(spec)), suggestion(name_in(spec), plant_names()));
  return entry;
}

int64_t first_layer(Layer which, const ModelConfig& config) {
  const auto first = [](const std::vector<bool>& flags) {
    return static_cast<int64_t>(std::find(flags.begin(), flags.end(), true) - flags.begin());
  };
  if (which == Layer::kFirstMoe) return first(config.layer_is_moe);
  if (which == Layer::kFirstIndexer) return first(config.layer_has_indexer);
  return 0;
}

// What the selector leaves open comes from the plant's own target.
void fill_in(PlantSelector& selector, const Target& target, const ModelConfig& config) {
  if (!selector.op) {
    if (target.layer == Layer::kNone) {
      selector.op = std::string(target.op);
    } else {
      const int64_t layer = selector.layer.value_or(first_layer(target.layer, config));
      const bool moe = layer < config.num_hidden_layers && config.layer_is_moe[static_cast<size_t>(layer)];
      selector.op = fmt::format("layers.{}.{}", layer, moe && !target.moe_op.empty() ? target.moe_op : target.op);
    }
  }
  if (!selector.phase) selector.phase = target.phase;
  if (!selector.tokens && !selector.batch) selector.tokens = target.tokens;
  if (!selector.step) selector.step = target.step;
  if (!selector.graph) selector.graph = target.graph;
}

Result<std::unique_ptr<PlantedFault>> make_fault(std::string_view spec, const ModelConfig& config) {
  FAULTLINE_TRY(const Entry* entry, known_entry(spec));
  FAULTLINE_TRY(PlantSelector selector, selector_of(spec, *entry));
  if (selector.layer && *selector.layer >= config.num_hidden_layers)
    return bad_input("plant '{}': there is no layer {}; the model has layers 0 to {}", quotable(spec), *selector.layer,
                     config.num_hidden_layers - 1);
  Site site;
  site.info = &entry->info;
  site.chosen_op = selector.op || selector.layer;
  fill_in(selector, entry->target, config);
  site.selector = std::move(selector);
  return entry->make(std::move(site));
}

// Several faults at once. An op that two of them may strike is the first one's.
class SeveralFaults : public PlantedFault {
 public:
  explicit SeveralFaults(std::vector<std::unique_ptr<PlantedFault>> faults) : faults_(std::move(faults)) {}

  KernelResult run(const PassInfo& info, const Op& op, const OpCall& call, bool serialized) override {
    for (const auto& fault : faults_)
      if (fault->touches(op)) return fault->run(info, op, call, serialized);
    return op.kernel->run(call);
  }
  void weights(ModelWeights& weights) override {
    for (const auto& fault : faults_) fault->weights(weights);
  }
  bool touches(const Op& op) const override {
    return std::any_of(faults_.begin(), faults_.end(), [&](const auto& fault) { return fault->touches(op); });
  }
  void use_device(Device& device) override {
    for (const auto& fault : faults_) fault->use_device(device);
  }
  int64_t fired() const override {
    int64_t sum = 0;
    for (const auto& fault : faults_) sum += fault->fired();
    return sum;
  }
  const PlantInfo& info() const override { return faults_.front()->info(); }
  std::string where() const override {
    std::string text = faults_.front()->where();
    for (size_t i = 1; i < faults_.size(); ++i)
      text += fmt::format("+{}@{}", faults_[i]->info().name, faults_[i]->where());
    return text;
  }

 private:
  std::vector<std::unique_ptr<PlantedFault>> faults_;
};

}  // namespace

const std::vector<PlantInfo>& plant_catalogue() {
  static const std::vector<PlantInfo> kCatalogue = [] {
    std::vector<PlantInfo> all;
    for (const Entry& entry : entries()) all.push_back(entry.info);
    return all;
  }();
  return kCatalogue;
}

std::vector<std::string> plant_names() {
  std::vector<std::string> names;
  for (const PlantInfo& info : plant_catalogue()) names.push_back(info.name);
  return names;
}

std::string plant_table() {
  static constexpr const char* kLevels[] = {"off", "finite", "full", "reference"};
  std::string text =
      "| name | class | what is broken | where, unless the selector says otherwise | needs | verdict | culprit | level "
      "| "
      "public reports of its like |\n|---|---|---|---|---|---|---|---|---|\n";
  for (const PlantInfo& info : plant_catalogue()) {
    const bool failure = info.verdicts.front() != "unsupported";
    text +=
        fmt::format("| `{}` | {} | {} | `{}` | {} | {} | {} | {} | {} |\n", info.name, info.fault_class, info.summary,
                    info.target, info.needs, fmt::join(info.verdicts, " or "), failure ? info.culprit : "",
                    kLevels[static_cast<size_t>(info.seen_from)], fmt::join(info.reports, ", "));
  }
  return text;
}

const PlantInfo* find_plant(std::string_view spec) {
  const Entry* entry = find_entry(spec);
  return entry == nullptr ? nullptr : &entry->info;
}

Result<std::unique_ptr<PlantedFault>> make_plant(std::string_view spec, const ModelConfig& config) {
  std::vector<std::unique_ptr<PlantedFault>> faults;
  for (const std::string& fault : faults_of(spec)) {
    FAULTLINE_TRY(std::unique_ptr<PlantedFault> one, make_fault(fault, config));
    faults.push_back(std::move(one));
  }
  if (faults.size() == 1) return std::move(faults.front());
  return std::make_unique<SeveralFaults>(std::move(faults));
}

Status check_plant(std::string_view spec) {
  for (const std::string& fault : faults_of(spec)) {
    FAULTLINE_TRY(const Entry* entry, known_entry(fault));
    FAULTLINE_TRY([[maybe_unused]] const PlantSelector selector, selector_of(fault, *entry));
  }
  return {};
}

Status check_plant_device(std::string_view spec, bool cuda) {
  for (const std::string& fault : faults_of(spec)) {
    FAULTLINE_TRY(const Entry* entry, known_entry(fault));
    if (entry->info.gpu_only && !cuda)
      return bad_input("plant '{}': a fault of a GPU, and this run is on the CPU; it needs --device cuda",
                       quotable(fault));
  }
  return {};
}

}  // namespace faultline
