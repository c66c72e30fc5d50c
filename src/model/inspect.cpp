#include "model/inspect.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>

#include "model/checkpoint.h"
#include "model/expected.h"
#include "model/linear.h"
#include "model/scan.h"
#include "model/synth.h"
#include "model/weight_files.h"

namespace faultline {
namespace {

namespace fs = std::filesystem;

struct Item {
  TensorView view;
  uint64_t bytes = 0;
  bool whole = true;  // false: part of it lies outside its file, or it is misaligned; must not be read
  bool used = false;
};

// "model.layers.12.mlp.experts.7.gate_proj" -> "mlp.experts.*.gate_proj": what one row of the table counts.
std::string module_sort(std::string name) {
  constexpr std::string_view kLayers = "model.layers.";
  if (name.starts_with(kLayers)) {
    const size_t dot = name.find('.', kLayers.size());
    name = dot == std::string::npos ? name : name.substr(dot + 1);
  }
  constexpr std::string_view kExperts = ".experts.";
  const size_t experts = name.find(kExperts);
  if (experts != std::string::npos) {
    const size_t begin = experts + kExperts.size();
    const size_t end = std::min(name.find('.', begin), name.size());
    return name.substr(0, begin) + '*' + name.substr(end);
  }
  return name;
}

std::string shape_text(const TensorView& view) {
  return fmt::format("[{}]", fmt::join(view.shape.begin(), view.shape.begin() + view.rank, ", "));
}

class Inspector {
 public:
  Inspector(const std::string& spec, const InspectOptions& options) : options_(options) { out_.spec = spec; }

  Inspection run() {
    if (out_.spec.starts_with(kSynthPrefix)) {
      load_synth();
    } else {
      load_folder();
    }
    if (out_.config) {
      leave_out_mtp();
      check_expected();
      find_unexpected();
      compare_metadata();
    }
    for (const auto& [name, item] : items_) {
      out_.tensors += 1;
      out_.tensor_bytes += item.bytes;
    }
    return std::move(out_);
  }

 private:
  void fault(FaultKind kind, std::string tensor, std::string message) {
    out_.faults.push_back({kind, std::move(tensor), std::move(message)});
  }

  void load_synth() {
    Result<Checkpoint> opened = Checkpoint::open(out_.spec);
    if (!opened) return fault(FaultKind::kUnreadable, "", opened.error().message);
    checkpoint_ = std::make_unique<Checkpoint>(std::move(*opened));
    out_.config = checkpoint_->config();
    out_.quantization = checkpoint_->quantization();
    FileRow row{out_.spec, 0, 0};
    for (const StoredTensor& tensor : checkpoint_->tensors()) {
      Item item;
      item.view = tensor.view;
      item.bytes = static_cast<uint64_t>(tensor.view.elements()) * dtype_bytes(tensor.view.dtype);
      row.tensors += 1;
      row.bytes += item.bytes;
      items_.emplace(tensor.name, item);
    }
    out_.files.push_back(std::move(row));
  }

  void load_folder() {
    std::error_code error;
    if (!fs::is_directory(out_.spec, error)) {
      return fault(FaultKind::kUnreadable, "", fmt::format("{}: no such folder", out_.spec));
    }
    load_texts();
    weights_ = open_weight_files(out_.spec);
    for (const WeightProblem& problem : weights_.problems) {
      fault(problem.unreadable ? FaultKind::kUnreadable : FaultKind::kFile, "", problem.message);
    }
    for (const WeightFile& file : weights_.files) {
      out_.files.push_back({file.name, static_cast<int64_t>(file.header.entries.size()), file.mapping.bytes()});
      for (const SafetensorsEntry& entry : file.header.entries) items_.emplace(entry.name, item_of(file, entry));
    }
  }

  void load_texts() {
    const std::string config_path = (fs::path(out_.spec) / kConfigFileName).string();
    const std::string quant_path = (fs::path(out_.spec) / kQuantFileName).string();
    const Result<std::string> config_text = read_file(config_path);
    if (!config_text) return fault(FaultKind::kUnreadable, "", config_text.error().message);
    Result<ModelConfig> config = parse_model_config(*config_text, config_path);
    if (!config) return fault(FaultKind::kUnreadable, "", config.error().message);
    out_.notes = config->notes;
    out_.config = std::move(*config);
    std::string quant_text;
    std::error_code error;
    if (fs::exists(quant_path, error)) {
      Result<std::string> text = read_file(quant_path);
      if (!text) return fault(FaultKind::kUnreadable, "", text.error().message);
      quant_text = std::move(*text);
    }
    auto quantization = parse_quant_config(*config_text, config_path, quant_text, quant_path);
    if (!quantization) return fault(FaultKind::kUnreadable, "", quantization.error().message);
    out_.quantization = std::move(*quantization);
  }

  static Item item_of(const WeightFile& file, const SafetensorsEntry& entry) {
    Item item;
    item.whole = entry.end <= file.mapping.bytes() && entry.begin % dtype_bytes(entry.dtype) == 0;
    item.bytes = entry.bytes();
    item.view.data = const_cast<std::byte*>(file.mapping.data()) + (item.whole ? entry.begin : 0);
    item.view.dtype = entry.dtype;
    item.view.rank = entry.rank;
    item.view.shape = entry.shape;
    int64_t stride = 1;
    for (int i = entry.rank - 1; i >= 0; --i) {
      item.view.stride[static_cast<size_t>(i)] = stride;
      stride *= entry.shape[static_cast<size_t>(i)];
    }
    return item;
  }

  void leave_out_mtp() {
    for (auto it = items_.begin(); it != items_.end();) {
      const bool mtp = is_mtp_tensor(it->first, *out_.config);
      out_.mtp_tensors += mtp ? 1 : 0;
      it = mtp ? items_.erase(it) : std::next(it);
    }
    if (out_.mtp_tensors > 0) {
      out_.notes.push_back(fmt::format("{} tensors of MTP layers (layer {} and above) were left out", out_.mtp_tensors,
                                       out_.config->num_hidden_layers));
    } else if (out_.config->num_nextn_predict_layers > 0) {
      out_.notes.push_back(fmt::format("the config names {} MTP layer(s), and the files hold none",
                                       out_.config->num_nextn_predict_layers));
    }
  }

  Item* take(const std::string& name) {
    const auto found = items_.find(name);
    if (found == items_.end()) return nullptr;
    found->second.used = true;
    return &found->second;
  }

  void count(const std::string& module, std::string_view precision, uint64_t bytes) {
    const std::string sort = module_sort(module);
    const auto key = std::make_pair(sort, std::string(precision));
    const auto [found, fresh] = row_of_.emplace(key, out_.modules.size());
    if (fresh) out_.modules.push_back({sort, std::string(precision), 0, 0});
    ModuleRow& row = out_.modules[found->second];
    row.count += 1;
    row.bytes += bytes;
  }

  // Whether the values may be looked at, and will be: large ones only on request.
  bool will_scan(const std::string& name, const Item& item, bool always) {
    if (!item.whole || item.bytes == 0) return false;
    if (!always && !options_.scan_all && item.bytes > kSmallTensorBytes) {
      out_.skipped_tensors += 1;
      out_.skipped_bytes += item.bytes;
      return false;
    }
    const WeightRange range{item.view.data, item.bytes};
    if (const Status there = need_weights({&range, 1}); !there) {
      if (unavailable_++ == 0) first_unavailable_ = fmt::format("{}: {}", name, there.error().message);
      return false;
    }
    out_.scanned_tensors += 1;
    out_.scanned_bytes += item.bytes;
    return true;
  }

  void report(FaultKind kind, const std::string& name, const TensorView& view, const ScanResult& result) {
    if (result.count == 0) return;
    fault(kind, name,
          fmt::format("{}: {} {} of {} {} not usable, the first at {} is {}", name, result.count,
                      kind == FaultKind::kScale ? "scale(s)" : "value(s)", view.elements(),
                      result.count == 1 ? "is" : "are", coordinates(view, result.first), result.problem));
  }

  void check_plain(const ExpectedTensor& expected) {
    Item* item = take(expected.name);
    if (item == nullptr)
      return fault(FaultKind::kMissing, expected.name, fmt::format("tensor {} is missing", expected.name));
    const TensorView& view = item->view;
    count(expected.name, dtype_name(view.dtype), item->bytes);
    bool fits = view.rank == expected.rank;
    for (int i = 0; fits && i < view.rank; ++i) fits = view.dim(i) == expected.shape[static_cast<size_t>(i)];
    if (!fits) {
      return fault(FaultKind::kShape, expected.name,
                   fmt::format("{} has shape {}, but the config calls for [{}]", expected.name, shape_text(view),
                               fmt::join(expected.shape.begin(), expected.shape.begin() + expected.rank, ", ")));
    }
    const bool floats = view.dtype == Dtype::kF32 || view.dtype == Dtype::kBF16 || view.dtype == Dtype::kF16;
    if (!floats) {
      return fault(FaultKind::kFormat, expected.name,
                   fmt::format("{} is {}; it must be BF16, F16 or F32", expected.name, dtype_name(view.dtype)));
    }
    if (!will_scan(expected.name, *item, false)) return;
    report(FaultKind::kValue, expected.name, view, scan_values(view));
    if (expected.name != "model.embed_tokens.weight") return;
    const ScanResult zero_rows = scan_zero_rows(view);
    if (zero_rows.count > 0) {
      out_.notes.push_back(fmt::format(
          "{} row(s) of {} are all zero, the first is token {}: FP8 quantization without a floor divides by 0 there",
          zero_rows.count, expected.name, zero_rows.first));
    }
  }

  void check_projection(const ExpectedTensor& expected) {
    constexpr std::string_view kSuffix = ".weight";
    const std::string module = expected.name.substr(0, expected.name.size() - kSuffix.size());
    uint64_t bytes = 0;
    bool whole = true;
    for (const char* suffix : {".weight", ".weight_scale", ".weight_scale_2", ".weight_scale_inv", ".input_scale"}) {
      if (const Item* item = take(module + suffix)) {
        bytes += item->bytes;
        whole = whole && item->whole;
      }
    }
    if (!items_.contains(expected.name)) {
      return fault(FaultKind::kMissing, expected.name, fmt::format("tensor {} is missing", expected.name));
    }
    const Result<LinearWeight> linear = resolve_linear(module, [this](std::string_view name) -> const TensorView* {
      const auto found = items_.find(std::string(name));
      return found == items_.end() ? nullptr : &found->second.view;
    });
    if (!linear) {
      count(module, "?", bytes);
      return fault(FaultKind::kFormat, expected.name, linear.error().message);
    }
    count(module, precision_name(linear->precision), bytes);
    if (linear->out_features != expected.shape[0] || linear->in_features != expected.shape[1]) {
      return fault(
          FaultKind::kShape, expected.name,
          fmt::format("{} has shape [{}, {}]{}, but the config calls for [{}, {}]", expected.name, linear->out_features,
                      linear->in_features, linear->precision == Precision::kNvfp4 ? " (unpacked)" : "",
                      expected.shape[0], expected.shape[1]));
    }
    note_precision(*linear);
    if (whole) scan_projection(*linear);
  }

  void scan_projection(const LinearWeight& linear) {
    const auto scan_item = [&](const char* suffix, bool always) {
      const auto found = items_.find(linear.name + suffix);
      return found != items_.end() && will_scan(found->first, found->second, always);
    };
    // NVFP4 codes cannot be wrong one by one; every byte is legal.
    if (linear.precision != Precision::kNvfp4 && scan_item(".weight", false)) {
      report(FaultKind::kValue, linear.name + ".weight", linear.weight, scan_values(linear.weight));
    }
    if (linear.precision == Precision::kNvfp4) {
      if (scan_item(".weight_scale", true)) {
        report(FaultKind::kScale, linear.name + ".weight_scale", linear.block_scale, scan_nvfp4_scales(linear));
      }
      if (scan_item(".weight_scale_2", true)) {
        report(FaultKind::kScale, linear.name + ".weight_scale_2", linear.global_scale,
               scan_scales(linear.global_scale));
      }
    } else if (linear.block_scale.data != nullptr) {
      const char* suffix = items_.contains(linear.name + ".weight_scale_inv") ? ".weight_scale_inv" : ".weight_scale";
      if (scan_item(suffix, true)) {
        report(FaultKind::kScale, linear.name + suffix, linear.block_scale, scan_scales(linear.block_scale));
      }
    }
    if (linear.input_scale.data != nullptr && scan_item(".input_scale", true)) {
      report(FaultKind::kScale, linear.name + ".input_scale", linear.input_scale, scan_scales(linear.input_scale));
    }
  }

  void note_precision(const LinearWeight& linear) {
    const bool quantized = linear.precision == Precision::kNvfp4 || linear.precision == Precision::kFp8Tensor ||
                           linear.precision == Precision::kFp8Block;
    quantized_modules_ += quantized ? 1 : 0;
    nvfp4_without_input_scale_ += linear.precision == Precision::kNvfp4 && linear.input_scale.data == nullptr ? 1 : 0;
    if (quantized && out_.quantization && is_ignored(*out_.quantization, linear.name)) {
      if (quantized_but_ignored_++ == 0) first_quantized_but_ignored_ = linear.name;
    }
  }

  void check_expected() {
    for (const ExpectedTensor& expected : expected_tensors(*out_.config)) {
      if (expected.projection) {
        check_projection(expected);
      } else {
        check_plain(expected);
      }
    }
  }

  void find_unexpected() {
    std::set<std::string> names;  // sorted: the hash map's order means nothing
    for (const auto& [name, item] : items_) {
      if (!item.used && !is_tolerated_tensor(name)) names.insert(name);
    }
    for (const std::string& name : names) {
      const Item& item = items_.at(name);
      fault(FaultKind::kUnexpected, name,
            fmt::format("tensor {} ({} {}) belongs to no module of this config", name, dtype_name(item.view.dtype),
                        shape_text(item.view)));
    }
  }

  void compare_metadata() {
    if (unavailable_ > 0)
      out_.notes.push_back(
          fmt::format("{} tensor(s) could not be scanned, the first is {}", unavailable_, first_unavailable_));
    if (quantized_but_ignored_ > 0) {
      out_.notes.push_back(
          fmt::format("{} module(s) are quantized although {} lists them as left out, the first is {}; what is in the "
                      "file was taken",
                      quantized_but_ignored_, out_.quantization->source, first_quantized_but_ignored_));
    }
    if (out_.quantization && quantized_modules_ == 0) {
      out_.notes.push_back(
          fmt::format("{} says {}, but no module is quantized", out_.quantization->source,
                      out_.quantization->algorithm.empty() ? "quantized" : out_.quantization->algorithm));
    }
    if (!out_.quantization && quantized_modules_ > 0) {
      out_.notes.push_back(
          fmt::format("{} module(s) are quantized, but neither {} nor config.json says so; a server may "
                      "load them as plain weights",
                      quantized_modules_, kQuantFileName));
    }
    if (out_.quantization && out_.quantization->algorithm == "NVFP4" && out_.quantization->group_size != 0 &&
        out_.quantization->group_size != kNvfp4BlockSize) {
      out_.notes.push_back(fmt::format("{} says group_size {}; NVFP4 has {}", out_.quantization->source,
                                       out_.quantization->group_size, kNvfp4BlockSize));
    }
    if (nvfp4_without_input_scale_ > 0) {
      out_.notes.push_back(fmt::format("{} NVFP4 module(s) have no input_scale: they can only run weight-only",
                                       nvfp4_without_input_scale_));
    }
  }

  const InspectOptions& options_;
  Inspection out_;
  std::unique_ptr<Checkpoint> checkpoint_;  // keeps a synthetic model's memory
  WeightFiles weights_;                     // keeps the mappings
  std::unordered_map<std::string, Item> items_;
  std::map<std::pair<std::string, std::string>, size_t> row_of_;
  int64_t quantized_modules_ = 0;
  int64_t quantized_but_ignored_ = 0;
  int64_t nvfp4_without_input_scale_ = 0;
  std::string first_quantized_but_ignored_;
  int64_t unavailable_ = 0;  // tensors that memory lacked for
  std::string first_unavailable_;
};

}  // namespace

std::string_view fault_kind_name(FaultKind kind) {
  switch (kind) {
    case FaultKind::kUnreadable:
      return "unreadable";
    case FaultKind::kFile:
      return "file";
    case FaultKind::kMissing:
      return "missing";
    case FaultKind::kUnexpected:
      return "unexpected";
    case FaultKind::kShape:
      return "shape";
    case FaultKind::kFormat:
      return "format";
    case FaultKind::kScale:
      return "scale";
    case FaultKind::kValue:
      return "value";
  }
  return "";
}

int Inspection::exit_code() const {
  const bool unreadable =
      std::any_of(faults.begin(), faults.end(), [](const InspectFault& f) { return f.kind == FaultKind::kUnreadable; });
  if (unreadable) return 2;
  return faults.empty() ? 0 : 1;
}

Inspection inspect_checkpoint(const std::string& spec, const InspectOptions& options) {
  return Inspector(spec, options).run();
}

}  // namespace faultline
