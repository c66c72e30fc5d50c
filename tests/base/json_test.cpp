#include "base/json.h"

#include <string>

#include "testing.h"

using namespace faultline;

namespace {

std::string message_of(std::string_view text) {
  const auto parsed = parse_json(text, "file.json");
  REQUIRE_FALSE(parsed);
  CHECK(parsed.error().kind == ErrorKind::kBadInput);
  CHECK(parsed.error().message.starts_with("file.json: not valid JSON: "));
  return parsed.error().message;
}

bool mentions(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("JSON values keep their type and value") {
  const auto parsed = parse_json(R"({"a": [1, -2, 2.5, true, null, "x"], "b": {"c": 18446744073709551615}})", "f");
  REQUIRE(parsed);
  const nlohmann::json& root = *parsed;
  CHECK(root["a"][0].is_number_unsigned());
  CHECK(root["a"][1] == -2);
  CHECK(root["a"][2].is_number_float());
  CHECK(root["a"][3] == true);
  CHECK(root["a"][4].is_null());
  CHECK(root["a"][5] == "x");
  CHECK(root["b"]["c"].get<uint64_t>() == UINT64_MAX);
}

TEST_CASE("nested containers land in their own parents") {
  const auto parsed = parse_json(R"([[1, [2]], {"k": [{"m": 3}, 4]}, 5])", "f");
  REQUIRE(parsed);
  CHECK(*parsed == nlohmann::json::array({{1, {2}}, {{"k", {{{"m", 3}}, 4}}}, 5}));
}

TEST_CASE("a key that occurs twice in one object is refused, by name") {
  CHECK(mentions(message_of(R"({"a": 1, "b": 2, "a": 3})"), "key \"a\" occurs twice"));
  CHECK(parse_json(R"({"a": {"a": 1}, "b": {"a": 2}})", "f"));
}

TEST_CASE("malformed and trailing text is refused with its place") {
  CHECK(mentions(message_of("{\"a\": }"), "line 1, column 7"));
  CHECK(mentions(message_of("{} {}"), "byte"));
  message_of("");
  message_of("{\"a\": 1");
  message_of("[1, 2,]");
  message_of("{\"a\": NaN}");
  message_of("[1e999]");
  message_of("\"\xff\xfe\"");
}

TEST_CASE("nesting is limited, so that no input can exhaust the stack") {
  const std::string deepest = std::string(kMaxJsonDepth, '[') + std::string(kMaxJsonDepth, ']');
  CHECK(parse_json(deepest, "f"));
  CHECK(mentions(message_of("[" + deepest + "]"), "nested deeper than 64"));
  message_of(std::string(1'000'000, '['));
}

TEST_CASE("written JSON is read back, and broken UTF-8 does not throw") {
  const nlohmann::json value = {{"name", "a\"b"}, {"list", {1, 2.5}}};
  const auto again = parse_json(dump_json(value), "f");
  REQUIRE(again);
  CHECK(*again == value);
  CHECK(parse_json(dump_json(nlohmann::json(std::string("\xff"))), "f"));
}
