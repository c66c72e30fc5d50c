#include "base/yaml.h"

#include <fmt/ranges.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <sstream>

#include "base/text.h"

namespace faultline {
namespace {

std::string_view kind_name(YamlNode::Kind kind) {
  switch (kind) {
    case YamlNode::Kind::kNull:
      return "nothing";
    case YamlNode::Kind::kScalar:
      return "a single value";
    case YamlNode::Kind::kSequence:
      return "a list";
    case YamlNode::Kind::kMap:
      return "a map";
  }
  return "?";
}

size_t count_nodes(const YamlNode& node) {
  size_t count = 1;
  for (const YamlNode& item : node.items) count += count_nodes(item);
  return count;
}

int depth_of(const YamlNode& node) {
  int deepest = 0;
  for (const YamlNode& item : node.items) deepest = std::max(deepest, depth_of(item));
  return deepest + 1;
}

// Builds the tree. After the first error it ignores what follows: yaml-cpp must not be left by an exception of ours.
class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(std::string_view where) : reader_(where) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    // yaml-cpp marks an empty value with the token after it, which may be lines away.
    YamlNode node;
    node.line = in_value() ? open_.back().pending_line : line_of(mark);
    place(std::move(node), anchor, "");
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto it = anchors_.find(anchor);
    if (it == anchors_.end()) return fail(line_of(mark), "this alias stands inside of what it names");
    if (depth_of(it->second) + static_cast<int>(open_.size()) > kYamlDepth) return fail_depth(line_of(mark));
    nodes_ += count_nodes(it->second);
    if (nodes_ > kYamlNodes)
      return fail(line_of(mark), fmt::format("aliases unfold to more than {} values", kYamlNodes));
    place(it->second, YAML::NullAnchor, "");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    YamlNode node;
    node.kind = YamlNode::Kind::kScalar;
    node.line = line_of(mark);
    node.text = value;
    node.quoted = tag == "!";
    place(std::move(node), anchor, tag);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    begin(YamlNode::Kind::kSequence, mark, tag, anchor);
  }
  void OnSequenceEnd() override { end(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    begin(YamlNode::Kind::kMap, mark, tag, anchor);
  }
  void OnMapEnd() override { end(); }

  const std::optional<Error>& error() const { return error_; }
  YamlNode take() { return std::move(root_); }

 private:
  struct Open {
    YamlNode node;
    YAML::anchor_t anchor = YAML::NullAnchor;
    bool has_key = false;
    std::string pending_key;
    int pending_line = 0;
    std::map<std::string, int> key_lines;  // a search through items would be quadratic in a hostile map
  };

  static int line_of(const YAML::Mark& mark) { return mark.line + 1; }
  bool in_value() const { return !open_.empty() && open_.back().node.is_map() && open_.back().has_key; }
  void fail(int line, std::string_view message) {
    if (!error_) error_ = reader_.error(line, message).value();
  }
  void fail_depth(int line) { fail(line, fmt::format("nested more than {} levels deep", kYamlDepth)); }

  void begin(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (error_) return;
    if (!tag.empty() && tag != "?" && tag != "!") return fail(line_of(mark), "tags are not used here; remove it");
    if (static_cast<int>(open_.size()) >= kYamlDepth) return fail_depth(line_of(mark));
    if (!open_.empty() && open_.back().node.is_map() && !open_.back().has_key)
      return fail(line_of(mark), fmt::format("a key must be a single value, not {}", kind_name(kind)));
    Open open;
    open.node.kind = kind;
    open.node.line = line_of(mark);
    open.anchor = anchor;
    open_.push_back(std::move(open));
  }

  void end() {
    if (error_) return;
    Open open = std::move(open_.back());
    open_.pop_back();
    place(std::move(open.node), open.anchor, "");
  }

  void place(YamlNode node, YAML::anchor_t anchor, const std::string& tag) {
    if (error_) return;
    if (!tag.empty() && tag != "?" && tag != "!") return fail(node.line, "tags are not used here; remove it");
    if (++nodes_ > kYamlNodes) return fail(node.line, fmt::format("more than {} values", kYamlNodes));
    if (anchor != YAML::NullAnchor) anchors_[anchor] = node;
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& parent = open_.back();
    if (parent.node.is_sequence()) {
      parent.node.items.push_back(std::move(node));
      return;
    }
    if (!parent.has_key) return take_key(parent, node);
    node.key = std::move(parent.pending_key);
    node.key_line = parent.pending_line;
    parent.has_key = false;
    parent.node.items.push_back(std::move(node));
  }

  void take_key(Open& map, const YamlNode& key) {
    if (!key.is_scalar() || key.text.empty())
      return fail(key.line, fmt::format("a key must be a single value, not {}", kind_name(key.kind)));
    const auto [earlier, added] = map.key_lines.emplace(key.text, key.line);
    if (!added)
      return fail(key.line, fmt::format("the key '{}' appears twice (first in line {}); remove one", quotable(key.text),
                                        earlier->second));
    map.has_key = true;
    map.pending_key = key.text;
    map.pending_line = key.line;
  }

  YamlReader reader_;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, YamlNode> anchors_;
  size_t nodes_ = 0;
  YamlNode root_;
  std::optional<Error> error_;
};

template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  Number value{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

const YamlNode* YamlNode::find(std::string_view name) const {
  if (!is_map()) return nullptr;
  const auto it = std::find_if(items.begin(), items.end(), [&](const YamlNode& item) { return item.key == name; });
  return it == items.end() ? nullptr : &*it;
}

Result<YamlNode> parse_yaml(std::string_view text, std::string_view where) {
  const YamlReader reader(where);
  if (text.size() > kYamlBytes)
    return bad_input("{}: larger than {} bytes, which no experiment needs", where, kYamlBytes);
  const size_t nul = text.find('\0');
  if (nul != std::string_view::npos) {
    const auto lines = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(nul), '\n');
    return reader.error(static_cast<int>(lines) + 1, "a NUL byte: this is not YAML text");
  }
  TreeBuilder builder(where);
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) return YamlNode{};
    if (builder.error()) return tl::make_unexpected(*builder.error());
    YamlNode root = builder.take();
    TreeBuilder rest(where);
    if (parser.HandleNextDocument(rest)) return bad_input("{}: holds more than one YAML document; keep one", where);
    return root;
  } catch (const YAML::Exception& e) {
    if (builder.error()) return tl::make_unexpected(*builder.error());
    return reader.error(e.mark.line + 1, fmt::format("not valid YAML: {}", e.msg));
  } catch (const std::exception& e) {
    return bad_input("{}: not valid YAML: {}", where, e.what());
  }
}

tl::unexpected<Error> YamlReader::error(int line, std::string_view message) const {
  return bad_input("{}:{}: {}", where_, line, message);
}

Status YamlReader::map(const YamlNode& node, std::string_view what, const std::vector<std::string>& keys) const {
  if (!node.is_map())
    return error(node.line,
                 fmt::format("{} must be a map of {}, not {}", what, fmt::join(keys, ", "), kind_name(node.kind)));
  for (const YamlNode& item : node.items)
    if (std::find(keys.begin(), keys.end(), item.key) == keys.end())
      return error(item.key_line,
                   fmt::format("unknown key '{}' in {}{}", quotable(item.key), what, suggestion(item.key, keys)));
  return {};
}

Result<std::string> YamlReader::text(const YamlNode& node, std::string_view what) const {
  if (!node.is_scalar())
    return error(node.line, fmt::format("{} must be a single value, not {}", what, kind_name(node.kind)));
  if (node.text.empty()) return error(node.line, fmt::format("{} is empty; give it a value or remove the key", what));
  return node.text;
}

Result<std::string> YamlReader::choice(const YamlNode& node, std::string_view what,
                                       const std::vector<std::string>& valid) const {
  FAULTLINE_TRY(std::string value, text(node, what));
  if (std::find(valid.begin(), valid.end(), value) == valid.end())
    return error(node.line, fmt::format("{}: unknown value '{}'{}", what, quotable(value), suggestion(value, valid)));
  return value;
}

Result<int64_t> YamlReader::integer(const YamlNode& node, std::string_view what, int64_t least, int64_t most) const {
  if (auto value = text(node, what); !value) return tl::make_unexpected(value.error());
  const std::optional<int64_t> number = node.quoted ? std::nullopt : parse_number<int64_t>(node.text);
  if (!number || *number < least || *number > most)
    return error(node.line,
                 fmt::format("{} must be an integer from {} to {}, not '{}'", what, least, most, quotable(node.text)));
  return *number;
}

Result<double> YamlReader::real(const YamlNode& node, std::string_view what, double least, double most) const {
  if (auto value = text(node, what); !value) return tl::make_unexpected(value.error());
  const std::optional<double> number = node.quoted ? std::nullopt : parse_number<double>(node.text);
  if (!number || !(*number >= least && *number <= most))
    return error(node.line,
                 fmt::format("{} must be a number from {} to {}, not '{}'", what, least, most, quotable(node.text)));
  return *number;
}

Result<bool> YamlReader::boolean(const YamlNode& node, std::string_view what) const {
  FAULTLINE_TRY(const std::string value, text(node, what));
  if (!node.quoted && is_yaml_true(value)) return true;
  if (!node.quoted && is_yaml_false(value)) return false;
  return error(node.line, fmt::format("{} must be true or false, not '{}'", what, quotable(value)));
}

Result<std::vector<const YamlNode*>> YamlReader::list(const YamlNode& node, std::string_view what, size_t limit) const {
  std::vector<const YamlNode*> result;
  if (node.is_scalar()) {
    result.push_back(&node);
    return result;
  }
  if (node.is_map()) return error(node.line, fmt::format("{} must be a list, not a map", what));
  if (node.items.empty())
    return error(node.line, fmt::format("{} has no values; give it some or remove the key", what));
  if (node.items.size() > limit)
    return error(node.line, fmt::format("{} has {} values, more than {}", what, node.items.size(), limit));
  for (const YamlNode& item : node.items) result.push_back(&item);
  return result;
}

Result<std::vector<int64_t>> YamlReader::integers(const YamlNode& node, std::string_view what, int64_t least,
                                                  int64_t most, size_t limit) const {
  FAULTLINE_TRY(const auto nodes, list(node, what, limit));
  std::vector<int64_t> result;
  for (const YamlNode* item : nodes) {
    FAULTLINE_TRY(const int64_t value, integer(*item, what, least, most));
    result.push_back(value);
  }
  return result;
}

bool is_yaml_true(std::string_view text) {
  static const std::vector<std::string_view> kWords = {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"};
  return std::find(kWords.begin(), kWords.end(), text) != kWords.end();
}

bool is_yaml_false(std::string_view text) {
  static const std::vector<std::string_view> kWords = {"false", "False", "FALSE", "no", "No",
                                                       "NO",    "off",   "Off",   "OFF"};
  return std::find(kWords.begin(), kWords.end(), text) != kWords.end();
}

}  // namespace faultline
