# Shared by the scripts of this folder. Source it; it changes into the repository's root.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1

say() { printf '%s\n' "$*" >&2; }
die() {
  say "$(basename "$0"): $*"
  exit 2
}

# Compilers that this machine can run at once: one a core, and 1.5 GiB of free memory each.
jobs() {
  local cores free_kib limit used by_memory
  cores=$(nproc)
  free_kib=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
  if [[ $limit != max ]]; then
    used=$(cat /sys/fs/cgroup/memory.current 2>/dev/null || echo 0)
    if (((limit - used) / 1024 < free_kib)); then free_kib=$(((limit - used) / 1024)); fi
  fi
  by_memory=$((free_kib / 1572864))
  if ((by_memory < cores)); then cores=$by_memory; fi
  if ((cores < 1)); then cores=1; fi
  echo "$cores"
}

# Installs what is missing. FAULTLINE_NO_SETUP=1: the machine has its packages from elsewhere.
run_setup() {
  if [[ ${FAULTLINE_NO_SETUP:-0} != 1 ]]; then scripts/setup; fi
}
