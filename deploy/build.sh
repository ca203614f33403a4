#!/usr/bin/env bash
# Installs missing packages, configures a preset and builds targets. Prints progress on stderr and
# nothing on stdout.
#   deploy/build.sh PRESET [TARGET]...     without a target, builds everything
set -euo pipefail
cd "$(dirname "$0")/.."
usage() { sed -n '2,4p' "$0" | sed 's/^# \{0,1\}//'; }
case ${1:-} in
  -h | --help) usage; exit 0 ;;
  '' | -*) usage >&2; exit 2 ;;
esac
preset=$1
shift
case $preset in
  asan | tsan | tsa | fuzz) # built by clang; the folder may be of another compiler
    deploy/install-packages.sh build check
    deploy/configure.sh "$preset"
    ;;
  *)
    deploy/install-packages.sh build
    [ -f "build/$preset/build.ninja" ] || deploy/configure.sh "$preset"
    ;;
esac
cmake --build "build/$preset" ${@:+--target "$@"} >&2
