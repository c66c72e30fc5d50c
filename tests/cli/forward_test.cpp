// `faultline forward` as another engine's user meets it: the golden model's logits, and files made by one command and
// read by the next.
#include <cmath>
#include <filesystem>
#include <map>

#include "base/file.h"
#include "model/safetensors.h"
#include "program.h"
#include "testing.h"

namespace faultline {
namespace {

constexpr float kGoldenTolerance = 2e-4f;  // issue 2

struct Tensors {
  std::string bytes;
  std::map<std::string, SafetensorsEntry> entries;

  bool has(const std::string& name) const { return entries.count(name) != 0; }
  template <class T>
  std::vector<T> values(const std::string& name) const {
    const SafetensorsEntry& entry = entries.at(name);
    const auto* data = reinterpret_cast<const T*>(bytes.data() + entry.begin);
    return {data, data + (entry.end - entry.begin) / sizeof(T)};
  }
};

Tensors load(const std::string& path) {
  Tensors tensors;
  tensors.bytes = read_text(path);
  const auto* start = reinterpret_cast<const std::byte*>(tensors.bytes.data());
  const auto header = parse_safetensors_header({start, tensors.bytes.size()}, tensors.bytes.size(), path);
  REQUIRE(header);
  for (const SafetensorsEntry& entry : header->entries) tensors.entries[entry.name] = entry;
  return tensors;
}

std::string text_of(const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  return text;
}

float largest_gap(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  float largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const float gap = std::fabs(a[i] - b[i]);
    if (!(gap <= largest)) largest = gap;  // NaN stays
  }
  return largest;
}

}  // namespace

TEST_CASE("forward reproduces the golden logits of all prompts as one ragged batch") {
  const std::string model = std::string(FAULTLINE_SOURCE_DIR) + "/tests/goldens/tiny";
  const Tensors golden = load(model + "/golden.safetensors");
  const TempDir folder;
  std::vector<std::string> arguments = {"forward", model,
                                        "--set",   "kernels=reference",
                                        "--set",   "kv_cache_dtype=f32",
                                        "--set",   "numerics=transformers",
                                        "--out",   folder.file("out.safetensors")};
  size_t steps = 0;
  int prompts = 0;
  for (; golden.has("prompt" + std::to_string(prompts) + ".input_ids"); ++prompts) {
    const std::string name = "prompt" + std::to_string(prompts);
    arguments.insert(arguments.end(), {"--tokens", text_of(golden.values<int32_t>(name + ".input_ids"))});
    steps = golden.values<int32_t>(name + ".decode.tokens").size();
  }
  REQUIRE(prompts > 0);
  arguments.insert(arguments.end(), {"--decode", std::to_string(steps)});
  const Outcome outcome = faultline(arguments);
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  const Tensors ours = load(folder.file("out.safetensors"));
  for (int i = 0; i < prompts; ++i) {
    const std::string name = "prompt" + std::to_string(i);
    INFO(name);
    CHECK(ours.values<int32_t>(name + ".input_ids") == golden.values<int32_t>(name + ".input_ids"));
    CHECK(ours.values<int32_t>(name + ".decode.tokens") == golden.values<int32_t>(name + ".decode.tokens"));
    for (const char* what : {".prefill.logits", ".prefill.hidden", ".decode.logits"}) {
      INFO(what);
      CHECK(ours.entries.at(name + what).rank == golden.entries.at(name + what).rank);
      CHECK(largest_gap(ours.values<float>(name + what), golden.values<float>(name + what)) <= kGoldenTolerance);
    }
  }
}

TEST_CASE("another setting computes something else: the comparison above can fail") {
  const std::string model = std::string(FAULTLINE_SOURCE_DIR) + "/tests/goldens/tiny";
  const Tensors golden = load(model + "/golden.safetensors");
  const TempDir folder;
  std::string longest = "prompt0";
  for (int i = 1; golden.has("prompt" + std::to_string(i) + ".input_ids"); ++i) {
    const std::string name = "prompt" + std::to_string(i);
    if (golden.entries.at(name + ".input_ids").shape[0] > golden.entries.at(longest + ".input_ids").shape[0])
      longest = name;
  }
  const std::vector<int32_t> ids = golden.values<int32_t>(longest + ".input_ids");
  const Outcome outcome = faultline({"forward", model, "--set", "kernels=reference", "--set", "kv_cache_dtype=f32",
                                     "--set", "numerics=transformers", "--set", "rope_mode=theta_10000", "--tokens",
                                     text_of(ids), "--out", folder.file("out.safetensors")});
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  const Tensors ours = load(folder.file("out.safetensors"));
  CHECK(largest_gap(ours.values<float>("prompt0.prefill.logits"), golden.values<float>(longest + ".prefill.logits")) >
        kGoldenTolerance);
  CHECK_FALSE(ours.has("prompt0.decode.logits"));  // none were asked for
}

TEST_CASE("forward says when the server would refuse the configuration") {
  const TempDir folder;
  const Outcome outcome = faultline({"forward", "synth:tiny", "--tokens", "1,2", "--set", "attention_backend=triton",
                                     "--set", "kv_cache_dtype=fp8_e4m3", "--out", folder.file("out.safetensors")});
  CHECK(outcome.code == 5);
  CHECK(outcome.err.find("guard") != std::string::npos);
  CHECK_FALSE(exists(folder.file("out.safetensors")));
}

TEST_CASE("synth writes a checkpoint that inspect calls sound and that runs; the same seed gives the same bytes") {
  const TempDir folder;
  const Outcome written = faultline({"synth", "tiny", "--set", "seed=3", "--out", folder.file("a"), "--shards", "2"});
  INFO(written.err);
  REQUIRE(written.code == 0);
  REQUIRE(faultline({"synth", "tiny", "--set", "seed=3", "--out", folder.file("b"), "--shards", "2"}).code == 0);
  REQUIRE(faultline({"synth", "tiny", "--set", "seed=4", "--out", folder.file("c"), "--shards", "2"}).code == 0);
  const std::string shard = "/model-00001-of-00002.safetensors";
  REQUIRE(exists(folder.file("a") + shard));
  CHECK(read_text(folder.file("a") + shard) == read_text(folder.file("b") + shard));
  CHECK(read_text(folder.file("a") + shard) != read_text(folder.file("c") + shard));

  const Outcome inspected = faultline({"inspect", folder.file("a")});
  CHECK(inspected.code == 0);
  CHECK(inspected.out.find("sound") != std::string::npos);
  CHECK(faultline({"synth", "tiny", "--out", folder.file("a")}).code == 2);  // not over an old one

  // The model on disk and the one made on the fly are the same.
  REQUIRE(
      faultline({"forward", folder.file("a"), "--tokens", "1,2,3", "--out", folder.file("disk.safetensors")}).code ==
      0);
  REQUIRE(
      faultline({"forward", "synth:tiny?seed=3", "--tokens", "1,2,3", "--out", folder.file("made.safetensors")}).code ==
      0);
  CHECK(read_text(folder.file("disk.safetensors")) == read_text(folder.file("made.safetensors")));
}

TEST_CASE("inspect calls a readable checkpoint with a zero scale faulty: exit code 1") {
  const TempDir folder;
  std::filesystem::copy(std::string(FAULTLINE_SOURCE_DIR) + "/tests/goldens/tiny", folder.file("model"));
  // The first input_scale of a shard becomes 0.
  const std::string name = "model-00001-of-00002.safetensors";
  Tensors shard = load(folder.file("model/" + name));
  for (const auto& [tensor, entry] : shard.entries) {
    if (tensor.find("input_scale") == std::string::npos) continue;
    for (size_t i = entry.begin; i < entry.end; ++i) shard.bytes[i] = 0;
    break;
  }
  folder.write("model/" + name, shard.bytes);
  const Outcome outcome = faultline({"inspect", folder.file("model")});
  INFO(outcome.out);
  CHECK(outcome.code == 1);
  CHECK(outcome.out.find("input_scale") != std::string::npos);
}

}  // namespace faultline
