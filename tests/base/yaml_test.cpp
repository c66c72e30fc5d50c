#include "base/yaml.h"

#include <limits>

#include "testing.h"

namespace faultline {
namespace {

std::string error_of(std::string_view text) {
  const auto result = parse_yaml(text, "f.yaml");
  return result ? "" : result.error().message;
}

using Catch::Matchers::Contains;

}  // namespace

TEST_CASE("maps, lists and scalars keep their order, lines and quotes") {
  const auto root = parse_yaml("a: 1\nb: [x, 'y']\nc:\n  d: {e: f}\n", "f.yaml");
  REQUIRE(root);
  REQUIRE(root->is_map());
  REQUIRE(root->items.size() == 3);
  CHECK(root->find("a")->text == "1");
  CHECK(root->find("a")->line == 1);
  const YamlNode* b = root->find("b");
  REQUIRE(b->items.size() == 2);
  CHECK(b->items[0].text == "x");
  CHECK_FALSE(b->items[0].quoted);
  CHECK(b->items[1].quoted);
  CHECK(root->find("c")->find("d")->find("e")->text == "f");
  CHECK(root->find("c")->find("d")->key_line == 4);
  CHECK(root->find("missing") == nullptr);
}

TEST_CASE("an empty value belongs to the line of its key") {
  const auto root = parse_yaml("a:\n\n\nb: 1\n", "f.yaml");
  REQUIRE(root);
  CHECK(root->find("a")->is_null());
  CHECK(root->find("a")->line == 1);
  CHECK(parse_yaml("", "f.yaml")->is_null());
  CHECK(parse_yaml("# only a comment\n", "f.yaml")->is_null());
}

TEST_CASE("duplicate keys are errors at any depth and name both lines") {
  CHECK_THAT(error_of("a: 1\nb: 2\na: 3\n"), Contains("f.yaml:3: ") && Contains("'a'") && Contains("line 1"));
  CHECK_THAT(error_of("m:\n  x: 1\n  x: 2\n"), Contains("f.yaml:3: "));
  CHECK_THAT(error_of("l: [{k: 1, k: 1}]\n"), Contains("f.yaml:1: ") && Contains("'k'"));
  CHECK_THAT(error_of("a: 1\n'a': 2\n"), Contains("f.yaml:2: "));
}

TEST_CASE("syntax errors carry their line") {
  CHECK_THAT(error_of("a: 1\nb: [1, 2\nc: 3\n"), Contains("f.yaml:") && Contains("not valid YAML"));
  CHECK_THAT(error_of("a: 1\n  b: 2\n"), Contains("f.yaml:2: "));
  CHECK_THAT(error_of("a: &x\n  - *y\n"), Contains("f.yaml:2: "));
  CHECK_THAT(error_of("a: \"open"), Contains("f.yaml:"));
  CHECK_THAT(error_of(std::string_view("a: 1\nb: \0", 9)), Contains("f.yaml:2: ") && Contains("NUL"));
}

TEST_CASE("keys that are not scalars, tags and second documents are refused") {
  CHECK_THAT(error_of("? [a, b]\n: 1\n"), Contains("a key must be a single value, not a list"));
  CHECK_THAT(error_of("? {a: b}\n: 1\n"), Contains("not a map"));
  CHECK_THAT(error_of(": 1\n"), Contains("a key must be a single value"));
  CHECK_THAT(error_of("a: !!python/object:os.system x\n"), Contains("f.yaml:1: ") && Contains("tags"));
  CHECK_THAT(error_of("a: 1\n---\nb: 2\n"), Contains("more than one YAML document"));
}

TEST_CASE("aliases work within the limits and a billion laughs do not") {
  const auto root = parse_yaml("a: &x [1, 2]\nb: *x\n", "f.yaml");
  REQUIRE(root);
  CHECK(root->find("b")->items.size() == 2);
  CHECK(root->find("b")->key_line == 2);

  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    bomb += fmt::format("a{0}: &a{0} [", i);
    for (int j = 0; j < 10; ++j) bomb += fmt::format("{}*a{}", j ? ", " : "", i - 1);
    bomb += "]\n";
  }
  CHECK_THAT(error_of(bomb), Contains("aliases unfold to more than"));
  CHECK_THAT(error_of("a: &x [1, *x]\n"), Contains("f.yaml:1: "));
}

TEST_CASE("depth, size and count are limited") {
  CHECK_THAT(error_of(std::string(200, '[') + std::string(200, ']')), Contains("levels deep"));
  CHECK_THAT(error_of(std::string(20000, '[')), Contains("f.yaml"));
  CHECK_THAT(error_of(std::string(kYamlBytes + 1, ' ')), Contains("larger than"));
  std::string wide = "a: [";
  for (size_t i = 0; i < kYamlNodes; ++i) wide += "1,";
  CHECK_THAT(error_of(wide + "1]\n"), Contains("more than 100000 values"));
}

TEST_CASE("readers check types, ranges and names, and say what is valid") {
  const auto root = parse_yaml(
      "n: 5\nbig: 99999999999999999999\nt: on\nq: 'on'\nr: 0.5\nnan: .nan\ne: ''\nl: []\nm: {}\nx: 0x10\n"
      "s: 7 7\nneg: -3\n",
      "f.yaml");
  REQUIRE(root);
  const YamlReader reader("f.yaml");
  CHECK(reader.integer(*root->find("n"), "n", 0, 10).value() == 5);
  CHECK(reader.integer(*root->find("neg"), "neg", -5, 10).value() == -3);
  CHECK_THAT(reader.integer(*root->find("n"), "n", 6, 10).error().message,
             Contains("f.yaml:1: n must be an integer from 6 to 10"));
  CHECK_FALSE(reader.integer(*root->find("big"), "big", 0, std::numeric_limits<int64_t>::max()));
  CHECK_FALSE(reader.integer(*root->find("x"), "x", 0, 100));
  CHECK_FALSE(reader.integer(*root->find("s"), "s", 0, 100));
  CHECK_FALSE(reader.integer(*root->find("r"), "r", 0, 100));
  CHECK(reader.boolean(*root->find("t"), "t").value());
  CHECK_FALSE(reader.boolean(*root->find("q"), "q"));
  CHECK(reader.real(*root->find("r"), "r", 0, 1).value() == 0.5);
  CHECK_FALSE(reader.real(*root->find("nan"), "nan", 0, 1));
  CHECK_THAT(reader.text(*root->find("e"), "e").error().message, Contains("f.yaml:7: e is empty"));
  CHECK_THAT(reader.list(*root->find("l"), "l", 4).error().message, Contains("f.yaml:8: l has no values"));
  CHECK_FALSE(reader.list(*root->find("m"), "m", 4));
  CHECK(reader.list(*root->find("n"), "n", 4)->size() == 1);
  CHECK_THAT(reader.choice(*root->find("n"), "n", {"6"}).error().message, Contains("unknown value '5'"));
  CHECK_THAT(reader.map(*root, "this file", {"n", "bigg"}).error().message,
             Contains("f.yaml:2: unknown key 'big' in this file; did you mean 'bigg'?"));
}

}  // namespace faultline
