#!/usr/bin/env bash
# The first process of the machine of machine.sh, in its namespaces: makes a root file system and becomes
# systemd there.
#   machine_boot.sh WORK FOLDER...
set -euo pipefail
work=$1
shift
mount --make-rprivate /
mount -t tmpfs machine "$work"
root=$work/root
mkdir "$work"/upper "$work"/work "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sys "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 dev "$root/dev"
for device in null zero full random urandom tty; do
  touch "$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
if [ -d /dev/infiniband ]; then
  mkdir "$root/dev/infiniband"
  mount --bind /dev/infiniband "$root/dev/infiniband"
fi
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs shm "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 pts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mount -t tmpfs run "$root/run"
mount -t tmpfs tmp "$root/tmp"
for folder in "$@"; do
  mkdir -p "$root$folder"
  mount --bind "$folder" "$root$folder"
done
cd "$root"
pivot_root . mnt
umount -l /mnt
ip link set lo up 2>/dev/null || ifconfig lo up
# Nothing of the host starts, and nobody is asked anything.
rm -rf /etc/systemd/system/*.wants /etc/systemd/system/*.requires
systemctl mask --quiet systemd-firstboot.service
exec env -i container=ckv-test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system \
  --unit=basic.target
