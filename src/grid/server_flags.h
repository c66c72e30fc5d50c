// The flags of the server's command line, as data: names, what each takes, which versions have it, what it means here.
//
// Source: server_args.py of the three profiles' versions: v0.5.9 (bbe9c7e), 93109cc and c863760 of sgl-project/sglang.
// `line` is the place in the first of them that has the flag; in c863760 a flag is a field of the dataclass ServerArgs,
// and its name the field's. What a flag takes is its `type`, `nargs` and `action` there.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace faultline {

namespace server_version {
inline constexpr uint8_t k059 = 1;   // sglang-0.5.9
inline constexpr uint8_t k2604 = 2;  // sglang-2026-04
inline constexpr uint8_t k2608 = 4;  // sglang-2026-08
inline constexpr uint8_t kTo2604 = k059 | k2604;
inline constexpr uint8_t kFrom2604 = k2604 | k2608;
inline constexpr uint8_t kAll = k059 | k2604 | k2608;
}  // namespace server_version

// What a flag means to this program. From kConfigFile to kNumerics: it decides what is computed, and is not modelled.
enum class FlagRole : uint8_t {
  kAxis,            // `detail` is the axis
  kSets,            // `detail` is "axis=value"
  kDecodeGraph,     // "disabled" is cuda_graph=off
  kSplitAttention,  // attention of one phase
  kModel,           // the checkpoint
  kWeights,         // its weights' format
  kConfigFile,
  kSpeculative,
  kPipeline,
  kDataParallel,
  kExperts,
  kContext,
  kDisaggregation,
  kCacheTiers,
  kOffload,
  kLora,
  kGraphs,
  kOverlap,
  kCollectives,
  kNumerics,
  kServing,      // ports, logging, scheduling, …
  kOtherModels,  // state-space layers, images, …
};

struct ServerFlag {
  std::string_view names;  // "--tp-size --tensor-parallel-size", the server's own spellings
  // '0' nothing, 's' text, 'i' an integer, 'h' an integer that may end in k, M, Ki, …, 'f' a number, 'j' JSON, '?' one
  // word or none, '*' words, '+' at least one word
  char takes = '0';
  uint8_t versions = 0;  // server_version
  int line = 0;
  FlagRole role = FlagRole::kServing;
  std::string_view detail;  // see FlagRole; of what is not modelled: values that change nothing, "auto bfloat16"
  bool secret = false;      // its value is nobody else's business
};

std::span<const ServerFlag> flags_that_matter();
std::span<const ServerFlag> flags_without_effect();

// The bit of a profile's version; 0: the profile is none of the three.
uint8_t server_version_of(std::string_view profile);
// "sglang-2026-08", the oldest profile that has the flag.
std::string_view first_profile_with(const ServerFlag& flag);
// "sglang v0.5.9 server_args.py:3829".
std::string flag_source(const ServerFlag& flag);

bool is_named(const ServerFlag& flag, std::string_view name);
// Null: no version has a flag of this name. A flag of `version` is preferred to one of another.
const ServerFlag* find_server_flag(std::string_view name, uint8_t version);
// The spellings in one version, for suggestions and for abbreviations.
std::vector<std::string> server_flag_names(uint8_t version);

// What is not modelled about a role, for people: "speculative decoding: …".
std::string_view role_meaning(FlagRole role);

// A flag or environment variable with a sentence of its own.
struct Remark {
  std::string_view name;
  std::string_view text;
  std::string_view source;
};
const Remark* find_remark(std::string_view name);
// Environment variables that decide what is computed; others are listed as ignored.
const Remark* find_environment_remark(std::string_view name);

}  // namespace faultline
