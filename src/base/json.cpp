#include "base/json.h"

#include <utility>
#include <vector>

namespace faultline {
namespace {

using nlohmann::json;

// Builds the document itself, since nlohmann's own builder keeps the last of two equal keys without a word.
class StrictBuilder : public nlohmann::json_sax<json> {
 public:
  bool null() override { return add(json(nullptr)); }
  bool boolean(bool value) override { return add(json(value)); }
  bool number_integer(number_integer_t value) override { return add(json(value)); }
  bool number_unsigned(number_unsigned_t value) override { return add(json(value)); }
  bool number_float(number_float_t value, const string_t&) override { return add(json(value)); }
  bool string(string_t& value) override { return add(json(std::move(value))); }
  bool binary(binary_t&) override { return fail("binary value"); }
  bool start_object(size_t) override { return open(json::object()); }
  bool start_array(size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (open_.back().value->contains(name)) return fail(fmt::format("key \"{}\" occurs twice in one object", name));
    open_.back().key = std::move(name);
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error …": the bracket is no news.
    std::string text = error.what();
    const size_t bracket = text.find("] ");
    if (bracket != std::string::npos) text.erase(0, bracket + 2);
    return fail(fmt::format("{} (byte {})", text, position));
  }

  const std::string& message() const { return message_; }
  json take() { return std::move(root_); }

 private:
  struct Level {
    json* value;
    std::string key;
  };

  bool fail(std::string message) {
    if (message_.empty()) message_ = std::move(message);
    return false;
  }
  // Children are reached by pointer only while they are the last element of their parent, so growth never moves them.
  json* place(json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    json& parent = *open_.back().value;
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[open_.back().key] = std::move(value));
  }
  bool add(json value) {
    place(std::move(value));
    return true;
  }
  bool open(json value) {
    if (open_.size() >= static_cast<size_t>(kMaxJsonDepth))
      return fail(fmt::format("nested deeper than {} levels", kMaxJsonDepth));
    json* placed = place(std::move(value));
    open_.push_back({placed, {}});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  json root_;
  std::vector<Level> open_;
  std::string message_;
};

}  // namespace

Result<json> parse_json(std::string_view text, std::string_view where) {
  StrictBuilder builder;
  bool good = false;
  try {
    good = json::sax_parse(text.begin(), text.end(), &builder);
  } catch (const std::exception& error) {
    return bad_input("{}: not valid JSON: {}", where, error.what());
  }
  if (!good) return bad_input("{}: not valid JSON: {}", where, builder.message());
  return builder.take();
}

std::string dump_json(const json& value, int indent) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

}  // namespace faultline
