#include "model/weights_manifest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>

#include "base/file.h"
#include "base/json.h"
#include "model/safetensors.h"
#include "model/synth.h"

namespace faultline {
namespace {

constexpr int64_t kNanoseconds = 1'000'000'000;

// The fields of a JSON object; the first that is missing or of another type is kept.
class Fields {
 public:
  explicit Fields(const nlohmann::json& object) : object_(object) {}
  void take(const char* key, std::string& into) {
    const nlohmann::json* value = find(key);
    if (value != nullptr && value->is_string())
      into = value->get_ref<const std::string&>();
    else
      fail(key);
  }
  void take(const char* key, uint64_t& into) {
    const nlohmann::json* value = find(key);
    if (value != nullptr && value->is_number_unsigned() && value->get<uint64_t>() <= kMost)
      into = value->get<uint64_t>();
    else
      fail(key);
  }
  void take(const char* key, int64_t& into) {
    const nlohmann::json* value = find(key);
    if (value != nullptr &&
        (value->is_number_unsigned() ? value->get<uint64_t>() <= kMost : value->is_number_integer()))
      into = value->get<int64_t>();
    else
      fail(key);
  }
  void take(const char* key, double& into) {
    const nlohmann::json* value = find(key);
    if (value != nullptr && value->is_number())
      into = value->get<double>();
    else
      fail(key);
  }
  const nlohmann::json* list(const char* key) {
    const nlohmann::json* value = find(key);
    if (value != nullptr && value->is_array()) return value;
    fail(key);
    return nullptr;
  }
  void fail(const char* key) {
    if (bad_.empty()) bad_ = key;
  }
  const std::string& bad() const { return bad_; }

 private:
  static constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  const nlohmann::json* find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() ? nullptr : &*it;
  }
  const nlohmann::json& object_;
  std::string bad_;
};

bool is_hex(const std::string& text) {
  constexpr size_t kDigits = 16;
  return text.size() == kDigits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string sum_of_slabs(const WeightsManifest& m) {
  uint64_t sum = 0;
  for (const uint64_t slab : m.slabs) {
    if (slab == 0 || slab > std::numeric_limits<int64_t>::max() - sum) return "a slab's size is absurd";
    sum += slab;
  }
  if (m.bytes == 0 || m.bytes % kPlacementAlignment != 0 || sum < m.bytes)
    return fmt::format("{} bytes do not lie in slabs of {} bytes", m.bytes, sum);
  if (m.slabs.size() > kMaxHeldDescriptors || m.checkpoint_descriptors > kMaxHeldDescriptors - m.slabs.size())
    return fmt::format("{} slabs are too many", m.slabs.size());
  return {};
}

std::string file_name_of(int fd) {
  std::error_code error;
  const auto path = std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", fd), error);
  return error ? "a weight file" : path.filename().string();
}

std::string times_text(int64_t before, int64_t after) {
  return fmt::format("it was written {:.1f} s {} the one that was loaded",
                     std::abs(static_cast<double>(after - before)) / static_cast<double>(kNanoseconds),
                     after > before ? "after" : "before");
}

}  // namespace

std::string to_text(const WeightsManifest& m) {
  nlohmann::json files = nlohmann::json::array();
  for (const FileState& file : m.files)
    files.push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"modified_ns", file.modified_ns}, {"header", file.header}});
  return dump_json({{"schema", kWeightsSchema},
                    {"spec", m.spec},
                    {"path", m.path},
                    {"identity", m.identity},
                    {"layout", m.layout},
                    {"device", m.device},
                    {"device_name", m.device_name},
                    {"device_uuid", m.device_uuid},
                    {"bytes", m.bytes},
                    {"placement", m.placement},
                    {"checksum", m.checksum},
                    {"slabs", m.slabs},
                    {"files", files},
                    {"loaded", m.loaded},
                    {"load_seconds", m.load_seconds},
                    {"checkpoint", m.checkpoint},
                    {"checkpoint_descriptors", m.checkpoint_descriptors}});
}

Result<WeightsManifest> parse_weights_manifest(std::string_view text) {
  constexpr std::string_view kWhat = "the manifest of held weights";
  const auto root = parse_json(text, kWhat);
  if (!root) return internal_error("{}", root.error().message);
  if (!root->is_object()) return internal_error("{} is no object", kWhat);
  Fields fields(*root);
  int64_t schema = 0;
  fields.take("schema", schema);
  if (schema != kWeightsSchema)
    return internal_error(
        "{} is of schema {}, this program knows {}: `faultline hold --release all`, by the program "
        "that made it, and hold again",
        kWhat, schema, kWeightsSchema);
  WeightsManifest m;
  fields.take("spec", m.spec);
  fields.take("path", m.path);
  fields.take("identity", m.identity);
  fields.take("layout", m.layout);
  fields.take("device", m.device);
  fields.take("device_name", m.device_name);
  fields.take("device_uuid", m.device_uuid);
  fields.take("bytes", m.bytes);
  fields.take("placement", m.placement);
  fields.take("checksum", m.checksum);
  fields.take("loaded", m.loaded);
  fields.take("load_seconds", m.load_seconds);
  fields.take("checkpoint", m.checkpoint);
  fields.take("checkpoint_descriptors", m.checkpoint_descriptors);
  if (const nlohmann::json* slabs = fields.list("slabs"))
    for (const nlohmann::json& slab : *slabs) {
      if (!slab.is_number_unsigned()) fields.fail("slabs");
      m.slabs.push_back(slab.is_number_unsigned() ? slab.get<uint64_t>() : 0);
    }
  if (const nlohmann::json* files = fields.list("files"))
    for (const nlohmann::json& entry : *files) {
      if (!entry.is_object()) {
        fields.fail("files");
        continue;
      }
      Fields of(entry);
      FileState file;
      of.take("name", file.name);
      of.take("bytes", file.bytes);
      of.take("modified_ns", file.modified_ns);
      of.take("header", file.header);
      if (!of.bad().empty()) fields.fail("files");
      m.files.push_back(std::move(file));
    }
  if (!fields.bad().empty()) return internal_error("{}: \"{}\" is missing or of another type", kWhat, fields.bad());
  if (!is_hex(m.checksum) || !is_hex(m.placement)) return internal_error("{}: a hash has no 16 hex digits", kWhat);
  if (const std::string wrong = sum_of_slabs(m); !wrong.empty()) return internal_error("{}: {}", kWhat, wrong);
  return m;
}

Result<std::string> model_path(const std::string& spec) {
  if (spec.starts_with(kSynthPrefix)) {
    FAULTLINE_TRY(SynthModel model, parse_synth_spec(spec));
    return std::move(model.spec);
  }
  std::error_code error;
  const auto path = std::filesystem::canonical(spec, error);
  if (error || !std::filesystem::is_directory(path, error)) return bad_input("{}: no such folder", spec);
  return path.string();
}

Result<std::vector<FileState>> file_states(const Checkpoint& checkpoint) {
  std::vector<FileState> states;
  if (checkpoint.spec().starts_with(kSynthPrefix)) return states;
  const std::vector<int> descriptors = checkpoint.descriptors();
  for (size_t i = 1; i < descriptors.size(); ++i) {
    FileState state;
    state.name = file_name_of(descriptors[i]);
    struct stat info {};
    if (::fstat(descriptors[i], &info) != 0) return bad_input("{}", system_error_text("read", state.name, errno));
    state.bytes = static_cast<uint64_t>(info.st_size);
    state.modified_ns = info.st_mtim.tv_sec * kNanoseconds + info.st_mtim.tv_nsec;
    uint64_t length = 0;
    if (::pread(descriptors[i], &length, sizeof length, 0) != sizeof length || length > kMaxSafetensorsHeaderBytes)
      return bad_input("{}: its header cannot be read any more", state.name);
    std::string header(length, '\0');
    if (::pread(descriptors[i], header.data(), length, sizeof length) != static_cast<ssize_t>(length))
      return bad_input("{}: its header cannot be read any more", state.name);
    state.header = fmt::format("{:016x}", XXH64(header.data(), header.size(), 0));
    states.push_back(std::move(state));
  }
  return states;
}

Result<std::string> what_changed(const WeightsManifest& held, const Checkpoint& now) {
  FAULTLINE_TRY(const std::string path, model_path(now.spec()));
  if (held.path != path) return fmt::format("it is another model: {}, not {}", path, held.path);
  FAULTLINE_TRY(const std::vector<FileState> files, file_states(now));
  for (const FileState& file : files) {
    const auto before =
        std::find_if(held.files.begin(), held.files.end(), [&](const FileState& old) { return old.name == file.name; });
    if (before == held.files.end()) return fmt::format("{} is new", file.name);
    if (before->bytes != file.bytes)
      return fmt::format("{} has another size: {} bytes, {} when it was loaded", file.name, file.bytes, before->bytes);
    if (before->header != file.header) return fmt::format("{} has another header", file.name);
    if (before->modified_ns != file.modified_ns)
      return fmt::format("{} has another time: {}", file.name, times_text(before->modified_ns, file.modified_ns));
  }
  for (const FileState& old : held.files)
    if (std::find_if(files.begin(), files.end(), [&](const FileState& file) { return file.name == old.name; }) ==
        files.end())
      return fmt::format("{} is gone", old.name);
  if (held.identity != now.identity())
    return fmt::format("config.json or the order of the files is another: {} now, {} when it was loaded",
                       now.identity(), held.identity);
  return std::string();
}

}  // namespace faultline
