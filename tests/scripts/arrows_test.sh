#!/bin/sh
# check_arrows.sh fires on each kind of wrong include, and is silent on right ones.
set -u

check=$(cd "$(dirname "$0")/.." && pwd)/check_arrows.sh
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failed=0

# put FILE INCLUDE…: a source with these includes.
put() {
  file=$tree/$1
  shift
  mkdir -p "$(dirname "$file")"
  for include in "$@"; do printf '#include %s\n' "$include"; done >"$file"
}

# A tree in which everything goes downwards.
good_tree() {
  rm -rf "$tree/src" "$tree/kernels"
  put src/base/a.cpp '"base/a.h"' '<fmt/format.h>' '<nlohmann/json.hpp>'
  put src/device/a.h '"base/a.h"' '"device/b.h"'
  put src/model/a.h '"base/a.h"' '<sys/mman.h>'
  put src/ops/a.cpp '"ops/a.h"' '"kernels/a.h"' '"model/a.h"' '"device/a.h"'
  put src/check/a.cpp '"ops/a.h"'
  put src/engine/a.cpp '"check/a.h"' '"model/a.h"' '"engine/b.h"'
  put src/grid/a.cpp '"ops/a.h"' '"report/findings.h"'
  put src/report/a.cpp '"report/b.h"' '"base/a.h"'
  put src/bisect/a.cpp '"engine/a.h"' '"grid/a.h"' '"report/a.h"'
  put src/cli/a.cpp '"bisect/a.h"' '<CLI/CLI.hpp>'
  put kernels/a.h '"base/codec.h"' '"kernels/b.h"' '<cstdint>'
  put kernels/a.cpp '<hwy/highway.h>' '"kernels/a.h"' '"base/error.h"'
}

good_tree
if ! output=$(sh "$check" "$tree" 2>&1) || [ -n "$output" ]; then
  echo "fires on a good tree: $output"
  failed=1
fi

# fires FILE INCLUDE: one wrong include in an otherwise good tree is named with its place.
fires() {
  good_tree
  put "$1" '<cstdint>' "$2"
  if output=$(sh "$check" "$tree" 2>&1); then
    echo "silent on $2 in $1"
    failed=1
  elif ! echo "$output" | grep -q "^$1:2: "; then
    echo "does not name $1:2 for $2, but says: $output"
    failed=1
  elif [ "$(echo "$output" | wc -l)" -ne 1 ]; then
    echo "says more than one thing about $2 in $1: $output"
    failed=1
  fi
}

fires src/base/bad.cpp '"model/a.h"'
fires src/device/bad.h '"model/a.h"'
fires src/model/bad.cpp '"device/a.h"'
fires src/model/bad.cpp '"ops/a.h"'
fires src/ops/bad.cpp '"check/a.h"'
fires src/ops/bad.cpp '"engine/a.h"'
fires src/check/bad.cpp '"engine/a.h"'
fires src/check/bad.cpp '"kernels/a.h"'
fires src/check/bad.cpp '<engine/a.h>'
fires src/engine/bad.h '"grid/a.h"'
fires src/engine/bad.h '"report/findings.h"'
fires src/engine/bad.h '"kernels/a.h"'
fires src/grid/bad.cpp '"report/verdict.h"'
fires src/grid/bad.cpp '"engine/a.h"'
fires src/grid/bad.cpp '"bisect/a.h"'
fires src/report/bad.cpp '"grid/a.h"'
fires src/report/bad.cpp '"engine/a.h"'
fires src/report/bad.cpp '"bisect/a.h"'
fires src/bisect/bad.cpp '"cli/a.h"'
fires src/bisect/bad.cpp '"kernels/a.h"'
fires src/cli/bad.cpp '"kernels/a.h"'
fires src/cli/bad.cpp '"a.h"'
fires kernels/bad.h '"ops/a.h"'
fires kernels/bad.h '"base/error.h"'
fires kernels/bad.h '<fmt/format.h>'
fires kernels/bad.h '<nlohmann/json.hpp>'
fires kernels/bad.h '<tl/expected.hpp>'
fires kernels/bad.cu '"base/error.h"'
fires kernels/bad.cpp '"ops/a.h"'
fires src/cellar/bad.cpp '"base/a.h"'

mkdir "$tree/empty"
mkdir "$tree/empty/src" "$tree/empty/kernels"
if sh "$check" "$tree/empty" >/dev/null 2>&1; then
  echo "silent where there is nothing to check"
  failed=1
fi

exit "$failed"
