#!/bin/sh
# run_catch.sh and count_cases.awk: a program that passes, fails, dies, ends early, or has no matching case is counted
# for what it is.
set -u

tests=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0
program=$folder/program
results=$folder/results/program.xml

# A stand-in for a Catch2 program: called as `program [FILTER] -r xml -o FILE`, writes what is on stdin, ends with $1.
stand_in() {
  cat >"$folder/content.xml"
  cat >"$program" <<SCRIPT
#!/bin/sh
while [ "\$1" != -o ]; do
  case \$1 in "*"*) echo "\$1" >"$folder/filter" ;; esac
  shift
done
cp "$folder/content.xml" "\$2"
$1
SCRIPT
  chmod +x "$program"
}

# expect WHAT CODE COUNTS [TEXT]: what run_catch.sh answers (0 or 1), what is counted, a part of what is printed.
expect() {
  output=$(sh "$tests/run_catch.sh" "$program" "$results" 2>&1)
  code=$?
  if [ "$code" -ne 0 ]; then code=1; fi
  counts=$(awk -f "$tests/count_cases.awk" "$results" 2>/dev/null)
  if [ "$code" -ne "$2" ] || [ "$counts" != "$3" ]; then
    echo "$1: code $code, counts '$counts'; expected $2 and '$3'"
    failed=1
  fi
  if ! printf '%s\n' "$output" | grep -qF -- "${4:-}"; then
    echo "$1: printed '$output', expected it to hold '${4:-}'"
    failed=1
  fi
}

stand_in 'exit 0' <<'XML'
<Catch name="t">
    <TestCase name="one" filename="a.cpp" line="1">
      <OverallResult success="true"/>
    </TestCase>
    <TestCase name="two" filename="a.cpp" line="2">
      <Section name="s" filename="a.cpp" line="2">
        <OverallResults successes="1" failures="0" expectedFailures="0"/>
      </Section>
      <OverallResult success="true"/>
    </TestCase>
  <OverallResults successes="2" failures="0" expectedFailures="0"/>
</Catch>
XML
expect "all pass" 0 "2 0"

stand_in 'exit 1' <<'XML'
<Catch name="t">
    <TestCase name="a &lt; b" filename="a.cpp" line="1">
      <Expression success="false" type="CHECK" filename="a.cpp" line="7">
        <Original>
          a &lt; b &amp;&amp; c
        </Original>
        <Expanded>
          2 &lt; 1
        </Expanded>
      </Expression>
      <OverallResult success="false"/>
    </TestCase>
    <TestCase name="two" filename="a.cpp" line="2">
      <OverallResult success="true" skips="0"/>
    </TestCase>
    <TestCase name="three" filename="a.cpp" line="3">
      <OverallResult success="true" skips="1"/>
    </TestCase>
</Catch>
XML
expect "one fails, one is skipped" 1 "1 1" "FAILED: a < b"
expect "the failure's place" 1 "1 1" "a.cpp:7: CHECK"
expect "the failure's expression" 1 "1 1" "a < b && c"

stand_in 'exit 3' <<'XML'
<Catch name="t">
    <TestCase name="one" filename="a.cpp" line="1">
      <OverallResult success="true"/>
    </TestCase>
</Catch>
XML
expect "every case passes, the program does not (a leak)" 1 "1 0"

stand_in "kill -9 \$\$" <<'XML'
<Catch name="t">
    <TestCase name="one" filename="a.cpp" line="1">
      <OverallResult success="true"/>
    </TestCase>
    <TestCase name="deadly" filename="a.cpp" line="2">
XML
expect "death by signal" 1 "1 1" "deadly"

stand_in 'exit 0' <<'XML'
<Catch name="t">
    <TestCase name="leaver" filename="a.cpp" line="2">
XML
expect "a case that ends the program well" 1 "0 1" "leaver"

printf '#!/bin/sh\nexit 0\n' >"$program"
expect "no results" 1 "" "wrote no results"

# Catch2 3 answers a filter without a match with a code of its own.
export FAULTLINE_TEST_FILTER=nothing
stand_in 'exit 2' <<'XML'
<Catch name="t" filters="*nothing*">
</Catch>
XML
expect "no case matches the filter" 0 "0 0"
if [ "$(cat "$folder/filter")" != "*nothing*" ]; then
  echo "the filter did not reach the program"
  failed=1
fi

exit "$failed"
