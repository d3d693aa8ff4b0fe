#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The GPU tests under NVIDIA's compute-sanitizer: memory errors, races on shared memory, reads of memory that nobody wrote,
# barriers that not all threads reach. On a machine with a GPU and the CUDA toolkit:
#
#   tests/gpu/sanitize.sh GPU_TESTS [FILTER]     GPU_TESTS: build/release/tests/gpu_tests, or bin/gpu_tests of the bundle
#
# FILTER is GoogleTest's; without one all tests are run, which takes long. Exit codes: 0 nothing found,
# 1 something found or a test failed, 2 bad usage or no compute-sanitizer here.
set -u

(($# == 1 || $# == 2)) || {
  sed -n 's/^# \{0,1\}//; 3,9p' "$0" >&2
  exit 2
}
program=$1
filter=${2:-*}
[[ -x $program ]] || {
  printf 'sanitize.sh: %s: there is no such program; build the target gpu_tests\n' "$program" >&2
  exit 2
}
sanitizer=$(command -v compute-sanitizer || true)
for folder in "${CUDA_PATH:-/usr/local/cuda}/bin" "${CUDA_PATH:-/usr/local/cuda}/compute-sanitizer"; do
  [[ -n $sanitizer || ! -x $folder/compute-sanitizer ]] || sanitizer=$folder/compute-sanitizer
done
[[ -n $sanitizer ]] || {
  printf 'sanitize.sh: compute-sanitizer is not in PATH nor in the toolkit of CUDA_PATH or /usr/local/cuda\n' >&2
  exit 2
}

export SHARDCHECK_REQUIRE_GPU=1
# The bundle brings libraries beside its programs; CUDA's are the toolkit's.
libraries=$(cd -- "$(dirname -- "$program")/.." && pwd)/lib
[[ ! -d $libraries ]] || export LD_LIBRARY_PATH=$libraries:${CUDA_PATH:-/usr/local/cuda}/lib64:${LD_LIBRARY_PATH:-}
found=0
for tool in memcheck racecheck initcheck synccheck; do
  printf -- '--- %s\n' "$tool"
  "$sanitizer" --tool "$tool" --error-exitcode 1 "$program" --gtest_filter="$filter" --gtest_brief=1 || found=1
done
exit "$found"
