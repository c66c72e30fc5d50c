// Signatures: what two failures must share to be searched as one. Text that a person reads and a report greps for:
// "layout at self_attn.attention (flashinfer, decode)". The layer, step, rank and coordinates are left out on purpose:
// the same fault shows at other places under other settings.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/findings.h"

namespace faultline {

// "layers.3.mlp.experts.7.gate_up" → "mlp.experts.*.gate_up": without the layer's number; other numbers become "*".
std::string op_pattern(std::string_view op);

struct SignatureParts {
  std::string kind;  // a verdict name
  std::string
      op;  // of the first violation, or of the last progress mark where the worker died; empty: none was reached
  std::string kernel;    // empty: not known
  std::string phase;     // "prefill", "decode"; empty: not known
  bool setting = false;  // the gap is to the model reference: not the same failure as a gap to the kernel's own spec
  std::string attribute = {};  // of a setting
};

std::string signature_text(const SignatureParts& parts);

// The signature of a failed configuration: of its first violation, else of its verdict. Empty for one that did not
// fail. A worker that died on a signal leaves no violation; the driver then fills first_violation from the progress
// mark.
std::string signature_of(const ConfigurationResult& configuration);
std::string signature_of(const Violation& violation);

struct SignatureGroup {
  std::string signature;
  std::string plant;
  std::vector<std::string> configurations;  // ids, in the order given
};

// Failures by (plant, signature), in the order of their first configuration.
std::vector<SignatureGroup> group_failures(const std::vector<ConfigurationResult>& configurations);

}  // namespace faultline
