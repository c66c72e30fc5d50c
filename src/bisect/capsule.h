// Capsules: one op's real inputs, its kernel's identity and its contract, in one safetensors file that replays alone.
//
// File: the embedded tensors (every input that is no weight, contiguous; small weights), and a "__metadata__" of texts:
//   format   "faultline-capsule"
//   schema   "1"
//   capsule  JSON: op, kind, kernel (name, provenance; program and device that ran it), tolerance,
//            attributes, the pass (phase, step, live counts), operands in the kind's order, the violation, model,
//            plant, seed; "alone" where the op does not break alone as it did in its run
//   xxh64    of the JSON text and the data behind the header, against bit rot and careless edits
// Weights that are not embedded are named, with the part of the tensor that the op sees and a checksum of the whole
// tensor. A file holds no code; it is somebody else's input and is parsed as such.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/hooks.h"
#include "model/checkpoint.h"
#include "report/findings.h"

namespace faultline {

inline constexpr uint64_t kMaxEmbeddedBytes = uint64_t{64} << 20;  // tensors of one capsule
inline constexpr uint64_t kMaxCapsuleBytes = uint64_t{96} << 20;   // of a file that is read

// Of how many replays how many broke.
struct CapsuleRuns {
  int broken = 0;
  int runs = 0;
};

// What a capsule is made of, at the moment when the violation was found.
struct CapsuleSource {
  const Op& op;
  const PassInfo& info;
  const Violation& violation;
  const Checkpoint& checkpoint;
  std::string configuration;  // "c017"
  std::string plant;          // NAME@selector with the defaults filled in; empty: none
  uint64_t seed = 0;
  static constexpr uint64_t kEmbeddedWeights = uint64_t{1} << 20;
  uint64_t embed_weights = kEmbeddedWeights;  // weights are embedded up to this many bytes in all
  std::string device = "cpu";                 // where it broke
  std::optional<CapsuleRuns> alone;           // of replays from the file, where not all of them broke
};

// The file's bytes. Errors: the kernel is not registered by name, or the inputs exceed kMaxEmbeddedBytes.
Result<std::string> encode_capsule(const CapsuleSource& source);
// Makes the folder if need be, and the file in one step.
Status write_capsule(const std::string& path, const CapsuleSource& source);

// A weight that the file names instead of holding.
struct CapsuleWeight {
  int operand = 0;
  size_t at = 0;    // in the operand's list
  TensorView view;  // without data
  std::string tensor;
  int64_t offset = 0;  // bytes from the tensor's first
  int64_t bytes = 0;   // of the whole tensor
  uint64_t checksum = 0;
};

struct Capsule {
  std::shared_ptr<const Kernel> kernel;  // the registered one, held to the tolerance that the file names
  Op op;  // outputs have shapes and no memory of their own: replay_alone() writes to scratch
  PassInfo info;
  Violation violation;
  std::string configuration;
  std::string model;     // spec of the checkpoint
  std::string identity;  // of the checkpoint
  std::string plant;
  uint64_t seed = 0;
  std::optional<CapsuleRuns> alone;    // set: the op did not break alone each time; what it broke in is its run
  std::vector<CapsuleWeight> weights;  // not bound yet
  std::vector<uint64_t> data;          // the embedded tensors, aligned for every dtype
};

// Bad input, with what is wrong; cannot-run when this program has no such kernel.
Result<Capsule> read_capsule(const std::string& path);
// The same of bytes in memory, without the checksum.
Result<Capsule> parse_capsule(std::string_view bytes, std::string_view where);

// Puts the checkpoint's tensors in the place of the named weights; the checkpoint outlives the capsule. Cannot-run when
// a tensor is missing or has other bytes than were recorded.
Status bind_weights(Capsule& capsule, const Checkpoint& checkpoint);

// Runs the op alone, several times. All weights are bound. Errors: the plant is unknown here.
struct CapsuleReplay {
  std::optional<OpViolation> violation;  // the first found
  int broken = 0;
  int runs = 0;
};
Result<CapsuleReplay> replay_capsule(const Capsule& capsule, bool with_plant, Device& device);

// Writes a capsule and replays it from the file. Where not every replay breaks, it is written again with that label
// (Capsule::alone).
Result<CapsuleReplay> write_proven_capsule(const std::string& path, CapsuleSource source, Device& device);

}  // namespace faultline
