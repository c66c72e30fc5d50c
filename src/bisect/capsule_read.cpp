// Reading a capsule: every size is bounded before it is used, and nothing in the file picks code other than a
// registered kernel.
#define XXH_INLINE_ALL  // the header alone, no library to link
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "base/file.h"
#include "base/json.h"
#include "bisect/capsule.h"
#include "bisect/capsule_format.h"
#include "bisect/task.h"
#include "model/safetensors.h"

namespace faultline {
namespace {

using nlohmann::json;

constexpr int64_t kMaxOutputBytes = int64_t{1} << 30;  // of all outputs together: a replay allocates them
constexpr int64_t kMaxSlots = int64_t{1} << 32;
constexpr int64_t kMaxRowValues = int64_t{1} << 20;
constexpr int64_t kMaxRowStride = int64_t{1} << 24;
constexpr int64_t kMaxLayer = 4096;
constexpr int64_t kMaxCount = INT32_MAX;  // tokens, requests, steps
constexpr size_t kMaxViews = 1 << 16;     // tensors of one operand
constexpr int kHexBase = 16;

// What outputs point to: present, and never written.
alignas(sizeof(int64_t)) std::byte no_memory[sizeof(int64_t)];

// Typed members of an object. The first problem is kept; what follows it reads defaults.
class Fields {
 public:
  Fields(const json& value, std::string path, std::string& problem)
      : value_(value), path_(std::move(path)), problem_(problem) {
    if (!value_.is_object()) fail("is not an object");
  }

  bool has(const char* key) const { return value_.is_object() && value_.contains(key); }
  std::string text(const char* key) const {
    const json* found = find(key);
    if (found != nullptr && found->is_string()) return found->get_ref<const std::string&>();
    fail(key, "must be a text");
    return {};
  }
  bool flag(const char* key) const {
    const json* found = find(key);
    if (found != nullptr && found->is_boolean()) return *found->get_ptr<const bool*>();
    fail(key, "must be true or false");
    return false;
  }
  int64_t integer(const char* key, int64_t least, int64_t most) const {
    const json* found = find(key);
    int64_t result = 0;
    if (found != nullptr && as_integer(*found, result) && result >= least && result <= most) return result;
    fail(key, fmt::format("must be an integer from {} to {}", least, most));
    return least;
  }
  double real(const char* key) const {
    const json* found = find(key);
    if (found != nullptr && found->is_number()) return found->get<double>();
    fail(key, "must be a number");
    return 0;
  }
  std::vector<int64_t> integers(const char* key, size_t most) const {
    std::vector<int64_t> result;
    for (const json& element : list(key, most)) {
      result.emplace_back();
      if (!as_integer(element, result.back())) fail(key, "must be a list of integers");
    }
    return result;
  }
  const json& list(const char* key, size_t most) const {
    static const json kNone = json::array();
    const json* found = find(key);
    if (found != nullptr && found->is_array() && found->size() <= most) return *found;
    fail(key, fmt::format("must be a list of at most {}", most));
    return kNone;
  }
  const json& member(const char* key) const {
    static const json kNone = json::object();
    const json* found = find(key);
    if (found != nullptr) return *found;
    fail(key, "is missing");
    return kNone;
  }
  // The members of this object.
  auto items() const {
    static const json kNone = json::object();
    return (value_.is_object() ? value_ : kNone).items();
  }
  Fields object(const char* key) const { return {member(key), path_ + key + ".", problem_}; }
  void fail(const char* key, std::string_view what) const {
    if (problem_.empty()) problem_ = fmt::format("'{}{}' {}", path_, key, what);
  }
  void fail(std::string_view what) const { fail("", what); }

 private:
  const json* find(const char* key) const {
    if (!value_.is_object()) return nullptr;
    const auto it = value_.find(key);
    return it == value_.end() ? nullptr : &*it;
  }
  static bool as_integer(const json& value, int64_t& out) {
    if (!value.is_number_integer()) return false;
    if (value.is_number_unsigned()) {
      const uint64_t wide = *value.get_ptr<const uint64_t*>();
      out = static_cast<int64_t>(wide);
      return wide <= static_cast<uint64_t>(INT64_MAX);
    }
    out = *value.get_ptr<const int64_t*>();
    return true;
  }

  const json& value_;
  std::string path_;
  std::string& problem_;
};

std::optional<Format> format_from_name(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(Format::kIndexFp8); ++i)
    if (format_name(static_cast<Format>(i)) == name) return static_cast<Format>(i);
  return std::nullopt;
}

// Bytes of a view, whose sizes and strides may be anything; nothing when it cannot be.
std::optional<int64_t> reach(const TensorView& view) {
  int64_t elements = 1;
  int64_t last = 0;
  int64_t bytes = 0;
  for (int i = 0; i < view.rank; ++i) {
    const int64_t size = view.shape[static_cast<size_t>(i)];
    const int64_t stride = view.stride[static_cast<size_t>(i)];
    int64_t step = 0;
    if (size < 0 || stride < 0 || __builtin_mul_overflow(elements, size, &elements)) return std::nullopt;
    if (size > 0 && (__builtin_mul_overflow(size - 1, stride, &step) || __builtin_add_overflow(last, step, &last)))
      return std::nullopt;
  }
  if (elements == 0) return 0;
  // Both: as many elements as there are must be countable in bytes, and the last one reached.
  const auto width = static_cast<int64_t>(dtype_bytes(view.dtype));
  if (__builtin_add_overflow(last, int64_t{1}, &last) || __builtin_mul_overflow(last, width, &bytes) ||
      __builtin_mul_overflow(elements, width, &elements))
    return std::nullopt;
  return bytes;
}

class Parser {
 public:
  Parser(std::string_view bytes, std::string_view where) : bytes_(bytes), where_(where) {}

  Result<Capsule> run() {
    FAULTLINE_TRY(header_, parse_safetensors_header({reinterpret_cast<const std::byte*>(bytes_.data()), bytes_.size()},
                                                    bytes_.size(), where_));
    if (!header_.faults.empty()) return bad_input("{}", header_.faults.front());
    if (header_.metadata["format"] != kCapsuleFormat)
      return bad_input("{}: this safetensors file is no capsule; name one of RUN/capsules", where_);
    if (header_.metadata["schema"] != kCapsuleSchema)
      return cannot_run("{}: a capsule of schema '{}', this program reads {}", where_, header_.metadata["schema"],
                        kCapsuleSchema);
    FAULTLINE_TRY(const json root, parse_json(header_.metadata["capsule"], where_));
    const size_t data_bytes = bytes_.size() - header_.data_begin;
    capsule_.data.resize((data_bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t));
    if (data_bytes > 0) std::memcpy(capsule_.data.data(), bytes_.data() + header_.data_begin, data_bytes);
    FAULTLINE_TRY_STATUS(read(Fields(root, "", problem_)));
    return std::move(capsule_);
  }

 private:
  Status problem() const {
    return problem_.empty() ? Status{} : bad_input("{}: {}; the capsule is damaged or was edited", where_, problem_);
  }

  Status read(const Fields& fields) {
    Op& op = capsule_.op;
    op.name = fields.text("op");
    op.layer = static_cast<int>(fields.integer("layer", -1, kMaxLayer));
    const std::string kind = fields.text("kind");
    const std::string kernel = fields.text("kernel");
    const std::string program = fields.has("program") ? "faultline " + fields.text("program") : "an older faultline";
    FAULTLINE_TRY_STATUS(problem());
    const Kernel* registered = find_kernel(kind, kernel);
    if (registered == nullptr)
      return cannot_run("{}: {} ran on kernel '{}' of kind '{}' in {}; this program ({}) has none of that name", where_,
                        op.name, kernel, kind, program, FAULTLINE_VERSION);
    op.kind = &op_kind(kind);
    take_kernel(*registered, fields);
    read_attributes(fields.object("attributes"));
    read_pass(fields.object("pass"));
    capsule_.configuration = fields.text("configuration");
    capsule_.model = fields.text("model");
    capsule_.identity = fields.text("checkpoint");
    capsule_.plant = fields.text("plant");
    capsule_.seed = static_cast<uint64_t>(fields.integer("seed", INT64_MIN, INT64_MAX));
    if (fields.has("alone")) {
      const Fields alone = fields.object("alone");
      capsule_.alone = CapsuleRuns{static_cast<int>(alone.integer("broken", 0, kMaxCount)),
                                   static_cast<int>(alone.integer("runs", 1, kMaxCount))};
    }
    const json& operands = fields.list("operands", op.kind->operands.size());
    FAULTLINE_TRY_STATUS(problem());
    FAULTLINE_TRY(capsule_.violation, violation_from_json(fields.member("violation")));
    if (operands.size() != op.kind->operands.size())
      return bad_input("{}: {} operands, but '{}' has {}; the capsule is damaged, or {} that wrote it knew other ones",
                       where_, operands.size(), kind, op.kind->operands.size(), program);
    for (size_t o = 0; o < operands.size(); ++o) {
      read_operand(static_cast<int>(o), Fields(operands[o], fmt::format("operands[{}].", o), problem_));
      FAULTLINE_TRY_STATUS(problem());
    }
    check_references();
    FAULTLINE_TRY_STATUS(problem());
    op.model_attributes = op.attributes;  // the kernel's own contract: its settings are not on trial
    return {};
  }

  // The contract is the file's: a program that allows its kernel more is no reason to pass.
  void take_kernel(const Kernel& registered, const Fields& fields) {
    auto kernel = std::make_shared<Kernel>(registered);
    if (fields.has("tolerance")) {
      const Fields tolerance = fields.object("tolerance");
      kernel->tolerance = Tolerance{tolerance.real("atol"), tolerance.real("rtol")};
      if (!(kernel->tolerance.atol >= 0 && kernel->tolerance.rtol >= 0)) tolerance.fail("must not be negative");
    }
    capsule_.op.kernel = kernel.get();
    capsule_.kernel = std::move(kernel);
  }

  void read_attributes(const Fields& fields) {
    for (const auto& [key, value] : fields.items()) {
      const Fields entry(value, "attributes." + key + ".", problem_);
      if (entry.has("real"))
        capsule_.op.attributes.set(key, entry.real("real"));
      else
        capsule_.op.attributes.set(key, entry.integer("integer", INT64_MIN, INT64_MAX));
    }
  }

  void read_pass(const Fields& fields) {
    const std::string phase = fields.text("phase");
    if (phase != pass_phase_name(PassPhase::kPrefill) && phase != pass_phase_name(PassPhase::kDecode))
      fields.fail("phase", "must be prefill or decode");
    PassInfo& info = capsule_.info;
    info.phase = phase == pass_phase_name(PassPhase::kDecode) ? PassPhase::kDecode : PassPhase::kPrefill;
    info.step = fields.integer("step", 0, kMaxCount);
    info.live.tokens = fields.integer("tokens", 0, kMaxCount);
    info.live.requests = fields.integer("requests", 0, kMaxCount);
    info.graph = fields.flag("graph");
    info.warmup = fields.flag("warmup");
  }

  std::optional<CacheGeometry> read_geometry(const Fields& fields, const char* key) {
    if (!fields.has(key)) return std::nullopt;
    const Fields inner = fields.object(key);
    CacheGeometry g;
    const std::optional<Format> format = format_from_name(inner.text("format"));
    if (!format || *format == Format::kPlain || *format == Format::kNvfp4)
      inner.fail("format", "is no format of a cache");
    g.format = format.value_or(Format::kKvBf16);
    g.slots = inner.integer("slots", 0, kMaxSlots);
    g.page_size = inner.integer("page_size", 1, kMaxSlots);
    g.latent = inner.integer("latent", 1, kMaxRowValues);
    g.rope = inner.integer("rope", 0, kMaxRowValues);
    g.row_stride_bytes = inner.integer("row_stride_bytes", 0, kMaxRowStride);
    if (!problem_.empty()) return std::nullopt;
    if (g.slots % g.page_size != 0) inner.fail("slots", "must be a multiple of page_size");
    if (g.format == Format::kKvPacked && g.latent % kPackedScales != 0) inner.fail("latent", "must be a multiple of 4");
    if (g.row_stride_bytes != 0 && (g.is_index() || g.row_stride_bytes < g.row_bytes()))
      inner.fail("row_stride_bytes", "is shorter than a row, or of a cache that has no rows");
    return g;
  }

  void read_operand(int o, const Fields& fields) {
    Op& op = capsule_.op;
    const OperandSpec& spec = op.kind->operands[static_cast<size_t>(o)];
    if (fields.text("name") != spec.name) fields.fail("name", fmt::format("must be {}", spec.name));
    op.tensor_names.push_back(fields.text("tensor"));
    const std::optional<Format> format = format_from_name(fields.text("format"));
    if (!format) fields.fail("format", "is unknown");
    const std::optional<CacheGeometry> read = read_geometry(fields, "read");
    op.written.push_back(read_geometry(fields, "written"));
    const bool cache = spec.content == Content::kCache;
    if (read.has_value() != cache || op.written.back().has_value() != cache)
      fields.fail(cache ? "is a cache and must say how it is read and written"
                        : "is no cache, and has a cache's geometry");
    op.index_rules.push_back(spec.index);
    if (spec.content == Content::kIndices) read_rule(fields, op.index_rules.back());
    std::vector<TensorView> views;
    const json& list = fields.list("views", spec.many ? kMaxViews : 1);
    if (list.empty() && !spec.many) fields.fail("views", "must have one element");
    for (size_t i = 0; i < list.size() && problem_.empty(); ++i) {
      if (list[i].is_null())
        views.emplace_back();
      else
        views.push_back(read_view(o, i, Fields(list[i], fmt::format("operands[{}].views[{}].", o, i), problem_)));
    }
    if (!problem_.empty()) return;
    if (cache) check_cache(fields, *read, *op.written.back(), views.front(), spec.direction == Direction::kOut);
    op.arguments.add(std::move(views), format.value_or(Format::kPlain), read);
  }

  static void read_rule(const Fields& fields, IndexRule& rule) {
    const std::vector<int64_t> range = fields.integers("range", 2);
    if (range.size() != 2) return fields.fail("range", "must be [begin, end]");
    rule.begin = range[0];
    rule.end = range[1];
    if (!fields.flag("owned")) rule.page_table_operand = -1;
  }

  static void check_cache(const Fields& fields, const CacheGeometry& read, const CacheGeometry& written,
                          const TensorView& view, bool output) {
    const int64_t bytes = view.elements() * static_cast<int64_t>(dtype_bytes(view.dtype));
    if (view.data == nullptr) return fields.fail("is a cache and must be there");
    if (read.slots != written.slots) return fields.fail("is read and written with different numbers of slots");
    if (read.total_bytes() > bytes || written.total_bytes() > bytes || (output && read.total_bytes() != bytes))
      return fields.fail(fmt::format("has {} bytes, its slots reach to byte {}", bytes,
                                     std::max(read.total_bytes(), written.total_bytes())));
  }

  TensorView read_view(int o, size_t at, const Fields& fields) {
    const OperandSpec& spec = capsule_.op.kind->operands[static_cast<size_t>(o)];
    TensorView view;
    const std::optional<Dtype> dtype = dtype_from_name(fields.text("dtype"));
    const std::vector<int64_t> shape = fields.integers("shape", kMaxRank);
    if (!dtype) fields.fail("dtype", "is unknown");
    if (!problem_.empty()) return view;
    view.dtype = *dtype;
    view.rank = static_cast<int>(shape.size());
    int64_t stride = 1;
    for (int i = view.rank - 1; i >= 0; --i) {
      view.shape[static_cast<size_t>(i)] = shape[static_cast<size_t>(i)];
      view.stride[static_cast<size_t>(i)] = stride;
      if (shape[static_cast<size_t>(i)] < 0 ||
          __builtin_mul_overflow(stride, std::max<int64_t>(shape[static_cast<size_t>(i)], 1), &stride)) {
        fields.fail("shape", "is negative or overflows");
        return view;
      }
    }
    const std::optional<int64_t> bytes = reach(view);
    if (!bytes) {
      fields.fail("shape", "overflows");
      return view;
    }
    check_content(spec, view, fields);
    if (spec.direction == Direction::kOut) {
      output_bytes_ += std::min(*bytes, kMaxOutputBytes + 1);
      if (output_bytes_ > kMaxOutputBytes)
        fields.fail("shape", fmt::format("makes outputs of more than {} bytes", kMaxOutputBytes));
      view.data = no_memory;
    } else if (fields.has("weight")) {
      read_weight(o, at, view, fields);
    } else {
      view.data = embedded(fields, view);
    }
    return view;
  }

  // The dtypes that the checks of such an operand can read.
  static void check_content(const OperandSpec& spec, const TensorView& view, const Fields& fields) {
    const bool integers = view.dtype == Dtype::kI32 || view.dtype == Dtype::kI64;
    const bool wants_integers = spec.content == Content::kIndices || spec.content == Content::kMetadata;
    const bool wants_bytes = spec.content == Content::kFp4Codes || spec.content == Content::kE4m3Scales;
    if (integers != wants_integers || (wants_bytes && dtype_bytes(view.dtype) != 1))
      fields.fail("dtype", fmt::format("cannot be {} here", dtype_name(view.dtype)));
    if (spec.content != Content::kWeight && (view.rank < 1 || view.rank == kMaxRank))
      fields.fail("shape", "must have 1 to 3 sizes");
  }

  std::byte* embedded(const Fields& fields, const TensorView& view) {
    const std::string name = fields.text("data");
    for (const SafetensorsEntry& entry : header_.entries) {
      if (entry.name != name) continue;
      if (entry.dtype != view.dtype || entry.rank != view.rank || entry.shape != view.shape)
        fields.fail("data", "names a tensor of another dtype or shape");
      return reinterpret_cast<std::byte*>(capsule_.data.data()) + (entry.begin - header_.data_begin);
    }
    fields.fail("data", "names no tensor of the file");
    return nullptr;
  }

  void read_weight(int o, size_t at, TensorView& view, const Fields& fields) {
    if (capsule_.op.kind->operands[static_cast<size_t>(o)].content != Content::kWeight)
      fields.fail("weight", "stands where no weight is");
    CapsuleWeight weight;
    weight.operand = o;
    weight.at = at;
    weight.tensor = fields.text("weight");
    weight.offset = fields.integer("offset", 0, INT64_MAX);
    weight.bytes = fields.integer("bytes", 0, INT64_MAX);
    const std::vector<int64_t> strides = fields.integers("stride", kMaxRank);
    if (!problem_.empty()) return;
    if (strides.size() != static_cast<size_t>(view.rank) || (view.rank > 0 && strides.back() != 1))
      return fields.fail("stride", "must have as many steps as the shape sizes, the last of them 1");
    std::copy(strides.begin(), strides.end(), view.stride.begin());
    const std::optional<int64_t> bytes = reach(view);
    if (!bytes || weight.offset > weight.bytes || *bytes > weight.bytes - weight.offset ||
        weight.offset % static_cast<int64_t>(dtype_bytes(view.dtype)) != 0)
      return fields.fail("weight", "reaches past its tensor");
    const std::string sum = fields.text("xxh64");
    char* end = nullptr;
    weight.checksum = std::strtoull(sum.c_str(), &end, kHexBase);
    if (sum.empty() || *end != '\0') return fields.fail("xxh64", "must be a hexadecimal number");
    weight.view = view;
    capsule_.weights.push_back(std::move(weight));
  }

  // What the checks of an operand look up in others: lengths, slots, page tables.
  void check_references() {
    const Op& op = capsule_.op;
    for (size_t o = 0; o < op.kind->operands.size(); ++o) {
      const OperandSpec& spec = op.kind->operands[o];
      if (spec.content == Content::kWeight || !op.arguments[static_cast<int>(o)].present()) continue;
      const IndexRule& rule = op.index_rules[o];
      const int64_t rows = op.arguments[static_cast<int>(o)].view().dim(0);
      const auto needs = [&](int operand, bool one_a_row) {
        if (operand < 0 || !problem_.empty()) return;
        const Argument& other = op.arguments[operand];
        if (!other.present() || (one_a_row && other.view().elements() < rows))
          problem_ =
              fmt::format("operand '{}' needs '{}'{}", spec.name, op.kind->operands[static_cast<size_t>(operand)].name,
                          one_a_row ? ", one element a row" : "");
      };
      needs(spec.region.lengths_operand, true);
      if (spec.direction == Direction::kOut) needs(spec.region.slots_operand, false);
      needs(spec.region.sum_operand, false);
      needs(rule.count_lengths_operand, true);
      if (rule.page_table_operand < 0 || !op.arguments[rule.page_table_operand].present()) continue;
      needs(rule.row_to_request_operand, true);
      needs(rule.owner_lengths_operand, true);
    }
  }

  const std::string_view bytes_;
  const std::string_view where_;
  SafetensorsHeader header_;
  Capsule capsule_;
  std::string problem_;
  int64_t output_bytes_ = 0;
};

}  // namespace

Result<Capsule> parse_capsule(std::string_view bytes, std::string_view where) {
  return Parser(bytes, where).run();
}

Result<Capsule> read_capsule(const std::string& path) {
  FAULTLINE_TRY(const std::string bytes, read_file(path, kMaxCapsuleBytes));
  FAULTLINE_TRY(Capsule capsule, parse_capsule(bytes, path));
  // Parsed before it is trusted, so that an edited file is refused for what is wrong with it.
  FAULTLINE_TRY(
      SafetensorsHeader header,
      parse_safetensors_header({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, bytes.size(), path));
  const std::string_view data = std::string_view(bytes).substr(header.data_begin);
  if (capsule_checksum(header.metadata["capsule"], data) != header.metadata["xxh64"])
    return bad_input("{}: its checksum is another than the one recorded; the capsule is damaged or was edited", path);
  return capsule;
}

Status bind_weights(Capsule& capsule, const Checkpoint& checkpoint) {
  for (const CapsuleWeight& weight : capsule.weights) {
    const TensorView* tensor = checkpoint.find(weight.tensor);
    if (tensor == nullptr)
      return cannot_run("{} has no tensor {}; name the checkpoint of the capsule ({}) by --model", checkpoint.spec(),
                        weight.tensor, capsule.identity);
    const auto bytes = static_cast<uint64_t>(tensor->elements()) * dtype_bytes(tensor->dtype);
    const WeightRange range{tensor->data, bytes};
    FAULTLINE_TRY_STATUS(need_weights({&range, 1}));
    if (tensor->data == nullptr || bytes != static_cast<uint64_t>(weight.bytes) ||
        XXH64(tensor->data, bytes, 0) != weight.checksum)
      return cannot_run(
          "{}: {} has other bytes than when the capsule was written; name the checkpoint of the capsule ({}) by "
          "--model",
          checkpoint.spec(), weight.tensor, capsule.identity);
    const std::span<const TensorView> before = capsule.op.arguments[weight.operand].views;
    std::vector<TensorView> views(before.begin(), before.end());
    views[weight.at] = weight.view;
    views[weight.at].data = tensor->data + weight.offset;
    capsule.op.arguments.replace(weight.operand, std::move(views));
  }
  capsule.weights.clear();
  return {};
}

}  // namespace faultline
