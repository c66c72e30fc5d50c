#!/bin/sh
# Runs one Catch2 program for ctest: results go to a file that scripts/test counts, failures are printed.
#
#   run_catch.sh PROGRAM RESULTS.xml
#
# FAULTLINE_TEST_FILTER, when set, is a part of the names of the test cases to run; a program without such a case is
# left out in silence.
set -u

program=$1
results=$2
here=$(dirname "$0")

mkdir -p "$(dirname "$results")"
rm -f "$results"
if [ -n "${FAULTLINE_TEST_FILTER:-}" ]; then
  "$program" "*$FAULTLINE_TEST_FILTER*" -r xml -o "$results"
else
  "$program" -r xml -o "$results"
fi
code=$?

if [ ! -f "$results" ]; then
  echo "$program: ended with code $code and wrote no results"
  exit 1
fi
awk -f "$here/catch_failures.awk" "$results"
# Shells and awk see a death by signal as a code above 128; a program that ends early and well is no success either.
if ! grep -q '</Catch' "$results"; then
  echo "$program: died (code $code); its last test case is the one named above, or was: $(sed -n 's/.*<TestCase name="\([^"]*\)".*/\1/p' "$results" | tail -n 1)"
  exit 1
fi
if [ "$code" -ne 0 ] && [ -n "${FAULTLINE_TEST_FILTER:-}" ] && ! grep -q '<TestCase ' "$results"; then
  exit 0
fi
exit "$code"
