#include "bisect/protocol.h"

#include "base/json.h"

namespace faultline {

namespace {

constexpr int kByteBits = 8;

uint32_t read_prefix(std::string_view bytes) {
  uint32_t length = 0;
  for (size_t i = 0; i < kFramePrefixBytes; ++i)
    length |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[i])) << (kByteBits * i);
  return length;
}

Result<nlohmann::json> decode_text(std::string_view text) {
  FAULTLINE_TRY(nlohmann::json object, parse_json(text, "a worker's message"));
  if (!object.is_object()) return internal_error("a message that is no JSON object");
  return object;
}

}  // namespace

Result<std::string> encode_frame(const nlohmann::json& object) {
  FAULTLINE_CHECK(object.is_object());
  const std::string text = dump_json(object);
  if (text.size() > kMaxFrameBytes)
    return internal_error("a message of {} bytes; at most {} are sent at once", text.size(), kMaxFrameBytes);
  std::string frame;
  frame.reserve(kFramePrefixBytes + text.size());
  for (size_t i = 0; i < kFramePrefixBytes; ++i) frame.push_back(static_cast<char>(text.size() >> (kByteBits * i)));
  frame += text;
  return frame;
}

void FrameDecoder::append(std::string_view bytes) {
  if (broken_) return;
  // Moving the rest to the front only when it is the smaller part keeps the cost linear in the stream.
  if (begin_ > buffer_.size() / 2) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  buffer_.append(bytes);
}

Result<std::optional<nlohmann::json>> FrameDecoder::next() {
  if (broken_) return tl::make_unexpected(*broken_);
  const std::string_view rest = std::string_view(buffer_).substr(begin_);
  if (rest.size() < kFramePrefixBytes) return std::nullopt;
  const size_t length = read_prefix(rest);
  if (length == 0 || length > kMaxFrameBytes) {
    broken_ = Error{ErrorKind::kInternal, fmt::format("a message claims {} bytes", length)};
    return tl::make_unexpected(*broken_);
  }
  if (rest.size() - kFramePrefixBytes < length) return std::nullopt;
  auto object = decode_text(rest.substr(kFramePrefixBytes, length));
  if (!object) {
    broken_ = Error{ErrorKind::kInternal, object.error().message};
    return tl::make_unexpected(*broken_);
  }
  begin_ += kFramePrefixBytes + length;
  return std::optional(std::move(*object));
}

Result<std::string> event_name(const nlohmann::json& object) {
  const auto name = object.find("event");
  if (name == object.end() || !name->is_string()) return internal_error("a message without an \"event\" name");
  return name->get<std::string>();
}

}  // namespace faultline
