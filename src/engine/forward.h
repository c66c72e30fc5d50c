// One prompt through one configuration, greedily: what `faultline forward` writes, and what the golden vectors hold.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace faultline {

struct ForwardResult {
  std::vector<int32_t> input_ids;
  std::vector<float> prefill_logits;  // [S, vocab]
  std::vector<float>
      prefill_hidden;  // [layers + 1, S, hidden]: embeddings, all layers but the last, after the final norm
  std::map<int64_t, std::vector<int32_t>> topk;  // by layer, [S, min(topk, S)] positions; -1 past a row's own keys
  std::vector<int32_t> decode_tokens;            // the tokens fed one by one after the prompt
  std::vector<float> decode_logits;              // [n, vocab]
  int64_t vocab = 0;
  int64_t hidden = 0;
  int64_t topk_width = 0;
};

// All prompts as one ragged batch; `decode` tokens are fed to each. `weights` lie on the device of `mirror` (none: the
// CPU). Errors: a violation of a check, a kernel fault, bad ids.
Result<std::vector<ForwardResult>> run_forward(const ModelWeights& weights, const EngineConfig& config,
                                               const std::vector<std::vector<int32_t>>& prompts, int64_t decode,
                                               HostMirror* mirror = nullptr);

}  // namespace faultline
