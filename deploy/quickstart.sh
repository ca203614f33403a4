#!/usr/bin/env bash
# The main job, end to end, on this machine: three holders share a real text, eight agents decode
# against it by routing their queries, and every token is checked against single-instance decoding.
# Then eight agents run under each policy: route, cache (all rows are fetched first) and auto. A
# table compares time, bytes and memory, and another says what auto saved. Fails if a token differs,
# and not because of a time. Installs packages, builds, runs, tells how long each phase took, and
# leaves nothing running.
#   deploy/quickstart.sh [FILE]     without a file, uses the GPL-3
set -euo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)
usage() { sed -n '2,8p' "$0" | sed 's/^# \{0,1\}//'; }
case ${1:-} in
  -h | --help) usage; exit 0 ;;
  -*) usage >&2; exit 2 ;;
esac
[ $# -le 1 ] || { usage >&2; exit 2; }
text=${1:-/usr/share/common-licenses/GPL-3}
[ -r "$text" ] || { echo "quickstart: cannot read $text" >&2; exit 2; }
text=$(realpath "$text")
cd "$repo"

tokens=4096  # of the text, a byte each: 8 chunks of 512; 18 MiB of cKV rows over 4 layers
ckvctl=build/release/bin/ckvctl

# Hundredths of a second since the machine's start: no step of the wall clock is in a time.
now() {
  local up
  read -r up _ </proc/uptime
  echo $((10#${up/./}))
}
seconds() { printf '%d.%d s' $(($1 / 100)) $(($1 % 100 / 10)); }
first=$(now) began= name= took=
# Begins a phase, and notes how long the one before took.
phase() {
  local at
  at=$(now)
  if [ -n "$name" ]; then took+="$name $(seconds $((at - began))), "; fi
  name=$1 began=$at
}

phase packages
echo "== 1/6 install packages"
deploy/install-packages.sh build

phase build
echo "== 2/6 build"
deploy/build.sh release ckvd ckvctl

phase fleet
state=$(mktemp -d "${TMPDIR:-/tmp}/ckv-quickstart.XXXXXX")
finish() {
  deploy/local-fleet.sh down --state "$state" || true
  rm -rf "$state"
}
trap finish EXIT

echo "== 3/6 start a directory, three holders and a requester"
# Uses tcp, as between machines.
fleet=$(deploy/local-fleet.sh up --holders 3 --state "$state" --fabrics tcp)
eval "$fleet"
export CKV_REQUESTER CKV_DIRECTORY
"$ckvctl" status

phase prefill
echo "== 4/6 prefill $text and spread its chunks over the holders"
"$ckvctl" corpus load quickstart "$text" --text --max-tokens "$tokens" --chunk-tokens 512

phase agents
echo "== 5/6 eight agents decode 64 tokens each by routing their queries"
"$ckvctl" agents run --corpus quickstart --text "$text" --max-tokens "$tokens" --count 8 --tokens 64

phase policies
echo "== 6/6 eight agents under each policy: two stay with a chunk, four look at one, two read all"
code=0
"$ckvctl" agents compare --corpus quickstart --text "$text" >"$state/compared" || code=$?

phase ""
echo "== took $(seconds $(($(now) - first))): ${took%, }"
# Last, because what auto saved is what to take away.
cat "$state/compared"
exit "$code"
