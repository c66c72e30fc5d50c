// The weight files of a checkpoint folder: which there are, their headers, and everything that is wrong with them.
//
// With model.safetensors.index.json the files that it names count; without it, model.safetensors. Other *.safetensors
// files in the folder are none of the model's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "model/mapping.h"
#include "model/safetensors.h"

namespace faultline {

struct WeightFile {
  std::string name;  // relative to the folder
  UniqueFd fd;
  Mapping mapping;
  SafetensorsHeader header;
  int64_t modified_ns = 0;  // mtime
};

struct WeightProblem {
  bool unreadable = false;  // a file is missing or its header cannot be read; otherwise the rest can still be looked at
  std::string message;
};

struct WeightFiles {
  std::vector<WeightFile> files;  // those whose headers could be read
  std::vector<WeightProblem> problems;
};

// Opens and maps them all. Never fails as a whole: what is wrong is in `problems`.
WeightFiles open_weight_files(const std::string& folder);

inline constexpr const char* kIndexFileName = "model.safetensors.index.json";
inline constexpr const char* kSingleFileName = "model.safetensors";
inline constexpr const char* kConfigFileName = "config.json";
inline constexpr const char* kQuantFileName = "hf_quant_config.json";

}  // namespace faultline
