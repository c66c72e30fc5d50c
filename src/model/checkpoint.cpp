#include "model/checkpoint.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/json.h"
#include "base/memory.h"
#include "base/text.h"
#include "model/expected.h"
#include "model/linear.h"
#include "model/mapping.h"
#include "model/synth.h"
#include "model/tensor_table.h"
#include "model/weight_files.h"

namespace faultline {

struct Checkpoint::State {
  TensorTable table;
  ModelConfig config;
  std::optional<QuantConfig> quantization;
  std::vector<UniqueFd> descriptors;  // the packed table first, then the files
  std::vector<Mapping> files;
  std::unique_ptr<OnDemandWeights> on_demand;  // instead of files
  std::vector<StoredTensor> tensors;
  std::unordered_map<std::string_view, size_t> by_name;

  // Makes the views from the table and the mapped files.
  void index_tensors();
  // Packs the table for other processes.
  Status share_table();
};

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEmbeddings = "model.embed_tokens.weight";

class Hash {
 public:
  void add(const void* data, size_t bytes) { value_ = XXH64(data, bytes, value_); }
  void add(std::string_view text) { add(text.data(), text.size()); }
  void add(uint64_t number) { add(&number, sizeof number); }
  std::string hex() const { return fmt::format("{:016x}", value_); }

 private:
  uint64_t value_ = 0;
};

std::string trimmed_folder(std::string folder) {
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  return folder;
}

uint64_t total_bytes(const std::vector<uint64_t>& sizes) {
  uint64_t sum = 0;
  for (const uint64_t size : sizes) sum += size;
  return sum;
}

std::string identity_text(std::string_view spec, const TensorTable& table, const Hash& hash) {
  return fmt::format("{} | {} tensors in {} files, {} bytes | {}", spec, table.rows.size(), table.file_bytes.size(),
                     total_bytes(table.file_bytes), hash.hex());
}

constexpr const char* kOnDemandKey = "on_demand";
constexpr const char* kBudgetKey = "budget";

uint64_t free_memory() {
  const uint64_t known = available_memory();
  return known > 0 ? known : std::numeric_limits<int64_t>::max();
}

// All but routed experts and the embeddings.
uint64_t read_by_every_pass(const std::vector<SafetensorsEntry>& entries) {
  uint64_t bytes = 0;
  for (const SafetensorsEntry& entry : entries)
    if (entry.name != kEmbeddings && entry.name.find(".mlp.experts.") == std::string::npos) bytes += entry.bytes();
  return bytes;
}

// Memory for weights that are made on use; 0: all are made at once.
Result<uint64_t> on_demand_budget(const std::string& spec, const std::vector<SafetensorsEntry>& entries,
                                  const SynthMemory& memory) {
  const uint64_t all = entries.back().end;
  const uint64_t free = free_memory();
  // Memory that was never touched costs more than making weights anew, so that less than what there is serves better.
  const uint64_t budget = memory.bytes > 0 ? memory.bytes : default_synth_memory();
  if (memory.mode == SynthMemory::Mode::kAuto && all <= budget) return 0;
  if (memory.mode == SynthMemory::Mode::kWhole) {
    const uint64_t room = memory.bytes > 0 ? memory.bytes : free;
    if (all <= room) return 0;
    return cannot_run("{}: its weights are {}, and {} of memory may be used", spec, bytes_text(all), bytes_text(room));
  }
  for (const SafetensorsEntry& entry : entries)
    if (entry.bytes() > budget && entry.name != kEmbeddings)  // of which only the rows in use are made
      return cannot_run("{}: {} alone is {}, and weights made on use may take {} of memory", spec, entry.name,
                        bytes_text(entry.bytes()), bytes_text(budget));
  return budget;
}

tl::unexpected<Error> problems_error(const std::string& folder, const std::vector<WeightProblem>& problems) {
  std::string text = problems.front().message;
  if (problems.size() > 1) {
    text += fmt::format(" (and {} more: `faultline inspect {}` lists them)", problems.size() - 1, folder);
  }
  return tl::make_unexpected(Error{ErrorKind::kBadInput, text});
}

}  // namespace

uint64_t default_synth_memory() {
  return free_memory() / 4;
}

void Checkpoint::State::index_tensors() {
  tensors.reserve(table.rows.size());
  by_name.reserve(table.rows.size());
  for (const TensorTable::Row& row : table.rows) {
    TensorView view;
    // Views are writable by type; the mapping is not.
    view.data = on_demand != nullptr ? on_demand->place(tensors.size())
                                     : const_cast<std::byte*>(files[row.file].data()) + row.entry.begin;
    view.dtype = row.entry.dtype;
    view.rank = row.entry.rank;
    view.shape = row.entry.shape;
    int64_t stride = 1;
    for (int i = row.entry.rank - 1; i >= 0; --i) {
      view.stride[static_cast<size_t>(i)] = stride;
      stride *= view.shape[static_cast<size_t>(i)];
    }
    tensors.push_back({row.entry.name, view, row.file, row.entry.begin});
  }
  for (size_t i = 0; i < tensors.size(); ++i) by_name.emplace(tensors[i].name, i);
}

Status Checkpoint::State::share_table() {
  const std::string block = pack_table(table);
  FAULTLINE_TRY(MemoryFile memory, MemoryFile::create("faultline-tensors", block.size()));
  std::memcpy(memory.data(), block.data(), block.size());
  FAULTLINE_TRY(UniqueFd fd, memory.seal());
  descriptors.insert(descriptors.begin(), std::move(fd));
  return {};
}

Result<Checkpoint> Checkpoint::open(const std::string& spec, const SynthMemory& memory) {
  return spec.starts_with(kSynthPrefix) ? open_synth(spec, memory) : open_folder(trimmed_folder(spec));
}

Result<Checkpoint> Checkpoint::open_folder(const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return bad_input("{}: no such folder; a model is a folder with config.json and safetensors, or synth:NAME", folder);
  }
  auto state = std::make_unique<State>();
  State& s = *state;
  s.table.spec = folder;
  const std::string config_path = (fs::path(folder) / kConfigFileName).string();
  FAULTLINE_TRY(s.table.config_text, read_file(config_path));
  FAULTLINE_TRY(s.config, parse_model_config(s.table.config_text, config_path));
  const std::string quant_path = (fs::path(folder) / kQuantFileName).string();
  std::string quant_text;
  if (fs::exists(quant_path, error)) {
    FAULTLINE_TRY(quant_text, read_file(quant_path));
  }
  FAULTLINE_TRY(s.quantization, parse_quant_config(s.table.config_text, config_path, quant_text, quant_path));

  WeightFiles weights = open_weight_files(folder);
  if (!weights.problems.empty()) return problems_error(folder, weights.problems);
  Hash hash;
  hash.add(s.table.config_text);
  for (WeightFile& file : weights.files) {
    hash.add(file.name);
    hash.add(file.mapping.data(), file.header.data_begin);
    hash.add(static_cast<uint64_t>(file.modified_ns));
    for (SafetensorsEntry& entry : file.header.entries) {
      if (is_mtp_tensor(entry.name, s.config)) {
        ++s.table.mtp_tensors;
      } else {
        s.table.rows.push_back({std::move(entry), s.files.size()});
      }
    }
    s.table.file_bytes.push_back(file.mapping.bytes());
    s.descriptors.push_back(std::move(file.fd));
    s.files.push_back(std::move(file.mapping));
  }
  const fs::path absolute = fs::canonical(folder, error);
  s.table.identity = identity_text(error ? folder : absolute.string(), s.table, hash);
  FAULTLINE_TRY_STATUS(s.share_table());
  s.index_tensors();
  return Checkpoint(std::move(state));
}

Result<Checkpoint> Checkpoint::open_synth(const std::string& spec, const SynthMemory& memory) {
  FAULTLINE_TRY(const SynthModel model, parse_synth_spec(spec));
  auto state = std::make_unique<State>();
  State& s = *state;
  s.table.spec = model.spec;
  s.table.config_text = model.config_text;
  s.config = model.config;
  FAULTLINE_TRY(s.quantization, parse_quant_config(model.config_text, model.spec, {}, {}));
  std::vector<SafetensorsEntry> entries = synth_tensors(model);
  const std::string header = lay_out(entries);
  const uint64_t bytes = entries.back().end;
  Hash hash;
  hash.add(model.config_text);
  hash.add(header);
  s.table.file_bytes.push_back(bytes);
  FAULTLINE_TRY(const uint64_t budget, on_demand_budget(model.spec, entries, memory));
  if (budget > 0) {
    std::vector<uint64_t> sizes;
    for (const SafetensorsEntry& entry : entries) sizes.push_back(entry.bytes());
    const auto shared = std::make_shared<const std::vector<SafetensorsEntry>>(entries);
    FAULTLINE_TRY(s.on_demand, OnDemandWeights::create(
                                   sizes,
                                   [model, shared](size_t tensor, uint64_t first, std::span<std::byte> out) {
                                     generate(model, (*shared)[tensor], first, out);
                                   },
                                   budget,
                                   read_by_every_pass(entries) <= budget ? OnDemandWeights::Keep::kWhatFits
                                                                         : OnDemandWeights::Keep::kLatest));
  } else {
    FAULTLINE_TRY(MemoryFile file, MemoryFile::create(model.spec, bytes));
    std::memcpy(file.data(), header.data(), header.size());
    generate_all(model, entries, file.data());
    FAULTLINE_TRY(UniqueFd fd, file.seal());
    FAULTLINE_TRY(Mapping mapping, Mapping::map(fd.get(), bytes, model.spec));
    s.descriptors.push_back(std::move(fd));
    s.files.push_back(std::move(mapping));
  }
  for (SafetensorsEntry& entry : entries) s.table.rows.push_back({std::move(entry), 0});
  s.table.identity = identity_text(model.spec, s.table, hash);
  if (s.on_demand == nullptr) FAULTLINE_TRY_STATUS(s.share_table());
  s.index_tensors();
  return Checkpoint(std::move(state));
}

std::vector<int> Checkpoint::descriptors() const {
  std::vector<int> result;
  for (const UniqueFd& fd : state_->descriptors) result.push_back(fd.get());
  return result;
}

// The table is in the first descriptor; the text only ties it to its files. Of weights made on use it is all there is.
std::string Checkpoint::manifest() const {
  if (state_->on_demand != nullptr)
    return dump_json({{"identity", state_->table.identity},
                      {"descriptors", 0},
                      {kOnDemandKey, state_->table.spec},
                      {kBudgetKey, state_->on_demand->budget()}});
  return dump_json({{"identity", state_->table.identity}, {"descriptors", state_->descriptors.size()}});
}

Result<Checkpoint> Checkpoint::attach(const std::string& manifest, const std::vector<int>& descriptors) {
  FAULTLINE_TRY(const nlohmann::json root, parse_json(manifest, "checkpoint manifest"));
  if (root.is_object() && root.contains(kOnDemandKey) && descriptors.empty()) {
    FAULTLINE_TRY(Checkpoint made, open_synth(root[kOnDemandKey].get<std::string>(),
                                              {SynthMemory::Mode::kOnUse, root.value(kBudgetKey, uint64_t{0})}));
    if (root.value("identity", std::string()) != made.identity())
      return internal_error("the checkpoint's manifest is of another program than this one");
    return made;
  }
  if (!root.is_object() || !root.contains("identity") || root.value("descriptors", size_t{0}) != descriptors.size() ||
      descriptors.empty()) {
    return internal_error("the checkpoint's manifest does not belong to the {} descriptors given", descriptors.size());
  }
  FAULTLINE_TRY(const uint64_t table_bytes, file_size(descriptors[0], "the checkpoint's table"));
  FAULTLINE_TRY(const Mapping block, Mapping::map(descriptors[0], table_bytes, "the checkpoint's table"));
  auto state = std::make_unique<State>();
  State& s = *state;
  FAULTLINE_TRY(s.table, unpack_table({block.data(), block.bytes()}));
  if (root["identity"] != s.table.identity || s.table.file_bytes.size() + 1 != descriptors.size()) {
    return internal_error("the checkpoint's manifest and its descriptors do not belong together");
  }
  FAULTLINE_TRY(s.config, parse_model_config(s.table.config_text, s.table.spec));
  for (size_t i = 0; i < s.table.file_bytes.size(); ++i) {
    const std::string what = fmt::format("file {} of {}", i, s.table.spec);
    FAULTLINE_TRY(const uint64_t bytes, file_size(descriptors[i + 1], what));
    // A file that shrank would fault at the first access past its end.
    if (bytes < s.table.file_bytes[i]) return bad_input("{} changed while it was in use; run again", what);
    FAULTLINE_TRY(Mapping mapping, Mapping::map(descriptors[i + 1], s.table.file_bytes[i], what));
    s.files.push_back(std::move(mapping));
  }
  s.index_tensors();
  return Checkpoint(std::move(state));
}

Result<Checkpoint> Checkpoint::adopt(const std::string& manifest, std::vector<UniqueFd> descriptors) {
  std::vector<int> numbers;
  for (const UniqueFd& fd : descriptors) numbers.push_back(fd.get());
  FAULTLINE_TRY(Checkpoint checkpoint, attach(manifest, numbers));
  checkpoint.state_->descriptors = std::move(descriptors);
  return checkpoint;
}

Checkpoint::Checkpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

const ModelConfig& Checkpoint::config() const {
  return state_->config;
}
const std::optional<QuantConfig>& Checkpoint::quantization() const {
  return state_->quantization;
}
const std::vector<StoredTensor>& Checkpoint::tensors() const {
  return state_->tensors;
}
OnDemandWeights* Checkpoint::on_demand() const {
  return state_->on_demand.get();
}
int64_t Checkpoint::mtp_tensors() const {
  return state_->table.mtp_tensors;
}
std::string Checkpoint::spec() const {
  return state_->table.spec;
}
std::string Checkpoint::identity() const {
  return state_->table.identity;
}

const TensorView* Checkpoint::find(std::string_view tensor_name) const {
  const auto found = state_->by_name.find(tensor_name);
  return found == state_->by_name.end() ? nullptr : &state_->tensors[found->second].view;
}

Result<LinearWeight> Checkpoint::linear(std::string_view module) const {
  auto result = resolve_linear(module, [this](std::string_view name) { return find(name); });
  if (!result) result.error().message = fmt::format("{}: {}", state_->table.spec, result.error().message);
  return result;
}

}  // namespace faultline
