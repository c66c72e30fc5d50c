#include "model/weights_manifest.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "model/synth.h"
#include "model/synth_write.h"
#include "testing.h"

using namespace faultline;

namespace {

namespace fs = std::filesystem;

WeightsManifest sample() {
  WeightsManifest m;
  m.spec = "/models/x";
  m.path = "/models/x";
  m.identity = "identity";
  m.device = "cuda:0";
  m.device_name = "cuda:0 NVIDIA H200";
  m.device_uuid = "0123";
  m.bytes = 512;
  m.placement = "0123456789abcdef";
  m.checksum = "fedcba9876543210";
  m.slabs = {4096, 4096};
  m.files = {{"model.safetensors", 600, 1234567890123456789, "00ff"}};
  m.loaded = "2026-01-01T00:00:00Z";
  m.load_seconds = 1.5;
  m.checkpoint = "{}";
  m.checkpoint_descriptors = 2;
  return m;
}

std::string with(const char* key, const nlohmann::json& value) {
  nlohmann::json object = *parse_json(to_text(sample()), "");
  object[key] = value;
  return object.dump();
}

// A folder with a checkpoint that is gone at the end.
struct Folder {
  std::string path;
  explicit Folder(const std::string& name) : path((fs::temp_directory_path() / name).string()) {
    fs::remove_all(path);
    const auto model = parse_synth_spec("synth:tiny");
    REQUIRE(model);
    REQUIRE(write_synth(*model, path, 0, [](uint64_t, uint64_t) { return true; }));
  }
  ~Folder() { fs::remove_all(path); }
  Checkpoint open() const {
    auto opened = Checkpoint::open(path);
    REQUIRE(opened);
    return std::move(*opened);
  }
};

WeightsManifest manifest_of(const Checkpoint& checkpoint) {
  WeightsManifest m = sample();
  m.path = model_path(checkpoint.spec()).value();
  m.identity = checkpoint.identity();
  m.files = file_states(checkpoint).value();
  return m;
}

}  // namespace

TEST_CASE("A manifest is read as it was written", "[model][weights_manifest]") {
  const auto read = parse_weights_manifest(to_text(sample()));
  REQUIRE(read);
  CHECK(*read == sample());
}

TEST_CASE("A manifest that does not add up is refused", "[model][weights_manifest]") {
  const auto refused = [](const std::string& text) {
    const auto read = parse_weights_manifest(text);
    return !read && read.error().kind == ErrorKind::kInternal;
  };
  CHECK(refused(""));
  CHECK(refused("[]"));
  CHECK(refused("{}"));
  CHECK(refused(with("schema", 2)));
  CHECK(refused(with("bytes", 0)));
  CHECK(refused(with("bytes", 500)));      // no multiple of the alignment
  CHECK(refused(with("bytes", 1048576)));  // more than the slabs hold
  CHECK(refused(with("bytes", -512)));
  CHECK(refused(with("bytes", 18446744073709551615u)));
  CHECK(refused(with("slabs", nlohmann::json::array())));
  CHECK(refused(with("slabs", {0, 4096})));
  CHECK(refused(with("slabs", {9223372036854775807u, 9223372036854775807u})));
  CHECK(refused(with("slabs", {"4096"})));
  CHECK(refused(with("slabs", std::vector<int>(kMaxHeldDescriptors + 1, 4096))));
  CHECK(refused(with("checkpoint_descriptors", kMaxHeldDescriptors)));
  CHECK(refused(with("checksum", "short")));
  CHECK(refused(with("files", {1})));
  CHECK(refused(with("files", {{{"name", "x"}}})));
  CHECK(refused(with("load_seconds", "fast")));
  const auto named = parse_weights_manifest(with("device", 7));
  REQUIRE_FALSE(named);
  CHECK(named.error().message.find("\"device\"") != std::string::npos);
}

TEST_CASE("What changed in a checkpoint since it was held is said", "[model][weights_manifest]") {
  const Folder folder("faultline-manifest-test");
  const WeightsManifest held = manifest_of(folder.open());
  REQUIRE(held.files.size() == 1);
  CHECK(held.files[0].name.ends_with(".safetensors"));
  CHECK(held.files[0].bytes == fs::file_size(folder.path + "/" + held.files[0].name));
  CHECK(what_changed(held, folder.open()).value().empty());
  const std::string file = folder.path + "/" + held.files[0].name;

  SECTION("nothing, when the folder is named otherwise") {
    const auto same = Checkpoint::open(folder.path + "/.");
    REQUIRE(same);
    CHECK(what_changed(held, *same).value().empty());
  }
  SECTION("the time of a file") {
    struct stat info {};
    REQUIRE(::stat(file.c_str(), &info) == 0);
    const timespec times[2] = {info.st_atim, {info.st_mtim.tv_sec + 100, info.st_mtim.tv_nsec}};
    REQUIRE(::utimensat(AT_FDCWD, file.c_str(), times, 0) == 0);
    const std::string text = what_changed(held, folder.open()).value();
    CHECK(text.find(held.files[0].name + " has another time") != std::string::npos);
    CHECK(text.find("100.0 s after") != std::string::npos);
  }
  SECTION("its header, or its size") {
    fs::remove_all(folder.path);
    const auto other = parse_synth_spec("synth:tiny?num_hidden_layers=2");
    REQUIRE(other);
    REQUIRE(write_synth(*other, folder.path, 0, [](uint64_t, uint64_t) { return true; }));
    CHECK(what_changed(held, folder.open()).value().find("has another size") != std::string::npos);
  }
  SECTION("config.json") {
    const auto text = read_file(folder.path + "/config.json");
    REQUIRE(text);
    REQUIRE(write_file(folder.path + "/config.json", *text + "\n"));
    CHECK(what_changed(held, folder.open()).value().find("config.json") != std::string::npos);
  }
  SECTION("another model") {
    const auto other = Checkpoint::open("synth:tiny");
    REQUIRE(other);
    CHECK(what_changed(held, *other).value().find("another model") != std::string::npos);
  }
}

TEST_CASE("Synthetic weights are known by their canonical spec", "[model][weights_manifest]") {
  CHECK(model_path("synth:tiny?seed=3&num_hidden_layers=2").value() ==
        model_path("synth:tiny?num_hidden_layers=2&seed=3").value());
  CHECK_FALSE(model_path("/no/such/folder"));
  const auto checkpoint = Checkpoint::open("synth:tiny");
  REQUIRE(checkpoint);
  CHECK(file_states(*checkpoint).value().empty());
  CHECK(what_changed(manifest_of(*checkpoint), *Checkpoint::open("synth:tiny")).value().empty());
}
