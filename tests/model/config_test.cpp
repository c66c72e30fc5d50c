#include "model/config.h"

#include <string>
#include <vector>

#include "fixtures.h"

using namespace faultline;
using faultline::fixtures::mentions;
using nlohmann::json;

namespace {

// GLM-5's own config.json.
json glm5() {
  return json::parse(R"({"architectures": ["GlmMoeDsaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "dtype": "bfloat16", "eos_token_id": [154820, 154827, 154829], "ep_size": 1, "first_k_dense_replace": 3,
    "hidden_act": "silu", "head_dim": 64, "hidden_size": 6144, "index_head_dim": 128, "index_n_heads": 32,
    "index_topk": 2048, "indexer_rope_interleave": true, "initializer_range": 0.02, "intermediate_size": 12288,
    "kv_lora_rank": 512, "max_position_embeddings": 202752, "moe_intermediate_size": 2048, "moe_layer_freq": 1,
    "model_type": "glm_moe_dsa", "n_group": 1, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true,
    "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 78, "num_key_value_heads": 64,
    "num_nextn_predict_layers": 1, "pad_token_id": 154820, "pretraining_tp": 1, "q_lora_rank": 2048,
    "qk_head_dim": 256, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05,
    "rope_interleave": true, "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": false, "topk_group": 1,
    "topk_method": "noaux_tc", "transformers_version": "5.0.2.dev0", "use_cache": true, "v_head_dim": 256,
    "vocab_size": 154880})");
}

Result<ModelConfig> parse(const json& config) {
  return parse_model_config(dump_json(config), "config.json");
}

ModelConfig good(const json& config) {
  const auto parsed = parse(config);
  INFO((parsed ? std::string() : parsed.error().message));
  REQUIRE(parsed);
  return *parsed;
}

std::string refused(const json& config) {
  const auto parsed = parse(config);
  REQUIRE_FALSE(parsed);
  CHECK(parsed.error().kind == ErrorKind::kBadInput);
  CHECK(parsed.error().message.starts_with("config.json: "));
  return parsed.error().message;
}

std::string refused(const char* key, const json& value) {
  json config = glm5();
  config[key] = value;
  return refused(config);
}

std::vector<int64_t> indexers(const ModelConfig& config) {
  std::vector<int64_t> result;
  for (size_t i = 0; i < config.layer_has_indexer.size(); ++i) {
    if (config.layer_has_indexer[i]) result.push_back(static_cast<int64_t>(i));
  }
  return result;
}

}  // namespace

TEST_CASE("GLM-5's config is read whole") {
  const ModelConfig config = good(glm5());
  CHECK(config.vocab_size == 154880);
  CHECK(config.hidden_size == 6144);
  CHECK(config.num_hidden_layers == 78);
  CHECK(config.qk_head_dim() == 256);
  CHECK(config.index_topk == 2048);
  CHECK(config.rope_theta == 1e6);
  CHECK(config.rms_norm_eps == 1e-5);
  CHECK(config.routed_scaling_factor == 2.5);
  CHECK(config.rope_interleave);
  CHECK(config.indexer_rope_interleave);
  CHECK(config.num_nextn_predict_layers == 1);
  CHECK(config.eos_token_ids == std::vector<int64_t>{154820, 154827, 154829});
  REQUIRE(config.layer_is_moe.size() == 78);
  CHECK_FALSE(config.layer_is_moe[2]);
  CHECK(config.layer_is_moe[3]);
  CHECK(indexers(config).size() == 78);
  CHECK(config.notes.empty());
}

TEST_CASE("the configs of the golden checkpoints are read") {
  for (const char* name : {"tiny", "slim", "wide"}) {
    const auto config = parse_model_config(fixtures::read_raw(fixtures::golden(name) + "/config.json"), name);
    REQUIRE(config);
    CHECK(config->notes.empty());
    CHECK_FALSE(config->layer_is_moe[0]);
    CHECK(config->layer_is_moe[1]);
  }
  const auto shared = parse_model_config(fixtures::read_raw(fixtures::golden("shared-index") + "/config.json"), "c");
  REQUIRE(shared);
  CHECK(indexers(*shared) == std::vector<int64_t>{0, 1, 4});
  CHECK(shared->n_group == 4);
  CHECK(shared->topk_group == 2);
  CHECK(shared->n_shared_experts == 2);
}

TEST_CASE("another architecture is refused by either name") {
  CHECK(mentions(refused("model_type", "deepseek_v32"), "model_type is \"deepseek_v32\""));
  CHECK(
      mentions(refused("architectures", {"DeepseekV32ForCausalLM"}), "architectures is [\"DeepseekV32ForCausalLM\"]"));
  CHECK(mentions(refused("architectures", nullptr), "no architectures"));
  json config = glm5();
  config.erase("model_type");
  CHECK(mentions(refused(config), "no model_type"));
  CHECK(mentions(refused("scoring_func", "softmax"), "scoring_func is \"softmax\"; only \"sigmoid\""));
  CHECK(mentions(refused("attention_bias", true), "attention_bias"));
}

TEST_CASE("a lost rope_theta is an error that names it") {
  json config = glm5();
  config["rope_parameters"].erase("rope_theta");
  CHECK(mentions(refused(config), "no rope_theta"));
  config.erase("rope_parameters");
  const std::string message = refused(config);
  CHECK(mentions(message, "no rope_theta"));
  CHECK(mentions(message, "\"rope_theta\": 1000000"));
}

TEST_CASE("theta is found under every spelling, and two that disagree are refused") {
  json config = glm5();
  config.erase("rope_parameters");
  config["rope_theta"] = 8e6;
  CHECK(good(config).rope_theta == 8e6);

  config = glm5();
  config["rope_scaling"] = config["rope_parameters"];
  config.erase("rope_parameters");
  CHECK(good(config).rope_theta == 1e6);

  config = glm5();
  config["rope_scaling"] = nullptr;
  config["rope_theta"] = 1000000;
  CHECK(good(config).rope_theta == 1e6);

  config["rope_theta"] = 10000;
  CHECK(mentions(refused(config), "rope_parameters.rope_theta is 1000000 but rope_theta is 10000"));
}

TEST_CASE("scaled RoPE is refused") {
  json config = glm5();
  config["rope_parameters"]["rope_type"] = "yarn";
  CHECK(mentions(refused(config), "rope_parameters.rope_type is \"yarn\""));
  config = glm5();
  config["rope_scaling"] = {{"type", "deepseek_yarn"}, {"factor", 40}};
  CHECK(mentions(refused(config), "rope_scaling.type is \"deepseek_yarn\""));
}

TEST_CASE("indexer layers come from types, pattern or frequency") {
  json config = glm5();
  config["index_topk_freq"] = 4;
  config["index_skip_topk_offset"] = 3;
  std::vector<int64_t> expected = {0, 1, 2};
  for (int64_t i = 6; i < 78; i += 4) expected.push_back(i);
  CHECK(expected.size() == 21);  // GLM-5.2: 21 full layers, 0, 1, 2, 6, 10, …, 74
  CHECK(indexers(good(config)) == expected);

  config.erase("index_skip_topk_offset");
  config["index_topk_offset"] = 3;
  CHECK(indexers(good(config)) == expected);

  config = glm5();
  config["num_hidden_layers"] = 6;
  config["index_topk_pattern"] = "FFSSFS";
  CHECK(indexers(good(config)) == std::vector<int64_t>{0, 1, 4});

  config["indexer_types"] = {"full", "shared", "shared", "full", "shared", "shared"};
  const ModelConfig both = good(config);
  CHECK(indexers(both) == std::vector<int64_t>{0, 3});
  REQUIRE(both.notes.size() == 1);
  CHECK(mentions(both.notes[0], "indexer_types and index_topk_pattern disagree"));
}

TEST_CASE("indexer layers that make no sense are refused") {
  json config = glm5();
  config["num_hidden_layers"] = 3;
  config["index_topk_pattern"] = "SFF";
  CHECK(mentions(refused(config), "layer 0 has no indexer"));
  config["index_topk_pattern"] = "FX";
  CHECK(mentions(refused(config), "3 letters F (full) or S (shared)"));
  config.erase("index_topk_pattern");
  config["indexer_types"] = {"full", "shared"};
  CHECK(mentions(refused(config), "a list of 3 words, one a layer, and is 2 long"));
  config["indexer_types"] = {"full", "half", "full"};
  CHECK(mentions(refused(config), "indexer_types[1] is \"half\""));
}

TEST_CASE("dense and MoE layers come from types or from the first k") {
  json config = glm5();
  config["num_hidden_layers"] = 4;
  config["moe_layer_freq"] = 2;
  config["first_k_dense_replace"] = 1;
  CHECK(good(config).layer_is_moe == std::vector<bool>{false, false, true, false});

  config["mlp_layer_types"] = {"dense", "sparse", "sparse", "sparse"};
  const ModelConfig listed = good(config);
  CHECK(listed.layer_is_moe == std::vector<bool>{false, true, true, true});
  REQUIRE(listed.notes.size() == 1);
  CHECK(mentions(listed.notes[0], "disagree"));

  config["mlp_layer_types"] = {"dense", "sparse"};
  CHECK(mentions(refused(config), "mlp_layer_types must be a list of 4"));
}

TEST_CASE("MTP layers may be listed, and are left out") {
  json config = glm5();
  config["num_hidden_layers"] = 2;
  config["mlp_layer_types"] = {"dense", "sparse", "sparse"};
  config["indexer_types"] = {"full", "full", "full"};
  config["first_k_dense_replace"] = 1;
  const ModelConfig parsed = good(config);
  CHECK(parsed.layer_is_moe == std::vector<bool>{false, true});
  CHECK(parsed.layer_has_indexer.size() == 2);
}

TEST_CASE("every size is checked, by name") {
  const std::vector<std::string> sizes = {"vocab_size",          "hidden_size",
                                          "intermediate_size",   "moe_intermediate_size",
                                          "num_hidden_layers",   "num_attention_heads",
                                          "n_routed_experts",    "n_shared_experts",
                                          "num_experts_per_tok", "n_group",
                                          "topk_group",          "kv_lora_rank",
                                          "q_lora_rank",         "qk_nope_head_dim",
                                          "qk_rope_head_dim",    "v_head_dim",
                                          "index_topk",          "index_head_dim",
                                          "index_n_heads",       "max_position_embeddings"};
  for (const std::string& key : sizes) {
    for (const json& value :
         {json(0), json(-1), json(INT64_MAX), json(UINT64_MAX), json(64.0), json("64"), json(true)}) {
      const std::string message = refused(key.c_str(), value);
      CHECK(mentions(message, key));
    }
  }
  CHECK(mentions(refused("hidden_size", 6144.0), "hidden_size must be a whole number, and is 6144.0"));
  CHECK(mentions(refused("rms_norm_eps", "1e-5"), "rms_norm_eps must be a number"));
  CHECK(mentions(refused("rms_norm_eps", 0), "rms_norm_eps is 0; it must be above 0"));
  CHECK(mentions(refused("norm_topk_prob", 1), "norm_topk_prob must be true or false"));
  CHECK(mentions(refused("eos_token_id", {1, "x"}), "eos_token_id"));
}

TEST_CASE("sizes that do not fit together are refused") {
  CHECK(mentions(refused("qk_rope_head_dim", 63), "RoPE needs pairs"));
  CHECK(mentions(refused("qk_head_dim", 192), "qk_nope_head_dim + qk_rope_head_dim = 256"));
  CHECK(mentions(refused("index_head_dim", 32), "at least qk_rope_head_dim = 64"));
  CHECK(mentions(refused("kv_lora_rank", 510), "multiple of 4"));
  CHECK(mentions(refused("n_routed_experts", 4096), "at most 131072 experts in all"));
  CHECK(mentions(refused("n_group", 3), "must divide n_routed_experts = 256"));
  CHECK(mentions(refused("topk_group", 2), "at most n_group = 1"));
  CHECK(mentions(refused("n_group", 256), "scored by its two best experts"));
  json config = glm5();
  config["n_group"] = 64;
  config["topk_group"] = 1;
  CHECK(mentions(refused(config), "leave only 4 experts"));
}

TEST_CASE("missing keys have Hugging Face's defaults and leave a note") {
  json config = glm5();
  config.erase("index_topk");
  config.erase("rms_norm_eps");
  config.erase("indexer_rope_interleave");
  config.erase("first_k_dense_replace");
  config["n_group"] = nullptr;
  const ModelConfig parsed = good(config);
  CHECK(parsed.index_topk == 2048);
  CHECK(parsed.rms_norm_eps == 1e-5);
  CHECK(parsed.indexer_rope_interleave);
  CHECK(parsed.n_group == 1);
  CHECK_FALSE(parsed.layer_is_moe[2]);
  CHECK(parsed.notes.size() == 4);
}

TEST_CASE("a config that is no object is refused") {
  CHECK_FALSE(parse_model_config("[]", "c"));
  CHECK_FALSE(parse_model_config("", "c"));
  CHECK(mentions(parse_model_config(R"({"a": 1, "a": 2})", "c").error().message, "occurs twice"));
}
