#include "model/checkpoint.h"

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "fixtures.h"
#include "model/expected.h"
#include "model/weight_files.h"

using namespace faultline;
using fixtures::mentions;
namespace fs = std::filesystem;

namespace {

Checkpoint opened(const std::string& spec) {
  auto checkpoint = Checkpoint::open(spec);
  INFO((checkpoint ? std::string() : checkpoint.error().message));
  REQUIRE(checkpoint);
  return std::move(*checkpoint);
}

std::string refused(const std::string& spec) {
  const auto checkpoint = Checkpoint::open(spec);
  REQUIRE_FALSE(checkpoint);
  CHECK(checkpoint.error().kind == ErrorKind::kBadInput);
  return checkpoint.error().message;
}

bool same_bytes(const TensorView& a, const TensorView& b) {
  const size_t bytes = static_cast<size_t>(a.elements()) * dtype_bytes(a.dtype);
  return a.dtype == b.dtype && a.rank == b.rank && a.shape == b.shape && std::memcmp(a.data, b.data, bytes) == 0;
}

void check_equal(const Checkpoint& a, const Checkpoint& b) {
  REQUIRE(a.tensors().size() == b.tensors().size());
  for (const StoredTensor& tensor : a.tensors()) {
    const TensorView* other = b.find(tensor.name);
    REQUIRE(other != nullptr);
    CHECK(same_bytes(tensor.view, *other));
  }
}

void replace_in(const std::string& path, const std::string& from, const std::string& to) {
  std::string text = fixtures::read_raw(path);
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  fixtures::write_raw(path, text.replace(at, from.size(), to));
}

}  // namespace

TEST_CASE("golden checkpoints open, and every expected tensor is there") {
  for (const char* name : {"tiny", "slim", "wide", "shared-index"}) {
    const Checkpoint checkpoint = opened(fixtures::golden(name));
    for (const ExpectedTensor& expected : expected_tensors(checkpoint.config())) {
      CHECK(checkpoint.find(expected.name) != nullptr);
    }
    CHECK(checkpoint.find("prompt0.input_ids") == nullptr);  // golden.safetensors is none of the model's
    REQUIRE(checkpoint.quantization());
    CHECK(checkpoint.quantization()->algorithm == "NVFP4");
    CHECK(checkpoint.quantization()->group_size == 16);
  }
}

TEST_CASE("find returns the tensor's own bytes") {
  const fixtures::TempFolder folder;
  const std::string path = fixtures::small_checkpoint(folder);
  const std::string name = "model.layers.1.mlp.gate.e_score_correction_bias";
  fixtures::poke(path, name, 4, 1.5f);
  const Checkpoint checkpoint = opened(path + "/");
  CHECK(checkpoint.spec() == path);
  const TensorView* bias = checkpoint.find(name);
  REQUIRE(bias != nullptr);
  CHECK(bias->dtype == Dtype::kF32);
  CHECK(bias->load(1) == 1.5f);
  CHECK(checkpoint.find("model.layers.9.mlp.gate.e_score_correction_bias") == nullptr);
  const TensorView* embed = checkpoint.find("model.embed_tokens.weight");
  REQUIRE(embed != nullptr);
  CHECK(embed->contiguous());
  CHECK(embed->shape[0] == 257);
  CHECK(embed->stride[0] == 64);
}

TEST_CASE("an attached checkpoint holds the same bytes, from files and from memory") {
  for (const std::string& spec : {fixtures::golden("wide"), std::string("synth:tiny?seed=5")}) {
    std::optional<Checkpoint> original = opened(spec);
    const std::string manifest = original->manifest();
    CHECK(manifest.size() < 1000);
    auto attached = Checkpoint::attach(manifest, original->descriptors());
    REQUIRE(attached);
    check_equal(*original, *attached);
    CHECK(attached->spec() == original->spec());
    CHECK(attached->identity() == original->identity());
    CHECK(attached->config().hidden_size == original->config().hidden_size);
    // The mapping outlives the process that made it.
    const float before = attached->find("model.norm.weight")->load(3);
    original.reset();
    CHECK(attached->find("model.norm.weight")->load(3) == before);
  }
}

TEST_CASE("attach refuses descriptors that are not the manifest's") {
  const Checkpoint tiny = opened("synth:tiny");
  const Checkpoint other = opened("synth:tiny?seed=2");
  CHECK_FALSE(Checkpoint::attach(tiny.manifest(), {}));
  CHECK_FALSE(Checkpoint::attach(tiny.manifest(), other.descriptors()));
  CHECK_FALSE(Checkpoint::attach("{}", tiny.descriptors()));
  CHECK_FALSE(Checkpoint::attach("no JSON", tiny.descriptors()));
  CHECK_FALSE(Checkpoint::attach(tiny.manifest(), {tiny.descriptors()[1], tiny.descriptors()[0]}));
  CHECK_FALSE(Checkpoint::attach(tiny.manifest(), {tiny.descriptors()[0], -1}));
}

TEST_CASE("identities tell checkpoints apart and are stable") {
  CHECK(opened("synth:tiny").identity() == opened("synth:tiny").identity());
  CHECK(opened("synth:tiny").identity() != opened("synth:tiny?seed=2").identity());
  const std::string golden = fixtures::golden("tiny");
  CHECK(opened(golden).identity() == opened(golden + "/").identity());

  const fixtures::TempFolder folder;
  const std::string path = fixtures::small_checkpoint(folder);
  const std::string before = opened(path).identity();
  replace_in(path + "/config.json", "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 1e-06");
  CHECK(opened(path).identity() != before);
}

TEST_CASE("tensors of MTP layers are recognised and left out") {
  const fixtures::TempFolder folder;
  const std::string path = fixtures::small_checkpoint(folder, "model", 1);
  const std::string shard = fixtures::shard_paths(path)[0];
  const std::string index = path + "/model.safetensors.index.json";
  // Under a single file's name no index is needed; layer 1 becomes the MTP layer of a model with one layer.
  fs::rename(shard, path + "/model.safetensors");
  fs::remove(index);
  nlohmann::json config = fixtures::config_of(path);
  config["num_hidden_layers"] = 1;
  config["num_nextn_predict_layers"] = 1;
  fixtures::write_raw(path + "/config.json", dump_json(config));
  const Checkpoint checkpoint = opened(path);
  CHECK(checkpoint.mtp_tensors() == 124);
  CHECK(checkpoint.find("model.layers.1.input_layernorm.weight") == nullptr);
  CHECK(checkpoint.find("model.layers.0.input_layernorm.weight") != nullptr);
}

TEST_CASE("names of layers and of MTP layers are read exactly") {
  CHECK(layer_of("model.layers.12.mlp.gate.weight") == 12);
  CHECK(layer_of("model.layers.x.mlp") == -1);
  CHECK(layer_of("model.layers.3") == -1);
  CHECK(layer_of("model.norm.weight") == -1);
  CHECK(layer_of("model.layers.99999999999999999999.x") == -1);
  ModelConfig config;
  config.num_hidden_layers = 78;
  CHECK(is_mtp_tensor("model.layers.78.eh_proj.weight", config));
  CHECK_FALSE(is_mtp_tensor("model.layers.77.mlp.gate.weight", config));
  CHECK_FALSE(is_mtp_tensor("model.layers.79.eh_proj.weight", config));
  config.num_nextn_predict_layers = 2;
  CHECK(is_mtp_tensor("model.layers.79.eh_proj.weight", config));
}

TEST_CASE("folders that are no checkpoint are refused with what to do") {
  const fixtures::TempFolder folder;
  CHECK(mentions(refused(folder / "none"), "no such folder"));
  CHECK(mentions(refused(folder.path()), "config.json: No such file"));

  const std::string path = fixtures::small_checkpoint(folder);
  SECTION("another architecture") {
    replace_in(path + "/config.json", "\"glm_moe_dsa\"", "\"llama\"");
    CHECK(mentions(refused(path), "model_type is \"llama\""));
  }
  SECTION("no weights") {
    for (const std::string& shard : fixtures::shard_paths(path)) fs::remove(shard);
    CHECK(mentions(refused(path), "the shard is missing"));
    fs::remove(path + "/model.safetensors.index.json");
    CHECK(mentions(refused(path), "neither model.safetensors nor model.safetensors.index.json"));
  }
  SECTION("shards without an index") {
    fs::remove(path + "/model.safetensors.index.json");
    CHECK(mentions(refused(path), "but no model.safetensors.index.json"));
  }
  SECTION("a missing shard") {
    fs::remove(fixtures::shard_paths(path)[1]);
    const std::string message = refused(path);
    CHECK(mentions(message, "model-00002-of-00002.safetensors: the shard is missing"));
    CHECK(mentions(message, "tensors"));
  }
  SECTION("a shard name that leads out of the folder") {
    replace_in(path + "/model.safetensors.index.json", "\"model-00001-of-00002.safetensors\"",
               "\"../../etc/x.safetensors\"");
    CHECK(mentions(refused(path), "must be the plain name of a .safetensors file"));
  }
  SECTION("a broken index") {
    fixtures::write_raw(path + "/model.safetensors.index.json", "{\"weight_map\": {}}");
    CHECK(mentions(refused(path), "no weight_map"));
    fixtures::write_raw(path + "/model.safetensors.index.json", "{\"weight_map\": {\"a\": 1}}");
    CHECK(mentions(refused(path), "no file name"));
    fixtures::write_raw(path + "/model.safetensors.index.json", "{");
    CHECK(mentions(refused(path), "not valid JSON"));
  }
  SECTION("an index that disagrees with its shards") {
    replace_in(path + "/model.safetensors.index.json", "\"lm_head.weight\"", "\"lm_haed.weight\"");
    const std::string message = refused(path);
    CHECK(mentions(message, "tensor lm_haed.weight is missing, though model.safetensors.index.json says"));
    CHECK(mentions(message, "and 1 more"));
  }
  SECTION("the same tensor in two shards") {
    fs::copy_file(fixtures::shard_paths(path)[0], path + "/copy.safetensors");
    replace_in(path + "/model.safetensors.index.json", "\"weight_map\": {",
               "\"weight_map\": {\"extra\": \"copy.safetensors\",");
    bool found = false;
    for (const WeightProblem& problem : open_weight_files(path).problems) {
      found |= mentions(problem.message,
                        "tensor lm_head.weight is in copy.safetensors and in model-00001-of-00002.safetensors");
    }
    CHECK(found);
    refused(path);
  }
  SECTION("a shard cut short") {
    const std::string first = fixtures::shard_paths(path)[0];
    fs::resize_file(first, fs::file_size(first) - 10);
    CHECK(mentions(refused(path), "it is cut short, copy or download it again"));
  }
  SECTION("a shard that is empty, or no safetensors") {
    fixtures::write_raw(fixtures::shard_paths(path)[0], "");
    CHECK(mentions(refused(path), "too short for a safetensors file"));
    fixtures::write_raw(fixtures::shard_paths(path)[0], "version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
    CHECK(mentions(refused(path), "this is no safetensors file"));
  }
  SECTION("broken quantization metadata") {
    fixtures::write_raw(path + "/hf_quant_config.json", "{}");
    CHECK(mentions(refused(path), "no \"quantization\" block"));
    fixtures::write_raw(path + "/hf_quant_config.json", R"({"quantization": {"quant_algo": 4}})");
    CHECK(mentions(refused(path), "quant_algo must be a text"));
    fixtures::write_raw(path + "/hf_quant_config.json", R"({"quantization": {"group_size": -16}})");
    CHECK(mentions(refused(path), "group_size must be a whole number"));
    fixtures::write_raw(path + "/hf_quant_config.json", R"({"quantization": {"exclude_modules": [1]}})");
    CHECK(mentions(refused(path), "exclude_modules must be a list"));
  }
}

TEST_CASE("quantization metadata is read from either file, wildcards included") {
  const auto inside = parse_quant_config(
      R"({"quantization_config": {"quant_algo": "NVFP4", "ignore": ["lm_head", "model.layers.0.self_attn*", "*.k_norm"],
          "config_groups": {"group_0": {"weights": {"group_size": 16}}}}})",
      "config.json", "", "");
  REQUIRE(inside);
  REQUIRE(*inside);
  CHECK((*inside)->group_size == 16);
  CHECK(is_ignored(**inside, "lm_head"));
  CHECK(is_ignored(**inside, "model.layers.0.self_attn.q_a_proj"));
  CHECK(is_ignored(**inside, "model.layers.7.self_attn.indexer.k_norm"));
  CHECK_FALSE(is_ignored(**inside, "model.layers.1.self_attn.q_a_proj"));
  CHECK_FALSE(is_ignored(**inside, "lm_head.x"));

  const auto none = parse_quant_config("{}", "config.json", "", "");
  REQUIRE(none);
  CHECK_FALSE(*none);
}
