// Errors are values: every function that can fail for a reason outside the program returns a Result. A broken invariant
// aborts with its expression (FAULTLINE_CHECK). No exception crosses a module.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace faultline {

// The program's exit codes (README, "Exit codes").
enum class ExitCode : int {
  kGood = 0,
  kFailuresLocalized = 1,
  kBadInput = 2,
  kInternal = 3,
  kFailuresNotLocalized = 4,
  kNothingRun = 5,
  kCannotRunHere = 125,
  kInterrupted = 130,
};

enum class ErrorKind {
  kBadInput,   // a file, flag or value of the user's: exit code 2
  kInternal,   // the machine or this program: exit code 3
  kCannotRun,  // sound input that this machine cannot run: exit code 5 (125 from replay)
};

// `message` says what is wrong, where (file, line, key, tensor), and what to do about it.
struct Error {
  ErrorKind kind = ErrorKind::kInternal;
  std::string message;
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

template <class... Args>
tl::unexpected<Error> bad_input(fmt::format_string<Args...> format, Args&&... args) {
  return tl::make_unexpected(Error{ErrorKind::kBadInput, fmt::format(format, std::forward<Args>(args)...)});
}
template <class... Args>
tl::unexpected<Error> internal_error(fmt::format_string<Args...> format, Args&&... args) {
  return tl::make_unexpected(Error{ErrorKind::kInternal, fmt::format(format, std::forward<Args>(args)...)});
}
template <class... Args>
tl::unexpected<Error> cannot_run(fmt::format_string<Args...> format, Args&&... args) {
  return tl::make_unexpected(Error{ErrorKind::kCannotRun, fmt::format(format, std::forward<Args>(args)...)});
}

[[noreturn]] inline void check_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, expression);
  std::fflush(stderr);
  std::abort();
}

}  // namespace faultline

#define FAULTLINE_CHECK(expression) \
  ((expression) ? static_cast<void>(0) : ::faultline::check_failed(#expression, __FILE__, __LINE__))

#define FAULTLINE_CONCAT_(a, b) a##b
#define FAULTLINE_CONCAT(a, b) FAULTLINE_CONCAT_(a, b)

// FAULTLINE_TRY(declaration, expression): declares from the value, or returns the error.
// NOLINTBEGIN(bugprone-macro-parentheses): a declaration cannot stand in parentheses
#define FAULTLINE_TRY(declaration, expression)                                          \
  auto FAULTLINE_CONCAT(result_, __LINE__) = (expression);                              \
  if (!FAULTLINE_CONCAT(result_, __LINE__))                                             \
    return tl::make_unexpected(std::move(FAULTLINE_CONCAT(result_, __LINE__)).error()); \
  declaration = std::move(*FAULTLINE_CONCAT(result_, __LINE__))
// NOLINTEND(bugprone-macro-parentheses)

// FAULTLINE_TRY_STATUS(expression): returns the error of a Status.
#define FAULTLINE_TRY_STATUS(expression)                                              \
  do {                                                                                \
    auto result_status = (expression);                                                \
    if (!result_status) return tl::make_unexpected(std::move(result_status).error()); \
  } while (false)
