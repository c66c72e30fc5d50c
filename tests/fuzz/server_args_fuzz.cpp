// The server's command line on arbitrary bytes: it may refuse them, and must neither crash nor take long; what it
// accepts sets only axes of the grid, to values that they have.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "grid/axes.h"
#include "grid/server_args.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace faultline;
  if (size == 0) return 0;
  const std::vector<std::string> profiles = profile_names();
  const Profile* profile = find_profile(profiles[data[0] % profiles.size()]);
  const auto line = parse_server_args(std::string_view(reinterpret_cast<const char*>(data) + 1, size - 1), *profile);
  if (!line) {
    FAULTLINE_CHECK(line.error().message.starts_with("server args:"));
    return 0;
  }
  FAULTLINE_CHECK(with_defaults(line->axes).has_value());
  // What is kept can be typed again.
  std::string again;
  for (const std::string& word : line->kept) again += word + " ";
  FAULTLINE_CHECK(line->kept.empty() || parse_server_args(again, *profile).has_value());
  return 0;
}
