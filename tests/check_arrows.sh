#!/bin/sh
# Arrows between folders go downwards only: fails when an #include goes up.
#
#   cli -> bisect -> {grid, report, engine} -> check -> ops -> {device, model} -> base
#
# kernels/ is included by ops/ alone (tests and benchmarks may include anything). Its headers, which nvcc has to read,
# include nothing of ours but each other and base/codec.h, and none of the heavy libraries; its host sources may use
# base/. report/findings.h is plain data, which grid/ fills in too.
#
#   check_arrows.sh [ROOT]
set -eu

root=${1:-$(dirname "$0")/..}
cd "$root"

find src kernels -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inc' \) \
  -exec grep -nHE '^[[:space:]]*#[[:space:]]*include' {} + | sort -t : -k 1,1 -k 2,2n |
  awk '
    function allow(folder, list,   i, n, names) {
      n = split(list, names, " ")
      for (i = 1; i <= n; i++) allowed[folder, names[i]] = 1
      folders[folder] = list
    }
    function complain(text) {
      printf "%s:%s: %s\n", file, line, text
      bad = 1
    }
    BEGIN {
      allow("base", "base")
      allow("device", "base device")
      allow("model", "base model")
      allow("ops", "base device model ops kernels")
      allow("check", "base device model ops check")
      allow("engine", "base device model ops check engine")
      allow("grid", "base device model ops check grid report/findings.h")
      allow("report", "base device model ops check report")
      allow("bisect", "base device model ops check engine grid report bisect")
      allow("cli", "base device model ops check engine grid report bisect cli")
      allow("kernels", "base/codec.h kernels")
      allow("kernels (host)", "base kernels")
    }
    {
      # file:line:#include "folder/name.h"
      split($0, at, ":")
      file = at[1]
      line = at[2]
      split(file, parts, "/")
      folder = parts[1] == "src" ? parts[2] : parts[1]
      if (folder == "kernels" && file ~ /\.cpp$/) folder = "kernels (host)"
      if (!match($0, /["<][^">]+[">]/)) next
      quoted = substr($0, RSTART, 1) == "\""
      target = substr($0, RSTART + 1, RLENGTH - 2)
      if (!(folder in folders)) {
        if (quoted) complain(folder " is not in the order of folders (tests/check_arrows.sh)")
        next
      }
      if (folder == "kernels" && target ~ /^(nlohmann|fmt|tl|spdlog|yaml-cpp|CLI)\//)
        complain("what nvcc reads must not include " target)
      split(target, names, "/")
      if (!(names[1] in folders)) {
        if (quoted) complain(target " is in none of the folders; includes start at src/ or at the root")
        next
      }
      if (!((folder, names[1]) in allowed) && !((folder, target) in allowed))
        complain(folder "/ must not include " target " (it may include: " folders[folder] ")")
    }
    END {
      if (NR == 0) {
        print "no #include found: is this the root of the repository?"
        exit 1
      }
      exit bad
    }'
