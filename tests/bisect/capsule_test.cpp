#include "bisect/capsule.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "bisect/capsule_format.h"
#include "bisect/plant.h"
#include "engine/engine.h"
#include "model/safetensors.h"
#include "testing.h"

using namespace faultline;

namespace {

const Checkpoint& checkpoint() {
  static const Checkpoint kCheckpoint = [] {
    auto opened = Checkpoint::open("synth:tiny");
    REQUIRE(opened.has_value());
    return std::move(*opened);
  }();
  return kCheckpoint;
}

EngineConfig packed_config() {
  EngineConfig config;
  config.checks = CheckLevel::kReference;
  config.prefill_attention = config.decode_attention = "flashmla_kv";
  config.kv_format = config.prefill_reads = config.decode_reads = Format::kKvPacked;
  return config;
}

EngineConfig bf16_config() {
  EngineConfig config;
  config.checks = CheckLevel::kReference;
  config.decode_attention = "flashmla_sparse";
  return config;
}

// The incident: a dense backend takes the packed rows for plain e4m3.
EngineConfig conflict_config() {
  EngineConfig config = packed_config();
  config.indexer = false;
  config.prefill_attention = config.decode_attention = "flashinfer";
  config.prefill_reads = config.decode_reads = Format::kKvPlainFp8;
  config.prefill_from_rows = true;
  return config;
}

// Two prompts of 20 and 33 tokens, then two decode steps, op by op.
class Fixture {
 public:
  Fixture(const std::string& plant, const EngineConfig& config) {
    auto loaded = load_weights(checkpoint());
    REQUIRE(loaded.has_value());
    weights_ = std::move(*loaded);
    EngineHooks hooks;
    hooks.op_by_op = true;
    if (!plant.empty()) {
      auto made = make_plant(plant, weights_.config);
      if (!made) FAIL(made.error().message);
      plant_ = std::move(*made);
      plant_->weights(weights_);
      hooks.injector = plant_.get();
    }
    auto created = Engine::create(weights_, config, EngineLimits{2, 64, 0}, SamplingParams{}, std::move(hooks));
    if (!created) FAIL(created.error().message);
    engine_ = std::move(*created);
  }

  // After each pass that is clean. The violation of the first that is not.
  template <class Visit>
  std::optional<EngineViolation> run(const Visit& visit) {
    std::vector<Sequence> sequences;
    for (int r = 0; r < 2; ++r) {
      std::vector<int32_t> prompt;
      for (int i = 0; i < 20 + 13 * r; ++i) prompt.push_back((i * 37 + 11 * r + 5) % 257);
      auto opened = engine_->open(std::move(prompt));
      REQUIRE(opened.has_value());
      sequences.push_back(std::move(*opened));
    }
    std::vector<Sequence*> rows = {&sequences[0], &sequences[1]};
    bool done = false;
    for (int pass = 0; pass < 3; ++pass) {
      const auto outcome = pass == 0 ? engine_->prefill(rows, {}, done) : engine_->decode(rows, {});
      REQUIRE(outcome.has_value());
      if (!outcome->violations.empty()) return outcome->violations.front();
      visit();
    }
    return std::nullopt;
  }
  std::optional<EngineViolation> run() {
    return run([] {});
  }

  Result<std::string> capsule(int op_index, uint64_t embed_weights = uint64_t{1} << 20) const {
    Violation violation;
    violation.kind = "mismatch";
    return encode_capsule({engine_->last_pass().ops[static_cast<size_t>(op_index)], engine_->last_info(), violation,
                           checkpoint(), "c001",
                           plant_ ? fmt::format("{}@{}", plant_->info().name, plant_->where()) : "", 7, embed_weights});
  }
  const Engine& engine() const { return *engine_; }

 private:
  ModelWeights weights_;
  std::unique_ptr<PlantedFault> plant_;
  std::unique_ptr<Engine> engine_;
};

// The bytes of a capsule of the first violation, which is of the kind given.
std::string failing(const std::string& plant, const EngineConfig& config, const std::string& kind,
                    const std::string& op_kind_name) {
  Fixture fixture(plant, config);
  const auto found = fixture.run();
  REQUIRE(found.has_value());
  INFO(found->op << ": " << found->violation.detail);
  REQUIRE(found->violation.kind == kind);
  REQUIRE(fixture.engine().last_pass().ops[static_cast<size_t>(found->op_index)].kind->name == op_kind_name);
  auto bytes = fixture.capsule(found->op_index);
  if (!bytes) FAIL(bytes.error().message);
  return std::move(*bytes);
}

Capsule parsed(const std::string& bytes) {
  auto capsule = parse_capsule(bytes, "test");
  if (!capsule) FAIL(capsule.error().message);
  return std::move(*capsule);
}

std::optional<OpViolation> replayed(const Capsule& capsule, bool with_plant) {
  const auto device = make_cpu_device();
  auto replay = replay_capsule(capsule, with_plant, *device);
  if (!replay) FAIL(replay.error().message);
  REQUIRE(replay->runs == 3);
  REQUIRE((replay->broken == 0 || replay->broken == 3));
  return replay->violation;
}

const std::string& topk_capsule() {
  static const std::string kBytes = failing("topk_minus_one", packed_config(), "bounds", "topk");
  return kBytes;
}

// The capsule with its JSON changed, and nothing else.
template <class Change>
std::string edited(const std::string& bytes, const Change& change) {
  const auto header =
      parse_safetensors_header({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, bytes.size(), "test");
  REQUIRE(header.has_value());
  auto metadata = header->metadata;
  nlohmann::json json = nlohmann::json::parse(metadata["capsule"]);
  change(json);
  metadata["capsule"] = json.dump();
  return make_safetensors_header(header->entries, metadata) + bytes.substr(header->data_begin);
}

// A folder of this test's own, gone with it.
class Folder {
 public:
  Folder() : path_(fmt::format("/tmp/faultline_capsule_test_{}", ::getpid())) {}
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// The exit code of `faultline replay` and what it says.
std::pair<int, std::string> replay_command(const std::string& arguments) {
  FILE* pipe = ::popen(fmt::format("{} replay {} 2>&1", FAULTLINE_PROGRAM, arguments).c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string output;
  std::array<char, 256> part{};
  while (std::fgets(part.data(), part.size(), pipe) != nullptr) output += part.data();
  return {WEXITSTATUS(::pclose(pipe)), output};
}

// With a checksum that holds.
template <class Change>
std::string resealed(const std::string& bytes, const Change& change) {
  const std::string changed = edited(bytes, change);
  const auto header = parse_safetensors_header({reinterpret_cast<const std::byte*>(changed.data()), changed.size()},
                                               changed.size(), "test");
  REQUIRE(header.has_value());
  auto metadata = header->metadata;
  metadata["xxh64"] = capsule_checksum(metadata["capsule"], std::string_view(changed).substr(header->data_begin));
  return make_safetensors_header(header->entries, metadata) + changed.substr(header->data_begin);
}

template <class Change>
Error refused(const Change& change) {
  const auto capsule = parse_capsule(edited(topk_capsule(), change), "test");
  REQUIRE(!capsule.has_value());
  REQUIRE(capsule.error().message.find("test") != std::string::npos);
  return capsule.error();
}

}  // namespace

TEST_CASE("every op of a clean run is clean alone, from its capsule", "[capsule]") {
  for (const EngineConfig& config : {packed_config(), bf16_config()}) {
    for (const uint64_t embed_weights : {UINT64_MAX, uint64_t{0}}) {
      Fixture fixture("", config);
      const auto visit = [&] {
        const auto& ops = fixture.engine().last_pass().ops;
        for (size_t i = 0; i < ops.size(); ++i) {
          if (ops[i].shadow || ops[i].layer > 1) continue;
          INFO(ops[i].name);
          const auto bytes = fixture.capsule(static_cast<int>(i), embed_weights);
          REQUIRE(bytes.has_value());
          Capsule capsule = parsed(*bytes);
          if (embed_weights == 0) REQUIRE(bind_weights(capsule, checkpoint()).has_value());
          REQUIRE(capsule.weights.empty());
          const auto found = replayed(capsule, true);
          if (found) FAIL(found->kind << ": " << found->detail);
        }
      };
      REQUIRE(!fixture.run(visit).has_value());
    }
  }
}

TEST_CASE("a layout conflict of attention breaks again from its capsule", "[capsule]") {
  const Capsule capsule = parsed(failing("", conflict_config(), "layout", "attention"));
  REQUIRE(capsule.op.kernel->name == "flashinfer");
  REQUIRE(capsule.info.phase == PassPhase::kDecode);
  const auto found = replayed(capsule, true);
  REQUIRE(found.has_value());
  REQUIRE(found->kind == "layout");
}

TEST_CASE("a planted fault breaks from its capsule again, and only while the plant is there", "[capsule]") {
  struct Planted {
    const char* plant;
    const char* kind;
    const char* op_kind;
  };
  for (const Planted& planted : {Planted{"topk_minus_one", "bounds", "topk"},
                                 Planted{"wrong_value@op=layers.0.mlp.down_proj", "mismatch", "linear_w4a4"},
                                 Planted{"pow2_scales", "nonfinite", "attention"}}) {
    INFO(planted.plant);
    const Capsule capsule = parsed(failing(planted.plant, packed_config(), planted.kind, planted.op_kind));
    const auto found = replayed(capsule, true);
    REQUIRE(found.has_value());
    REQUIRE(found->kind == planted.kind);
    REQUIRE(!replayed(capsule, false).has_value());
  }
}

TEST_CASE("named weights are taken from the checkpoint, and only with the bytes that were recorded", "[capsule]") {
  Fixture fixture("wrong_value@op=layers.0.mlp.down_proj", packed_config());
  const auto found = fixture.run();
  REQUIRE(found.has_value());
  const auto bytes = fixture.capsule(found->op_index, 0);
  REQUIRE(bytes.has_value());
  REQUIRE(bytes->size() < fixture.capsule(found->op_index)->size());
  Capsule capsule = parsed(*bytes);
  REQUIRE(!capsule.weights.empty());
  REQUIRE(capsule.model == "synth:tiny");

  const auto other = Checkpoint::open("synth:tiny?seed=99");
  REQUIRE(other.has_value());
  const auto refusal = bind_weights(capsule, *other);
  REQUIRE(!refusal.has_value());
  REQUIRE(refusal.error().kind == ErrorKind::kCannotRun);
  REQUIRE(refusal.error().message.find("down_proj") != std::string::npos);

  REQUIRE(bind_weights(capsule, checkpoint()).has_value());
  REQUIRE(replayed(capsule, true).has_value());
  REQUIRE(!replayed(capsule, false).has_value());
}

TEST_CASE("a weight that the checkpoint does not hold is embedded, whatever its size", "[capsule]") {
  Fixture fixture("zero_input_scale", packed_config());
  const auto found = fixture.run();
  REQUIRE(found.has_value());
  const auto bytes = fixture.capsule(found->op_index, 0);
  REQUIRE(bytes.has_value());
  Capsule capsule = parsed(*bytes);
  REQUIRE(bind_weights(capsule, checkpoint()).has_value());
  const auto again = replayed(capsule, true);
  REQUIRE(again.has_value());
  REQUIRE(again->kind == "nonfinite");
}

TEST_CASE("a capsule on disk is read back, and refused when it was cut or a byte of it has changed", "[capsule]") {
  const Folder folder;
  const std::string path = folder.file("capsules/one.safetensors");
  Fixture fixture("topk_minus_one", packed_config());
  const auto found = fixture.run();
  REQUIRE(found.has_value());
  Violation violation;
  violation.kind = found->violation.kind;
  REQUIRE(write_capsule(path, {fixture.engine().last_pass().ops[static_cast<size_t>(found->op_index)],
                               fixture.engine().last_info(), violation, checkpoint(), "c001", "", 7})
              .has_value());
  const auto capsule = read_capsule(path);
  REQUIRE(capsule.has_value());
  REQUIRE(capsule->configuration == "c001");
  REQUIRE(capsule->violation.kind == "bounds");

  const std::string bytes = *read_file(path);
  std::string changed = bytes;
  changed.back() = static_cast<char>(changed.back() ^ 1);
  for (const std::string& bad : {bytes.substr(0, bytes.size() - 1), bytes.substr(0, 100), std::string{}, changed}) {
    REQUIRE(write_file(path, bad).has_value());
    const auto again = read_capsule(path);
    REQUIRE(!again.has_value());
    REQUIRE(again.error().kind == ErrorKind::kBadInput);
  }
}

TEST_CASE("a capsule of a kernel that this program lacks cannot run here", "[capsule]") {
  REQUIRE(refused([](auto& json) { json["kernel"] = "fast_topk_v9"; }).kind == ErrorKind::kCannotRun);
  REQUIRE(refused([](auto& json) { json["kind"] = "teleport"; }).kind == ErrorKind::kCannotRun);
  // A kernel of another kind: the operands do not fit.
  const Error error = refused([](auto& json) {
    json["kind"] = "rmsnorm";
    json["kernel"] = kernels_of("rmsnorm").front()->name;
  });
  REQUIRE(error.kind == ErrorKind::kBadInput);
}

TEST_CASE("an edited capsule is refused before anything runs", "[capsule]") {
  REQUIRE(parse_capsule(topk_capsule(), "test").has_value());
  REQUIRE(parse_capsule(edited(topk_capsule(), [](auto&) {}), "test").has_value());
  const auto bad = [](const auto& change) { REQUIRE(refused(change).kind == ErrorKind::kBadInput); };
  bad([](auto& json) { json.erase("pass"); });
  bad([](auto& json) { json["layer"] = -2; });
  bad([](auto& json) { json["pass"]["tokens"] = -1; });
  bad([](auto& json) { json["attributes"]["topk"] = "16"; });
  bad([](auto& json) { json["operands"].erase(0); });
  bad([](auto& json) { json["operands"][0]["views"][0]["shape"] = {int64_t{1} << 40, int64_t{1} << 40}; });
  bad([](auto& json) { json["operands"][0]["views"][0]["shape"] = {-4, -4}; });
  bad([](auto& json) { json["operands"][0]["views"][0]["shape"][0] = 1; });
  bad([](auto& json) { json["operands"][0]["views"][0]["dtype"] = "I32"; });
  bad([](auto& json) { json["operands"][0]["views"][0]["data"] = "indices"; });
  bad([](auto& json) { json["operands"][0]["views"] = nlohmann::json::array(); });
  bad([](auto& json) { json["operands"][1]["views"] = {nullptr}; });  // the lengths that the rule counts by
  bad([](auto& json) { json["operands"][5]["views"][0]["shape"] = {int64_t{1} << 20, int64_t{1} << 20}; });
  bad([](auto& json) { json["operands"][5]["range"] = {1}; });
}

TEST_CASE("the geometry of a cache must fit its bytes", "[capsule]") {
  const std::string bytes = failing("", conflict_config(), "layout", "attention");
  const auto bad = [&](const auto& change) {
    const auto capsule = parse_capsule(edited(bytes, [&](auto& json) { change(json["operands"][1]); }), "test");
    REQUIRE(!capsule.has_value());
    REQUIRE(capsule.error().kind == ErrorKind::kBadInput);
  };
  REQUIRE(parse_capsule(edited(bytes, [](auto&) {}), "test").has_value());
  bad([](auto& cache) { cache["read"]["slots"] = -64; });
  bad([](auto& cache) { cache["written"]["slots"] = 128 * 64; });
  bad([](auto& cache) { cache["read"]["slots"] = cache["written"]["slots"] = 1 << 30; });
  bad([](auto& cache) { cache["read"]["latent"] = int64_t{1} << 40; });
  bad([](auto& cache) { cache["read"]["page_size"] = 0; });
  bad([](auto& cache) { cache["read"]["page_size"] = 7; });
  bad([](auto& cache) { cache["read"]["row_stride_bytes"] = 1; });
  bad([](auto& cache) { cache["read"]["format"] = "plain"; });
  bad([](auto& cache) { cache.erase("written"); });
}

TEST_CASE("replay ends with 1 while a capsule fails, 0 once it does not, 125 where it cannot run, 2 on a bad file",
          "[capsule]") {
  const Folder folder;
  const std::string path = folder.file("topk.safetensors");
  std::filesystem::create_directories(folder.file(""));
  REQUIRE(write_file(path, topk_capsule()).has_value());
  auto [code, output] = replay_command(path);
  INFO(output);
  REQUIRE(code == 1);
  REQUIRE(output.find("self_attn.indexer.topk (fast_topk): bounds") != std::string::npos);
  REQUIRE(output.find("3 of 3 runs") != std::string::npos);
  REQUIRE(replay_command(path + " --no-plant").first == 0);

  REQUIRE(write_file(path, resealed(topk_capsule(), [](auto& json) { json["kernel"] = "fast_topk_v9"; })).has_value());
  REQUIRE(replay_command(path).first == 125);
  REQUIRE(write_file(path, topk_capsule().substr(0, 1000)).has_value());
  REQUIRE(replay_command(path).first == 2);
  REQUIRE(replay_command(folder.file("missing.safetensors")).first == 2);

  // An attribute that the kernel cannot do without: it dies, and only the worker does.
  REQUIRE(write_file(path, resealed(topk_capsule(), [](auto& json) { json["attributes"].erase("topk"); })).has_value());
  const auto [death, last_words] = replay_command(path);
  INFO(last_words);
  REQUIRE(death == 1);
  REQUIRE(last_words.find(": abort") != std::string::npos);
}

TEST_CASE("replay takes named weights from the recorded model, or from --model", "[capsule]") {
  const Folder folder;
  const std::string path = folder.file("linear.safetensors");
  std::filesystem::create_directories(folder.file(""));
  Fixture fixture("wrong_value@op=layers.0.mlp.down_proj", packed_config());
  const auto found = fixture.run();
  REQUIRE(found.has_value());
  const auto bytes = fixture.capsule(found->op_index, 0);
  REQUIRE(bytes.has_value());
  REQUIRE(write_file(path, *bytes).has_value());
  REQUIRE(replay_command(path).first == 1);
  REQUIRE(replay_command(path + " --model synth:tiny --no-plant").first == 0);
  REQUIRE(replay_command(path + " --model 'synth:tiny?seed=99'").first == 125);
  REQUIRE(replay_command(path + " --model /no/such/model").first == 2);
  REQUIRE(write_file(path, resealed(*bytes, [](auto& json) { json["model"] = "/no/such/model"; })).has_value());
  REQUIRE(replay_command(path).first == 125);
}

TEST_CASE("a capsule that does not break alone says so, and that it passes is no answer", "[capsule]") {
  const Folder folder;
  const std::string path = folder.file("run/capsules/c003.safetensors");
  const auto device = make_device("cpu");
  REQUIRE(device.has_value());
  Violation violation;
  violation.kind = "mismatch";
  violation.phase = "decode";
  violation.step = 1;
  violation.probe = 2;
  SECTION("an op that keeps its contract alone") {
    Fixture fixture("", packed_config());
    REQUIRE(!fixture.run());
    const CapsuleSource source{
        fixture.engine().last_pass().ops[3], fixture.engine().last_info(), violation, checkpoint(), "c003", "", 7};
    const auto replay = write_proven_capsule(path, source, **device);
    REQUIRE(replay.has_value());
    REQUIRE(replay->broken == 0);
    const auto capsule = read_capsule(path);
    REQUIRE(capsule.has_value());
    REQUIRE(capsule->alone.has_value());
    REQUIRE(capsule->alone->broken == 0);
    REQUIRE(capsule->alone->runs == replay->runs);
    const auto [code, output] = replay_command(path);
    INFO(output);
    REQUIRE(code == 125);
    REQUIRE(output.find("proves nothing") != std::string::npos);
    REQUIRE(output.find("--id c003 (decode step 1, probe 2)") != std::string::npos);
  }
  SECTION("one that breaks alone each time has no such label") {
    Fixture fixture("", conflict_config());
    const auto found = fixture.run();
    REQUIRE(found.has_value());
    const CapsuleSource source{fixture.engine().last_pass().ops[static_cast<size_t>(found->op_index)],
                               fixture.engine().last_info(),
                               violation,
                               checkpoint(),
                               "c003",
                               "topk_minus_one",
                               7};
    const auto replay = write_proven_capsule(path, source, **device);
    REQUIRE(replay.has_value());
    REQUIRE(replay->broken == replay->runs);
    REQUIRE(!read_capsule(path)->alone);
    REQUIRE(replay_command(path).first == 1);
  }
}

TEST_CASE("a capsule of a kernel that is not here names the program that wrote it", "[capsule]") {
  const Error error = refused([](auto& json) {
    json["kernel"] = "fast_topk_v9";
    json["program"] = "9.9.9";
  });
  REQUIRE(error.message.find("in faultline 9.9.9") != std::string::npos);
  REQUIRE(refused([](auto& json) { json["alone"] = {{"broken", 1}, {"runs", 0}}; }).kind == ErrorKind::kBadInput);
}

TEST_CASE("a capsule is held to the tolerance that it was written with", "[capsule]") {
  const std::string bytes =
      failing("wrong_value@op=layers.0.mlp.down_proj", packed_config(), "mismatch", op_kind("linear_w4a4").name);
  const auto broken = [&](double atol) {
    auto capsule = parse_capsule(edited(bytes, [&](auto& json) { json["tolerance"]["atol"] = atol; }), "test");
    REQUIRE(capsule.has_value());
    if (!capsule->weights.empty()) REQUIRE(bind_weights(*capsule, checkpoint()).has_value());
    return replayed(*capsule, true).has_value();
  };
  REQUIRE(broken(1e-4));
  REQUIRE(!broken(1e9));
  REQUIRE(refused([](auto& json) { json["tolerance"]["rtol"] = -1; }).kind == ErrorKind::kBadInput);
}
