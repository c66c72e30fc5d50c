// What cuda-gdb, compute-sanitizer and the CUDA driver print is input: whatever it holds, the answer is plain data.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "bisect/core_dump_report.h"
#include "bisect/sanitize.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const faultline::CoreDump core = faultline::parse_core_dump(text);
  const faultline::CoreDump printed = faultline::parse_dump_progress(text);
  static_cast<void>(faultline::core_dump_sentence(core));
  static_cast<void>(faultline::core_dump_sentence(printed));
  static_cast<void>(faultline::verdict_of_exception(core.exception));
  static_cast<void>(faultline::sanitizer_sentence("memcheck", faultline::parse_sanitizer_log(text)));
  return 0;
}
