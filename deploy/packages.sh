#!/usr/bin/env bash
# Makes the Debian packages ckvd, ckvctl, libckv1 and libckv-dev of a built preset, and their bill of
# materials (SPDX). Prints the files.
#   deploy/packages.sh [--preset PRESET] FOLDER       default: release
set -euo pipefail
cd "$(dirname "$0")/.."
usage() { sed -n '2,4p' "$0" | sed 's/^# \{0,1\}//'; }
preset=release
if [ "${1:-}" = --preset ]; then
  preset=${2:?--preset takes a name}
  shift 2
fi
case ${1:-} in
  -h | --help) usage; exit 0 ;;
  '' | -*) usage >&2; exit 2 ;;
esac
[ $# -eq 1 ] || { usage >&2; exit 2; }
command -v dpkg-shlibdeps >/dev/null || {
  echo "SKIPPED: no dpkg-shlibdeps here; to run it: deploy/install-packages.sh tests" >&2
  exit 77
}
deploy/build.sh "$preset" ckvd ckvctl ckv_shared ckv_c ckv_page_files
mkdir -p "$1"
out=$(realpath "$1")
rm -f "$out"/*.deb "$out"/ckv.spdx.json
cpack -G DEB --config "build/$preset/CPackConfig.cmake" -B "$out" >&2
rm -rf "$out/_CPack_Packages"
deploy/python.sh deploy/sbom.py --version "$(sed -n 's/^project(ckv VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)" >"$out/ckv.spdx.json"
ls "$out"/*.deb "$out"/ckv.spdx.json
