#!/usr/bin/env bash
# scripts/mutants: the same mutants each time, none outside of kernels, and each mutation does what its operator says.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
if ! command -v python3 >/dev/null; then
  echo "no python3 here: skipped"
  exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$root/scripts/mutants" --list >"$work/first"
"$root/scripts/mutants" --list >"$work/second"
cmp "$work/first" "$work/second"
count=$(wc -l <"$work/first")
if ((count < 100)); then
  echo "only $count mutants"
  exit 1
fi
if grep -E 'base/|check/|launch\.h|view\.h|operand\.h|cuda_' <(awk '{ print $3 }' "$work/first"); then
  echo "mutants of what is no kernel"
  exit 1
fi

# A toy kernel: the mutants of it, compiled together, and what each of them makes of the sum.
cat >"$work/toy.h" <<'TOY'
#pragma once
namespace faultline {
struct ToyBlock {
  template <class Phase>
  void for_each_thread(const Phase& phase) const {
    for (int t = 2; t >= 0; --t) phase(t);
  }
};
// Comments like a + b - c are no code, and neither is "a * b".
inline float toy(const float* x, int count, int x_stride, float scale) {
  const ToyBlock block;
  float shared[3] = {-1, -1, -1};
  float out[3] = {0, 0, 0};
  block.for_each_thread([&](int t) { shared[t] = x[t * x_stride]; });
  block.for_each_thread([&](int t) { out[t] = shared[2 - t]; });
  float sum = 0;
  for (int i = 0; i < count; ++i) {
    if (i == 1) sum += 100;
    sum += out[i] * scale;
  }
  return count > 9 ? 9 : sum;
}
}  // namespace faultline
TOY
cat >"$work/toy.cpp" <<'MAIN'
#include <cstdio>
#include "toy.h"
int main() {
  const float x[] = {1, 2, 3, 4, 5, 6, 7, 8};
  std::printf("%g\n", faultline::toy(x, 3, 2, 0.5f));
}
MAIN
PYTHONDONTWRITEBYTECODE=1 python3 - "$root/scripts/mutants_exam" "$work" <<'CHECK'
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import sites

work = Path(sys.argv[2])
source = (work / "toy.h").read_text()
found = sites.find_sites("kernels/toy.h", source)
for number, site in enumerate(found, 1):
    site.number = number
(work / "toy.h").write_text(sites.apply(source, found))
subprocess.run(["g++", "-std=c++20", "-w", "-O0", "-include", "mutant.h", f"-I{sys.argv[1]}", work / "toy.cpp",
                Path(sys.argv[1]) / "mutant.cpp", "-o", work / "toy"], check=True)


def value(number):
    done = subprocess.run([work / "toy"], env={**os.environ, "FAULTLINE_MUTANT": str(number)}, capture_output=True,
                          text=True)
    return done.stdout.strip() if done.returncode == 0 else "died"


assert value(0) == "104.5", value(0)


def of(operator, line):
    return {value(s.number) for s in found if s.operator == operator and line in s.text}


def expect(operator, line, *values):
    met = of(operator, line)
    assert set(values) <= met, f"{operator} of '{line}' gives {met}, expected {values}"


expect("barrier", "shared[t] = x", "103.5")             # thread 2 reads what thread 0 has not stored yet
expect("store", "sum += out", "100")                    # nothing is added
expect("guard", "if (i == 1)", "4.5")                   # never
expect("unguard", "if (i == 1)", "304.5")               # always
expect("clamp", "count > 9", "9", "104.5")              # always 9; always the sum
expect("compare", "if (i == 1)", "204.5")               # != instead
expect("product", "* scale", "118")                     # / instead: twice the sum is four times as much
expect("scale", "* scale", "109")                       # 0.5 doubled
expect("accumulate", "sum += out", "0.5")               # only the last one stays
expect("stride", "x_stride]", "106")                    # 1, 4, 7 instead of 1, 3, 5
expect("constant", "float sum = 0", "105.5")            # begins at 1
assert any(v.endswith("nan") for v in of("initial", "float sum = 0"))
assert not any("Comments" in s.text or "template" in s.text for s in found)
names = {s.operator for s in found}
assert {"barrier", "store", "guard", "unguard", "clamp", "bound", "compare", "index", "stride", "sign", "product", "scale",
        "constant", "initial", "accumulate"} <= names, names
assert len(sites.sample(found, 1)) == len(names)
CHECK
echo "ok: $count mutants"
