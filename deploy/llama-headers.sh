#!/usr/bin/env bash
# Has a preset build libggml-ckv.so: brings the headers of stock llama.cpp from npm (packages.txt of
# tests/engines) to build/PRESET/llama.cpp, and configures CKV_GGML_INCLUDE. Leaves a
# CKV_GGML_INCLUDE of other headers alone. Without npm it says SKIPPED and exits with 77; the build
# then has no such library.
#   deploy/llama-headers.sh PRESET
set -euo pipefail
cd "$(dirname "$0")/.."
usage() { sed -n '2,6p' "$0" | sed 's/^# \{0,1\}//'; }
case ${1:-} in
  -h | --help) usage; exit 0 ;;
  '' | -*) usage >&2; exit 2 ;;
esac
preset=$1
cache=build/$preset/CMakeCache.txt
include=$PWD/build/$preset/llama.cpp/ggml
is=$(sed -n 's/^CKV_GGML_INCLUDE:STRING=//p' "$cache" 2>/dev/null || true)
if [ -n "$is" ] && [ "$is" != "$include/include;$include/src" ]; then
  echo "llama-headers: CKV_GGML_INCLUDE is $is" >&2
  exit 0
fi
deploy/python.sh tests/engines/engines.py --headers "build/$preset/llama.cpp" >&2 || exit $?
[ -n "$is" ] || cmake --preset "$preset" "-DCKV_GGML_INCLUDE=$include/include;$include/src" >&2
