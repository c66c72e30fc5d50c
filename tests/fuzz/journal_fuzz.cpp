// Journal lines and worker messages are input: whatever they hold, the answer is a value or an error value.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "bisect/journal.h"
#include "bisect/protocol.h"
#include "bisect/worker_death.h"

namespace {

// A sound checksum, or no mutation would ever get behind it.
void as_entry(std::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return;
  static_cast<void>(faultline::parse_journal(faultline::journal_line(json), "fuzz"));
  static_cast<void>(faultline::death_from_json(json, "fuzz"));
}

void as_frames(std::string_view bytes) {
  faultline::FrameDecoder decoder;
  const size_t half = bytes.size() / 2;
  for (const std::string_view portion : {bytes.substr(0, half), bytes.substr(half)}) {
    decoder.append(portion);
    while (true) {
      const auto object = decoder.next();
      if (!object || !*object) break;
      static_cast<void>(faultline::event_name(**object));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto contents = faultline::parse_journal(bytes, "fuzz");
  if (contents && contents->sound_bytes > size) __builtin_trap();
  as_entry(bytes);
  as_frames(bytes);
  return 0;
}
