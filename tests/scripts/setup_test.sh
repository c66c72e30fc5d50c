#!/bin/sh
# scripts/setup on machines that are not this one: stand-ins for dpkg-query, apt-get, sudo and id say what the machine is
# like, and write down what was asked of them.
# shellcheck disable=SC2016,SC2317  # conditions are evaluated later
set -u

setup=$(cd "$(dirname "$0")/../.." && pwd)/scripts/setup
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0
bin=$folder/bin
calls=$folder/calls

# A machine without packages: nothing but what the script itself needs.
bare_machine() {
  rm -rf "$bin" "$calls" "$folder/installed"
  mkdir "$bin"
  : >"$calls"
  : >"$folder/installed"
  for tool in bash cat head rm sed env; do ln -s "$(command -v "$tool")" "$bin/$tool"; done
  tool_is id "echo \${FAKE_UID:-0}"
  tool_is sleep :
}
tool_is() {
  printf '#!/bin/sh\n%s\n' "$2" >"$bin/$1"
  chmod +x "$bin/$1"
}
# dpkg-query looks packages up in $folder/installed; apt-get install puts them there unless told to fail.
debian_machine() {
  bare_machine
  tool_is dpkg-query "for last; do :; done; while read -r p; do [ \"\$p\" = \"\$last\" ] && echo installed; done <$folder/installed; :"
  tool_is apt-cache "exit 0"
  tool_is apt-get "
echo \"apt-get \$*\" >>$calls
case \" \$* \" in
  *' install '*)
    if [ -e $folder/stale ]; then rm $folder/stale; exit 100; fi
    if [ -e $folder/broken ]; then exit 100; fi
    for word; do echo \"\$word\" >>$folder/installed; done ;;
esac"
  tool_is sudo "echo \"sudo \$1\" >>$calls; exec \"\$@\""
}

run_setup() {
  output=$(PATH=$bin bash "$setup" "$@" 2>&1)
  code=$?
}
expect() {
  if ! eval "$2"; then
    echo "$1: not so: $2 (code $code, output: $output, calls: $(cat "$calls"))"
    failed=1
  fi
}
says() { printf '%s' "$output" | grep -qF -- "$1"; }
called() { [ "$(grep -c -- "$1" "$calls")" -eq "$2" ]; }

debian_machine
run_setup
expect "as root, nothing there" '[ "$code" -eq 0 ]'
expect "as root, nothing there" 'called " update" 1 && called " install .*libyaml-cpp-dev" 1 && called sudo 0'
run_setup
expect "a second time: silent, nothing asked for" '[ "$code" -eq 0 ] && [ -z "$output" ] && called " install" 1'

debian_machine
FAKE_UID=1000
export FAKE_UID
run_setup
expect "a user with sudo" '[ "$code" -eq 0 ] && called "sudo env" 2'

debian_machine
rm "$bin/sudo"
run_setup
expect "a user without sudo" '[ "$code" -eq 1 ] && says "apt-get install" && says libhwy-dev && called apt-get 0'
unset FAKE_UID

debian_machine
: >"$folder/stale"
run_setup
expect "stale package lists" '[ "$code" -eq 0 ] && called " update" 2 && called " install" 2'

debian_machine
: >"$folder/broken"
run_setup
expect "packages that cannot be had" '[ "$code" -eq 1 ] && says "could not install" && says catch2'
rm "$folder/broken"

bare_machine
run_setup
expect "not Debian" '[ "$code" -eq 1 ] && says "not a Debian system" && says libopenblas-dev && says FAULTLINE_NO_SETUP'

debian_machine
run_setup --list
expect "--list installs nothing" '[ "$code" -eq 0 ] && says catch2 && called apt-get 0 && ! says clang'
run_setup --list --dev
expect "--list --dev" '[ "$code" -eq 0 ] && says clang-tidy && says libclang-rt-dev'

debian_machine
tool_is apt-cache 'case "$1" in depends) echo "  Depends: clang-16" ;; *) exit 100 ;; esac'
run_setup --list --dev
expect "a runtime with clang's number" 'says libclang-rt-16-dev'

run_setup --wrong
expect "an unknown option" '[ "$code" -eq 2 ] && says "unknown option --wrong"'

exit "$failed"
