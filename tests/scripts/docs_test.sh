#!/bin/sh
# The documentation is true in what can be looked up: files that it names exist, links lead somewhere, the table of
# tolerances is the code's.
# shellcheck disable=SC2016  # backquotes are Markdown's
set -u

root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 1
failed=0
complain() {
  echo "$*"
  failed=1
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

for document in README.md docs/*.md; do
  sed '/^```/,/^```/d' "$document" >"$scratch/text"  # without code blocks
  # `src/base/tensor.h`, `tests/goldens/`: paths from the root. Names with demo_ in them are the examples of a guide.
  grep -o '`[A-Za-z0-9_./-]*`' "$scratch/text" | tr -d '\140' |
    grep -E '^\.?(src|kernels|tests|docs|scripts|experiments|benchmarks|cmake|ci|reports)/.' | grep -v demo_ |
    sort -u >"$scratch/paths"
  # [text](target), but for addresses and places within a page.
  grep -o '](\([^)]*\))' "$scratch/text" | sed 's/^](//; s/)$//; s/#.*//' | grep -v '^[a-z]*://' | grep . |
    sort -u | sed "s|^|$(dirname "$document")/|" >>"$scratch/paths"
  while read -r path; do
    [ -e "$path" ] || complain "$document names $path, which does not exist"
  done <"$scratch/paths"
done

grep '^| `' docs/tolerances.md >"$scratch/documented"
scripts/tolerance_table | grep '^| `' >"$scratch/table"
if ! diff "$scratch/documented" "$scratch/table"; then
  complain "docs/tolerances.md is not src/ops/tolerances.h: put in what scripts/tolerance_table prints"
fi
# A row that the script cannot read would be missing on both sides.
rows=$(sed -n '/ kTolerances\[\] = {/,/^};/p' src/ops/tolerances.h | grep -c '^ *{"')
[ "$(wc -l <"$scratch/table")" -eq "$rows" ] || complain "scripts/tolerance_table leaves rows out"

exit "$failed"
