#include "cli/inspect.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "cli/failure.h"
#include "cli/residency.h"
#include "model/inspect.h"

namespace faultline {
namespace {

using nlohmann::json;

constexpr size_t kFaultsShown = 1000;

int64_t count_true(const std::vector<bool>& flags) {
  return std::count(flags.begin(), flags.end(), true);
}

std::string shape_line(const ModelConfig& c) {
  const int64_t moe = count_true(c.layer_is_moe);
  return fmt::format(
      "{} layers ({} dense, {} MoE; {} with an indexer), hidden {}, {} heads, kv_lora {}, top-k {}, {} experts ({} a "
      "token), "
      "vocabulary {}",
      c.num_hidden_layers, c.num_hidden_layers - moe, moe, count_true(c.layer_has_indexer), c.hidden_size,
      c.num_attention_heads, c.kv_lora_rank, c.index_topk, c.n_routed_experts, c.num_experts_per_tok, c.vocab_size);
}

void print_modules(const Inspection& inspection) {
  size_t width = std::string_view("module").size();
  for (const ModuleRow& row : inspection.modules) width = std::max(width, row.module.size());
  fmt::print("\n{:<{}}  {:<11}  {:>7}  {:>10}\n", "module", width, "precision", "count", "size");
  for (const ModuleRow& row : inspection.modules) {
    fmt::print("{:<{}}  {:<11}  {:>7}  {:>10}\n", row.module, width, row.precision, row.count, bytes_text(row.bytes));
  }
}

void print_files(const Inspection& inspection) {
  size_t width = std::string_view("file").size();
  for (const FileRow& row : inspection.files) width = std::max(width, row.name.size());
  fmt::print("\n{:<{}}  {:>7}  {:>10}\n", "file", width, "tensors", "size");
  for (const FileRow& row : inspection.files) {
    fmt::print("{:<{}}  {:>7}  {:>10}\n", row.name, width, row.tensors, bytes_text(row.bytes));
  }
}

void print_text(const Inspection& inspection) {
  fmt::print("model     {}\n", inspection.spec);
  if (inspection.config) fmt::print("shape     {}\n", shape_line(*inspection.config));
  if (inspection.quantization) {
    fmt::print(
        "metadata  {} ({}), KV cache {}\n",
        inspection.quantization->algorithm.empty() ? "no algorithm" : inspection.quantization->algorithm,
        inspection.quantization->source,
        inspection.quantization->kv_cache_algorithm.empty() ? "not said" : inspection.quantization->kv_cache_algorithm);
  }
  fmt::print("tensors   {} in {} files, {}\n", inspection.tensors, inspection.files.size(),
             bytes_text(inspection.tensor_bytes));
  if (!inspection.modules.empty()) print_modules(inspection);
  if (!inspection.files.empty()) print_files(inspection);
  fmt::print("\nscanned   {} tensors, {}", inspection.scanned_tensors, bytes_text(inspection.scanned_bytes));
  if (inspection.skipped_tensors > 0) {
    fmt::print("; not scanned: {} large ones, {} (--all scans them too)", inspection.skipped_tensors,
               bytes_text(inspection.skipped_bytes));
  }
  fmt::print("\n");
  for (const std::string& note : inspection.notes) fmt::print("note      {}\n", note);
  for (size_t i = 0; i < std::min(inspection.faults.size(), kFaultsShown); ++i) {
    const InspectFault& fault = inspection.faults[i];
    fmt::print("fault     {}: {}\n", fault_kind_name(fault.kind), fault.message);
  }
  if (inspection.faults.size() > kFaultsShown) {
    fmt::print("fault     and {} more (--json FILE holds them all)\n", inspection.faults.size() - kFaultsShown);
  }
  constexpr std::array kVerdicts = {"sound", "readable, but faulty", "unreadable"};
  fmt::print("result    {}{}\n", kVerdicts[static_cast<size_t>(inspection.exit_code())],
             inspection.faults.empty() ? "" : fmt::format(": {} fault(s)", inspection.faults.size()));
}

json to_json(const Inspection& inspection) {
  constexpr std::array kVerdicts = {"sound", "faulty", "unreadable"};
  json root = {{"schema", 1},
               {"model", inspection.spec},
               {"result", kVerdicts[static_cast<size_t>(inspection.exit_code())]},
               {"exit_code", inspection.exit_code()},
               {"tensors", inspection.tensors},
               {"bytes", inspection.tensor_bytes},
               {"mtp_tensors", inspection.mtp_tensors},
               {"scanned", {{"tensors", inspection.scanned_tensors}, {"bytes", inspection.scanned_bytes}}},
               {"not_scanned", {{"tensors", inspection.skipped_tensors}, {"bytes", inspection.skipped_bytes}}},
               {"notes", inspection.notes},
               {"modules", json::array()},
               {"shards", json::array()},
               {"faults", json::array()},
               {"quantization", nullptr}};
  for (const ModuleRow& row : inspection.modules) {
    root["modules"].push_back(
        {{"module", row.module}, {"precision", row.precision}, {"count", row.count}, {"bytes", row.bytes}});
  }
  for (const FileRow& row : inspection.files) {
    root["shards"].push_back({{"file", row.name}, {"tensors", row.tensors}, {"bytes", row.bytes}});
  }
  for (const InspectFault& fault : inspection.faults) {
    root["faults"].push_back({{"kind", fault_kind_name(fault.kind)},
                              {"tensor", fault.tensor.empty() ? json(nullptr) : json(fault.tensor)},
                              {"message", fault.message}});
  }
  if (inspection.quantization) {
    const QuantConfig& q = *inspection.quantization;
    root["quantization"] = {{"source", q.source},
                            {"algorithm", q.algorithm},
                            {"kv_cache_algorithm", q.kv_cache_algorithm},
                            {"group_size", q.group_size},
                            {"ignore", q.ignore}};
  }
  return root;
}

int run(const std::string& model, const std::string& json_path, bool all) {
  const Inspection inspection = inspect_checkpoint(model, InspectOptions{all});
  const auto unreadable = std::find_if(inspection.faults.begin(), inspection.faults.end(),
                                       [](const InspectFault& f) { return f.kind == FaultKind::kUnreadable; });
  if (unreadable != inspection.faults.end()) fmt::print(stderr, "faultline inspect: {}\n", unreadable->message);
  // A mistyped path has no table.
  const bool anything = inspection.config || !inspection.files.empty();
  if (anything && json_path != "-") print_text(inspection);
  if (!json_path.empty()) {
    constexpr int kIndent = 1;
    const std::string text = dump_json(to_json(inspection), kIndent) + "\n";
    if (json_path == "-") {
      fmt::print("{}", text);
    } else if (const Status written = write_file(json_path, text); !written) {
      fmt::print(stderr, "faultline inspect: {}\n", written.error().message);
      return static_cast<int>(ExitCode::kBadInput);
    }
  }
  return inspection.exit_code();
}

int run_plan(const std::string& model, const std::string& json_path, const ResidencyOptions& options, int64_t ranks) {
  const auto plan = plan_for(model, options, ranks);
  if (!plan) return fail(plan.error());
  if (json_path != "-") fmt::print("{}", to_text(*plan));
  if (!json_path.empty()) {
    constexpr int kIndent = 1;
    const std::string text = dump_json(plan_json(*plan), kIndent) + "\n";
    if (json_path == "-")
      fmt::print("{}", text);
    else if (const Status written = write_file(json_path, text); !written)
      return fail(written.error());
  }
  return static_cast<int>(ExitCode::kGood);
}

}  // namespace

void add_inspect_command(CLI::App& app, int& exit_code) {
  struct Options {
    std::string model;
    std::string json_path;
    bool all = false;
    bool plan = false;
    int64_t ranks = 1;
    ResidencyOptions residency;
  };
  constexpr int64_t kMostRanks = 1024;
  const auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("inspect", "What a checkpoint holds, its precision per module, and what is wrong with it");
  command->add_option("model", options->model, "a folder with config.json and safetensors, or synth:NAME?key=value&…")
      ->required()
      ->type_name("MODEL");
  command->add_option("--json", options->json_path, "write the result as JSON; - for stdout, instead of the table")
      ->type_name("FILE");
  command->add_flag("--all", options->all, "scan every weight for NaN and infinity, not only scales and small tensors");
  CLI::Option* plan = command->add_flag(
      "--plan", options->plan,
      "instead: where the weights would be while the model runs (GPU, host memory, per use), and why");
  command->add_option("--tp", options->ranks, "with --plan: ranks of tensor parallelism")
      ->needs(plan)
      ->check(CLI::Range(int64_t{1}, kMostRanks))
      ->capture_default_str();
  add_residency_options(*command, options->residency);
  for (const char* name : {"--residency", "--gpu-memory", "--host-memory"}) command->get_option(name)->needs(plan);
  command->callback([options, &exit_code] {
    exit_code = options->plan ? run_plan(options->model, options->json_path, options->residency, options->ranks)
                              : run(options->model, options->json_path, options->all);
  });
  command->footer("Exit code: 0 sound, 1 readable but faulty, 2 unreadable; with --plan: 0, or 5 where memory lacks.");
}

}  // namespace faultline
