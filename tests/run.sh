#!/usr/bin/env bash
# Builds and runs all tests through ctest; installs the packages it needs.
#   tests/run.sh                    the release build's tests
#   tests/run.sh --preset asan      another preset's (dev, release, asan, tsan); may be repeated
#   tests/run.sh --ci               what CI runs: format and tree rules, release, asan and tsan (tsan
#                                   without gRPC, whose own locks it cannot see)
#   tests/run.sh -R requester       what follows goes to ctest
set -euo pipefail
cd "$(dirname "$0")/.."

presets=()
static=0
while [ $# -gt 0 ]; do
  case $1 in
    --preset)
      presets+=("${2:?--preset takes a name}")
      shift 2
      ;;
    --ci)
      static=1
      presets=(release asan tsan)
      shift
      ;;
    -h | --help)
      sed -n '2,7p' "$0" | sed 's/^# \{0,1\}//'
      exit 0
      ;;
    *) break ;;
  esac
done
[ ${#presets[@]} -gt 0 ] || presets=(release)

if [ $static -eq 1 ]; then
  deploy/check.sh --quick
fi
for preset in "${presets[@]}"; do
  echo "== preset $preset: build" >&2
  deploy/build.sh "$preset"
  echo "== preset $preset: test" >&2
  # A misspelt -R must not pass for tests that passed.
  ctest --preset "$preset" -j "$(nproc)" --no-tests=error "$@"
done
