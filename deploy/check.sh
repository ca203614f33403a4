#!/usr/bin/env bash
# Runs every check that must pass before a change lands. Installs packages.
#   deploy/check.sh             --static, then the tests of release, asan and tsan
#   deploy/check.sh --static    format, tree rules, and thread-safety analysis by clang, clang-tidy and
#                               cppcheck over everything
#   deploy/check.sh --changed   the same, but clang-tidy and cppcheck over what the last 30 commits and
#                               the working tree changed (clang-tidy for 4 minutes), and thread safety
#                               for 2 minutes, over these files first
#   deploy/check.sh --lint      as --changed, with 2 minutes for clang-tidy, and 40 s each for thread safety
#                               and for headers alone, mostly to find a changed file that forgot an
#                               include: .ci/run does this, and builds asan, in which clang checks thread
#                               safety everywhere
#   deploy/check.sh --quick     only format and tree rules: seconds
set -euo pipefail
cd "$(dirname "$0")/.."
what=(--all) static_only=0 quick=0
case ${1:-} in
  --static) static_only=1 ;;
  --changed) static_only=1 what=(--changed 30) ;;
  --lint) static_only=1 what=(--changed 30 --safety-limit-s 40 --headers-limit-s 40 --limit-s 120) ;;
  --quick) quick=1 ;;
  '') ;;
  -h | --help) sed -n '2,13p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
  *) sed -n '2,13p' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2 ;;
esac
deploy/install-packages.sh tests

step() { echo "== $*" >&2; }

mapfile -t sources < <(git ls-files -- '*.h' '*.cc' '*.c')
step "format: ${#sources[@]} files"
clang-format-14 --dry-run -Werror "${sources[@]}"

step "tree rules"
deploy/python.sh tests/tidy.py

[ $quick -eq 0 ] || exit 0

# What clang needs to parse every file: its flags, generated headers, and those of llama.cpp.
deploy/llama-headers.sh tsa || [ $? -eq 77 ] || exit 1
deploy/build.sh tsa ckv_generated
deploy/python.sh tests/static_checks.py build/tsa "${what[@]}"

[ $static_only -eq 1 ] || tests/run.sh --preset release --preset asan --preset tsan
