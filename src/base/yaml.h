// Strict YAML: one document of maps, lists and scalars, every node with its line. Read from yaml-cpp's event stream,
// since its node tree keeps only one of two equal keys and says nothing.
//
// Errors (all bad_input, as "FILE:LINE: …"): syntax, duplicate keys, keys that are not scalars, tags, a second
// document, and text past a limit: kYamlBytes of text, kYamlDepth of nesting, kYamlNodes of nodes (an alias counts as
// all that it stands for, so that a few aliases of aliases cannot fill the memory).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace faultline {

inline constexpr size_t kYamlBytes = 1 << 20;
inline constexpr int kYamlDepth = 16;
inline constexpr size_t kYamlNodes = 100000;

struct YamlNode {
  enum class Kind : uint8_t { kNull, kScalar, kSequence, kMap };
  Kind kind = Kind::kNull;
  int line = 0;                 // of the value, from 1; for an empty value, of its key
  std::string text;             // scalars, as written
  bool quoted = false;          // scalars in quotes are text, never a number or a boolean
  std::vector<YamlNode> items;  // elements of a sequence, or values of a map in file order

  // Elements of a map.
  std::string key;
  int key_line = 0;

  bool is_null() const { return kind == Kind::kNull; }
  bool is_scalar() const { return kind == Kind::kScalar; }
  bool is_sequence() const { return kind == Kind::kSequence; }
  bool is_map() const { return kind == Kind::kMap; }
  const YamlNode* find(std::string_view name) const;  // a map's value; null when there is none
};

// `where` is the file's name, for messages. An empty document is a null node.
Result<YamlNode> parse_yaml(std::string_view text, std::string_view where);

// Reads values out of nodes; every error names the file, the line and the key (`what`), and what would be valid.
class YamlReader {
 public:
  explicit YamlReader(std::string_view where) : where_(where) {}

  // A map whose keys are all among `keys`.
  Status map(const YamlNode& node, std::string_view what, const std::vector<std::string>& keys) const;
  Result<std::string> text(const YamlNode& node, std::string_view what) const;  // not empty
  Result<std::string> choice(const YamlNode& node, std::string_view what, const std::vector<std::string>& valid) const;
  Result<int64_t> integer(const YamlNode& node, std::string_view what, int64_t least, int64_t most) const;
  Result<double> real(const YamlNode& node, std::string_view what, double least, double most) const;
  Result<bool> boolean(const YamlNode& node,
                       std::string_view what) const;  // YAML 1.1: true, yes, on and their opposites
  // A sequence, or a single value in its place. Not empty, at most `limit` long.
  Result<std::vector<const YamlNode*>> list(const YamlNode& node, std::string_view what, size_t limit) const;
  Result<std::vector<int64_t>> integers(const YamlNode& node, std::string_view what, int64_t least, int64_t most,
                                        size_t limit) const;

  // "FILE:LINE: message" as an error.
  tl::unexpected<Error> error(int line, std::string_view message) const;

 private:
  std::string_view where_;
};

// YAML 1.1's words for true (true, yes, on) and false, in its three spellings of case.
bool is_yaml_true(std::string_view text);
bool is_yaml_false(std::string_view text);

}  // namespace faultline
