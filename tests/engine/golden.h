// Golden vectors: what Hugging Face transformers computes from the checkpoints in tests/goldens (see its README).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "model/safetensors.h"
#include "testing.h"

namespace faultline {

struct Golden {
  std::string bytes;
  std::map<std::string, TensorView> tensors;

  bool has(const std::string& name) const { return tensors.count(name) != 0; }
  std::vector<float> floats(const std::string& name) const {
    const TensorView& view = tensors.at(name);
    std::vector<float> values;
    for (int64_t i = 0; i < view.elements(); ++i) values.push_back(view.load(i));
    return values;
  }
  std::vector<int32_t> integers(const std::string& name) const {
    const TensorView& view = tensors.at(name);
    return {view.as<int32_t>(), view.as<int32_t>() + view.elements()};
  }
};

inline std::string golden_folder(const std::string& variant) {
  return std::string(FAULTLINE_SOURCE_DIR) + "/tests/goldens/" + variant;
}

inline Golden load_golden(const std::string& variant) {
  Golden golden;
  auto bytes = read_file(golden_folder(variant) + "/golden.safetensors");
  REQUIRE(bytes);
  golden.bytes = std::move(*bytes);
  const auto* start = reinterpret_cast<const std::byte*>(golden.bytes.data());
  auto header = parse_safetensors_header({start, golden.bytes.size()}, golden.bytes.size(), variant);
  REQUIRE(header);
  for (const SafetensorsEntry& entry : header->entries) {
    TensorView view;
    view.data = reinterpret_cast<std::byte*>(golden.bytes.data()) + entry.begin;
    view.dtype = entry.dtype;
    view.rank = entry.rank;
    view.shape = entry.shape;
    int64_t stride = 1;
    for (int i = view.rank - 1; i >= 0; --i) {
      view.stride[static_cast<size_t>(i)] = stride;
      stride *= view.shape[static_cast<size_t>(i)];
    }
    golden.tensors[entry.name] = view;
  }
  return golden;
}

}  // namespace faultline
