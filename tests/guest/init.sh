#!/bin/busybox sh
# The guest's first process: loads the modules, mounts the host's root file system read-only with a
# layer of memory over it, runs /guest/command there, leaves its exit status in /guest/status.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for file in /modules/*; do
  insmod "$file" || echo "insmod $file failed"
done
options=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o ro,cache=loose,$options host /host
mount -t tmpfs writable /writable
mkdir /writable/upper /writable/work
mount -t overlay -o lowerdir=/host,upperdir=/writable/upper,workdir=/writable/work overlay /root
mkdir -p /root/guest
mount -t 9p -o cache=none,$options guest /root/guest
mount -t devtmpfs dev /root/dev
mkdir -p /root/dev/shm /root/dev/pts
mount -t devpts pts /root/dev/pts
mount -t tmpfs shm /root/dev/shm
mount -t sysfs sys /root/sys
mount -t proc proc /root/proc
mount -t tmpfs run /root/run
ifconfig lo 127.0.0.1 up
echo up >/root/guest/booted
# Moved to the top: what lives in a root that is not may make no namespace of users.
cd /root
mount --move . /
chroot . /bin/bash /guest/command
echo $? >guest/status
poweroff -f
