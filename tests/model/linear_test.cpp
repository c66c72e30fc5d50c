#include "model/linear.h"

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "fixtures.h"

using namespace faultline;
using fixtures::mentions;

namespace {

// Tensors by name, with memory of their own.
class Store {
 public:
  template <class T>
  void add(const std::string& name, Dtype dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
    Stored& stored = tensors_[name];
    stored.bytes.resize(values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(stored.bytes.data(), values.data(), stored.bytes.size());
    stored.view.data = stored.bytes.data();
    stored.view.dtype = dtype;
    stored.view.rank = static_cast<int>(shape.size());
    int64_t stride = 1;
    for (size_t i = shape.size(); i-- > 0;) {
      stored.view.shape[i] = shape[i];
      stored.view.stride[i] = stride;
      stride *= shape[i];
    }
    REQUIRE(stored.view.elements() == static_cast<int64_t>(stored.bytes.size() / dtype_bytes(dtype)));
  }
  void scalar(const std::string& name, float value) { add<float>(name, Dtype::kF32, {}, {value}); }
  void remove(const std::string& name) { tensors_.erase(name); }

  Result<LinearWeight> linear() const {
    return resolve_linear("m", [this](std::string_view name) -> const TensorView* {
      const auto found = tensors_.find(std::string(name));
      return found == tensors_.end() ? nullptr : &found->second.view;
    });
  }
  std::string refused() const {
    const auto result = linear();
    REQUIRE_FALSE(result);
    CHECK(result.error().kind == ErrorKind::kBadInput);
    return result.error().message;
  }

 private:
  struct Stored {
    std::vector<std::byte> bytes;
    TensorView view;
  };
  std::map<std::string, Stored> tensors_;
};

std::vector<float> row_of(const LinearWeight& weight, int64_t row) {
  std::vector<float> values(static_cast<size_t>(weight.in_features));
  dequantize_row(weight, row, values.data());
  return values;
}

// [2, 32]: row 0 holds codes 0..15 twice, row 1 holds 6 and -6.
Store nvfp4() {
  Store store;
  std::vector<uint8_t> codes;
  for (int i = 0; i < 16; ++i) codes.push_back(static_cast<uint8_t>((2 * i % 16) | ((2 * i + 1) % 16) << 4));
  for (int i = 0; i < 16; ++i) codes.push_back(0xF7);
  store.add<uint8_t>("m.weight", Dtype::kU8, {2, 16}, codes);
  store.add<uint8_t>("m.weight_scale", Dtype::kF8E4M3, {2, 2},
                     {float_to_e4m3(1.0f), float_to_e4m3(3.0f), float_to_e4m3(0.5f), float_to_e4m3(448.0f)});
  store.scalar("m.weight_scale_2", 0.25f);
  store.scalar("m.input_scale", 0.002f);
  return store;
}

}  // namespace

TEST_CASE("plain weights keep their dtype as precision") {
  Store store;
  store.add<uint16_t>("m.weight", Dtype::kBF16, {2, 2}, {0x3F80, 0x4000, 0xBF80, 0});
  REQUIRE(store.linear());
  CHECK(store.linear()->precision == Precision::kBf16);
  CHECK(row_of(*store.linear(), 0) == std::vector<float>{1, 2});
  CHECK(row_of(*store.linear(), 1) == std::vector<float>{-1, 0});
  CHECK(store.linear()->block_scale.data == nullptr);
  CHECK(store.linear()->input_scale.data == nullptr);

  store.add<uint16_t>("m.weight", Dtype::kF16, {1, 2}, {0x3C00, 0xC000});
  CHECK(store.linear()->precision == Precision::kF16);
  CHECK(row_of(*store.linear(), 0) == std::vector<float>{1, -2});

  store.add<float>("m.weight", Dtype::kF32, {1, 2}, {0.1f, 3});
  CHECK(store.linear()->precision == Precision::kF32);
  CHECK(row_of(*store.linear(), 0) == std::vector<float>{0.1f, 3});
}

TEST_CASE("NVFP4: codes, block scales and the global scale multiply, low nibble first") {
  const Store store = nvfp4();
  const auto linear = store.linear();
  REQUIRE(linear);
  CHECK(linear->precision == Precision::kNvfp4);
  CHECK(linear->name == "m");
  CHECK(linear->out_features == 2);
  CHECK(linear->in_features == 32);
  CHECK(linear->global_scale.load(0) == 0.25f);
  CHECK(linear->input_scale.load(0) == 0.002f);
  const std::vector<float> first = row_of(*linear, 0);
  for (size_t k = 0; k < 32; ++k) {
    CHECK(first[k] == e2m1_to_float(static_cast<uint8_t>(k % 16)) * (k < 16 ? 0.25f : 0.75f));
  }
  const std::vector<float> second = row_of(*linear, 1);
  CHECK(second[0] == 6 * 0.125f);
  CHECK(second[1] == -6 * 0.125f);
  CHECK(second[16] == 6 * 112.0f);
}

TEST_CASE("NVFP4 without an input scale is weight-only, not wrong") {
  Store store = nvfp4();
  store.remove("m.input_scale");
  REQUIRE(store.linear());
  CHECK(store.linear()->input_scale.data == nullptr);
}

TEST_CASE("NVFP4 with wrong or missing scales is refused, by name") {
  Store store = nvfp4();
  SECTION("no block scale") {
    store.remove("m.weight_scale");
    CHECK(mentions(store.refused(), "m.weight_scale is missing"));
  }
  SECTION("no global scale") {
    store.remove("m.weight_scale_2");
    CHECK(mentions(store.refused(), "m.weight_scale_2 is missing"));
  }
  SECTION("block scale of another shape") {
    store.add<uint8_t>("m.weight_scale", Dtype::kF8E4M3, {2, 1}, {0x38, 0x38});
    CHECK(mentions(store.refused(), "F8_E4M3 [2, 1]; NVFP4 needs F8_E4M3 [2, 2]"));
  }
  SECTION("block scale of another dtype") {
    store.add<float>("m.weight_scale", Dtype::kF32, {2, 2}, {1, 1, 1, 1});
    CHECK(mentions(store.refused(), "m.weight_scale is F32 [2, 2]"));
  }
  SECTION("global scale that is no scalar") {
    store.add<float>("m.weight_scale_2", Dtype::kF32, {2}, {1, 1});
    CHECK(mentions(store.refused(), "m.weight_scale_2 is F32 [2]; it must be one F32 number"));
  }
  SECTION("columns that are no multiple of 16") {
    store.add<uint8_t>("m.weight", Dtype::kU8, {2, 12}, std::vector<uint8_t>(24));
    CHECK(mentions(store.refused(), "24 columns are no multiple of the NVFP4 block of 16"));
  }
  SECTION("scalars stored as a list of one") {
    store.add<float>("m.weight_scale_2", Dtype::kF32, {1}, {0.5f});
    REQUIRE(store.linear());
    CHECK(row_of(*store.linear(), 1)[0] == 6 * 0.25f);
  }
}

TEST_CASE("FP8 per tensor has one scale") {
  Store store;
  store.add<uint8_t>("m.weight", Dtype::kF8E4M3, {1, 3}, {float_to_e4m3(1), float_to_e4m3(-448), float_to_e4m3(0.5f)});
  store.scalar("m.weight_scale", 0.5f);
  store.scalar("m.input_scale", 0.01f);
  const auto linear = store.linear();
  REQUIRE(linear);
  CHECK(linear->precision == Precision::kFp8Tensor);
  CHECK(linear->block_scale.elements() == 1);
  CHECK(linear->global_scale.data == nullptr);
  CHECK(linear->input_scale.data != nullptr);
  CHECK(row_of(*linear, 0) == std::vector<float>{0.5f, -224, 0.25f});
}

TEST_CASE("FP8 in blocks of 128x128 has a scale for each, cut blocks included") {
  constexpr int64_t kRows = 130;
  constexpr int64_t kColumns = 300;
  for (const char* name : {"m.weight_scale_inv", "m.weight_scale"}) {
    Store store;
    store.add<uint8_t>("m.weight", Dtype::kF8E4M3, {kRows, kColumns},
                       std::vector<uint8_t>(kRows * kColumns, float_to_e4m3(2)));
    store.add<float>(name, Dtype::kF32, {2, 3}, {1, 2, 3, 4, 5, 6});
    const auto linear = store.linear();
    REQUIRE(linear);
    CHECK(linear->precision == Precision::kFp8Block);
    CHECK(linear->block_scale.dim(0) == 2);
    CHECK(linear->block_scale.dim(1) == 3);
    const std::vector<float> top = row_of(*linear, 127);
    CHECK(top[127] == 2);
    CHECK(top[128] == 4);
    CHECK(top[299] == 6);
    const std::vector<float> bottom = row_of(*linear, 128);
    CHECK(bottom[0] == 8);
    CHECK(bottom[299] == 12);
  }
}

TEST_CASE("FP8 with wrong or missing scales is refused") {
  Store store;
  store.add<uint8_t>("m.weight", Dtype::kF8E4M3, {130, 2}, std::vector<uint8_t>(260));
  CHECK(mentions(store.refused(), "neither m.weight_scale nor m.weight_scale_inv"));
  store.add<float>("m.weight_scale", Dtype::kF32, {130, 1}, std::vector<float>(130));
  CHECK(mentions(store.refused(), "one F32 number, or F32 [2, 1]"));
  store.add<uint16_t>("m.weight_scale", Dtype::kBF16, {2, 1}, {0x3F80, 0x3F80});
  CHECK(mentions(store.refused(), "m.weight_scale is BF16 [2, 1]"));
}

TEST_CASE("weights that are no projection are refused") {
  Store store;
  CHECK(mentions(store.refused(), "tensor m.weight is missing"));
  store.add<uint8_t>("m.weight_packed", Dtype::kU8, {1, 1}, {0});
  CHECK(mentions(store.refused(), "compressed-tensors"));
  store.add<int32_t>("m.weight", Dtype::kI32, {1, 1}, {0});
  CHECK(mentions(store.refused(), "m.weight is I32"));
  store.add<float>("m.weight", Dtype::kF32, {2}, {0, 1});
  CHECK(mentions(store.refused(), "a projection is a matrix"));
  store.add<float>("m.weight", Dtype::kF32, {0, 2}, {});
  CHECK(mentions(store.refused(), "a projection is a matrix"));
}

TEST_CASE("precisions have names") {
  CHECK(precision_name(Precision::kNvfp4) == "NVFP4");
  CHECK(precision_name(Precision::kFp8Tensor) == "FP8");
  CHECK(precision_name(Precision::kFp8Block) == "FP8-128x128");
}
