#!/usr/bin/env bash
# Runs a command in the guest and exits with its status; 125 if the guest died or took too long. The
# command sees this host's files at their own paths, read-only under a layer of memory, so what was
# built here runs there with its libraries. There is one soft RDMA device, rxe0, on a network device
# of its own: rdma0, 10.9.0.1.
#   tests/guest/run.sh DIR COMMAND [ARGUMENT]...     DIR: what build-image.sh made
# Emulated: for what is right, never for what is fast. From the environment: GUEST_LIMIT_S seconds in
# all (240), GUEST_MEMORY_MB (2048), GUEST_CPUS (2).
set -euo pipefail
case ${1:-} in
  -h | --help) sed -n '2,8p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
esac
[ $# -ge 2 ] || { sed -n '2,8p' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2; }
image=$(realpath "$1")
shift
exchange=$(mktemp -d)
trap 'rm -rf "$exchange"' EXIT

{
  echo 'export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8'
  echo 'ulimit -l unlimited'
  printf 'cd %q\n' "$PWD"
  # Not lo: its GIDs are made of a MAC of zeros, and a test takes the device down.
  echo 'ip link add rdma0 type dummy && ip addr add 10.9.0.1/24 dev rdma0 && ip link set rdma0 up || exit 124'
  echo 'rdma link add rxe0 type rxe netdev rdma0 || exit 124'
  printf 'exec'
  printf ' %q' "$@"
  echo
} >"$exchange/command"

# No network, no disk: two shares and a console. Machine type microvm sometimes hangs at boot, q35
# has not been seen to.
boot() {
  exec qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -cpu max,-la57 \
    -smp "${GUEST_CPUS:-2}" -m "${GUEST_MEMORY_MB:-2048}" -nodefaults -no-user-config -display none -no-reboot -serial stdio \
    -kernel "$image/vmlinux" -initrd "$image/initrd" \
    -append "console=ttyS0 panic=-1 nokaslr mitigations=off quiet loglevel=4 random.trust_cpu=on \
tsc=reliable cryptomgr.notests net.ifnames=0" \
    -fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap \
    -device virtio-9p-pci,fsdev=host,mount_tag=host \
    -fsdev local,id=guest,path="$exchange",security_model=none \
    -device virtio-9p-pci,fsdev=guest,mount_tag=guest </dev/null
}

# A boot takes 4 s, and was seen to take 40 on a machine with six times its load.
boot_limit_s=120
end=$((SECONDS + ${GUEST_LIMIT_S:-240}))
for attempt in 1 2; do
  rm -f "$exchange/booted" "$exchange/status"
  boot > >(tr -d '\r') &
  guest=$!
  trap 'kill -9 "$guest" 2>/dev/null || true; rm -rf "$exchange"' EXIT
  boot_end=$((SECONDS + boot_limit_s))
  while kill -0 "$guest" 2>/dev/null; do
    if [ ! -e "$exchange/booted" ] && [ $SECONDS -ge $boot_end ]; then
      echo "guest: not up after $boot_limit_s s (attempt $attempt)" >&2
      kill -9 "$guest"
      break
    fi
    if [ $SECONDS -ge $end ]; then
      echo "guest: over its ${GUEST_LIMIT_S:-240} s" >&2
      kill -9 "$guest"
      break
    fi
    sleep 0.2
  done
  wait "$guest" 2>/dev/null || true
  if [ -s "$exchange/status" ]; then exit "$(cat "$exchange/status")"; fi
  if [ -e "$exchange/booted" ]; then break; fi
done
echo "guest: died" >&2
exit 125
