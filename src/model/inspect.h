// What a checkpoint holds, how it is stored, and everything that is wrong with it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/quant_config.h"

namespace faultline {

enum class FaultKind : uint8_t {
  kUnreadable,  // a file is missing or makes no sense: exit code 2
  kFile,        // a file is short, tensors overlap or leave gaps, the index is wrong
  kMissing,     // a tensor that the config calls for is not there
  kUnexpected,  // a tensor that nothing calls for
  kShape,       // another shape than the config says
  kFormat,      // a dtype or a layout of scales that no precision has
  kScale,       // a scale that is NaN, infinite, zero or negative
  kValue,       // a weight that is NaN or infinite
};
std::string_view fault_kind_name(FaultKind kind);  // "unreadable", "file", …

struct InspectFault {
  FaultKind kind = FaultKind::kFile;
  std::string tensor;   // empty: of a file
  std::string message;  // says what is wrong, with the first index and the count
};

// All tensors of one sort: "self_attn.q_a_proj", "mlp.experts.*.gate_proj", with their scales.
struct ModuleRow {
  std::string module;
  std::string precision;  // precision_name(), or the dtype's name
  int64_t count = 0;
  uint64_t bytes = 0;
};

struct FileRow {
  std::string name;
  int64_t tensors = 0;
  uint64_t bytes = 0;
};

struct Inspection {
  std::string spec;
  std::optional<ModelConfig> config;
  std::optional<QuantConfig> quantization;
  std::vector<FileRow> files;
  std::vector<ModuleRow> modules;  // in forward order
  int64_t tensors = 0;
  uint64_t tensor_bytes = 0;
  int64_t mtp_tensors = 0;  // recognised and left out: neither checked nor scanned
  int64_t scanned_tensors = 0;
  uint64_t scanned_bytes = 0;
  int64_t skipped_tensors = 0;  // too large to be scanned by default
  uint64_t skipped_bytes = 0;
  std::vector<std::string> notes;  // worth knowing, not wrong
  std::vector<InspectFault> faults;

  // 0 sound, 1 readable but faulty, 2 unreadable.
  int exit_code() const;
};

struct InspectOptions {
  bool scan_all = false;  // otherwise: all scales, and tensors up to kSmallTensorBytes
};
inline constexpr uint64_t kSmallTensorBytes = uint64_t{1} << 20;

// `spec` as for Checkpoint::open. Whatever is wrong becomes a fault.
Inspection inspect_checkpoint(const std::string& spec, const InspectOptions& options);

}  // namespace faultline
