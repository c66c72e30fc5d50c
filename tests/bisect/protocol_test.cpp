#include "bisect/protocol.h"

#include "testing.h"

using namespace faultline;
using nlohmann::json;

namespace {

std::string frame(const json& object) {
  auto bytes = encode_frame(object);
  REQUIRE(bytes);
  return *bytes;
}

std::string prefix(uint32_t length) {
  std::string bytes;
  for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(length >> (8 * i)));
  return bytes;
}

}  // namespace

TEST_CASE("a frame is its length, little endian, and the text") {
  CHECK(frame({{"a", 1}}) == std::string("\x07\0\0\0{\"a\":1}", 11));
}

TEST_CASE("objects come back whole and in order, however the bytes are torn") {
  std::string stream;
  for (int i = 0; i < 20; ++i) stream += frame({{"event", "x"}, {"i", i}, {"text", std::string(i * 7, 't')}});
  for (const size_t portion : {size_t{1}, size_t{3}, size_t{50}, stream.size()}) {
    FrameDecoder decoder;
    int seen = 0;
    for (size_t at = 0; at < stream.size(); at += portion) {
      decoder.append(std::string_view(stream).substr(at, portion));
      while (true) {
        const auto object = decoder.next();
        REQUIRE(object);
        if (!*object) break;
        CHECK((**object).at("i") == seen++);
      }
    }
    CHECK(seen == 20);
    CHECK(decoder.pending() == 0);
  }
}

TEST_CASE("a cut frame is waited for, and counted as pending") {
  FrameDecoder decoder;
  const std::string bytes = frame({{"event", "x"}});
  decoder.append(bytes.substr(0, bytes.size() - 1));
  const auto object = decoder.next();
  REQUIRE(object);
  CHECK_FALSE(*object);
  CHECK(decoder.pending() == bytes.size() - 1);
}

TEST_CASE("a corrupt frame is an error, and nothing after it is believed") {
  const std::string bytes =
      GENERATE(prefix(0), prefix(0xFFFFFFFF), prefix(kMaxFrameBytes + 1), prefix(3) + "{]}", prefix(2) + "[]",
               prefix(4) + "null", prefix(3) + "{}}", prefix(2) + "\xff\xfe", prefix(13) + R"({"a":1,"a":2})");
  FrameDecoder decoder;
  decoder.append(frame({{"event", "sound"}}) + bytes + frame({{"event", "after"}}));
  const auto sound = decoder.next();
  REQUIRE(sound);
  CHECK((**sound).at("event") == "sound");
  const auto broken = decoder.next();
  REQUIRE_FALSE(broken);
  decoder.append(frame({{"event", "later"}}));
  const auto again = decoder.next();
  REQUIRE_FALSE(again);
  CHECK(again.error().message == broken.error().message);
}

TEST_CASE("the largest frame passes, a larger one is refused by its sender") {
  const size_t around = std::string(R"({"t":""})").size();
  FrameDecoder decoder;
  decoder.append(frame({{"t", std::string(kMaxFrameBytes - around, 'x')}}));
  const auto object = decoder.next();
  REQUIRE(object);
  CHECK(object->has_value());
  CHECK_FALSE(encode_frame({{"t", std::string(kMaxFrameBytes - around + 1, 'x')}}));
}

TEST_CASE("invalid UTF-8 in an event cannot stop it") {
  FrameDecoder decoder;
  decoder.append(frame({{"event", "x"}, {"text", "a\xff"}}));
  const auto object = decoder.next();
  REQUIRE(object);
  CHECK((**object).at("event") == "x");
}

TEST_CASE("an event has a name, and it is text") {
  CHECK(event_name({{"event", "done"}}).value() == "done");
  CHECK_FALSE(event_name({{"event", 3}}));
  CHECK_FALSE(event_name(json::object()));
}
