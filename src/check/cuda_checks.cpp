// Builds the tables of the check kernels from ops, and enqueues their launches.
#include <algorithm>
#include <map>
#include <set>

#include "check/device_checks.h"
#include "check/device_tasks.h"
#include "check/poison.h"

namespace faultline {
namespace {

using namespace device_checks;

constexpr int kBlocksAnSm = 4;  // of a launch in one wave (cuda_checks.cu)

// One launch: a slice of the table that says which task a block works on.
struct Launch {
  int32_t group = 0;
  int32_t first_block = 0;
  int32_t blocks = 0;
};

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
               int target)
      : ops_(ops), groups_(groups), options_(options), target_(target) {}

  std::vector<Task> tasks;
  std::vector<uint32_t> task_of_block;
  std::map<int, Launch> poisons, checks;
  std::vector<Launch> indices;  // one an op; 0 blocks: none
  int32_t states = 1;           // 0 is for canaries
  int64_t sums = 0;             // entries, at Task::sums once their memory is there

  Status build(const std::byte* const* canaries, int64_t canary_count) {
    indices.resize(ops_.size());
    for (size_t begin = 0; begin < ops_.size();) {
      size_t end = begin;
      while (end < ops_.size() && groups_[end] == groups_[begin]) ++end;
      FAULTLINE_TRY_STATUS(group(begin, end, canaries, canary_count));
      begin = end;
    }
    return {};
  }

 private:
  Status group(size_t begin, size_t end, const std::byte* const* canaries, int64_t canary_count) {
    std::vector<Task> poison(1);
    poison[0].resets = begin == 0;
    std::vector<Task> check(end == ops_.size() ? 1 : 0);
    for (size_t i = begin; i < end; ++i) {
      std::vector<Task> index;
      if (!ops_[i].shadow) FAULTLINE_TRY_STATUS(op(begin, i, end, poison, check, index));
      indices[i] = place(index, groups_[i], target_);
    }
    if (options_.full && canary_count > 0) {
      Task task;
      task.kind = TaskKind::kCanaries;
      task.op = static_cast<int32_t>(begin);
      task.canaries = canaries;
      task.canary_count = canary_count;
      check.push_back(task);
    }
    poisons[groups_[begin]] = place(poison, groups_[begin], target_);
    checks[groups_[begin]] = place(check, groups_[begin], target_);
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
      task.state = states++;
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
      if (task.kind == TaskKind::kCodes && op.kernel->provenance == Provenance::kReference)
        task.look_for_poison = false;
      if (options_.full && options_.poison && view.dtype != Dtype::kI64) {
        Task lay = task;
        // Lengths or sums that this very group makes are not there yet.
        const auto made_here = [&](int operand) {
          return operand >= 0 && written_in(group_begin, group_end, call.view(operand).data);
        };
        if (made_here(spec.region.lengths_operand)) lay.lengths = {};
        if (made_here(spec.region.sum_operand)) lay.sum = {};
        put_walk(lay);
        lay.sparse = lay.kind != TaskKind::kCodes &&
                     lay.rows * lay.inner * lay.columns * lay.element_bytes >= options_.sparse_from_bytes;
        poison.push_back(lay);
      }
      if (spec.content == Content::kIndices) {
        if (!options_.full) continue;
        FAULTLINE_TRY_STATUS(index_rule(op, call, o, task));
        index.push_back(task);
        continue;
      }
      if (spec.content == Content::kProbabilities) {
        if (view.dtype != Dtype::kF32 || view.rank != 2)
          return internal_error("the checks cannot read the probabilities of {}: they are not rows of F32", op.name);
        task.kind = TaskKind::kProbabilities;
      }
      const bool floats = task.kind == TaskKind::kFloats || task.kind == TaskKind::kProbabilities;
      if (floats || task.look_for_poison) check.push_back(task);
    }
    return {};
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
    if (early) poison.push_back(task);
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
      around.sums = reinterpret_cast<uint64_t*>(static_cast<uintptr_t>(sums * 8));  // an offset until there is memory
      sums += task.slots.count * around.split;
      poison.push_back(around);
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

  // Work of a task in chunks of a block.
  static int64_t chunks(const Task& task) {
    constexpr int64_t kWarpsABlock = kThreads / 32;
    switch (task.kind) {
      case TaskKind::kMark:
        return 1;
      case TaskKind::kFloats:
      case TaskKind::kIntegers:
      case TaskKind::kCodes:
        break;
      case TaskKind::kProbabilities:
        return task.rows;
      case TaskKind::kIndices:
        if (task.flat) return task.unique ? 1 : std::max<int64_t>(1, task.rows / (4 * kThreads));
        return task.rows;
      case TaskKind::kSlots:
        return (task.slots.count + kWarpsABlock - 1) / kWarpsABlock;
      case TaskKind::kNeighbours:
        return task.slots.count * task.split;
      case TaskKind::kCanaries:
        return (task.canary_count * 2 * kCanaryBytes + kThreads * kVectorBytes - 1) / (kThreads * kVectorBytes);
    }
    return (task.rows * task.inner * task.columns * task.element_bytes + kChunkBytes - 1) / kChunkBytes;
  }

  // Shares the blocks of one wave among the tasks of a launch.
  Launch place(std::vector<Task>& list, int32_t group, int64_t blocks) {
    Launch launch;
    launch.group = group;
    launch.first_block = static_cast<int32_t>(task_of_block.size());
    int64_t all = 0;
    for (const Task& task : list) all += chunks(task);
    for (Task& task : list) {
      const int64_t wanted = std::max<int64_t>(1, chunks(task));
      const bool alone = task.kind == TaskKind::kIndices && task.flat && task.unique;
      task.first_block = launch.first_block + launch.blocks;
      task.blocks =
          static_cast<int32_t>(alone || all <= blocks ? wanted : std::clamp<int64_t>(wanted * blocks / all, 1, wanted));
      launch.blocks += task.blocks;
      for (int32_t b = 0; b < task.blocks; ++b) task_of_block.push_back(static_cast<uint32_t>(tasks.size()));
      tasks.push_back(task);
    }
    return launch;
  }

  const std::vector<Op>& ops_;
  const std::vector<int>& groups_;
  const DeviceCheckOptions& options_;
  const int target_;
};

}  // namespace

struct DeviceChecks::Parts {
  Device* device = nullptr;
  const std::vector<Op>* ops = nullptr;
  std::vector<GuardedBuffer> buffers;
  DeviceCheckOptions options;
  std::vector<std::unique_ptr<Buffer>> memory;
  DeviceCheckPage* page = nullptr;
  Context context;
  Live* live = nullptr;
  std::byte* account = nullptr;  // what is cleared after a violation
  size_t account_bytes = 0;
  uint64_t pass = 0;
  std::map<int, Launch> poisons, checks;
  std::vector<Launch> indices;

  Result<std::byte*> take(size_t bytes) {
    FAULTLINE_TRY(auto buffer, device->allocate(std::max<size_t>(bytes, 1)));
    memory.push_back(std::move(buffer));
    return memory.back()->data();
  }
  template <class T>
  Result<T*> upload(const std::vector<T>& values) {
    FAULTLINE_TRY(std::byte * at, take(values.size() * sizeof(T)));
    device->copy(at, reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(T));
    return reinterpret_cast<T*>(at);
  }
};

DeviceChecks::DeviceChecks(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
DeviceChecks::~DeviceChecks() = default;

Result<std::unique_ptr<DeviceChecks>> DeviceChecks::create(Device& device, const std::vector<Op>& ops,
                                                           const std::vector<int>& groups,
                                                           const std::vector<GuardedBuffer>& buffers,
                                                           const DeviceCheckOptions& options) {
  FAULTLINE_CHECK(ops.size() == groups.size());
  auto parts = std::make_unique<Parts>();
  parts->device = &device;
  parts->ops = &ops;
  parts->buffers = buffers;
  parts->options = options;

  std::vector<const std::byte*> canaries;
  for (const GuardedBuffer& buffer : buffers) {
    canaries.push_back(buffer.data - Buffer::kCanaryBytes);
    canaries.push_back(buffer.data + buffer.bytes);
  }
  FAULTLINE_TRY(const std::byte** canary_table, parts->upload(canaries));
  TableBuilder table(ops, groups, options, multiprocessors() * kBlocksAnSm);
  FAULTLINE_TRY_STATUS(table.build(canary_table, static_cast<int64_t>(buffers.size())));
  FAULTLINE_TRY(std::byte * sums, parts->take(static_cast<size_t>(table.sums) * sizeof(uint64_t)));
  for (Task& task : table.tasks)
    if (task.kind == TaskKind::kNeighbours)
      task.sums = reinterpret_cast<uint64_t*>(sums + reinterpret_cast<uintptr_t>(task.sums));

  const size_t states = static_cast<size_t>(table.states) * sizeof(TaskState);
  const size_t records = sizeof(DeviceCheckRecord) * DeviceCheckPage::kRecords;
  parts->account_bytes = records + sizeof(Account) + states;
  FAULTLINE_TRY(parts->account, parts->take(parts->account_bytes));
  FAULTLINE_TRY(std::byte * live, parts->take(sizeof(Live)));
  parts->live = reinterpret_cast<Live*>(live);
  std::byte* page = options.page_on_device;
  parts->page = options.page;
  if (parts->page == nullptr) {
    FAULTLINE_TRY(auto own, device.allocate_host(sizeof(DeviceCheckPage)));
    page = own->data();
    parts->page = reinterpret_cast<DeviceCheckPage*>(page);
    parts->memory.push_back(std::move(own));
  }
  Context& context = parts->context;
  FAULTLINE_TRY(context.tasks, parts->upload(table.tasks));
  FAULTLINE_TRY(context.task_of_block, parts->upload(table.task_of_block));
  context.live = parts->live;
  context.records = parts->account;
  context.account = reinterpret_cast<Account*>(parts->account + records);
  context.states = reinterpret_cast<TaskState*>(parts->account + records + sizeof(Account));
  context.page = page;
  parts->poisons = std::move(table.poisons);
  parts->checks = std::move(table.checks);
  parts->indices = std::move(table.indices);
  return std::unique_ptr<DeviceChecks>(new DeviceChecks(std::move(parts)));
}

void DeviceChecks::set_live(const LiveCounts& live) {
  launch_set_live(parts_->live, live.tokens, live.requests, ++parts_->pass, parts_->device->stream());
}

void DeviceChecks::poison(int group) {
  const auto found = parts_->poisons.find(group);
  if (found != parts_->poisons.end() && found->second.blocks > 0)
    launch_poison(parts_->context, found->second.first_block, found->second.blocks, group, parts_->device->stream());
}

void DeviceChecks::check(int group) {
  const auto found = parts_->checks.find(group);
  if (found != parts_->checks.end() && found->second.blocks > 0)
    launch_check(parts_->context, found->second.first_block, found->second.blocks, group, parts_->device->stream());
}

bool DeviceChecks::has_indices(int op) const {
  return parts_->indices[static_cast<size_t>(op)].blocks > 0;
}

void DeviceChecks::check_indices(int begin, int end) {
  // The slices of a group's ops lie side by side in the table.
  Launch whole;
  for (int i = begin; i < end; ++i) {
    const Launch& launch = parts_->indices[static_cast<size_t>(i)];
    if (launch.blocks == 0) continue;
    if (whole.blocks == 0) whole = Launch{launch.group, launch.first_block, 0};
    FAULTLINE_CHECK(launch.group == whole.group);
    whole.blocks += launch.blocks;
  }
  if (whole.blocks > 0)
    launch_check_indices(parts_->context, whole.first_block, whole.blocks, whole.group, parts_->device->stream());
}

void DeviceChecks::mark_group(int group, bool done) {
  launch_mark(parts_->context.page, group, false, done, parts_->live, parts_->device->stream());
}

void DeviceChecks::mark_op(int op, bool done) {
  launch_mark(parts_->context.page, op, true, done, parts_->live, parts_->device->stream());
}

const DeviceCheckPage& DeviceChecks::page() const {
  return *parts_->page;
}

std::vector<DeviceFinding> DeviceChecks::read() {
  std::vector<DeviceFinding> found = findings_of(*parts_->page, *parts_->ops, parts_->buffers);
  bool any = false;
  for (DeviceCheckRecord& record : parts_->page->records) {
    any = any || record.used != 0;
    record.used = 0;
  }
  if (any) clear(parts_->account, parts_->account_bytes, parts_->device->stream());
  return found;
}

}  // namespace faultline
