// Ops, kernels and contracts: the words of the engine.
//
//   OpKind    one kind of step ("attention"): its operands, its contract, its model reference. One file in ops/ a kind.
//   Kernel    one implementation of a kind, registered under a name; a resolved configuration picks one.
//   Op        one step of a forward pass: a kind, a kernel, tensors, attributes (built by engine/, run by one
//   function). OpCall    what a kernel, a reference or a check gets to see of an Op: its views and attributes.
//
// No kernel knows about checks. Everything that happens to a kernel happens in engine/run_op.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/tensor.h"
#include "kernels/launch.h"
#include "ops/formats.h"

namespace faultline {

enum class Provenance : uint8_t { kReference, kOwn, kThirdParty };
std::string_view provenance_name(Provenance provenance);  // "reference", "own", "third-party"

enum class Direction : uint8_t { kIn, kOut };

// What the bits of an operand are, for the finite and index checks.
enum class Content : uint8_t {
  kValues,         // floats: finite
  kProbabilities,  // floats: finite, non-negative, every live row sums to 1
  kIndices,        // integers, see IndexRule
  kMetadata,       // integers without a rule of their own (lengths, offsets, token ids have IndexRule ranges instead)
  kFp4Codes,       // every byte legal: "written" is shown by two poisons
  kE4m3Scales,     // bytes: 0x7F and 0xFF are NaN
  kCache,          // a paged cache: decoded by its format; only the slots of a call are its business
  kWeight,         // part of the checkpoint: scanned for non-finite or zero scales when a violation points at it
  kScratch,        // anything goes
};

// Which rows of an operand are live in a call. The counts are device data (a padded graph replay has fewer live rows
// than the buffer has).
enum class Rows : uint8_t {
  kAll,
  kTokens,    // the pass's real tokens
  kRequests,  // the pass's real requests
};

struct Region {
  Rows rows = Rows::kTokens;
  // Live rows = count x multiplier.
  int64_t multiplier = 1;
  // Or the op's attribute "k" (1 without one), for rows of a token's top-k experts; the latter where "x_per_token" is
  // not set.
  static constexpr int64_t kTopK = 0;
  static constexpr int64_t kTopKUnlessPerToken = -1;
  int lengths_operand = -1;  // int32 length per row: only columns [0, min(length, width)) are live
  int slots_operand = -1;    // caches: the live rows are these slots (int32; entries < 0 are skipped)
  int sum_operand = -1;      // live rows = the sum of this operand's live int32 entries (gathered rows)
};

// For Content::kIndices.
struct IndexRule {
  int64_t begin = 0;
  int64_t end = 0;                 // half-open range of a valid entry
  bool minus_one_tail = false;     // -1 may follow the valid entries of a row, never precede one
  bool unique = false;             // within a row
  int count_lengths_operand = -1;  // a row holds exactly min(length[row], columns) valid entries
  // Ownership: every slot of token row r lies in the pages of its request: page_table[row_to_request[r]] lists the
  // request's slots [0, length).
  int page_table_operand = -1;
  int row_to_request_operand = -1;
  int owner_lengths_operand = -1;
};

struct OperandSpec {
  std::string name;  // "q", "kv_cache"
  Direction direction = Direction::kIn;
  Content content = Content::kValues;
  Region region;
  IndexRule index;    // begin/end are filled in per op (Op::index_rules) where they depend on its sizes
  bool many = false;  // a list of tensors (one an expert)
};

// Small named numbers that define an op (sizes, eps, theta). Plain data, so that a capsule can hold them.
class Attributes {
 public:
  // Sets or replaces.
  Attributes& set(std::string_view key, int64_t value);
  Attributes& set(std::string_view key, int value) { return set(key, static_cast<int64_t>(value)); }
  Attributes& set(std::string_view key, bool value) { return set(key, static_cast<int64_t>(value)); }
  Attributes& set(std::string_view key, double value);
  int64_t integer(std::string_view key) const;  // aborts when the key is missing: a broken invariant
  double real(std::string_view key) const;
  bool flag(std::string_view key) const { return integer(key) != 0; }
  int64_t integer_or(std::string_view key, int64_t fallback) const;

  struct Entry {
    std::string key;
    bool is_real = false;
    int64_t integer = 0;
    double real = 0;
    bool operator==(const Entry&) const = default;
  };
  const std::vector<Entry>& entries() const { return entries_; }
  bool operator==(const Attributes&) const = default;

 private:
  Attributes& put(Entry entry);
  const Entry* find(std::string_view key) const;
  std::vector<Entry> entries_;
};

// One operand of a call. `views` has one element, or one an expert. `geometry` is set for caches, and says how *this
// op* reads or writes the bytes (which need not be how they were written: that is the point).
struct Argument {
  std::span<const TensorView> views;
  Format format = Format::kPlain;
  const CacheGeometry* geometry = nullptr;

  const TensorView& view() const { return views.front(); }
  bool present() const { return !views.empty() && views.front().data != nullptr; }
};

struct OpCall {
  std::span<const Argument> arguments;  // in the order of OpKind::operands
  const Attributes* attributes = nullptr;
  kernels::LaunchContext launch;
  bool checked = false;  // run the checked build

  const TensorView& view(int operand) const { return arguments[static_cast<size_t>(operand)].view(); }
  const Argument& argument(int operand) const { return arguments[static_cast<size_t>(operand)]; }
  const Attributes& attr() const { return *attributes; }
};

// A kernel that refuses or asserts at run time (a device-side assert on a GPU, a bare AssertionError of the server).
struct KernelFault {
  std::string verdict;  // "device-assert", "launch-failure"
  std::string message;
};
using KernelResult = std::optional<KernelFault>;
using KernelFn = KernelResult (*)(const OpCall& call);
using ReferenceFn = void (*)(const OpCall& call);

// Passes when !(abs(out - ref) <= atol + rtol * abs(ref)) is false for every live element.
struct Tolerance {
  double atol = 0;
  double rtol = 0;
};

// Which requested value of which axis picks a kernel ("nsa_decode_backend", "flashmla_kv").
struct AxisBinding {
  std::string axis;
  std::string value;
};

struct Kernel {
  std::string name;
  std::string kind;  // OpKind::name
  Provenance provenance = Provenance::kOwn;
  std::string follows;  // the backend whose layout and arithmetic it follows, with its source; empty: none
  KernelFn run = nullptr;
  ReferenceFn spec = nullptr;  // same formats and rounding points, plainly; null: the kind's model reference
  Tolerance tolerance;         // of run against spec
  std::vector<AxisBinding> serves;
  // Attention kernels: what they need of the cache. Empty: any format that the configuration resolves to.
  std::vector<Format> cache_formats;
  bool sparse = false;              // reads top-k indices
  std::vector<int> architectures;   // 90, 100, 120 where the followed backend exists; empty: everywhere
  int64_t shared_memory_bytes = 0;  // of the followed backend at GLM-5's shapes; 0: within every limit or not known
  std::string source;               // where architectures, formats and shared memory come from
  // Shared memory of one block of this build's own body over a BF16 query, in bytes: what its launch asks for. Null:
  // within every limit. (A GPU may take a body with less; preflight speaks of this one.)
  size_t (*own_shared_bytes)(const CacheGeometry& cache) = nullptr;
};

struct OpKind {
  std::string name;
  std::vector<OperandSpec> operands;
  // The model's arithmetic: float32, dequantized weights, unquantized cache. Reads and writes any dtype through views.
  ReferenceFn model = nullptr;
  // Selections (top-k, router, argmax): called under `reference` instead of the closeness check of index operands.
  // Returns
  // "" when every chosen score is at least the k-th reference score minus the tolerance, otherwise what is wrong and
  // where: "row 3: …" plus the flat index of the offending entry.
  struct SelectionProblem {
    int operand = 0;
    int64_t at = 0;
    std::string message;
  };
  std::optional<SelectionProblem> (*selection)(const OpCall& call, int64_t live_rows) = nullptr;
  // The attribute names that are structure or parameters of the model (rope theta, eps, …): when an op's attributes
  // differ from the model's in one of these, a gap to the model reference is a `setting`, not a format.
  std::vector<std::string> structure;
};

// Registration. Static objects call these before main; lookups after. Names are unique per kind (aborts otherwise).
struct RegisterKind {
  explicit RegisterKind(OpKind kind);
};
struct RegisterKernel {
  explicit RegisterKernel(Kernel kernel);
};
const OpKind& op_kind(std::string_view name);                             // aborts when unknown
std::vector<const OpKind*> op_kinds();                                    // sorted by name
const Kernel* find_kernel(std::string_view kind, std::string_view name);  // null when unknown
std::vector<const Kernel*> kernels_of(std::string_view kind);             // sorted by name
const Kernel* kernel_serving(std::string_view axis, std::string_view value, std::string_view kind);
std::vector<std::string> values_served(std::string_view axis);  // sorted, unique

// Owns what the arguments of an op point into. Moves keep the pointers valid; copies would not, so there are none.
class ArgumentList {
 public:
  ArgumentList() = default;
  ArgumentList(ArgumentList&&) = default;
  ArgumentList& operator=(ArgumentList&&) = default;
  ArgumentList(const ArgumentList&) = delete;
  ArgumentList& operator=(const ArgumentList&) = delete;

  ArgumentList clone() const;
  void add(std::vector<TensorView> views, Format format = Format::kPlain,
           const std::optional<CacheGeometry>& geometry = std::nullopt);
  // Puts another tensor (and format) in an operand's place: scratch outputs, shadow caches, a reader's true format.
  void replace(int operand, std::vector<TensorView> views);
  void replace(int operand, std::vector<TensorView> views, Format format, const CacheGeometry& geometry);

  std::span<const Argument> get() const { return arguments_; }
  const Argument& operator[](int operand) const { return arguments_[static_cast<size_t>(operand)]; }
  int size() const { return static_cast<int>(arguments_.size()); }

 private:
  std::vector<Argument> arguments_;
  std::vector<std::unique_ptr<std::vector<TensorView>>> views_;
  std::vector<std::unique_ptr<CacheGeometry>> geometries_;
};

// One step of a pass. Built by engine/; the tensors outlive it.
struct Op {
  std::string name;  // "layers.3.mlp.experts.gate_up"
  int layer = -1;    // -1: before or after the layers
  const OpKind* kind = nullptr;
  const Kernel* kernel = nullptr;
  Attributes attributes;
  ArgumentList arguments;
  std::vector<std::string> tensor_names;  // one an operand; the first of a list of weights
  std::vector<IndexRule> index_rules;     // one an operand, sizes filled in
  // How caches were written, where an operand is a cache; the argument's geometry says how this op takes the bytes.
  std::vector<std::optional<CacheGeometry>> written;
  // The model's own attributes and inputs (shadow cache, shadow selection), where the resolved row's structure differs
  // from the model's. Empty arguments: the op's own inputs.
  Attributes model_attributes;
  std::optional<ArgumentList> model_arguments;
  bool shadow = false;  // computes the model beside the run (checks: reference); never poisoned, checked or planted

  OpCall call() const { return OpCall{arguments.get(), &attributes, {}, false}; }
};

}  // namespace faultline
