// What driver and workers say to each other: JSON objects, each behind its length (uint32, little endian) in bytes.
//
// The driver's one frame to a worker is its task; a worker's frames are events, objects with a string "event" and
// whatever else the event needs. Kinds of events are open-ended; the names below are those that the plumbing itself
// sends and reads.
//
// A worker under test may write anything. Whatever comes through the pipe, the reader's answer is an event, "not yet",
// or an error value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace faultline {

inline constexpr size_t kFramePrefixBytes = 4;
inline constexpr size_t kMaxFrameBytes = size_t{16} << 20;  // of JSON text, without the prefix

namespace event {
inline constexpr std::string_view kDone = "done";            // the task is finished; nothing follows
inline constexpr std::string_view kError = "error";          // {"kind", "message"}: an Error of the worker's
inline constexpr std::string_view kException = "exception";  // {"what"}: an exception nobody caught
// {"checksum", "bytes", "seconds"}: the weights in the GPU's memory were mapped, and are what was loaded. In the
// journal with the task's "key", and "after": the key of the last task whose worker died, if there was one.
inline constexpr std::string_view kWeightsIntact = "weights_intact";
}  // namespace event

// Exit codes of a worker, beside 0 after "done".
inline constexpr int kOomExit = 86;        // std::bad_alloc
inline constexpr int kExceptionExit = 87;  // another exception; an event of that name was sent
inline constexpr int kErrorExit = 88;      // an Error; an event of that name was sent

// Error (internal) when the text is larger than kMaxFrameBytes. Invalid UTF-8 in strings is replaced.
Result<std::string> encode_frame(const nlohmann::json& object);

// Takes bytes in any portions and gives whole objects back.
class FrameDecoder {
 public:
  void append(std::string_view bytes);
  // The next object, or nothing when more bytes are needed. The first error (a length of 0 or beyond kMaxFrameBytes,
  // text that is not one JSON object) is final: what follows a corrupt frame cannot be found, so it is returned from
  // then on.
  Result<std::optional<nlohmann::json>> next();
  // Bytes of a frame that has not come whole. Not 0 at the end of a stream: its last frame was cut.
  size_t pending() const { return buffer_.size() - begin_; }

 private:
  std::string buffer_;
  size_t begin_ = 0;
  std::optional<Error> broken_;
};

// The name of an event; an error when the object has no string "event".
Result<std::string> event_name(const nlohmann::json& object);

}  // namespace faultline
