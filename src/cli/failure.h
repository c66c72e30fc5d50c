// How a command ends on an error: the message on stderr, the exit code of its kind.
#pragma once

#include <fmt/format.h>

#include "base/error.h"

namespace faultline {

inline int fail(const Error& error) {
  fmt::print(stderr, "faultline: {}\n", error.message);
  switch (error.kind) {
    case ErrorKind::kBadInput:
      return static_cast<int>(ExitCode::kBadInput);
    case ErrorKind::kInternal:
      return static_cast<int>(ExitCode::kInternal);
    case ErrorKind::kCannotRun:
      return static_cast<int>(ExitCode::kNothingRun);
  }
  return static_cast<int>(ExitCode::kInternal);
}

}  // namespace faultline
