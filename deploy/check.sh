#!/usr/bin/env bash
# Runs every check that must pass before a change lands.
#   deploy/check.sh             format, tree rules, lint, then the tests of release, asan and tsan
#   deploy/check.sh --static    only what needs no test run (thread-safety analysis included)
#   deploy/check.sh --quick     only format and tree rules: seconds
set -euo pipefail
cd "$(dirname "$0")/.."
static_only=0 quick=0
case ${1:-} in
  --static) static_only=1 ;;
  --quick) quick=1 ;;
  '') ;;
  -h | --help) sed -n '2,5p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
  *) sed -n '2,5p' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2 ;;
esac
deploy/install-packages.sh build check

step() { echo "== $*" >&2; }

mapfile -t sources < <(git ls-files -- '*.h' '*.cc' '*.c')
step "format: ${#sources[@]} files"
clang-format-14 --dry-run -Werror "${sources[@]}"

step "tree rules"
deploy/python.sh tests/tidy.py

[ $quick -eq 0 ] || exit 0

step "thread safety: clang, -Wthread-safety"
ggml=(ggml_ckv)
deploy/llama-headers.sh tsa || { [ $? -eq 77 ] && ggml=(); }
deploy/build.sh tsa ckvd ckvctl ckv_c "${ggml[@]}"

# Changed files only: a whole-tree run takes longer than the tests. The base is the last landed
# state if there is one, else the previous commit.
step "clang-tidy on changed files"
base=$(git merge-base HEAD origin/main 2>/dev/null || true)
if [ -z "$base" ] || [ "$base" = "$(git rev-parse HEAD)" ]; then
  base=$(git rev-parse -q --verify HEAD~1 || true)
fi
if [ -n "$base" ]; then
  # Programs over llama.cpp's headers are compiled by tests alone, and are not known there.
  mapfile -t changed < <(git diff --name-only --diff-filter=d "$base" -- '*.cc' |
    while read -r file; do ! grep -qF "$PWD/$file\"" build/tsa/compile_commands.json || echo "$file"; done)
  if [ ${#changed[@]} -gt 0 ]; then
    printf '%s\n' "${changed[@]}" | xargs -P "$(nproc)" -n 4 clang-tidy-14 -p build/tsa --quiet
  fi
fi

# Suppressed: headers are stamped in a copy (passedByValue); cppcheck 2.10 misreads std::span returns
# and Highway's dispatch macro.
step "cppcheck"
cppcheck --quiet --enable=warning,performance,portability --std=c++20 --language=c++ --inline-suppr \
  --error-exitcode=1 --suppress=missingIncludeSystem --suppress=unknownMacro \
  --suppress=passedByValue:transport/wire.cc --suppress=CastIntegerToAddressAtReturn \
  --suppress=constStatement:attention/mla_block.cc --suppress=constStatement:client/engine/linear.cc -I . -j "$(nproc)" \
  proto attention store transport client server

[ $static_only -eq 1 ] || tests/run.sh --preset release --preset asan --preset tsan
