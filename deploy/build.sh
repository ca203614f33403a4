#!/usr/bin/env bash
# Installs what is missing, configures a preset and builds targets. Prints progress on stderr and
# nothing on stdout.
#   deploy/build.sh PRESET [TARGET]...     no target: everything
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:?usage: deploy/build.sh PRESET [TARGET]...}
shift
deploy/install-packages.sh build
if [ ! -f "build/$preset/build.ninja" ]; then
  cmake --preset "$preset" >&2
fi
cmake --build "build/$preset" ${@:+--target "$@"} >&2
