// Owns what the check kernels need on the device, and enqueues their launches.
#include "check/cuda_check_tables.h"
#include "check/device_checks.h"

namespace faultline {

using namespace device_checks;

namespace {

constexpr int kBlocksAnSm = 4;  // of a launch in one wave (cuda_checks.cu)

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
  Tables tables;  // the launches; the tasks lie in device memory

  void enqueue(const std::map<int, Launch>& launches, int group) const {
    const auto found = launches.find(group);
    if (found != launches.end() && found->second.blocks > 0) launch_work(context, found->second, device->stream());
  }

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
  FAULTLINE_TRY(Tables tables, make_tables(ops, groups, options, canary_table, static_cast<int64_t>(buffers.size()),
                                           multiprocessors() * kBlocksAnSm));
  FAULTLINE_TRY(std::byte * sums, parts->take(static_cast<size_t>(tables.sum_words) * sizeof(uint64_t)));
  tables.put_sums(sums);

  const size_t states = static_cast<size_t>(tables.states) * sizeof(TaskState);
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
  FAULTLINE_TRY(context.tasks, parts->upload(tables.tasks));
  FAULTLINE_TRY(context.task_of_block, parts->upload(tables.task_of_block));
  context.live = parts->live;
  context.records = parts->account;
  context.account = reinterpret_cast<Account*>(parts->account + records);
  context.states = reinterpret_cast<TaskState*>(parts->account + records + sizeof(Account));
  context.page = page;
  tables.tasks.clear();
  tables.task_of_block.clear();
  parts->tables = std::move(tables);
  return std::unique_ptr<DeviceChecks>(new DeviceChecks(std::move(parts)));
}

void DeviceChecks::set_live(const LiveCounts& live) {
  launch_set_live(parts_->live, live.tokens, live.requests, ++parts_->pass, parts_->device->stream());
}

void DeviceChecks::poison(int group) {
  parts_->enqueue(parts_->tables.poison, group);
}

void DeviceChecks::check(int group) {
  parts_->enqueue(parts_->tables.check, group);
  parts_->enqueue(parts_->tables.rest, group);
}

void DeviceChecks::check_and_poison(int group, int next) {
  const auto joint = parts_->tables.joint.find(group);
  if (joint != parts_->tables.joint.end() && joint->second.next == next) {
    parts_->enqueue(parts_->tables.joint, group);
    return;
  }
  check(group);
  poison(next);
}

bool DeviceChecks::has_indices(int op) const {
  return parts_->tables.indices[static_cast<size_t>(op)].blocks > 0;
}

void DeviceChecks::check_indices(int begin, int end) {
  // The slices of a group's ops lie side by side in the table.
  Launch whole;
  for (int i = begin; i < end; ++i) {
    const Launch& launch = parts_->tables.indices[static_cast<size_t>(i)];
    if (launch.blocks == 0) continue;
    const int32_t blocks = whole.blocks;
    if (blocks == 0) whole = launch;
    FAULTLINE_CHECK(launch.group == whole.group);
    whole.blocks = blocks + launch.blocks;
  }
  if (whole.blocks > 0) launch_check_indices(parts_->context, whole, parts_->device->stream());
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
