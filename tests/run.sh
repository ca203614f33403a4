#!/usr/bin/env bash
# Builds and runs all tests through ctest; installs the packages it needs.
#   tests/run.sh                    the release build's tests
#   tests/run.sh --preset asan      another preset's (dev, release, asan, tsan); may be repeated
#   tests/run.sh --rdma             only the tests of the verbs fabric, in the guest of tests/guest
#   tests/run.sh --ci               the checks of CI: format, tree rules, release, verbs, asan, tsan
#                                   (tsan without gRPC, whose own locks it cannot see)
#   tests/run.sh -R requester       passes other arguments on to ctest
set -euo pipefail
cd "$(dirname "$0")/.."

presets=()
static=0 rdma=0
while [ $# -gt 0 ]; do
  case $1 in
    --preset)
      presets+=("${2:?--preset takes a name}")
      shift 2
      ;;
    --ci)
      export CI=1  # a test that lacks its program fails, where it would be skipped
      static=1 rdma=1
      presets=(release asan tsan)
      shift
      ;;
    --rdma)
      rdma=1
      shift
      ;;
    -h | --help)
      sed -n '2,8p' "$0" | sed 's/^# \{0,1\}//'
      exit 0
      ;;
    *) break ;;
  esac
done
[ ${#presets[@]} -gt 0 ] || presets=(release)

# The three presets' folders come to 15.6 GB, and ccache to 5. A link that finds the disk full half an
# hour on says so in one line of thousands.
needed_gb=22
free_gb=$(df --output=avail -BG . | tail -1 | tr -dc 0-9)
if [ $static -eq 1 ] && [ ! -d build/asan ] && [ "$free_gb" -lt "$needed_gb" ]; then
  echo "tests/run.sh: --ci fills about $needed_gb GB and $PWD has $free_gb GB free: make room" \
    "(rm -rf build in other checkouts; ccache --max-size 1G)" >&2
fi

if [ $rdma -eq 1 ]; then
  # Before the configuration, because the verbs fabric is built only if its library is there.
  deploy/install-packages.sh build rdma
fi
if [ $static -eq 1 ]; then
  deploy/check.sh --quick
fi
for preset in "${presets[@]}"; do
  echo "== preset $preset: build" >&2
  # A build folder that was configured before the library came must look for it again.
  [ $rdma -eq 0 ] || cmake --preset "$preset" >&2
  deploy/install-packages.sh build
  headers=0
  deploy/llama-headers.sh "$preset" || headers=$?
  if [ $headers -eq 77 ]; then
    echo "== preset $preset: SKIPPED libggml-ckv.so and its tests: no headers of llama.cpp" >&2
  elif [ $headers -ne 0 ]; then
    exit $headers
  fi
  deploy/build.sh "$preset"
  if [ $rdma -eq 1 ] && [ "$preset" = release ]; then
    echo "== preset $preset: test in the guest" >&2
    ctest --test-dir "build/$preset" -L rdma --no-tests=error --output-on-failure
    [ $static -eq 1 ] || exit 0
  fi
  echo "== preset $preset: test" >&2
  # A misspelt -R matches no test, which must not count as success.
  durations=$PWD/build/$preset/durations
  rm -rf "$durations" && mkdir -p "$durations"
  rc=0
  GTEST_OUTPUT=json:$durations/ ctest --preset "$preset" -j "$(nproc)" --no-tests=error \
    --output-junit "$durations/ctest.xml" "$@" || rc=$?
  python3 tests/durations.py "build/$preset" >&2 || true
  [ $rc -eq 0 ] || exit $rc
done
