#include "model/safetensors.h"

#include <string>

#include "fixtures.h"

using namespace faultline;
using fixtures::image;
using fixtures::mentions;

namespace {

Result<SafetensorsHeader> parse(const std::string& bytes) {
  return parse_safetensors_header({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, bytes.size(), "f");
}

std::string refused(const std::string& bytes) {
  const auto header = parse(bytes);
  REQUIRE_FALSE(header);
  CHECK(header.error().kind == ErrorKind::kBadInput);
  return header.error().message;
}

std::string refused_tensor(const std::string& tensor) {
  return refused(image("{\"t\":" + tensor + "}", "12345678"));
}

std::string only_fault(const std::string& bytes) {
  const auto header = parse(bytes);
  REQUIRE(header);
  REQUIRE(header->faults.size() == 1);
  return header->faults[0];
}

}  // namespace

TEST_CASE("a header is read with its places in the file") {
  const std::string header = R"({"__metadata__":{"format":"pt"},"b":{"dtype":"U8","shape":[2,2],"data_offsets":[4,8]},)"
                             R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                             R"("e":{"dtype":"BF16","shape":[0,3],"data_offsets":[8,8]}}  )";
  const auto parsed = parse(image(header, "12345678"));
  REQUIRE(parsed);
  CHECK(parsed->faults.empty());
  CHECK(parsed->metadata.at("format") == "pt");
  CHECK(parsed->data_begin == 8 + header.size());
  REQUIRE(parsed->entries.size() == 3);
  CHECK(parsed->entries[0].name == "a");
  CHECK(parsed->entries[0].rank == 0);
  CHECK(parsed->entries[0].begin == 8 + header.size());
  CHECK(parsed->entries[1].name == "b");
  CHECK(parsed->entries[1].bytes() == 4);
  CHECK(parsed->entries[1].shape[1] == 2);
  CHECK(parsed->entries[2].bytes() == 0);
}

TEST_CASE("a header that is written is read back") {
  std::vector<SafetensorsEntry> entries(2);
  entries[0] = {"x \"quoted\"", Dtype::kBF16, 2, {3, 4}, 100, 124};
  entries[1] = {"y", Dtype::kF8E4M3, 1, {5}, 124, 129};
  const std::string header = make_safetensors_header(entries);
  CHECK(header.size() % 8 == 0);
  const auto parsed = parse(header + std::string(29, 'x'));
  REQUIRE(parsed);
  CHECK(parsed->faults.empty());
  CHECK(parsed->entries[0].name == "x \"quoted\"");
  CHECK(parsed->entries[1].begin == header.size() + 24);
}

TEST_CASE("lengths that lie are refused") {
  CHECK(mentions(refused(""), "too short"));
  CHECK(mentions(refused("1234567"), "too short"));
  CHECK(mentions(refused(image("{}", "", 3)), "claims 3 bytes"));
  CHECK(mentions(refused(image("{}", "", 99'999'999)), "cut short"));
  CHECK(mentions(refused(image("{}", "", 100'000'001)), "more than the 100000000"));
  CHECK(mentions(refused(image("{}", "", UINT64_MAX)), "more than the 100000000"));
  CHECK(mentions(refused(image("{}", "", 0)), "not valid JSON"));
}

TEST_CASE("headers that are no map of tensors are refused") {
  CHECK(mentions(refused(image("[]", "")), "not an object"));
  CHECK(mentions(refused(image("{\"t\":", "")), "not valid JSON"));
  CHECK(mentions(refused(image(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                               R"("t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                               "12")),
                 "key \"t\" occurs twice"));
  CHECK(mentions(refused(image(R"({"__metadata__":[]})", "")), "__metadata__"));
  CHECK(mentions(refused(image(R"({"__metadata__":{"a":1}})", "")), "__metadata__.a"));
  CHECK(mentions(refused(image(R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "1")), "empty name"));
}

TEST_CASE("tensors with a wrong description are refused, by name") {
  CHECK(mentions(refused_tensor("1"), "tensor t is 1, not an object"));
  CHECK(mentions(refused_tensor(R"({"shape":[1],"data_offsets":[0,1]})"), "tensor t has no dtype"));
  CHECK(mentions(refused_tensor(R"({"dtype":"U8","data_offsets":[0,1]})"), "tensor t has no shape"));
  CHECK(mentions(refused_tensor(R"({"dtype":"U8","shape":[1]})"), "tensor t has no data_offsets"));
  CHECK(mentions(refused_tensor(R"({"dtype":"F8_E5M2","shape":[1],"data_offsets":[0,1]})"),
                 "dtype \"F8_E5M2\"; known are"));
  CHECK(mentions(refused_tensor(R"({"dtype":8,"shape":[1],"data_offsets":[0,1]})"), "dtype 8"));
  CHECK(mentions(refused_tensor(R"({"dtype":"U8","shape":[1,1,1,1,1],"data_offsets":[0,1]})"), "at most 4"));
  CHECK(mentions(refused_tensor(R"({"dtype":"U8","shape":[-1],"data_offsets":[0,1]})"), "shape [-1]"));
  CHECK(mentions(refused_tensor(R"({"dtype":"U8","shape":[1.0],"data_offsets":[0,1]})"), "whole numbers"));
  CHECK(mentions(refused_tensor(R"({"dtype":"U8","shape":{},"data_offsets":[0,1]})"), "must be a list"));
}

TEST_CASE("shapes whose product overflows are refused") {
  CHECK(
      mentions(refused_tensor(R"({"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]})"), "overflows"));
  CHECK(mentions(refused_tensor(R"({"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]})"), "overflows"));
  CHECK(mentions(refused_tensor(R"({"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,8]})"), "overflows"));
  CHECK(
      mentions(refused_tensor(R"({"dtype":"U8","shape":[9223372036854775807,0,9],"data_offsets":[0,1]})"), "needs 0"));
}

TEST_CASE("offsets that do not fit are refused") {
  CHECK(mentions(refused_tensor(R"({"dtype":"U8","shape":[2],"data_offsets":[0,3]})"),
                 "has 3 bytes of data, but U8 [2] needs 2"));
  CHECK(mentions(refused_tensor(R"({"dtype":"U8","shape":[2],"data_offsets":[2,0]})"), "begin <= end"));
  CHECK(mentions(refused_tensor(R"({"dtype":"U8","shape":[2],"data_offsets":[0]})"), "data_offsets [0]"));
  CHECK(mentions(refused_tensor(R"({"dtype":"U8","shape":[2],"data_offsets":[-2,0]})"), "data_offsets"));
  CHECK(mentions(
      refused_tensor(R"({"dtype":"U8","shape":[1],"data_offsets":[18446744073709551614,18446744073709551615]})"),
      "data_offsets"));
  CHECK(
      mentions(refused_tensor(R"({"dtype":"U8","shape":[1],"data_offsets":[9223372036854775806,9223372036854775807]})"),
               "data_offsets"));
}

TEST_CASE("overlaps, gaps, cut and misaligned data are found") {
  const auto two = [](const char* first, const char* second) {
    return fmt::format(
        R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":{}}},"b":{{"dtype":"U8","shape":[4],"data_offsets":{}}}}})",
        first, second);
  };
  CHECK(parse(image(two("[0,4]", "[4,8]"), "12345678"))->faults.empty());
  CHECK(mentions(only_fault(image(two("[0,4]", "[3,7]"), "1234567")), "a and b overlap (1 bytes"));
  CHECK(mentions(only_fault(image(two("[0,4]", "[0,4]"), "1234")), "overlap (4 bytes"));
  CHECK(mentions(only_fault(image(two("[0,4]", "[5,9]"), "123456789")), "1 bytes at file offset"));
  CHECK(mentions(only_fault(image(two("[0,4]", "[4,8]"), "123456789")), "1 bytes after the last tensor"));
  CHECK(mentions(only_fault(image(two("[0,4]", "[4,8]"), "1234567")), "cut short"));
  // The header's length decides where the data begins: 8 + 57 is odd.
  const std::string odd = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}    )";
  REQUIRE((8 + odd.size()) % 4 != 0);
  CHECK(mentions(only_fault(image(odd, "1234")), "no multiple of the 4 bytes of a F32"));
}
