#include "model/residency.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>

#include "base/text.h"

namespace faultline {
namespace {

constexpr std::array<std::string_view, 4> kResidencies = {"auto", "gpu", "host", "stream"};

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr double kKibi = 1024;
constexpr std::array kUnits = {Unit{"", 1},
                               Unit{"B", 1},
                               Unit{"KB", 1e3},
                               Unit{"MB", 1e6},
                               Unit{"GB", 1e9},
                               Unit{"TB", 1e12},
                               Unit{"K", kKibi},
                               Unit{"M", kKibi* kKibi},
                               Unit{"G", kKibi* kKibi* kKibi},
                               Unit{"T", kKibi* kKibi* kKibi* kKibi},
                               Unit{"KiB", kKibi},
                               Unit{"MiB", kKibi* kKibi},
                               Unit{"GiB", kKibi* kKibi* kKibi},
                               Unit{"TiB", kKibi* kKibi* kKibi* kKibi}};

// Left on a GPU for caches, activations, libraries and the context: a twelfth, but no less than this.
constexpr uint64_t kLeastReserve = uint64_t{2} << 30;
constexpr uint64_t kReserveShare = 12;

enum class Sort : uint8_t { kAttention, kDense, kShared, kRouter, kExperts, kNorms, kEmbed, kHead };
constexpr std::array<std::string_view, 8> kSortNames = {
    "attention and indexers", "dense MLP", "shared experts",   "routers",
    "routed experts",         "norms",     "token embeddings", "vocabulary projection"};

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

Sort sort_of(std::string_view name) {
  if (has(name, ".mlp.experts.")) return Sort::kExperts;
  if (has(name, ".shared_experts.")) return Sort::kShared;
  if (has(name, ".mlp.gate.")) return Sort::kRouter;
  if (has(name, ".self_attn.")) return Sort::kAttention;
  if (has(name, ".mlp.")) return Sort::kDense;
  if (name.starts_with("model.embed_tokens.")) return Sort::kEmbed;
  if (name.starts_with("lm_head.")) return Sort::kHead;
  return Sort::kNorms;
}

// Every rank has all of it.
bool replicated(std::string_view name) {
  return has(name, "norm") || has(name, ".indexer.") || has(name, ".q_a_proj.") || has(name, ".kv_a_proj") ||
         has(name, ".mlp.gate.");
}

// "model.layers.17.…" → 17; -1 outside the layers.
int64_t layer_of(std::string_view name) {
  constexpr std::string_view kPrefix = "model.layers.";
  if (!name.starts_with(kPrefix)) return -1;
  int64_t layer = -1;
  std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), layer);
  return layer;
}

struct Part {
  int64_t tensors = 0;
  uint64_t bytes = 0;
  void add(uint64_t more) {
    ++tensors;
    bytes += more;
  }
};

std::string layers_text(const std::vector<int64_t>& layers) {
  if (layers.empty()) return "";
  return layers.size() == 1 ? fmt::format(", layer {}", layers.front())
                            : fmt::format(", layers {} to {}", layers.front(), layers.back());
}

Status check_ranks(const ModelConfig& c, int64_t ranks) {
  struct Cut {
    const char* what;
    int64_t size;
    int64_t grain;
  };
  for (const Cut& cut : {Cut{"attention heads", c.num_attention_heads, 1},
                         Cut{"columns of an expert", c.moe_intermediate_size, kNvfp4BlockSize},
                         Cut{"columns of the dense MLP", c.intermediate_size, kNvfp4BlockSize},
                         Cut{"rows of the vocabulary", c.vocab_size, 1}})
    if (cut.size % (cut.grain * ranks) != 0)
      return bad_input("{} ranks do not divide the {} {}{}", ranks, cut.size, cut.what,
                       cut.grain == 1 ? "" : fmt::format(" in NVFP4 blocks of {}", cut.grain));
  return {};
}

class Planner {
 public:
  Planner(const ModelConfig& config, const std::vector<NamedBytes>& tensors, const ResidencyRequest& request)
      : config_(config), request_(request) {
    plan_.request = request;
    const auto ranks = static_cast<uint64_t>(request.ranks);
    for (const NamedBytes& tensor : tensors) {
      const uint64_t share = replicated(tensor.name) ? tensor.bytes : (tensor.bytes + ranks - 1) / ranks;
      const Sort sort = sort_of(tensor.name);
      if (sort == Sort::kExperts)
        experts_[layer_of(tensor.name)].add(share);
      else
        always_[sort].add(share);
    }
    for (const auto& [sort, part] : always_) always_bytes_ += part.bytes;
    for (const auto& [layer, part] : experts_) {
      expert_bytes_ += part.bytes;
      largest_layer_ = std::max(largest_layer_, part.bytes);
    }
    const double in_use = static_cast<double>(config.num_experts_per_tok) /
                          static_cast<double>(std::max<int64_t>(1, config.n_routed_experts));
    plan_.step_bytes = always_bytes_ - always_[Sort::kEmbed].bytes +
                       static_cast<uint64_t>(in_use * static_cast<double>(expert_bytes_));
  }

  Result<ResidencyPlan> run() {
    FAULTLINE_TRY_STATUS(check_ranks(config_, request_.ranks));
    FAULTLINE_TRY_STATUS(request_.gpu ? on_gpus() : on_host());
    return std::move(plan_);
  }

 private:
  void row(std::string what, const Part& part, Home home, std::string reason) {
    if (part.tensors == 0) return;
    if (home == Home::kGpu) plan_.gpu_bytes += part.bytes;
    if (home == Home::kHost) plan_.host_bytes += part.bytes * static_cast<uint64_t>(request_.ranks);
    if (home == Home::kPerUse) plan_.per_use_bytes += part.bytes;
    plan_.rows.push_back({std::move(what), part.tensors, part.bytes, home, std::move(reason)});
  }

  void always(Home home, const std::string& reason) {
    for (const auto& [sort, part] : always_)
      row(std::string(kSortNames[static_cast<size_t>(sort)]), part, home,
          sort == Sort::kEmbed ? "a row a token" : reason);
  }

  void expert_layers(const std::vector<int64_t>& layers, Home home, const std::string& reason) {
    Part sum;
    for (const int64_t layer : layers) {
      sum.tensors += experts_[layer].tensors;
      sum.bytes += experts_[layer].bytes;
    }
    row(fmt::format("routed experts{}", layers_text(layers)), sum, home, reason);
  }

  Status on_gpus() {
    plan_.reserve_bytes = std::max(kLeastReserve, request_.gpu_bytes / kReserveShare);
    const uint64_t usable = request_.gpu_bytes > plan_.reserve_bytes ? request_.gpu_bytes - plan_.reserve_bytes : 0;
    if (request_.residency == Residency::kGpu && always_bytes_ + expert_bytes_ > usable)
      return cannot_run(
          "--residency gpu: the weights of a rank are {}; with {} left for caches and activations a GPU would need {}, "
          "and {} may be used",
          bytes_text(always_bytes_ + expert_bytes_), bytes_text(plan_.reserve_bytes),
          bytes_text(always_bytes_ + expert_bytes_ + plan_.reserve_bytes), bytes_text(request_.gpu_bytes));
    const bool all = always_bytes_ + expert_bytes_ <= usable && request_.residency != Residency::kHost &&
                     request_.residency != Residency::kStream;
    plan_.buffer_bytes = all ? 0 : largest_layer_;
    if (always_bytes_ + plan_.buffer_bytes > usable)
      return cannot_run(
          "what every step reads is {} a rank, and the buffer for the experts of a layer {}; with {} left for caches "
          "and "
          "activations a GPU would need {}, and {} may be used: more ranks, or a GPU with more memory",
          bytes_text(always_bytes_), bytes_text(plan_.buffer_bytes), bytes_text(plan_.reserve_bytes),
          bytes_text(always_bytes_ + plan_.buffer_bytes + plan_.reserve_bytes), bytes_text(request_.gpu_bytes));
    always(Home::kGpu, "read as a whole at every step");
    uint64_t left = usable - always_bytes_ - plan_.buffer_bytes;
    const bool keep = request_.residency == Residency::kAuto || request_.residency == Residency::kGpu;
    std::vector<int64_t> kept;
    std::vector<int64_t> rest;
    for (const auto& [layer, part] : experts_) {
      const bool fits = keep && rest.empty() && part.bytes <= left;
      (fits ? kept : rest).push_back(layer);
      if (fits) left -= part.bytes;
    }
    plan_.gpu_expert_layers = kept;
    expert_layers(kept, Home::kGpu, rest.empty() ? "all fit" : "as many layers as fit");
    return beside_gpu(rest);
  }

  // Routed experts that are not on the GPU.
  Status beside_gpu(const std::vector<int64_t>& layers) {
    if (layers.empty()) return {};
    if (request_.synthetic) {
      expert_layers(layers, Home::kPerUse, "made on the GPU after routing, those in use alone");
      return {};
    }
    uint64_t bytes = 0;
    for (const int64_t layer : layers) bytes += experts_[layer].bytes * static_cast<uint64_t>(request_.ranks);
    const bool fits = bytes <= request_.host_bytes && request_.residency != Residency::kStream;
    if (request_.residency == Residency::kHost && !fits)
      return cannot_run("--residency host: the routed experts are {}, and {} of the host's memory may be used",
                        bytes_text(bytes), bytes_text(request_.host_bytes));
    expert_layers(layers, fits ? Home::kHost : Home::kPerUse,
                  fits ? "copied to the GPU after routing, those in use alone"
                       : "read from the files after routing, those in use alone");
    return {};
  }

  Status on_host() {
    if (request_.residency == Residency::kGpu) return cannot_run("--residency gpu: there is no GPU to be used");
    const auto ranks = static_cast<uint64_t>(request_.ranks);
    const uint64_t all = (always_bytes_ + expert_bytes_) * ranks;
    std::vector<int64_t> layers;
    for (const auto& [layer, part] : experts_) layers.push_back(layer);
    if (all <= request_.host_bytes && request_.residency != Residency::kStream) {
      always(Home::kHost, "all fit");
      expert_layers(layers, Home::kHost, "all fit");
      return {};
    }
    if (request_.residency == Residency::kHost)
      return cannot_run("--residency host: the weights are {}, and {} of the host's memory may be used",
                        bytes_text(all), bytes_text(request_.host_bytes));
    plan_.buffer_bytes = request_.host_bytes;
    const char* how = request_.synthetic ? "made" : "read from the files";
    always(Home::kPerUse, fmt::format("{} at each pass", how));
    expert_layers(layers, Home::kPerUse, fmt::format("{} after routing, those in use alone", how));
    return {};
  }

  const ModelConfig& config_;
  ResidencyRequest request_;
  ResidencyPlan plan_;
  std::map<Sort, Part> always_;
  std::map<int64_t, Part> experts_;  // by layer
  uint64_t always_bytes_ = 0;
  uint64_t expert_bytes_ = 0;
  uint64_t largest_layer_ = 0;
};

}  // namespace

Result<Residency> parse_residency(std::string_view text) {
  for (size_t i = 0; i < kResidencies.size(); ++i)
    if (kResidencies[i] == text) return static_cast<Residency>(i);
  return bad_input("--residency {}{}", quotable(text),
                   suggestion(text, std::vector<std::string>(kResidencies.begin(), kResidencies.end())));
}

Result<uint64_t> parse_bytes(std::string_view text, std::string_view option) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view rest(end, static_cast<size_t>(text.data() + text.size() - end));
  const auto unit = std::find_if(kUnits.begin(), kUnits.end(), [&](const Unit& u) { return u.name == rest; });
  constexpr double kMost = 9e18;
  if (error != std::errc() || unit == kUnits.end() || !(value * unit->bytes >= 1) || !(value * unit->bytes < kMost))
    return bad_input("{} {}: write an amount of memory, as 80GiB, 500MB or 1e9", option, quotable(text));
  return static_cast<uint64_t>(value * unit->bytes);
}

std::string_view home_name(Home home) {
  constexpr std::array<std::string_view, 3> kNames = {"GPU", "host memory", "per use"};
  return kNames[static_cast<size_t>(home)];
}

Result<ResidencyPlan> plan_residency(const ModelConfig& config, const std::vector<NamedBytes>& tensors,
                                     const ResidencyRequest& request) {
  return Planner(config, tensors, request).run();
}

std::string to_text(const ResidencyPlan& plan) {
  const ResidencyRequest& request = plan.request;
  std::string text = fmt::format(
      "{}{}, {} of the host's memory\n", request.ranks == 1 ? "one rank" : fmt::format("{} ranks, each", request.ranks),
      request.gpu ? fmt::format(" with {} of GPU memory", bytes_text(request.gpu_bytes)) : std::string(" on the CPU"),
      bytes_text(request.host_bytes));
  size_t width = std::string_view("weights").size();
  for (const PlanRow& row : plan.rows) width = std::max(width, row.what.size());
  text += fmt::format("\n{:<{}}  {:>7}  {:>10}  {:<11}  {}\n", "weights", width, "tensors",
                      request.ranks == 1 ? "size" : "size a rank", "where", "why");
  for (const PlanRow& row : plan.rows)
    text += fmt::format("{:<{}}  {:>7}  {:>10}  {:<11}  {}\n", row.what, width, row.tensors, bytes_text(row.bytes),
                        home_name(row.home), row.reason);
  text += "\n";
  if (request.gpu) {
    text += fmt::format("GPU          {} of weights", bytes_text(plan.gpu_bytes));
    if (plan.buffer_bytes > 0) text += fmt::format(", {} for the experts of a layer", bytes_text(plan.buffer_bytes));
    text += fmt::format(", {} left for caches, activations and libraries\n", bytes_text(plan.reserve_bytes));
  }
  if (plan.host_bytes > 0) text += fmt::format("host memory  {} of weights\n", bytes_text(plan.host_bytes));
  if (plan.per_use_bytes > 0)
    text += fmt::format("per use      {}{}\n", bytes_text(plan.per_use_bytes),
                        request.gpu ? "" : fmt::format(", through {}", bytes_text(plan.buffer_bytes)));
  text += fmt::format("a decode step of one token reads {}{}\n", bytes_text(plan.step_bytes),
                      request.ranks == 1 ? "" : " a rank");
  return text;
}

}  // namespace faultline
