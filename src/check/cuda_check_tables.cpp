#include "check/cuda_check_tables.h"

#include <algorithm>
#include <string_view>

#include "check/poison.h"
#include "ops/kinds.h"

namespace faultline::device_checks {
namespace {

Result<Integers> integers(const OpCall& call, const Op& op, int operand) {
  const Argument& argument = call.argument(operand);
  if (!argument.present()) return Integers{};
  const TensorView& view = argument.view();
  if (view.dtype != Dtype::kI32)
    return internal_error("the checks cannot read operand {} of {}: it is {}, not I32",
                          op.kind->operands[static_cast<size_t>(operand)].name, op.name, dtype_name(view.dtype));
  return Integers{view.as<int32_t>(), view.dim(0), view.rank == 0 ? 1 : view.stride[0]};
}

// The rows of `region` that are live, for a kernel.
Status put_rows(Task& task, const Op& op, const OpCall& call, const Region& region) {
  const bool per_token =
      region.multiplier == Region::kTopKUnlessPerToken && op.attributes.integer_or("x_per_token", 0) != 0;
  task.multiplier = region.multiplier > 0 ? region.multiplier : (per_token ? 1 : op.attributes.integer_or("k", 1));
  task.rule = region.rows == Rows::kAll      ? RowRule::kAll
              : region.rows == Rows::kTokens ? RowRule::kTokens
                                             : RowRule::kRequests;
  if (region.sum_operand >= 0) {
    FAULTLINE_TRY(task.sum, integers(call, op, region.sum_operand));
  }
  return {};
}

void put_shape(Task& task, const TensorView& view) {
  task.data = view.data;
  task.element_bytes = static_cast<uint8_t>(dtype_bytes(view.dtype));
  task.rows = view.dim(0);
  task.row_stride = view.stride[0];
  if (view.rank == 2) task.columns = view.dim(1);
  if (view.rank == 3) {
    task.inner = view.dim(1);
    task.inner_stride = view.stride[1];
    task.columns = view.dim(2);
    if (task.inner_stride == task.columns) {  // [a, b, c] whose last two lie in one piece
      task.columns *= task.inner;
      task.inner = 1;
      task.inner_stride = 0;
    }
  }
}

void put_walk(Task& task) {
  const int64_t bytes = task.element_bytes;
  const int64_t row = task.columns * bytes;
  const auto whole = [](int64_t value) { return value % kVectorBytes == 0; };
  const bool base = whole(static_cast<int64_t>(reinterpret_cast<uintptr_t>(task.data)));
  const bool one_piece = task.inner == 1 && (task.row_stride == task.columns || task.rows == 1);
  constexpr int64_t kShort = kChunkBytes / 4;  // a shorter row leaves most of a block idle
  const bool countable = task.rows * task.inner * task.columns < UINT32_MAX;  // short pieces are numbered in 32 bits
  if (task.lengths.data == nullptr && one_piece && base)
    task.walk = Walk::kFlat;
  else if (task.lengths.data != nullptr || row >= kShort || !countable)
    task.walk = Walk::kRows;
  else if (base && whole(row) && whole(task.row_stride * bytes) && whole(task.inner_stride * bytes))
    task.walk = Walk::kVectors;
  else
    task.walk = Walk::kElements;
}

// Whether what is not finite in an input of an op shows in its outputs: sums and products of every element, with
// nothing that clamps, compares or rounds to a format without infinities. An attention, a top-k or a quantizer may hide
// it. A kernel that breaks this hides a fault of the op before it from screening, never from conviction.
bool carries_nonfinite(const OpKind& kind, int operand) {
  static const std::map<std::string_view, std::vector<int>> kCarried = {
      {ops::Add::kName, {ops::Add::kA, ops::Add::kB}},
      {ops::BatchedLinear::kName, {ops::BatchedLinear::kX}},
      {ops::ExpertLinear::kName, {ops::ExpertLinear::kX}},
      {ops::Hadamard::kName, {ops::Hadamard::kX}},
      {ops::LayerNorm::kName, {ops::LayerNorm::kX}},
      {ops::Linear::kName, {ops::Linear::kX}},
      {ops::MoeCombine::kName, {ops::MoeCombine::kX}},
      {ops::RmsNorm::kName, {ops::RmsNorm::kX}},
      {ops::Rope::kName, {ops::Rope::kX}},
      {ops::SiluMul::kName, {ops::SiluMul::kX}},
  };
  const auto found = kCarried.find(kind.name);
  return found != kCarried.end() &&
         std::find(found->second.begin(), found->second.end(), operand) != found->second.end();
}

SlotFormat slot_format(Format format) {
  switch (format) {
    case Format::kKvF32:
    case Format::kIndexF32:
      return SlotFormat::kF32;
    case Format::kKvPacked:
      return SlotFormat::kPacked;
    case Format::kKvPlainFp8:
      return SlotFormat::kPlainFp8;
    case Format::kIndexFp8:
      return SlotFormat::kIndexFp8;
    case Format::kKvBf16:
    case Format::kPlain:
    case Format::kNvfp4:
      break;
  }
  return SlotFormat::kBf16;
}

bool has_codes(Format format) {
  return format == Format::kKvPacked || format == Format::kKvPlainFp8 || format == Format::kIndexFp8;
}

// What the elements of a dtype are tested for.
void put_test(Task& task, const TensorView& view, Content content) {
  constexpr uint32_t kEachHalf = 0x00010001u;
  constexpr uint32_t kEachByte = 0x01010101u;
  task.kind = TaskKind::kFloats;
  if (content == Content::kE4m3Scales || view.dtype == Dtype::kF8E4M3) {
    task.exponent = 0x7Fu * kEachByte;
    task.one = kEachByte;
    task.top = 0x80u * kEachByte;
    task.sentinel = kScaleSentinel;
    task.pattern = kScaleSentinel * kEachByte;
    return;
  }
  switch (view.dtype) {
    case Dtype::kF32:
      task.exponent = 0x7F800000u;
      task.one = 0x00800000u;
      task.top = 0x80000000u;
      task.sentinel = kFloatSentinel;
      task.pattern = kFloatSentinel;
      return;
    case Dtype::kBF16:
    case Dtype::kF16: {
      const bool bf16 = view.dtype == Dtype::kBF16;
      task.exponent = (bf16 ? 0x7F80u : 0x7C00u) * kEachHalf;
      task.one = (bf16 ? 0x0080u : 0x0400u) * kEachHalf;
      task.top = 0x8000u * kEachHalf;
      task.sentinel = kBf16Sentinel;  // a NaN in either format
      task.pattern = kBf16Sentinel * kEachHalf;
      if (!bf16) task.look_for_poison = false;  // as on the host
      return;
    }
    case Dtype::kI32:
      task.kind = TaskKind::kIntegers;
      task.sentinel = static_cast<uint32_t>(kIntSentinel);
      task.pattern = task.sentinel;
      return;
    case Dtype::kU8:
    case Dtype::kF8E4M3:
    case Dtype::kI64:
      task.kind = TaskKind::kCodes;
      return;
  }
}

class TableBuilder {
 public:
  TableBuilder(const std::vector<Op>& ops, const std::vector<int>& groups, const DeviceCheckOptions& options,
               int64_t blocks)
      : ops_(ops), groups_(groups), options_(options), blocks_(blocks) {}

  Result<Tables> build(const std::byte* const* canaries, int64_t canary_count) {
    tables_.indices.resize(ops_.size());
    std::vector<Task> before;
    for (size_t begin = 0; begin < ops_.size();) {
      size_t end = begin;
      while (end < ops_.size() && groups_[end] == groups_[begin]) ++end;
      FAULTLINE_TRY_STATUS(group(begin, end, canaries, canary_count, before));
      begin = end;
    }
    return std::move(tables_);
  }

 private:
  // `before`: what is checked of the group before, then of this one.
  Status group(size_t begin, size_t end, const std::byte* const* canaries, int64_t canary_count,
               std::vector<Task>& before) {
    const int number = groups_[begin];
    std::vector<Task> poison(1);
    poison[0].work = Work::kPoison;
    poison[0].resets = begin == 0;
    std::vector<Task> check(end == ops_.size() ? 1 : 0);
    for (size_t i = begin; i < end; ++i) {
      std::vector<Task> index;
      if (!ops_[i].shadow) FAULTLINE_TRY_STATUS(op(begin, i, end, poison, check, index));
      tables_.indices[i] = place(std::move(index), number, number, true);
    }
    if (options_.full && canary_count > 0) {
      Task task;
      task.kind = TaskKind::kCanaries;
      task.op = static_cast<int32_t>(begin);
      task.canaries = canaries;
      task.canary_count = canary_count;
      check.push_back(task);
    }
    std::vector<Task> rest;
    for (const Task& task : check)
      if (task.implied) rest.emplace_back(task).implied = false;
    if (begin > 0) {
      const int last = groups_[begin - 1];
      if (const std::vector<Task> both = join(before, poison); !both.empty())
        tables_.joint[last] = place(both, last, number);
    }
    before = check;
    tables_.poison[number] = place(std::move(poison), number, number);
    tables_.poison[number].dependent = begin > 0;  // the first one: what later launches read at once must be there
    tables_.check[number] = place(std::move(check), number, number);
    tables_.rest[number] = place(std::move(rest), number, number);
    tables_.rest[number].if_broken = true;
    return {};
  }

  Status op(size_t group_begin, size_t i, size_t group_end, std::vector<Task>& poison, std::vector<Task>& check,
            std::vector<Task>& index) {
    const Op& op = ops_[i];
    const OpCall call = op.call();
    for (int o = 0; o < op.arguments.size(); ++o) {
      const OperandSpec& spec = op.kind->operands[static_cast<size_t>(o)];
      if (spec.direction != Direction::kOut || spec.content == Content::kScratch || !call.argument(o).present())
        continue;
      if (spec.content == Content::kWeight) continue;
      Task task;
      task.op = static_cast<int32_t>(i);
      task.operand = o;
      task.state = tables_.states++;
      task.look_for_poison = options_.full && options_.poison;
      if (spec.content == Content::kCache) {
        FAULTLINE_TRY_STATUS(cache(group_begin, i, group_end, spec, task, poison, check));
        continue;
      }
      const TensorView& view = call.view(o);
      put_shape(task, view);
      put_test(task, view, spec.content);
      FAULTLINE_TRY_STATUS(put_rows(task, op, call, spec.region));
      if (spec.region.lengths_operand >= 0 && view.rank == 2) {
        FAULTLINE_TRY(task.lengths, integers(call, op, spec.region.lengths_operand));
      }
      put_walk(task);
      task.sparse = task.rows * task.inner * task.columns * task.element_bytes >= options_.sparse_from_bytes;
      if (task.kind == TaskKind::kCodes && op.kernel->provenance == Provenance::kReference)
        task.look_for_poison = false;
      if (options_.full && options_.poison && view.dtype != Dtype::kI64) {
        Task lay = task;
        lay.work = Work::kPoison;
        // Lengths or sums that this very group makes are not there yet.
        const auto made_here = [&](int operand) {
          return operand >= 0 && written_in(group_begin, group_end, call.view(operand).data);
        };
        if (made_here(spec.region.lengths_operand)) lay.lengths = {};
        if (made_here(spec.region.sum_operand)) lay.sum = {};
        put_walk(lay);
        poison.push_back(lay);
      }
      if (spec.content == Content::kIndices) {
        if (!options_.full) continue;
        FAULTLINE_TRY_STATUS(index_rule(op, call, o, task));
        index.push_back(task);
        if (task.unique || task.table.data != nullptr) check.push_back(task);
        continue;
      }
      if (spec.content == Content::kProbabilities) {
        if (view.dtype != Dtype::kF32 || view.rank != 2)
          return internal_error("the checks cannot read the probabilities of {}: they are not rows of F32", op.name);
        task.kind = TaskKind::kProbabilities;
        constexpr int64_t kPartBytes = kChunkBytes / 2;
        task.split = static_cast<int32_t>(std::max<int64_t>(1, task.columns * task.element_bytes / kPartBytes));
        task.sums = take_sums(task.rows * static_cast<int64_t>(sizeof(RowSum) / sizeof(uint64_t)));
      }
      task.implied = task.kind == TaskKind::kFloats && task.sparse && shows_later(i, o, group_end);
      const bool floats = task.kind == TaskKind::kFloats || task.kind == TaskKind::kProbabilities;
      if (floats || task.look_for_poison) check.push_back(task);
    }
    return {};
  }

  // Whether what is not finite in an output shows in a later one of the group.
  bool shows_later(size_t i, int operand, size_t group_end) const {
    const TensorView& made = ops_[i].arguments[operand].view();
    for (size_t j = i + 1; j < group_end; ++j)
      for (int o = 0; o < ops_[j].arguments.size(); ++o) {
        if (ops_[j].shadow || !ops_[j].arguments[o].present() || !carries_nonfinite(*ops_[j].kind, o)) continue;
        const TensorView& taken = ops_[j].arguments[o].view();
        if (taken.data == made.data && taken.dtype == made.dtype && taken.elements() == made.elements() &&
            taken.extent() == made.extent())
          return true;
      }
    return false;
  }

  uint64_t* take_sums(int64_t words) {
    const auto offset = static_cast<uintptr_t>(tables_.sum_words) * sizeof(uint64_t);
    tables_.sum_words += words;
    return reinterpret_cast<uint64_t*>(offset);
  }

  Status index_rule(const Op& op, const OpCall& call, int operand, Task& task) const {
    const IndexRule& rule = op.index_rules[static_cast<size_t>(operand)];
    const TensorView& view = call.view(operand);
    if (view.dtype != Dtype::kI32 || view.rank > 2)
      return internal_error("the checks cannot read operand {} of {}: indices are rows of I32",
                            op.kind->operands[static_cast<size_t>(operand)].name, op.name);
    task.kind = TaskKind::kIndices;
    task.flat = view.rank == 1;
    task.begin = rule.begin;
    task.end = rule.end;
    task.tail = rule.minus_one_tail && !task.flat;
    task.unique = rule.unique;
    if (rule.count_lengths_operand >= 0 && !task.flat) {
      FAULTLINE_TRY(task.valid, integers(call, op, rule.count_lengths_operand));
    }
    if (rule.page_table_operand < 0 || !call.argument(rule.page_table_operand).present()) return {};
    const TensorView& table = call.view(rule.page_table_operand);
    FAULTLINE_TRY(task.table, integers(call, op, rule.page_table_operand));
    task.table.count = table.dim(1);
    task.table.stride = table.stride[0];
    task.table_rows = table.dim(0);
    FAULTLINE_TRY(task.row_to_request, integers(call, op, rule.row_to_request_operand));
    FAULTLINE_TRY(task.owner_lengths, integers(call, op, rule.owner_lengths_operand));
    return {};
  }

  Status cache(size_t group_begin, size_t i, size_t group_end, const OperandSpec& spec, Task& task,
               std::vector<Task>& poison, std::vector<Task>& check) {
    const Op& op = ops_[i];
    const OpCall call = op.call();
    const CacheGeometry& geometry = *call.argument(task.operand).geometry;
    if (spec.region.slots_operand < 0) return {};
    if (geometry.page_size > kLargestPage)
      return internal_error("the checks cannot hold pages of {} slots ({})", geometry.page_size, op.name);
    task.kind = TaskKind::kSlots;
    task.data = call.view(task.operand).data;
    task.format = slot_format(geometry.format);
    task.capacity = geometry.slots;
    task.page_size = geometry.page_size;
    task.latent = geometry.latent;
    task.rope = geometry.rope;
    task.row_bytes = geometry.row_bytes();
    task.stride_bytes = geometry.stride_bytes();
    const auto all_of = [&](int64_t size) {
      const bool paged = geometry.format == Format::kIndexFp8;
      const int64_t row = paged ? task.latent : task.row_bytes;
      const int64_t codes = has_codes(geometry.format) && geometry.format != Format::kKvPlainFp8 ? task.latent : 0;
      return row % size == 0 && codes % size == 0 && (paged || task.stride_bytes % size == 0) &&
             (!paged || task.page_size * task.row_bytes % size == 0) &&
             reinterpret_cast<uintptr_t>(task.data) % static_cast<uintptr_t>(size) == 0;
    };
    task.by_words =
        all_of(sizeof(uint32_t)) && (geometry.format != Format::kKvPacked || task.latent % kPackedScales == 0);
    Region listed;
    listed.sum_operand = spec.region.sum_operand;
    FAULTLINE_TRY_STATUS(put_rows(task, op, call, listed));
    FAULTLINE_TRY(task.slots, integers(call, op, spec.region.slots_operand));
    // The slots are poisoned when the group begins, so they must be known then, and nobody may read them before.
    bool early = options_.full && options_.poison;
    early = early && !written_in(group_begin, i, task.slots.data) &&
            !(spec.region.sum_operand >= 0 && written_in(group_begin, i, call.view(spec.region.sum_operand).data)) &&
            !read_in(group_begin, i, task.data);
    if (!early) task.look_for_poison = false;
    if (op.kernel->provenance == Provenance::kReference && has_codes(geometry.format)) task.look_for_poison = false;
    if (early) poison.emplace_back(task).work = Work::kPoison;
    check.push_back(task);
    const bool alone = writers_in(group_begin, group_end, task.data) == 1;
    if (early && alone && spec.region.sum_operand < 0 && geometry.page_size > 1) {
      Task around = task;
      around.kind = TaskKind::kNeighbours;
      around.unit = all_of(kVectorBytes) ? kVectorBytes : (all_of(sizeof(uint32_t)) ? 4 : 1);
      const int64_t page_bytes = geometry.page_size * geometry.row_bytes();
      constexpr int64_t kManySlots = 128;  // then each page is a block's work, and there are enough of them
      around.split = task.slots.count > kManySlots
                         ? 1
                         : static_cast<int32_t>(std::max<int64_t>(1, page_bytes / (kChunkBytes / 2)));
      around.sums = take_sums(task.slots.count * around.split);
      poison.emplace_back(around).work = Work::kPoison;
      check.push_back(around);
    }
    return {};
  }

  bool written_in(size_t begin, size_t end, const void* data) const {
    return touches(begin, end, data, Direction::kOut) > 0;
  }
  bool read_in(size_t begin, size_t end, const void* data) const {
    return touches(begin, end, data, Direction::kIn) > 0;
  }
  int writers_in(size_t begin, size_t end, const void* data) const {
    return touches(begin, end, data, Direction::kOut);
  }
  int touches(size_t begin, size_t end, const void* data, Direction direction) const {
    int count = 0;
    for (size_t i = begin; i < end; ++i)
      for (int o = 0; o < ops_[i].arguments.size(); ++o)
        if (ops_[i].kind->operands[static_cast<size_t>(o)].direction == direction && ops_[i].arguments[o].present() &&
            ops_[i].arguments[o].view().data == data)
          ++count;
    return count;
  }

  // Work of a task in chunks of a block. `entry_by_entry`: indices, in the first step.
  static int64_t chunks(const Task& task, bool entry_by_entry) {
    constexpr int64_t kWarpsABlock = kThreads / 32;
    constexpr int64_t kEntriesAChunk = kThreads * kVectorsAThread;
    int64_t chunk_bytes = kChunkBytes;
    switch (task.kind) {
      case TaskKind::kMark:
        return 1;
      case TaskKind::kFloats:
      case TaskKind::kIntegers:
      case TaskKind::kCodes:
        if (task.implied || (task.sparse && (task.work == Work::kPoison || task.kind == TaskKind::kCodes)))
          chunk_bytes = kPieceBytes * kThreads * kVectorsAThread;  // a sector of each piece
        break;
      case TaskKind::kProbabilities:
        if (task.work != Work::kPoison) return task.rows * task.split;
        break;
      case TaskKind::kIndices:
        if (entry_by_entry) return (task.rows * task.columns + kEntriesAChunk - 1) / kEntriesAChunk;
        if (task.flat) return task.unique ? 1 : std::max<int64_t>(1, task.rows / kEntriesAChunk);
        return task.rows;
      case TaskKind::kSlots:
        return (task.slots.count + kWarpsABlock - 1) / kWarpsABlock;
      case TaskKind::kNeighbours:
        return task.slots.count * task.split;
      case TaskKind::kCanaries:
        return (task.canary_count * 2 * kCanaryBytes + kThreads * kVectorBytes - 1) / (kThreads * kVectorBytes);
    }
    return (task.rows * task.inner * task.columns * task.element_bytes + chunk_bytes - 1) / chunk_bytes;
  }

  // Those whose blocks take longest begin first.
  static int turn(const Task& task) {
    switch (task.kind) {
      case TaskKind::kMark:
        return 0;
      case TaskKind::kIndices:
        return 1;
      case TaskKind::kNeighbours:
        return 2;
      case TaskKind::kSlots:
        return 3;
      default:
        return 4;
    }
  }

  // Shares the blocks of one wave among the tasks of a launch.
  Launch place(std::vector<Task> list, int group, int next, bool entry_by_entry = false) {
    Launch launch;
    launch.group = group;
    launch.next = next;
    launch.dependent = true;
    launch.first_block = static_cast<int32_t>(tables_.task_of_block.size());
    std::stable_sort(list.begin(), list.end(), [](const Task& a, const Task& b) { return turn(a) < turn(b); });
    int64_t all = 0;
    for (const Task& task : list) all += chunks(task, entry_by_entry);
    for (Task& task : list) {
      const int64_t wanted = std::max<int64_t>(1, chunks(task, entry_by_entry));
      task.first_block = launch.first_block + launch.blocks;
      task.blocks =
          static_cast<int32_t>(all <= blocks_ ? wanted : std::clamp<int64_t>(wanted * blocks_ / all, 1, wanted));
      launch.blocks += task.blocks;
      for (int32_t b = 0; b < task.blocks; ++b)
        tables_.task_of_block.push_back(static_cast<uint32_t>(tables_.tasks.size()));
      tables_.tasks.push_back(task);
    }
    return launch;
  }

  const std::vector<Op>& ops_;
  const std::vector<int>& groups_;
  const DeviceCheckOptions& options_;
  const int64_t blocks_;
  Tables tables_;
};

}  // namespace

void Tables::put_sums(std::byte* memory) {
  for (Task& task : tasks)
    if (task.kind == TaskKind::kNeighbours || task.kind == TaskKind::kProbabilities)
      task.sums = reinterpret_cast<uint64_t*>(memory + reinterpret_cast<uintptr_t>(task.sums));
}

Result<Tables> make_tables(const std::vector<Op>& ops, const std::vector<int>& groups,
                           const DeviceCheckOptions& options, const std::byte* const* canaries, int64_t canary_count,
                           int64_t blocks) {
  return TableBuilder(ops, groups, options, blocks).build(canaries, canary_count);
}

}  // namespace faultline::device_checks
