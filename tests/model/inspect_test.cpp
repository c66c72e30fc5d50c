#include "model/inspect.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <string>

#include "fixtures.h"
#include "model/checkpoint.h"
#include "model/scan.h"

using namespace faultline;
using fixtures::mentions;
using fixtures::poke;
namespace fs = std::filesystem;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Inspection inspect(const std::string& spec, bool all = false) {
  return inspect_checkpoint(spec, InspectOptions{all});
}

InspectFault only_fault(const Inspection& inspection) {
  for (const InspectFault& fault : inspection.faults) UNSCOPED_INFO(fault.message);
  REQUIRE(inspection.faults.size() == 1);
  CHECK(inspection.exit_code() == 1);
  return inspection.faults[0];
}

bool has_note(const Inspection& inspection, std::string_view part) {
  for (const std::string& note : inspection.notes) {
    if (mentions(note, part)) return true;
  }
  return false;
}

const ModuleRow& row(const Inspection& inspection, const std::string& module) {
  for (const ModuleRow& candidate : inspection.modules) {
    if (candidate.module == module) return candidate;
  }
  FAIL("no module " << module);
  return inspection.modules.front();
}

// The checkpoint's tensors in one file, so that a test can add, drop and rename them.
class Editable {
 public:
  explicit Editable(const fixtures::TempFolder& folder) : path_(fixtures::small_checkpoint(folder, "model", 1)) {
    const std::string shard = fixtures::shard_paths(path_)[0];
    const std::string content = fixtures::read_raw(shard);
    const auto header = parse_safetensors_header({reinterpret_cast<const std::byte*>(content.data()), content.size()},
                                                 content.size(), shard);
    REQUIRE(header);
    for (const SafetensorsEntry& entry : header->entries) {
      fixtures::RawTensor tensor{entry.name, entry.dtype, {}, content.substr(entry.begin, entry.bytes())};
      tensor.shape.assign(entry.shape.begin(), entry.shape.begin() + entry.rank);
      tensors.push_back(std::move(tensor));
    }
    fs::remove(shard);
    fs::remove(path_ + "/model.safetensors.index.json");
  }
  fixtures::RawTensor& at(const std::string& name) {
    for (fixtures::RawTensor& tensor : tensors) {
      if (tensor.name == name) return tensor;
    }
    FAIL("no tensor " << name);
    return tensors.front();
  }
  void drop(const std::string& name) {
    std::erase_if(tensors, [&](const fixtures::RawTensor& tensor) { return tensor.name == name; });
  }
  const std::string& save() {
    std::stable_sort(tensors.begin(), tensors.end(), [](const fixtures::RawTensor& a, const fixtures::RawTensor& b) {
      return dtype_bytes(a.dtype) > dtype_bytes(b.dtype);
    });
    fixtures::write_raw(path_ + "/model.safetensors", fixtures::pack(tensors));
    return path_;
  }

  std::vector<fixtures::RawTensor> tensors;

 private:
  std::string path_;
};

}  // namespace

TEST_CASE("golden and synthetic checkpoints are sound") {
  for (const std::string& spec :
       {fixtures::golden("tiny"), fixtures::golden("slim"), fixtures::golden("wide"), fixtures::golden("shared-index"),
        std::string("synth:tiny"), std::string("synth:slim"), std::string("synth:wide"),
        std::string("synth:shared-index")}) {
    const Inspection inspection = inspect(spec, true);
    INFO(spec);
    for (const InspectFault& fault : inspection.faults) UNSCOPED_INFO(fault.message);
    CHECK(inspection.faults.empty());
    CHECK(inspection.notes.empty());
    CHECK(inspection.exit_code() == 0);
    CHECK(inspection.skipped_tensors == 0);
    CHECK(inspection.scanned_tensors > 100);
  }
}

TEST_CASE("modules are counted by precision, with their scales' bytes") {
  const Inspection inspection = inspect(fixtures::golden("tiny"));
  CHECK(inspection.tensors == 365);
  CHECK(inspection.files.size() == 2);
  const ModuleRow& experts = row(inspection, "mlp.experts.*.gate_proj");
  CHECK(experts.precision == "NVFP4");
  CHECK(experts.count == 24);
  CHECK(experts.bytes == 24 * (32 * 32 + 32 * 4 + 8));
  CHECK(row(inspection, "mlp.shared_experts.up_proj").precision == "BF16");
  CHECK(row(inspection, "mlp.gate.e_score_correction_bias").precision == "F32");
  CHECK(row(inspection, "self_attn.q_a_proj").count == 4);
  uint64_t sum = 0;
  for (const ModuleRow& module : inspection.modules) sum += module.bytes;
  CHECK(sum == inspection.tensor_bytes);
}

TEST_CASE("each bad scale is found with its place") {
  const fixtures::TempFolder folder;
  const std::string path = fixtures::small_checkpoint(folder);
  const std::string module = "model.layers.1.mlp.experts.2.down_proj";
  SECTION("input_scale 0") {
    poke(path, module + ".input_scale", 0, 0.0f);
    const InspectFault fault = only_fault(inspect(path));
    CHECK(fault.kind == FaultKind::kScale);
    CHECK(fault.tensor == module + ".input_scale");
    CHECK(mentions(fault.message, "is zero"));
  }
  SECTION("input_scale NaN") {
    poke(path, module + ".input_scale", 0, kNan);
    CHECK(mentions(only_fault(inspect(path)).message, "is NaN"));
  }
  SECTION("weight_scale_2 infinite or negative") {
    poke(path, module + ".weight_scale_2", 0, kInfinity);
    CHECK(mentions(only_fault(inspect(path)).message, "is infinite"));
    poke(path, module + ".weight_scale_2", 0, -1.0f);
    CHECK(mentions(only_fault(inspect(path)).message, "is negative"));
  }
  SECTION("block scale NaN, both codes") {
    poke(path, module + ".weight_scale", 5, uint8_t{0x7F});
    poke(path, module + ".weight_scale", 9, uint8_t{0xFF});
    const InspectFault fault = only_fault(inspect(path));
    CHECK(fault.tensor == module + ".weight_scale");
    CHECK(mentions(fault.message, "2 scale(s) of 128 are not usable, the first at [2, 1] is NaN"));
  }
  SECTION("block scale zero: wrong only where its codes are not zero") {
    poke(path, module + ".weight_scale", 3, uint8_t{0});
    CHECK(mentions(only_fault(inspect(path)).message, "at [1, 1] is zero"));
    // Block 3 of 16 codes is bytes 24 to 31; 0x80 is a pair of +0 and -0.
    const std::string zeros("\0\x80\x08\x88\0\0\0\0", 8);
    poke(path, module + ".weight", 24, zeros.data(), zeros.size());
    CHECK(inspect(path).exit_code() == 0);
  }
}

TEST_CASE("values that are not finite are found in norms, biases and weights") {
  const fixtures::TempFolder folder;
  const std::string path = fixtures::small_checkpoint(folder);
  SECTION("norm") {
    poke(path, "model.layers.0.input_layernorm.weight", 6, uint16_t{0x7FC0});
    const InspectFault fault = only_fault(inspect(path));
    CHECK(fault.kind == FaultKind::kValue);
    CHECK(mentions(fault.message,
                   "model.layers.0.input_layernorm.weight: 1 value(s) of 64 is not usable, the first at [3] is NaN"));
  }
  SECTION("router bias") {
    poke(path, "model.layers.1.mlp.gate.e_score_correction_bias", 8, kInfinity);
    CHECK(mentions(only_fault(inspect(path)).message, "at [2] is infinite"));
  }
  SECTION("projection") {
    poke(path, "lm_head.weight", 2 * (64 * 3 + 1), uint16_t{0xFF80});
    CHECK(mentions(only_fault(inspect(path)).message, "at [3, 1] is infinite"));
  }
}

TEST_CASE("large tensors are scanned on request only, scales always") {
  const fixtures::TempFolder folder;
  const std::string path = fixtures::small_checkpoint(folder, "model", 1, {{"vocab_size", "9000"}});
  poke(path, "lm_head.weight", 0, uint16_t{0x7FC0});
  const Inspection quick = inspect(path);
  CHECK(quick.exit_code() == 0);
  CHECK(quick.skipped_tensors == 2);
  CHECK(quick.skipped_bytes == 2 * 9000 * 64 * 2);
  const Inspection thorough = inspect(path, true);
  CHECK(only_fault(thorough).tensor == "lm_head.weight");
  CHECK(thorough.skipped_tensors == 0);
}

TEST_CASE("missing, unexpected and misshapen tensors are all listed") {
  const fixtures::TempFolder folder;
  Editable checkpoint(folder);
  SECTION("missing norm, projection, scale") {
    checkpoint.drop("model.norm.weight");
    checkpoint.drop("model.layers.0.self_attn.o_proj.weight");
    checkpoint.drop("model.layers.1.mlp.experts.0.up_proj.weight_scale_2");
    const Inspection inspection = inspect(checkpoint.save());
    REQUIRE(inspection.faults.size() == 3);
    CHECK(inspection.faults[0].tensor == "model.layers.0.self_attn.o_proj.weight");
    CHECK(inspection.faults[0].kind == FaultKind::kMissing);
    CHECK(inspection.faults[1].kind == FaultKind::kFormat);
    CHECK(mentions(inspection.faults[1].message, "weight_scale_2 is missing"));
    CHECK(inspection.faults[2].tensor == "model.norm.weight");
    CHECK(inspection.exit_code() == 1);
  }
  SECTION("unexpected") {
    checkpoint.tensors.push_back({"model.layers.0.self_attn.q_a_prj.weight", Dtype::kU8, {2}, "12"});
    checkpoint.tensors.push_back({"model.layers.9.extra", Dtype::kU8, {2}, "12"});
    const Inspection inspection = inspect(checkpoint.save());
    REQUIRE(inspection.faults.size() == 2);
    CHECK(inspection.faults[0].kind == FaultKind::kUnexpected);
    CHECK(mentions(inspection.faults[0].message, "q_a_prj.weight (U8 [2]) belongs to no module"));
  }
  SECTION("KV scales and MTP layers are no faults") {
    checkpoint.tensors.push_back({"model.layers.0.self_attn.k_proj.k_scale", Dtype::kF32, {}, "1234"});
    checkpoint.tensors.push_back({"model.layers.0.self_attn.v_proj.v_scale", Dtype::kF32, {}, "1234"});
    checkpoint.tensors.push_back({"model.layers.2.eh_proj.weight", Dtype::kF32, {}, "1234"});
    const Inspection inspection = inspect(checkpoint.save());
    CHECK(inspection.faults.empty());
    CHECK(inspection.mtp_tensors == 1);
    CHECK(has_note(inspection, "1 tensors of MTP layers"));
  }
  SECTION("shapes") {
    checkpoint.at("model.norm.weight").shape = {32, 2};
    fixtures::RawTensor& gate = checkpoint.at("model.layers.1.mlp.gate.weight");
    gate.shape = {64, 8};
    const Inspection inspection = inspect(checkpoint.save());
    REQUIRE(inspection.faults.size() == 2);
    CHECK(inspection.faults[0].kind == FaultKind::kShape);
    CHECK(mentions(inspection.faults[0].message,
                   "model.layers.1.mlp.gate.weight has shape [64, 8], but the config calls for [8, 64]"));
    CHECK(mentions(inspection.faults[1].message, "model.norm.weight has shape [32, 2], but the config calls for [64]"));
  }
  SECTION("dtype of a norm") {
    fixtures::RawTensor& norm = checkpoint.at("model.norm.weight");
    norm.dtype = Dtype::kI32;
    norm.data.resize(64 * 4);
    const Inspection inspection = inspect(checkpoint.save());
    CHECK(mentions(only_fault(inspection).message, "model.norm.weight is I32"));
  }
}

TEST_CASE("FP8 weights and their scales are scanned") {
  const fixtures::TempFolder folder;
  Editable checkpoint(folder);
  const std::string module = "model.layers.0.self_attn.o_proj";
  fixtures::RawTensor& weight = checkpoint.at(module + ".weight");
  weight.dtype = Dtype::kF8E4M3;
  weight.data = std::string(64 * 128, '\x38');
  SECTION("sound per tensor") {
    checkpoint.tensors.push_back({module + ".weight_scale", Dtype::kF32, {}, std::string("\0\0\x80\x3F", 4)});
    const Inspection inspection = inspect(checkpoint.save());
    CHECK(inspection.exit_code() == 0);
    CHECK(inspection.modules.size() > 20);
    bool found = false;
    for (const ModuleRow& module_row : inspection.modules) found |= module_row.precision == "FP8";
    CHECK(found);
  }
  SECTION("a NaN code and a zero block scale") {
    weight.data[130] = '\x7F';
    checkpoint.tensors.push_back({module + ".weight_scale_inv", Dtype::kF32, {1, 1}, std::string(4, '\0')});
    const Inspection inspection = inspect(checkpoint.save());
    REQUIRE(inspection.faults.size() == 2);
    CHECK(mentions(inspection.faults[0].message, "at [1, 2] is NaN"));
    CHECK(mentions(inspection.faults[1].message,
                   "weight_scale_inv: 1 scale(s) of 1 is not usable, the first at [0, 0] is zero"));
  }
}

TEST_CASE("file faults are listed beside all others, and decide the exit code") {
  const fixtures::TempFolder folder;
  const std::string path = fixtures::small_checkpoint(folder);
  const std::vector<std::string> shards = fixtures::shard_paths(path);
  SECTION("a short shard is readable but faulty, and nothing past its end is touched") {
    poke(path, "model.layers.0.input_layernorm.weight", 0, uint16_t{0x7FC0});
    fs::resize_file(shards[1], fs::file_size(shards[1]) - 100);
    const Inspection inspection = inspect(path, true);
    CHECK(inspection.exit_code() == 1);
    REQUIRE(inspection.faults.size() >= 2);
    CHECK(inspection.faults[0].kind == FaultKind::kFile);
    CHECK(mentions(inspection.faults[0].message, "cut short"));
    CHECK(inspection.faults.back().kind == FaultKind::kValue);
  }
  SECTION("a missing shard: all its tensors are named") {
    fs::remove(shards[1]);
    const Inspection inspection = inspect(path);
    CHECK(inspection.exit_code() == 2);
    CHECK(inspection.faults[0].kind == FaultKind::kUnreadable);
    CHECK(inspection.faults.size() > 10);
  }
  SECTION("a header that claims too much") {
    std::string content = fixtures::read_raw(shards[0]);
    content[3] = '\x10';
    fixtures::write_raw(shards[0], content);
    CHECK(inspect(path).exit_code() == 2);
  }
  SECTION("no config") {
    fs::remove(path + "/config.json");
    const Inspection inspection = inspect(path);
    CHECK(inspection.exit_code() == 2);
    CHECK(inspection.files.size() == 2);
  }
  SECTION("nothing at all") {
    CHECK(inspect(folder / "none").exit_code() == 2);
    CHECK(inspect("synth:nothing").exit_code() == 2);
  }
  SECTION("overlapping tensors and gaps") {
    const fixtures::Place norm = fixtures::find_tensor(path, "model.norm.weight");
    std::string content = fixtures::read_raw(norm.path);
    const size_t at = content.find("\"data_offsets\":[", content.find("\"model.norm.weight\"")) + 16;
    const std::string begin = content.substr(at, content.find(',', at) - at);
    const std::string moved = std::to_string(std::stoll(begin) - 4);
    const std::string end = std::to_string(std::stoll(begin) - 4 + 128);
    REQUIRE(moved.size() == begin.size());
    content.replace(at, moved.size() + 1 + end.size(), moved + "," + end);
    fixtures::write_raw(norm.path, content);
    const Inspection inspection = inspect(path);
    CHECK(inspection.exit_code() == 1);
    REQUIRE(inspection.faults.size() == 2);
    CHECK(mentions(inspection.faults[0].message, "and model.norm.weight overlap (4 bytes"));
    CHECK(mentions(inspection.faults[1].message, "4 bytes at file offset"));
    CHECK_FALSE(Checkpoint::open(path));
  }
}

TEST_CASE("metadata that disagrees with the files is noted") {
  const fixtures::TempFolder folder;
  const std::string path = fixtures::small_checkpoint(folder);
  fixtures::write_raw(
      path + "/hf_quant_config.json",
      R"({"quantization": {"quant_algo": "NVFP4", "group_size": 32, "exclude_modules": ["*shared_experts*"]}})");
  const Inspection inspection = inspect(path);
  CHECK(inspection.exit_code() == 0);
  CHECK(has_note(inspection, "3 module(s) are quantized although"));
  CHECK(has_note(inspection, "group_size 32; NVFP4 has 16"));
}

TEST_CASE("a zero embedding row is noted, with what it does") {
  CHECK(has_note(inspect("synth:tiny?zero_row=11"), "the first is token 11"));
  CHECK_FALSE(has_note(inspect("synth:tiny"), "all zero"));
}

TEST_CASE("coordinates of flat indices") {
  TensorView view = make_view(nullptr, Dtype::kF32, {2, 3, 4});
  CHECK(coordinates(view, 0) == "[0, 0, 0]");
  CHECK(coordinates(view, 23) == "[1, 2, 3]");
  CHECK(coordinates(make_view(nullptr, Dtype::kF32, {}), 0) == "[]");
}
