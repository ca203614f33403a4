#!/usr/bin/env bash
# Configures a preset. A folder that another compiler configured begins again: CMake would keep only
# the compilers and forget the preset's other settings, so asan would be built without a sanitizer.
#   deploy/configure.sh PRESET [-DNAME=VALUE]...
set -euo pipefail
cd "$(dirname "$0")/.."
usage() { sed -n '2,4p' "$0" | sed 's/^# \{0,1\}//'; }
case ${1:-} in
  -h | --help) usage; exit 0 ;;
  '' | -*) usage >&2; exit 2 ;;
esac
preset=$1
shift
cache=build/$preset/CMakeCache.txt fresh=()
case $preset in
  asan | tsan | tsa | fuzz)
    if [ -f "$cache" ] && ! grep -q '^CMAKE_CXX_COMPILER:.*clang' "$cache"; then fresh=(--fresh); fi
    ;;
esac
cmake "${fresh[@]}" --preset "$preset" "$@" >&2
