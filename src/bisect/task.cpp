#include "bisect/task.h"

#define XXH_INLINE_ALL  // the header alone, no library to link
#include <xxhash.h>

namespace faultline {
namespace {

// Reads typed members of an object; the first problem is kept. nlohmann's own get<>() throws.
class Members {
 public:
  explicit Members(const nlohmann::json& json) : json_(json) {
    if (!json.is_object()) problem_ = "not an object";
  }

  void read(const char* key, std::string& out) {
    if (const auto* value = find(key, &nlohmann::json::is_string, "a string"))
      out = value->get_ref<const std::string&>();
  }
  void read(const char* key, bool& out) {
    if (const auto* value = find(key, &nlohmann::json::is_boolean, "a boolean")) out = value->get_ptr<const bool*>()[0];
  }
  void read(const char* key, int64_t& out) {
    if (const auto* value = find(key, &nlohmann::json::is_number_integer, "an integer"))
      out = value->is_number_unsigned() ? static_cast<int64_t>(*value->get_ptr<const uint64_t*>())
                                        : *value->get_ptr<const int64_t*>();
  }
  void read(const char* key, uint64_t& out) {
    int64_t value = 0;
    read(key, value);
    out = static_cast<uint64_t>(value);
  }
  void read(const char* key, double& out) {
    const auto* value = find(key, &nlohmann::json::is_number, "a number");
    if (value == nullptr) return;
    if (value->is_number_float())
      out = *value->get_ptr<const double*>();
    else if (value->is_number_unsigned())
      out = static_cast<double>(*value->get_ptr<const uint64_t*>());
    else
      out = static_cast<double>(*value->get_ptr<const int64_t*>());
  }
  template <class T>
  void read(const char* key, std::vector<T>& out) {
    const auto* value = find(key, &nlohmann::json::is_array, "a list");
    if (value == nullptr) return;
    out.clear();
    for (const nlohmann::json& element : *value) {
      if constexpr (std::is_same_v<T, std::string>) {
        if (!element.is_string()) return fail(key, "a list of strings");
        out.push_back(element.get_ref<const std::string&>());
      } else {
        if (!element.is_number_integer()) return fail(key, "a list of integers");
        out.push_back(static_cast<T>(element.is_number_unsigned()
                                         ? static_cast<int64_t>(*element.get_ptr<const uint64_t*>())
                                         : *element.get_ptr<const int64_t*>()));
      }
    }
  }
  void read(const char* key, AxisValues& out) {
    const auto* value = find(key, &nlohmann::json::is_object, "an object");
    if (value == nullptr) return;
    for (const auto& [name, element] : value->items()) {
      if (!element.is_string()) return fail(key, "an object of strings");
      out[name] = element.get_ref<const std::string&>();
    }
  }
  const nlohmann::json* child(const char* key) {
    const auto it = json_.is_object() ? json_.find(key) : json_.end();
    return json_.is_object() && it != json_.end() && !it->is_null() ? &*it : nullptr;
  }
  void fail(const std::string& key, const char* what) {
    if (problem_.empty()) problem_ = fmt::format("'{}' must be {}", key, what);
  }
  Status status(const char* where) const { return problem_.empty() ? Status{} : bad_input("{}: {}", where, problem_); }

 private:
  const nlohmann::json* find(const char* key, bool (nlohmann::json::*is)() const noexcept, const char* what) {
    const nlohmann::json* value = child(key);
    if (value == nullptr || !(value->*is)()) {
      fail(key, what);
      return nullptr;
    }
    return value;
  }
  const nlohmann::json& json_;
  std::string problem_;
};

nlohmann::json to_json(const ProbePlan& plan) {
  return {{"tokens", plan.tokens},
          {"ids", plan.ids},
          {"temperature", plan.temperature},
          {"top_p", plan.top_p},
          {"server_sequence", plan.server_sequence},
          {"prefill_lengths", plan.prefill_lengths},
          {"chunk", plan.chunk},
          {"contexts", plan.contexts},
          {"batch", plan.batch},
          {"steps", plan.steps}};
}

nlohmann::json to_json(const RunOptions& options) {
  nlohmann::json json = {{"op_by_op", options.op_by_op},
                         {"serialize_all", options.serialize_all},
                         {"serialize", options.serialize},
                         {"reference", options.reference},
                         {"kernel_limit", options.kernel_limit},
                         {"eager", options.eager},
                         {"refresh", options.refresh},
                         {"repair_scales", options.repair_scales},
                         {"only_probe", options.only_probe},
                         {"repeat", options.repeat},
                         {"capsule", options.capsule}};
  // Keys of runs without these stay as they are.
  if (options.spec_from >= 0) json["spec_from"] = options.spec_from;
  if (options.outputs) json["outputs"] = true;
  return json;
}

}  // namespace

nlohmann::json to_json(const WorkerTask& task) {
  nlohmann::json json = {{"id", task.id},
                         {"purpose", task.purpose},
                         {"resolved", task.resolved},
                         {"checks", task.checks},
                         {"plant", task.plant},
                         {"device", task.device},
                         {"probes", to_json(task.probes)},
                         {"seed", task.seed},
                         {"options", to_json(task.options)}};
  // Keys of runs without it stay as they are.
  if (!task.assume_fixed.empty()) json["assume_fixed"] = task.assume_fixed;
  return json;
}

std::string WorkerTask::key() const {
  nlohmann::json json = to_json(*this);
  json["options"].erase("capsule");  // a run directory may move
  const std::string text = json.dump();
  return fmt::format("{}/{}/{:016x}", id, purpose, XXH64(text.data(), text.size(), 0));
}

Result<WorkerTask> task_from_json(const nlohmann::json& json) {
  WorkerTask task;
  Members read(json);
  read.read("id", task.id);
  read.read("device", task.device);
  read.read("purpose", task.purpose);
  read.read("resolved", task.resolved);
  read.read("checks", task.checks);
  read.read("plant", task.plant);
  read.read("seed", task.seed);
  if (read.child("assume_fixed") != nullptr) read.read("assume_fixed", task.assume_fixed);
  FAULTLINE_TRY_STATUS(read.status("task"));
  const nlohmann::json* probes = read.child("probes");
  const nlohmann::json* options = read.child("options");
  if (probes == nullptr || options == nullptr) return bad_input("task: 'probes' and 'options' must be objects");
  Members plan(*probes);
  plan.read("tokens", task.probes.tokens);
  plan.read("ids", task.probes.ids);
  plan.read("temperature", task.probes.temperature);
  plan.read("top_p", task.probes.top_p);
  plan.read("server_sequence", task.probes.server_sequence);
  plan.read("prefill_lengths", task.probes.prefill_lengths);
  plan.read("chunk", task.probes.chunk);
  plan.read("contexts", task.probes.contexts);
  plan.read("batch", task.probes.batch);
  plan.read("steps", task.probes.steps);
  FAULTLINE_TRY_STATUS(plan.status("task probes"));
  Members run(*options);
  run.read("op_by_op", task.options.op_by_op);
  run.read("serialize_all", task.options.serialize_all);
  run.read("serialize", task.options.serialize);
  run.read("reference", task.options.reference);
  run.read("kernel_limit", task.options.kernel_limit);
  run.read("eager", task.options.eager);
  run.read("refresh", task.options.refresh);
  run.read("repair_scales", task.options.repair_scales);
  run.read("only_probe", task.options.only_probe);
  run.read("repeat", task.options.repeat);
  if (run.child("capsule") != nullptr) run.read("capsule", task.options.capsule);
  if (run.child("spec_from") != nullptr) run.read("spec_from", task.options.spec_from);
  if (run.child("outputs") != nullptr) run.read("outputs", task.options.outputs);
  FAULTLINE_TRY_STATUS(run.status("task options"));
  return task;
}

nlohmann::json to_json(const CoreDump& core) {
  return {{"file", core.file},     {"exception", core.exception}, {"kernel", core.kernel},
          {"source", core.source}, {"line", core.line},           {"block", core.block},
          {"thread", core.thread}, {"place", core.place},         {"unread", core.unread}};
}

Result<CoreDump> core_dump_from_json(const nlohmann::json& json) {
  CoreDump core;
  Members read(json);
  read.read("file", core.file);
  read.read("exception", core.exception);
  read.read("kernel", core.kernel);
  read.read("source", core.source);
  read.read("line", core.line);
  read.read("block", core.block);
  read.read("thread", core.thread);
  read.read("place", core.place);
  read.read("unread", core.unread);
  FAULTLINE_TRY_STATUS(read.status("core dump"));
  return core;
}

nlohmann::json to_json(const Violation& v) {
  nlohmann::json core;
  if (v.core) core = to_json(*v.core);
  return {{"op", v.op},
          {"kernel", v.kernel},
          {"provenance", v.provenance},
          {"build", v.build},
          {"phase", v.phase},
          {"step", v.step},
          {"layer", v.layer},
          {"rank", v.rank},
          {"tensor", v.tensor},
          {"kind", v.kind},
          {"index", v.index},
          {"value", v.value},
          {"probe", v.probe},
          {"follows", v.follows},
          {"bits", v.bits},
          {"count", v.count},
          {"inputs_clean", v.inputs_clean},
          {"bad_input", v.bad_input},
          {"detail", v.detail},
          {"setting", v.setting},
          {"attribute", v.attribute},
          {"core", std::move(core)}};
}

Result<Violation> violation_from_json(const nlohmann::json& json) {
  Violation v;
  Members read(json);
  read.read("op", v.op);
  read.read("kernel", v.kernel);
  read.read("provenance", v.provenance);
  read.read("build", v.build);
  read.read("phase", v.phase);
  read.read("step", v.step);
  read.read("layer", v.layer);
  read.read("rank", v.rank);
  read.read("probe", v.probe);
  read.read("follows", v.follows);
  read.read("tensor", v.tensor);
  read.read("kind", v.kind);
  read.read("index", v.index);
  read.read("value", v.value);
  read.read("bits", v.bits);
  read.read("count", v.count);
  read.read("inputs_clean", v.inputs_clean);
  read.read("bad_input", v.bad_input);
  read.read("detail", v.detail);
  read.read("setting", v.setting);
  read.read("attribute", v.attribute);
  FAULTLINE_TRY_STATUS(read.status("violation"));
  if (const nlohmann::json* core = read.child("core")) {
    FAULTLINE_TRY(v.core, core_dump_from_json(*core));
  }
  return v;
}

nlohmann::json to_json(const TaskResult& result) {
  nlohmann::json settings = nlohmann::json::array();
  for (const Violation& setting : result.settings) settings.push_back(to_json(setting));
  nlohmann::json json = {{"verdict", result.verdict},
                         {"message", result.message},
                         {"violation", result.violation ? to_json(*result.violation) : nlohmann::json()},
                         {"settings", settings},
                         {"probe", result.probe},
                         {"probes", result.probes},
                         {"plant_fired", result.plant_fired},
                         {"edges", result.edges},
                         {"edge_kernels", result.edge_kernels},
                         {"launches", result.launches},
                         {"last_kernel_op", result.last_kernel_op},
                         {"last_kernel", result.last_kernel},
                         {"replayed", result.replayed},
                         {"capsule", result.capsule},
                         {"error", result.error},
                         {"bad_input", result.bad_input},
                         {"seconds", result.seconds}};
  if (!result.outputs.empty()) json["outputs"] = result.outputs;
  return json;
}

Result<TaskResult> task_result_from_json(const nlohmann::json& json) {
  TaskResult result;
  Members read(json);
  read.read("verdict", result.verdict);
  read.read("message", result.message);
  read.read("probe", result.probe);
  read.read("probes", result.probes);
  read.read("plant_fired", result.plant_fired);
  read.read("edges", result.edges);
  read.read("launches", result.launches);
  read.read("last_kernel_op", result.last_kernel_op);
  read.read("last_kernel", result.last_kernel);
  read.read("replayed", result.replayed);
  // Not in journals of older versions.
  if (read.child("capsule") != nullptr) read.read("capsule", result.capsule);
  if (read.child("outputs") != nullptr) read.read("outputs", result.outputs);
  if (read.child("edge_kernels") != nullptr) read.read("edge_kernels", result.edge_kernels);
  read.read("error", result.error);
  read.read("bad_input", result.bad_input);
  read.read("seconds", result.seconds);
  FAULTLINE_TRY_STATUS(read.status("result"));
  if (const nlohmann::json* violation = read.child("violation")) {
    FAULTLINE_TRY(result.violation, violation_from_json(*violation));
  }
  const nlohmann::json* settings = read.child("settings");
  if (settings == nullptr || !settings->is_array()) return bad_input("result: 'settings' must be a list");
  for (const nlohmann::json& setting : *settings) {
    FAULTLINE_TRY(Violation violation, violation_from_json(setting));
    result.settings.push_back(std::move(violation));
  }
  return result;
}

}  // namespace faultline
