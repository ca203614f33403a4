#!/usr/bin/env bash
# Builds and runs a set of benchmarks and holds them against their bars: one row a bar, exit 0 only
# when all hold. Run it on an idle machine; with fewer than two free cores it measures the scheduler.
#   deploy/bench.sh data-path
set -euo pipefail
cd "$(dirname "$0")/.."
usage() { sed -n '2,4p' "$0" | sed 's/^# \{0,1\}//'; }
[ $# -eq 1 ] || { usage >&2; exit 2; }
case $1 in
  -h | --help) usage; exit 0 ;;
  data-path) targets=(requester_bench) ;;
  *) echo "bench: no set is named '$1'; there is: data-path" >&2; exit 2 ;;
esac
deploy/build.sh release "${targets[@]}"
exec python3 tests/bench/bars.py "$1" build/release
