// What the mutated sources call: each mutation asks whether its number is the chosen one (environment variable
// FAULTLINE_MUTANT), and otherwise does what the source says. scripts/mutants writes these calls into copies of the
// kernels; nothing of the program includes this.
//
// Binary operators are mutated without knowing where their operands end: `a < lt(7) < b` groups as `a < b` does, since
// the added operator has the same precedence. `a->*plus(7)` binds tighter than any of them.
#pragma once

#include <cstring>
#include <functional>
#include <type_traits>
#include <utility>

namespace faultline::mutant {

inline constexpr int kMost = 1 << 14;
extern int chosen;      // 0: none
extern bool recording;  // notes in `reached` which mutations were asked for
extern unsigned char reached[kMost];

inline bool on(int number) {
  if (recording) reached[number] = 1;
  return number == chosen;
}

template <class T>
concept Number = std::is_arithmetic_v<T> && !std::is_same_v<T, bool>;

inline long one(int number) {
  return on(number) ? 1 : 0;
}

struct Plus {
  int number;
};
struct Twice {
  int number;
};
struct More {
  int number;
};
inline Plus plus(int number) {
  return {number};
}
inline Twice twice(int number) {
  return {number};
}
inline More more(int number) {
  return {number};
}
template <Number T>
T operator->*(T value, Plus m) {
  return on(m.number) ? static_cast<T>(value + 1) : value;
}
template <Number T>
T operator->*(T value, Twice m) {
  return on(m.number) ? static_cast<T>(value * 2) : value;
}
template <Number T>
T operator->*(T value, More m) {
  if (!on(m.number)) return value;
  if constexpr (std::is_floating_point_v<T>) return value == 0 ? T(1) : static_cast<T>(value * 2);
  return static_cast<T>(value + 1);
}

struct Minus {
  int number;
};
inline Minus minus(int number) {
  return {number};
}
template <Number T>
T operator*(Minus m, T value) {
  return on(m.number) ? value : static_cast<T>(-value);
}

// An operator with its left operand, waiting for the right one.
template <class Tag, class L>
struct Left {
  L value;
  int number;
};

#define FAULTLINE_MUTATED(name, op, other)                                   \
  struct name##_tag {                                                        \
    int number;                                                              \
  };                                                                         \
  inline name##_tag name(int number) {                                       \
    return {number};                                                         \
  }                                                                          \
  template <class L>                                                         \
  Left<name##_tag, std::decay_t<L>> operator op(L&& left, name##_tag tag) {  \
    return {std::forward<L>(left), tag.number};                              \
  }                                                                          \
  template <class L, class R>                                                \
  auto operator op(const Left<name##_tag, L>& left, const R& right) {        \
    using Result = decltype(left.value op right);                            \
    if (on(left.number)) return static_cast<Result>(left.value other right); \
    return static_cast<Result>(left.value op right);                         \
  }
FAULTLINE_MUTATED(lt, <, <=)
FAULTLINE_MUTATED(le, <=, <)
FAULTLINE_MUTATED(gt, >, >=)
FAULTLINE_MUTATED(ge, >=, >)
FAULTLINE_MUTATED(eq, ==, !=)
FAULTLINE_MUTATED(ne, !=, ==)
FAULTLINE_MUTATED(add, +, -)
FAULTLINE_MUTATED(sub, -, +)
FAULTLINE_MUTATED(mul, *, /)
FAULTLINE_MUTATED(div, /, *)
FAULTLINE_MUTATED(mod, %, /)
#undef FAULTLINE_MUTATED

// Without its initial value a variable has all bits one, as shared memory has on the host: NaN, or -1.
template <class T>
T initial(int number, T value) {
  if (on(number)) std::memset(&value, 0xFF, sizeof value);
  return value;
}

// A phase of a block. Without the barrier behind it each thread goes on with the next phase at once.
inline std::function<void(int)> unfinished;
template <class Block, class Phase>
void phase(Block& block, int number, const Phase& run) {
  if (number != 0 && on(number)) {
    unfinished = run;
    return;
  }
  if (!unfinished) {
    block.for_each_thread(run);
    return;
  }
  const std::function<void(int)> first = std::exchange(unfinished, nullptr);
  block.for_each_thread([&](int t) {
    first(t);
    run(t);
  });
}

}  // namespace faultline::mutant
