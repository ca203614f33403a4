#!/usr/bin/env bash
# Makes the guest that run.sh boots: Debian's own kernel, whose modules have a soft RDMA device (the
# machines that build and test have none), and an initrd with those modules. Some 15 s, 90 MB
# downloaded; does nothing when the image is there and these scripts have not changed.
#   tests/guest/build-image.sh DIR        DIR/vmlinux, DIR/initrd
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
case ${1:-} in
  -h | --help) sed -n '2,5p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
  '' | -*) sed -n '2,5p' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2 ;;
esac
"$here"/../../deploy/install-packages.sh rdma
mkdir -p "$1"
image=$(realpath "$1")
version=$(cat "$here"/build-image.sh "$here"/init.sh | sha256sum)
if [ "$(cat "$image/version" 2>/dev/null)" = "$version" ]; then exit 0; fi

work=$(mktemp -d "$image/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
package=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image/ { print $2; exit }')
if [ -z "$package" ]; then
  echo "no kernel package is known: run apt-get update" >&2
  exit 1
fi
# apt's own user cannot write here when root runs this.
apt-get -q -o DPkg::Lock::Timeout=300 -o APT::Sandbox::User=root download "$package" >&2
dpkg -x linux-image*.deb kernel
release=$(ls kernel/lib/modules)
depmod -b kernel "$release"

# Emulation boots the bare ELF image some 3 s sooner than the compressed one unpacks itself.
"$here"/../../deploy/python.sh - "kernel/boot/vmlinuz-$release" vmlinux <<'PYTHON'
import lzma
import sys
packed = open(sys.argv[1], "rb").read()
elf = lzma.LZMADecompressor().decompress(packed[packed.find(b"\xfd7zXZ\0", 512):])
assert elf[:4] == b"\x7fELF"
open(sys.argv[2], "wb").write(elf)
PYTHON

mkdir -p initrd.d/{bin,modules,proc,sys,dev,host,writable,root}
cp /bin/busybox initrd.d/bin
install -m 755 "$here/init.sh" initrd.d/init
number=100  # what is needed first is inserted first: the shell sorts by name
for module in virtio_pci 9pnet_virtio 9p overlay crc32_generic rdma_rxe ib_uverbs dummy; do
  modprobe -d "$work/kernel" -S "$release" --show-depends "$module"
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r file; do
  number=$((number + 1))
  cp "$file" "initrd.d/modules/$number-${file##*/}"
done
(cd initrd.d && find . | cpio -o -H newc -R 0:0 --quiet) >initrd

mv vmlinux initrd "$image/"
echo "$version" >"$image/version"
