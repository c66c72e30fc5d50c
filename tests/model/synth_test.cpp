#include "model/synth.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "fixtures.h"
#include "model/checkpoint.h"
#include "model/expected.h"
#include "model/synth_simd.h"

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
  const auto model = parse_synth_spec(spec);
  REQUIRE_FALSE(model);
  CHECK(model.error().kind == ErrorKind::kBadInput);
  return model.error().message;
}

std::vector<std::byte> bytes_of(const SynthModel& model, const std::string& tensor) {
  std::vector<SafetensorsEntry> entries = synth_tensors(model);
  lay_out(entries);
  for (const SafetensorsEntry& entry : entries) {
    if (entry.name != tensor) continue;
    std::vector<std::byte> bytes(entry.bytes());
    generate(model, entry, 0, bytes);
    return bytes;
  }
  FAIL("no tensor " << tensor);
  return {};
}

// y = x W^T in double.
std::vector<double> product(const LinearWeight& weight, const std::vector<double>& x) {
  std::vector<double> y;
  std::vector<float> row(static_cast<size_t>(weight.in_features));
  for (int64_t n = 0; n < weight.out_features; ++n) {
    dequantize_row(weight, n, row.data());
    double sum = 0;
    for (size_t k = 0; k < row.size(); ++k) sum += row[k] * x[k];
    y.push_back(sum);
  }
  return y;
}

void normalise(double* x, int64_t size, const TensorView& weight) {
  double squares = 0;
  for (int64_t i = 0; i < size; ++i) squares += x[i] * x[i];
  const double factor = 1 / std::sqrt(squares / static_cast<double>(size));
  for (int64_t i = 0; i < size; ++i) x[i] *= factor * weight.load(i);
}

// A row as it leaves the first norm: the embedding of `token`.
std::vector<double> normed_embedding(const Checkpoint& c, int64_t token) {
  const TensorView& embed = *c.find("model.embed_tokens.weight");
  std::vector<double> x;
  for (int64_t k = 0; k < embed.dim(1); ++k) x.push_back(embed.load(embed.offset(token, k)));
  normalise(x.data(), embed.dim(1), *c.find("model.layers.0.input_layernorm.weight"));
  return x;
}

double standard_deviation(const std::vector<double>& values) {
  double sum = 0;
  double squares = 0;
  for (const double value : values) {
    sum += value;
    squares += value * value;
  }
  const auto n = static_cast<double>(values.size());
  return std::sqrt(squares / n - sum / n * (sum / n));
}

}  // namespace

TEST_CASE("every shape opens, has what its config calls for, and survives a round trip of its config") {
  for (const std::string& name : synth_names()) {
    const auto model = make_synth(name, {});
    REQUIRE(model);
    const auto again = parse_model_config(model->config_text, name);
    REQUIRE(again);
    CHECK(again->notes.empty());
    CHECK(again->layer_is_moe == model->config.layer_is_moe);
    CHECK(again->layer_has_indexer == model->config.layer_has_indexer);
    CHECK(again->index_n_heads >= 16);
    std::set<std::string> names;
    for (const SafetensorsEntry& tensor : synth_tensors(*model)) names.insert(tensor.name);
    for (const ExpectedTensor& expected : expected_tensors(model->config)) REQUIRE(names.contains(expected.name));
  }
}

TEST_CASE("small shapes are those of the golden checkpoints") {
  for (const char* name : {"tiny", "slim", "wide", "shared-index"}) {
    const Checkpoint synthetic =
        opened(fmt::format("synth:{}?dense_fp4={}", name, std::string(name) == "tiny" ? 0 : 1));
    const Checkpoint golden = opened(fixtures::golden(name));
    REQUIRE(synthetic.tensors().size() == golden.tensors().size());
    for (const StoredTensor& tensor : golden.tensors()) {
      const TensorView* other = synthetic.find(tensor.name);
      REQUIRE(other != nullptr);
      CHECK(other->dtype == tensor.view.dtype);
      CHECK(other->rank == tensor.view.rank);
      CHECK(other->shape == tensor.view.shape);
    }
  }
}

TEST_CASE("GLM-5 has the size that its export has") {
  const auto model = make_synth("glm-5", {});
  REQUIRE(model);
  std::vector<SafetensorsEntry> tensors = synth_tensors(*model);
  lay_out(tensors);
  uint64_t bytes = 0;
  for (const SafetensorsEntry& tensor : tensors) bytes += tensor.bytes();
  CHECK(bytes == 440'911'290'192);  // computed from the published config: NVFP4 experts, shared experts and dense MLP
  CHECK(expected_tensors(model->config).size() == 59'079);
}

TEST_CASE("tensors depend on seed and name alone") {
  const auto model = make_synth("tiny", {});
  const auto other_seed = make_synth("tiny", {{"seed", "2"}});
  const auto deeper = make_synth("tiny", {{"num_hidden_layers", "6"}});
  REQUIRE((model && other_seed && deeper));
  const std::string name = "model.layers.1.mlp.experts.3.up_proj.weight";
  CHECK(bytes_of(*model, name) == bytes_of(*model, name));
  CHECK(bytes_of(*model, name) != bytes_of(*other_seed, name));
  CHECK(bytes_of(*model, name) != bytes_of(*model, "model.layers.1.mlp.experts.4.up_proj.weight"));
  CHECK(bytes_of(*model, name) == bytes_of(*deeper, name));
}

TEST_CASE("a tensor made in parts is the tensor made whole") {
  const auto model = make_synth("tiny", {{"zero_row", "3"}});
  REQUIRE(model);
  std::vector<SafetensorsEntry> entries = synth_tensors(*model);
  lay_out(entries);
  for (const SafetensorsEntry& entry : entries) {
    std::vector<std::byte> whole(entry.bytes());
    std::vector<std::byte> parts(entry.bytes());
    generate(*model, entry, 0, whole);
    constexpr uint64_t kStep = 5 * kSynthGrain;
    for (uint64_t first = 0; first < parts.size(); first += kStep) {
      generate(*model, entry, first, std::span(parts).subspan(first, std::min(kStep, parts.size() - first)));
    }
    CHECK(whole == parts);
  }
}

TEST_CASE("the values are pinned, so that a seed means the same model tomorrow") {
  const Checkpoint tiny = opened("synth:tiny");
  CHECK(tiny.find("model.embed_tokens.weight")->as<uint16_t>()[0] == 0x3F14);
  CHECK(tiny.find("model.layers.1.mlp.experts.0.gate_proj.weight")->as<uint64_t>()[0] == 0xEBD3CF55C6DD7213u);
  CHECK(tiny.find("model.layers.1.mlp.experts.0.gate_proj.weight_scale")->as<uint8_t>()[5] == 0x6F);
  CHECK(float_bits(tiny.find("model.layers.1.mlp.experts.0.gate_proj.input_scale")->load(0)) == 0x3B042422u);
}

TEST_CASE("attention is sharp: scores have a standard deviation of 2 to 3") {
  for (const char* name : {"tiny", "wide", "shared-index"}) {
    const Checkpoint c = opened(std::string("synth:") + name);
    const ModelConfig& m = c.config();
    const std::string prefix = "model.layers.0.self_attn.";
    const auto linear = [&](const char* module) { return c.linear(prefix + module).value(); };
    std::vector<std::vector<double>> queries;
    std::vector<std::vector<double>> keys;
    for (int64_t token = 0; token < 24; ++token) {
      const std::vector<double> x = normed_embedding(c, token);
      std::vector<double> q_a = product(linear("q_a_proj"), x);
      normalise(q_a.data(), m.q_lora_rank, *c.find(prefix + "q_a_layernorm.weight"));
      queries.push_back(product(linear("q_b_proj"), q_a));
      std::vector<double> kv_a = product(linear("kv_a_proj_with_mqa"), x);
      normalise(kv_a.data(), m.kv_lora_rank, *c.find(prefix + "kv_a_layernorm.weight"));
      std::vector<double> key = product(linear("kv_b_proj"), {kv_a.begin(), kv_a.begin() + m.kv_lora_rank});
      // Head 0: its nope part, then the shared rope part.
      key.resize(static_cast<size_t>(m.qk_nope_head_dim));
      key.insert(key.end(), kv_a.begin() + m.kv_lora_rank, kv_a.end());
      keys.push_back(key);
    }
    std::vector<double> scores;
    for (const auto& q : queries) {
      for (const auto& k : keys) {
        double dot = 0;
        for (size_t i = 0; i < k.size(); ++i) dot += q[i] * k[i];
        scores.push_back(dot / std::sqrt(static_cast<double>(m.qk_head_dim())));
      }
    }
    INFO(name);
    CHECK(standard_deviation(scores) > 1.8);
    CHECK(standard_deviation(scores) < 3.2);
  }
}

TEST_CASE("router biases are as in real routers, and experts are used neither evenly nor by few") {
  const Checkpoint c = opened("synth:tiny");
  const ModelConfig& m = c.config();
  const TensorView& bias = *c.find("model.layers.1.mlp.gate.e_score_correction_bias");
  float low = bias.load(0);
  float high = low;
  for (int64_t e = 0; e < m.n_routed_experts; ++e) {
    low = std::min(low, bias.load(e));
    high = std::max(high, bias.load(e));
  }
  CHECK(low >= 6.817f - 1e-3f);
  CHECK(high <= 7.063f + 1e-3f);
  CHECK(high - low > 0.1f);

  const LinearWeight gate = c.linear("model.layers.1.mlp.gate").value();
  std::vector<int64_t> uses(static_cast<size_t>(m.n_routed_experts));
  for (int64_t token = 0; token < m.vocab_size; ++token) {
    std::vector<double> choice = product(gate, normed_embedding(c, token));
    for (size_t e = 0; e < choice.size(); ++e)
      choice[e] = 1 / (1 + std::exp(-choice[e])) + bias.load(static_cast<int64_t>(e));
    for (int64_t k = 0; k < m.num_experts_per_tok; ++k) {
      const auto best = static_cast<size_t>(std::max_element(choice.begin(), choice.end()) - choice.begin());
      ++uses[best];
      choice[best] = 0;
    }
  }
  const auto [fewest, most] = std::minmax_element(uses.begin(), uses.end());
  CHECK(*fewest > 5);
  CHECK(*most > 3 * *fewest / 2);
  CHECK(*most < 2 * m.vocab_size * 8 / 10 / 2);
}

TEST_CASE("NVFP4 tensors look like an exporter's") {
  const Checkpoint c = opened("synth:tiny");
  const LinearWeight gate = c.linear("model.layers.1.mlp.experts.0.gate_proj").value();
  const LinearWeight up = c.linear("model.layers.1.mlp.experts.0.up_proj").value();
  REQUIRE(gate.precision == Precision::kNvfp4);
  CHECK(gate.global_scale.load(0) != up.global_scale.load(0));
  for (int64_t i = 0; i < gate.block_scale.elements(); ++i) {
    int exponent = 0;
    CHECK(std::frexp(gate.block_scale.load(i), &exponent) != 0.5f);  // no power of two
  }
  std::vector<double> values;
  std::vector<float> row(static_cast<size_t>(gate.in_features));
  for (int64_t n = 0; n < gate.out_features; ++n) {
    dequantize_row(gate, n, row.data());
    values.insert(values.end(), row.begin(), row.end());
    for (size_t block = 0; block < row.size(); block += 16) {
      // A block's largest value defines its scale: code 6 is there.
      float amax = 0;
      for (size_t k = block; k < block + 16; ++k) amax = std::max(amax, std::fabs(row[k]));
      const float scale = gate.block_scale.load(gate.block_scale.offset(n, static_cast<int64_t>(block / 16)));
      CHECK(amax == 6 * (scale * gate.global_scale.load(0)));
    }
  }
  CHECK(std::fabs(standard_deviation(values) * std::sqrt(64.0) - 1) < 0.25);
  const float input_scale = gate.input_scale.load(0);
  CHECK(input_scale * 6 * 448 > 4);
  CHECK(input_scale * 6 * 448 < 12);
}

TEST_CASE("norms are near 1, embeddings have unit variance and no zero row unless asked for") {
  const Checkpoint plain = opened("synth:tiny");
  const Checkpoint holed = opened("synth:tiny?zero_row=7");
  const TensorView& norm = *plain.find("model.norm.weight");
  for (int64_t i = 0; i < norm.elements(); ++i) CHECK(std::fabs(norm.load(i) - 1) < 0.36f);
  const auto row_amax = [](const Checkpoint& c, int64_t row) {
    const TensorView& embed = *c.find("model.embed_tokens.weight");
    float amax = 0;
    for (int64_t k = 0; k < embed.dim(1); ++k) amax = std::max(amax, std::fabs(embed.load(embed.offset(row, k))));
    return amax;
  };
  for (int64_t row = 0; row < 257; ++row) {
    CHECK(row_amax(plain, row) > 1);
    CHECK((row_amax(holed, row) == 0) == (row == 7));
  }
}

TEST_CASE("settings override the config, and the spec is canonical") {
  const Checkpoint c = opened("synth:tiny?seed=3&num_hidden_layers=2&rope_theta=1e4&norm_topk_prob=0&eos_token_id=5,6");
  CHECK(c.config().num_hidden_layers == 2);
  CHECK(c.config().rope_theta == 1e4);
  CHECK_FALSE(c.config().norm_topk_prob);
  CHECK(c.config().eos_token_ids == std::vector<int64_t>{5, 6});
  CHECK(c.spec() == "synth:tiny?eos_token_id=5,6&norm_topk_prob=0&num_hidden_layers=2&rope_theta=1e4&seed=3");
  CHECK(opened("synth:tiny?dense_fp4=0").linear("model.layers.0.mlp.gate_proj")->precision == Precision::kBf16);
  CHECK(opened("synth:tiny").linear("model.layers.0.mlp.gate_proj")->precision == Precision::kNvfp4);
  const Checkpoint pattern = opened("synth:tiny?index_topk_pattern=FSSF");
  CHECK(pattern.find("model.layers.1.self_attn.indexer.wk.weight") == nullptr);
  CHECK(pattern.find("model.layers.3.self_attn.indexer.wk.weight") != nullptr);
  const Checkpoint tied = opened("synth:tiny?tie_word_embeddings=1");
  CHECK(tied.find("lm_head.weight") == nullptr);
}

TEST_CASE("unknown names and settings are refused with the nearest one") {
  CHECK(mentions(refused("synth:tinny"), "did you mean 'tiny'"));
  CHECK(mentions(refused("synth:tiny?hiden_size=3"), "did you mean 'hidden_size'"));
  CHECK(mentions(refused("synth:"), "unknown synthetic model ''"));
  CHECK(mentions(refused("tiny"), "a synthetic model is synth:NAME"));
  CHECK(mentions(refused("synth:tiny?seed"), "'seed' is no key=value"));
  CHECK(mentions(refused("synth:tiny?seed=1&seed=2"), "'seed' is set twice"));
  CHECK(mentions(refused("synth:tiny?seed=-1"), "must be a whole number"));
  CHECK(mentions(refused("synth:tiny?hidden_size=64.5"), "must be a whole number"));
  CHECK(mentions(refused("synth:tiny?rope_theta=x"), "must be a number"));
  CHECK(mentions(refused("synth:tiny?dense_fp4=yes"), "must be 0 or 1"));
  CHECK(mentions(refused("synth:tiny?eos_token_id=1,,2"), "commas"));
  CHECK(mentions(refused("synth:tiny?zero_row=257"), "the vocabulary has 257 rows"));
  CHECK(mentions(refused("synth:tiny?hidden_size=0"), "hidden_size is 0"));
  CHECK(mentions(refused("synth:tiny?hidden_size=72"), "NVFP4 needs a multiple of 16"));
  CHECK(mentions(refused("synth:tiny?num_experts_per_tok=9"), "num_experts_per_tok"));
}

TEST_CASE("a model too large for this machine's memory is refused before anything is made") {
  const auto checkpoint = Checkpoint::open("synth:tiny?vocab_size=4194304&hidden_size=1048576");
  REQUIRE_FALSE(checkpoint);
  CHECK(checkpoint.error().kind == ErrorKind::kCannotRun);
  CHECK(mentions(checkpoint.error().message, "GiB of memory"));
}

TEST_CASE("a written checkpoint holds what the same spec holds in memory") {
  const fixtures::TempFolder folder;
  const std::string path = fixtures::small_checkpoint(folder, "model", 3, {{"seed", "9"}, {"zero_row", "4"}});
  const Checkpoint written = opened(path);
  const Checkpoint made = opened("synth:tiny?num_hidden_layers=2&seed=9&zero_row=4");
  REQUIRE(written.tensors().size() == made.tensors().size());
  for (const StoredTensor& tensor : made.tensors()) {
    const TensorView* other = written.find(tensor.name);
    REQUIRE(other != nullptr);
    CHECK(std::memcmp(other->data, tensor.view.data,
                      static_cast<size_t>(tensor.view.elements()) * dtype_bytes(tensor.view.dtype)) == 0);
  }
  CHECK(fixtures::shard_paths(path).size() == 3);
  CHECK(fs::exists(path + "/hf_quant_config.json"));
  CHECK(written.quantization()->ignore.size() == 18);
}

TEST_CASE("writing stops cleanly and refuses what it cannot do") {
  const fixtures::TempFolder folder;
  const auto model = make_synth("tiny", {});
  REQUIRE(model);
  const auto go_on = [](uint64_t, uint64_t) { return true; };
  SECTION("stopped in the middle") {
    const auto result =
        write_synth(*model, folder / "a", 1, [](uint64_t done, uint64_t total) { return done < total / 2; });
    REQUIRE_FALSE(result);
    CHECK(mentions(result.error().message, "nothing was written"));
    CHECK(fs::is_empty(folder.path()));
  }
  SECTION("a folder that is in use") {
    fs::create_directory(folder / "a");
    fixtures::write_raw(folder / "a/b", "x");
    CHECK(mentions(write_synth(*model, folder / "a", 1, go_on).error().message, "not empty"));
  }
  SECTION("a disk that fills up on the way") {
    const fixtures::FileSizeLimit limit(100'000);
    const auto result = write_synth(*model, folder / "a", 1, go_on);
    REQUIRE_FALSE(result);
    CHECK(result.error().kind == ErrorKind::kBadInput);
    CHECK(mentions(result.error().message, "cannot write " + (folder / "a/model-00001-of-00001.safetensors")));
    CHECK(fs::is_empty(folder.path()));
  }
  SECTION("too many shards") {
    CHECK(mentions(write_synth(*model, folder / "a", 100'000, go_on).error().message, "only 401 tensors"));
  }
  SECTION("a disk that is too small") {
    const auto huge = make_synth("tiny", {{"vocab_size", "4194304"}, {"hidden_size", "1048576"}});
    REQUIRE(huge);
    CHECK(mentions(write_synth(*huge, folder / "a", 0, go_on).error().message, "the disk has"));
    CHECK(fs::is_empty(folder.path()));
  }
  SECTION("as many shards as tensors") {
    const auto dense = make_synth("tiny", {{"num_hidden_layers", "1"}});
    REQUIRE(dense);
    const size_t count = synth_tensors(*dense).size();
    REQUIRE(write_synth(*dense, folder / "a", static_cast<int64_t>(count), go_on));
    CHECK(fixtures::shard_paths(folder / "a").size() == count);
    CHECK(Checkpoint::open(folder / "a"));
  }
}

TEST_CASE("the vector loops give the values of the counter stream, from any position and to any length") {
  const CounterRng rng(7, "a tensor");
  for (const uint64_t first : {uint64_t{0}, uint64_t{1}, uint64_t{123'456'789}, uint64_t{1} << 40}) {
    for (const uint64_t count : {1, 2, 15, 16, 17, 67}) {
      std::vector<uint8_t> codes(count * 8), scales(count * 16);
      std::vector<uint16_t> normals(count);
      synth_code_blocks(rng.key(), first, count, codes.data());
      synth_scale_groups(rng.key(), first, count, scales.data());
      synth_normals(rng.key(), first, count, 0.3f, normals.data());
      for (uint64_t i = 0; i < count; ++i) {
        uint64_t block = 0;
        std::memcpy(&block, codes.data() + i * 8, 8);
        REQUIRE(block == (rng.bits(first + i) | uint64_t{7} << (4 * (rng.bits(~(first + i)) >> 60))));
        for (uint64_t j = 0; j < 16; ++j)
          REQUIRE(scales[i * 16 + j] == kBlockScaleCodes[(rng.bits(first + i) >> (4 * j)) & 15]);
        REQUIRE(normals[i] == to_bf16(0.3f * rng.normal(first + i)).bits);
      }
    }
  }
}
