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
  asan | tsan | tsa | fuzz) deploy/install-packages.sh build check ;;  # built by clang
  *) deploy/install-packages.sh build ;;
esac
if [ ! -f "build/$preset/build.ninja" ] || [[ $preset == ?san ]]; then
  deploy/configure.sh "$preset"
fi
cmake --build "build/$preset" ${@:+--target "$@"} >&2
