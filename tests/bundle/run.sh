#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the GPU checks of shardcheck on this machine: sees that it can, finds CUDA's libraries, and hands over to
# bin/gpu_stages. Exit codes: 0 all passed, 1 a check failed or was not run, 2 bad usage or something missing here, 3 a fault.
set -u

usage() {
  cat <<'USAGE'
usage: ./run.sh [--cuda-libs DIR]... [--json FILE] [--stages LIST] [--seconds N] [--device KIND]

  --cuda-libs DIR  where CUDA 13's runtime libraries are: a toolkit, its lib64, a Python environment's site-packages or
                   a folder in its nvidia/ (cu13, cublas, ...). May be given several times. Without it they are looked
                   for in CUDA_PATH, CUDA_HOME, /usr/local/cuda*, the system's library folders and Python's environments
  --json FILE      the report, schema shardcheck.gpu-run/1 (default: ./shardcheck-gpu.json)
  --stages LIST    only stages whose names begin so, such as kernels,verify
  --seconds N      what is not begun by then is not run (default: 235)
  --device KIND    cuda (default); emu tries the bundle out without a GPU

SmolLM2-135M-Instruct.Q4_1.gguf is verified too if it lies in this folder or beside it.
USAGE
}

fail() {
  printf 'run.sh: %s\n' "$*" >&2
  exit 2
}

here=$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")" && pwd)
device=cuda
given=()
passed_on=()
while (($#)); do
  case $1 in
    --cuda-libs | --json | --stages | --seconds | --device)
      (($# > 1)) || fail "$1 needs a value; ./run.sh --help"
      set -- "$1=$2" "${@:3}"
      continue
      ;;
    --cuda-libs=*)
      [[ -d ${1#*=} ]] || fail "--cuda-libs ${1#*=}: there is no such folder"
      given+=("${1#*=}")
      ;;
    --device=*) device=${1#*=} ;;
    --json=* | --stages=* | --seconds=*) passed_on+=("$1") ;;
    -h | --help)
      usage
      exit 0
      ;;
    *) fail "unknown argument '$1'; ./run.sh --help" ;;
  esac
  shift
done

# needs NAME: a line NAME=VALUE of the file that was written with the bundle.
needs() { sed -n "s/^$1=//p" "$here/needs"; }

# at_least HAVE LEAST: compares versions such as 2.36.
at_least() {
  local major minor least_major least_minor
  IFS=. read -r major minor <<<"$1"
  IFS=. read -r least_major least_minor <<<"$2"
  ((major > least_major || (major == least_major && minor >= least_minor)))
}

# ---- the system --------------------------------------------------------------------------------------------------------

[[ $(uname -sm) == "Linux x86_64" ]] || fail "this is built for Linux on x86-64, not for $(uname -sm)"
libc=$(getconf GNU_LIBC_VERSION 2>/dev/null) || libc=$(ldd --version 2>&1 | sed -n '1s/.*\(GNU libc\|GLIBC\).* /glibc /p')
least=$(needs glibc)
if [[ $libc =~ ^glibc\ ([0-9]+\.[0-9]+) ]]; then
  at_least "${BASH_REMATCH[1]}" "$least" ||
    fail "this system has glibc ${BASH_REMATCH[1]}; these programs need glibc $least or newer"
else
  fail "this system has no glibc that says its version; these programs need glibc $least or newer"
fi

set_library_path() {
  local path=${1:+:$1}${others:+:$others}
  export LD_LIBRARY_PATH=$here/lib$path
}
others=${LD_LIBRARY_PATH:-}
set_library_path ""
# Also checks the CPU, and that libstdc++ is new enough.
if ! problem=$("$here/bin/shardcheck" --version 2>&1); then
  fail "the program doesn't start on this system: $problem"
fi

# ---- the GPU's driver --------------------------------------------------------------------------------------------------

driver_is_there() {
  [[ -e /proc/driver/nvidia/version || -e /dev/nvidiactl || -e /dev/dxg ]] || ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'
}

# ---- CUDA's libraries --------------------------------------------------------------------------------------------------

# Folders below a root in which a toolkit, a distribution or a Python wheel keeps libraries.
folders_of() {
  local root=${1%/}
  printf '%s\n' "$root" "$root/lib64" "$root/lib" "$root/lib/x86_64-linux-gnu" "$root/targets/x86_64-linux/lib" \
    "$root"/*/lib "$root"/nvidia/*/lib
  # A wheel's own folder, nvidia/cublas or nvidia/cublas/lib: the others lie beside it.
  [[ $root != */nvidia/* ]] || printf '%s\n' "${root%/nvidia/*}"/nvidia/*/lib
}

usual_folders() {
  local root
  for root in ${CUDA_PATH:+"$CUDA_PATH"} ${CUDA_HOME:+"$CUDA_HOME"} /usr/local/cuda-13 /usr/local/cuda /usr/local/cuda-13.* \
    /opt/cuda; do
    folders_of "$root"
  done
  ldconfig -p 2>/dev/null | sed -n 's/.* => \(.*\)\/lib\(cudart\|cublasLt\)\.so\..*/\1/p'
  printf '%s\n' /usr/lib/x86_64-linux-gnu /usr/lib64 /usr/lib
  for root in ${VIRTUAL_ENV:+"$VIRTUAL_ENV"} ${CONDA_PREFIX:+"$CONDA_PREFIX"} /usr/local /usr /opt/conda /opt/venv \
    "${HOME:-/root}/.local"; do
    printf '%s\n' "$root"/lib/python3*/{site,dist}-packages/nvidia/*/lib
    [[ $root != "${CONDA_PREFIX:-}" ]] || printf '%s\n' "$root/lib"
  done
  printf '%s\n' /usr/lib/python3/dist-packages/nvidia/*/lib
}

# find_libraries FOLDERS...: sets `found` (a search path) and `missing` (names).
find_libraries() {
  local library folder
  found="" missing=""
  for library in $(needs cuda_libraries); do
    for folder in "$@"; do
      [[ -e $folder/$library ]] || continue
      folder=$(readlink -f -- "$folder")
      [[ :$found: == *":$folder:"* ]] || found+=${found:+:}$folder
      continue 2
    done
    missing+=${missing:+, }$library
  done
}

if [[ $device == cuda ]]; then
  if ((${#given[@]})); then
    folders=()
    for root in "${given[@]}"; do
      mapfile -t -O "${#folders[@]}" folders < <(folders_of "$root")
    done
    find_libraries "${folders[@]}"
    [[ -z $missing ]] || fail "--cuda-libs ${given[*]}: $missing not found there, nor in lib, lib64, */lib or nvidia/*/lib below it"
  fi
  driver_is_there ||
    fail "no GPU answers here: no NVIDIA driver is loaded (neither /proc/driver/nvidia/version nor /dev/nvidiactl nor libcuda.so.1 is there)"
  if ! ((${#given[@]})); then
    mapfile -t folders < <(usual_folders)
    find_libraries "${folders[@]}"
    [[ -z $missing ]] ||
      fail "CUDA 13's runtime libraries are missing: $missing; give their folder with --cuda-libs DIR (pip install nvidia-cublas nvidia-cuda-runtime brings them)"
  fi
  set_library_path "$found"
  # All ranks on one GPU, which is what is verified here.
  export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-0}
fi

exec "$here/bin/gpu_stages" --root "$here" --device "$device" "${passed_on[@]}"
