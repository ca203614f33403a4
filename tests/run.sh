#!/usr/bin/env bash
# Builds and runs all tests through ctest; installs the packages that they need (group tests).
#   tests/run.sh                    the release build's tests
#   tests/run.sh --preset asan      another preset's (dev, release, asan, tsan); may be repeated
#   tests/run.sh --rdma             only the tests of the verbs fabric, in the guest of tests/guest
#   tests/run.sh --ci               the checks of CI: deploy/check.sh --lint, release, verbs, asan, tsan
#                                   (tsan without gRPC, whose own locks it cannot see). A test that
#                                   lacks its program fails. One that fails runs once more; if it
#                                   passes then, it is named as flaky, and the run goes on. The unit
#                                   tests of control code run in asan only, the longest e2e in
#                                   release only.
#   tests/run.sh -R requester       passes other arguments on to ctest
# The last lines name each test that failed, was flaky or was skipped, and what would run these.
set -euo pipefail
cd "$(dirname "$0")/.."

presets=()
static=0 rdma=0 again=()
while [ $# -gt 0 ]; do
  case $1 in
    --preset)
      presets+=("${2:?--preset takes a name}")
      shift 2
      ;;
    --ci)
      export CI=1  # a test that lacks its program fails, where it would be skipped
      static=1 rdma=1 again=(--again)
      presets=(release asan tsan)
      shift
      ;;
    --rdma)
      rdma=1
      shift
      ;;
    -h | --help)
      sed -n '2,13p' "$0" | sed 's/^# \{0,1\}//'
      exit 0
      ;;
    *) break ;;
  esac
done
[ ${#presets[@]} -gt 0 ] || presets=(release)

# The three presets' folders come to 15.6 GB, ccache to 5, and vLLM to 5, with 3 while it is installed.
# A link that finds the disk full half an hour on says so in one line of thousands.
needed_gb=29
free_gb=$(df --output=avail -BG . | tail -1 | tr -dc 0-9)
if [ $static -eq 1 ] && [ ! -d build/asan ] && [ "$free_gb" -lt "$needed_gb" ]; then
  echo "tests/run.sh: --ci fills about $needed_gb GB and $PWD has $free_gb GB free: make room" \
    "(rm -rf build in other checkouts; ccache --max-size 1G)" >&2
fi

# Without the right to install, what can be built is tested: tests that lack a program say so.
deploy/install-packages.sh build
deploy/install-packages.sh tests || [ -z "${CI:-}" ] || exit 1

# Programs that mostly wait for one another, and whose code the unit tests of asan run through.
release_only='^(directories|verify|drain|corpus|replica|lifecycle|partition)_e2e$'

left_out=() folders=() ahead= control_off=0
leave_out() { left_out+=(--left-out "$1; to run it: $2"); }
# However the run ends, its last lines say how; a skip that names no remedy makes it fail.
finish() {
  local rc=$?
  if [ -n "$ahead" ]; then
    kill "$ahead" 2>/dev/null || true
    wait "$ahead" 2>/dev/null || true
  fi
  # What is called without --ci has all tests.
  [ $control_off -eq 0 ] || deploy/configure.sh release -DCKV_CONTROL_TESTS=ON || true
  echo "== outcome" >&2
  deploy/python.sh tests/outcome.py tell "${left_out[@]}" "${folders[@]}" >&2 || [ $rc -ne 0 ] || rc=1
  exit $rc
}
# What there is beside what runs.
for preset in release asan tsan; do
  [[ " ${presets[*]} " == *" $preset "* ]] || leave_out "the tests of the preset $preset" "tests/run.sh --preset $preset"
done
[ $rdma -eq 1 ] || leave_out "the tests of the verbs fabric (label rdma)" "tests/run.sh --rdma"
[ $static -eq 1 ] || leave_out "the static checks" "deploy/check.sh --changed"
[ $# -eq 0 ] || leave_out "what these arguments of ctest do not select: $*" "tests/run.sh without them"
if [ $static -eq 1 ]; then
  leave_out "the unit tests of control code, preset release (asan has them)" "tests/run.sh"
  leave_out "the longest e2e, preset asan (release has them)" "tests/run.sh --preset asan"
fi
trap finish EXIT

# step WORDS: what begins, and when: the limit of CI is a time.
step() { echo "== $* ($((SECONDS / 60)) min)" >&2; }

# run_tests PRESET FOLDER ARGUMENT...: ctest, and where its report goes.
run_tests() {
  local preset=$1 folder=build/$1/$2
  shift 2
  folders+=("$folder")
  deploy/python.sh tests/outcome.py run "${again[@]}" "build/$preset" "$folder" -- "$@"
}

# build_ahead PRESET: begins to build it on what the tests that run now leave of the processors, a
# quarter. Its session is the one of least weight. It ends with this script, even if that is killed.
# Errors are those of the build that follows.
build_ahead() {
  mkdir -p build
  setsid setpriv --pdeathsig TERM bash -c '{ echo 19 >/proc/self/autogroup; } 2>/dev/null
    renice -n 19 $$ >/dev/null
    trap "trap - TERM; kill 0" TERM
    { deploy/configure.sh "$1" && { deploy/llama-headers.sh "$1" || [ $? -eq 77 ]; } && deploy/build.sh "$1"; } &
    wait' build_ahead "$1" >"build/$1-ahead.log" 2>&1 &
  ahead=$!
}

# Waits for what build_ahead began, which now gets all of the processors.
await_ahead() {
  [ -n "$ahead" ] || return 0
  { echo 0 >"/proc/$ahead/autogroup"; } 2>/dev/null || true
  renice -n 0 -g "$ahead" >/dev/null 2>&1 || true
  wait "$ahead" || true
  ahead=
}

if [ $static -eq 1 ]; then
  deploy/check.sh --lint
fi
for index in "${!presets[@]}"; do
  preset=${presets[index]}
  step "preset $preset: build"
  await_ahead
  # The same sources, checked for more, are in asan.
  control=ON
  if [ $static -eq 1 ] && [ "$preset" = release ]; then control=OFF control_off=1; fi
  # A build folder that was configured before a package came must look for it again.
  deploy/configure.sh "$preset" -DCKV_CONTROL_TESTS=$control
  headers=0
  deploy/llama-headers.sh "$preset" || headers=$?
  if [ $headers -eq 77 ]; then
    leave_out "libggml-ckv.so and its tests, preset $preset: no headers of llama.cpp" \
      "install npm (on Debian: apt-get install npm), with a network that reaches its registry"
  elif [ $headers -ne 0 ]; then
    exit $headers
  fi
  deploy/build.sh "$preset"
  if [ $rdma -eq 1 ] && [ "$preset" = release ]; then
    step "preset $preset: test in the guest"
    run_tests "$preset" durations-rdma --test-dir "build/$preset" -L rdma --no-tests=error --output-on-failure
    [ $static -eq 1 ] || exit 0
  fi
  step "preset $preset: test"
  next=${presets[index + 1]:-}
  if [ $static -eq 1 ] && [ -n "$next" ]; then build_ahead "$next"; fi
  # A misspelt -R matches no test, which must not count as success.
  rc=0
  some=()
  if [ $static -eq 1 ] && [ "$preset" = asan ]; then some=(-E "$release_only"); fi
  run_tests "$preset" durations --preset "$preset" -j "$(nproc)" --no-tests=error "${some[@]}" "$@" || rc=$?
  deploy/python.sh tests/durations.py "build/$preset" >&2 || true
  [ $rc -eq 0 ] || exit $rc
done
