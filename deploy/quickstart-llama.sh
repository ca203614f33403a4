#!/usr/bin/env bash
# Stock llama.cpp over a text that stays with three holders, end to end, on this machine: eight agents
# of node-llama-cpp decode behind it, and every token is checked against agents that have its rows.
# A table compares time, memory and bytes. The engine comes from npm, by hash, and its model is
# random. Installs packages, builds, runs, and leaves nothing running. Without npm it says SKIPPED and
# exits with 77.
#   deploy/quickstart-llama.sh [FILE]     without a file, uses the GPL-3
set -euo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)
usage() { sed -n '2,7p' "$0" | sed 's/^# \{0,1\}//'; }
case ${1:-} in
  -h | --help) usage; exit 0 ;;
  -*) usage >&2; exit 2 ;;
esac
[ $# -le 1 ] || { usage >&2; exit 2; }
text=${1:-/usr/share/common-licenses/GPL-3}
[ -r "$text" ] || { echo "quickstart-llama: cannot read $text" >&2; exit 2; }
text=$(realpath "$text")
cd "$repo"

echo "== build"
deploy/install-packages.sh build
deploy/llama-headers.sh release
deploy/build.sh release ckvd ckvctl ggml_ckv

work=$(mktemp -d "${TMPDIR:-/tmp}/ckv-llama.XXXXXX")
trap 'rm -rf "$work"' EXIT
deploy/python.sh tests/engines/quickstart_llama.py --ckvd build/release/bin/ckvd --ckvctl build/release/bin/ckvctl \
  --backend build/release/client/bindings/ggml/module/libggml-ckv.so --text "$text" --work "$work/run"
