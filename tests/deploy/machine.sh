#!/usr/bin/env bash
# Runs a command on a machine of its own that runs systemd: namespaces of this host (mounts, processes,
# network, users' ids unchanged), this host's root file system under a layer of memory. The command sees
# the tree and FOLDER... at their own paths; what it writes elsewhere goes with the machine.
#   tests/deploy/machine.sh [--bind FOLDER]... COMMAND [ARGUMENT]...
# Exits with the command's status; 77 and the reason if this host cannot have such a machine. Needs root,
# systemd installed, cgroup2, overlayfs. Boots in some 2 s; MACHINE_BOOT_S (60) in the environment limits it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tree=$(cd "$here/../.." && pwd)
binds=("$tree")
while [ "${1:-}" = --bind ]; do
  binds+=("$(realpath "$2")")
  shift 2
done
case ${1:-} in
  -h | --help) sed -n '2,7p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
  '' | -*) sed -n '2,7p' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2 ;;
esac
# Why, and what would help.
cannot() { echo "SKIPPED: no machine with systemd here: $1; to run it: $2" >&2; exit "${3:-77}"; }

[ "$(id -u)" -eq 0 ] || cannot "not root" "the same as root"
[ -x /lib/systemd/systemd ] || {
  cannot "systemd is not installed" "deploy/install-packages.sh tests" "${CI:+1}"
}
unshare -Cmpinuf true 2>/dev/null ||
  cannot "no namespaces may be made" "a kernel that lets root make namespaces"
unshare -Cmpf bash -c 'mount -t cgroup2 none /mnt' 2>/dev/null ||
  cannot "cgroup2 cannot be mounted" "a kernel with control groups of version 2, and the right to mount them"

work=$(mktemp -d)
unshare -Cmpinuf --kill-child "$here/machine_boot.sh" "$work" "${binds[@]}" </dev/null >"$work/log" 2>&1 &
machine=$!
end() {
  kill -9 "$machine" 2>/dev/null || true
  wait "$machine" 2>/dev/null || true
  rm -rf "$work"
}
trap end EXIT
failed() { cat "$work/log" >&2; echo "machine: $*" >&2; exit 1; }

# The first process of the machine is the child of unshare, once it has become systemd.
limit=$((SECONDS + ${MACHINE_BOOT_S:-60}))
first=
until [ -n "$first" ] && [ "$(cat "/proc/$first/comm" 2>/dev/null)" = systemd ] &&
  nsenter -t "$first" -m -p systemctl show-environment >/dev/null 2>&1; do
  kill -0 "$machine" 2>/dev/null || failed "ended while it booted"
  [ $SECONDS -lt $limit ] || failed "did not boot in ${MACHINE_BOOT_S:-60} s"
  sleep 0.1
  first=$(cat "/proc/$machine/task/$machine/children" 2>/dev/null || true)
  first=${first%% *}
done
inside=(nsenter -t "$first" -m -p -i -n -u -C)
"${inside[@]}" systemctl is-system-running --wait >/dev/null || true  # degraded is good enough
rc=0
"${inside[@]}" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
  bash -c 'cd "$1" && shift && exec "$@"' _ "$tree" "$@" || rc=$?
exit $rc
