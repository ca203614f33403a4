#!/usr/bin/env bash
# Installs the Debian packages of deploy/packages.txt that are missing. If none is missing, it does
# nothing and needs neither network nor root.
#   deploy/install-packages.sh [build|check|bench|engines|field|rdma|tests]...     default: build
# The group tests is what tests/run.sh and .ci/run install: build, check and rdma.
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
  -h | --help) sed -n '2,5p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
esac
groups=("$@")
[ ${#groups[@]} -gt 0 ] || groups=(build)
[[ " ${groups[*]} " != *" tests "* ]] || groups+=(build check rdma)

missing=()
for group in "${groups[@]}"; do
  while read -r name; do
    if ! dpkg-query -W -f='${db:Status-Status}\n' "$name" 2>/dev/null | grep -qx installed; then
      [[ " ${missing[*]} " == *" $name "* ]] || missing+=("$name")
    fi
  done < <(awk -v group="$group" '$1 == group { print $2 }' deploy/packages.txt)
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "ckv needs these Debian packages; as root run: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "installing: ${missing[*]}" >&2
# The lock wait is for machines that update themselves in the background.
apt=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -qq)
"${as_root[@]}" "${apt[@]}" update >&2
"${as_root[@]}" "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >&2
