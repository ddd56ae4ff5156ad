#!/bin/sh
# Makes the parts of the guest machine that depend on the kernel's version: sh build.sh VERSION FOLDER INIT
#
# FOLDER is new and empty. Afterwards it holds vmlinuz, initramfs.gz (with INIT as its first program),
# lib/modules/VERSION (siw included) and siw-p2p.ko. This needs no rights: packages are unpacked, not installed.
set -eu
version=$1
folder=$2
init=$3
series=$(expr "$version" : '\([0-9]*\.[0-9]*\)')
base=${version%-amd64}
mkdir "$folder/work"
cd "$folder/work"

echo "-- packages of kernel $version"
apt-get download "linux-image-$version-unsigned" "linux-headers-$version" "linux-headers-$base-common" \
    "linux-kbuild-$series" "linux-source-$series"
for package in linux-*.deb; do
    dpkg -x "$package" unpacked
done
mv "unpacked/boot/vmlinuz-$version" "$folder/vmlinuz"

# What a network test may load, without the drivers of hardware that the machine does not have.
echo "-- modules"
all=unpacked/lib/modules/$version
modules=$folder/lib/modules/$version
mkdir -p "$modules/kernel/drivers/infiniband" "$modules/kernel/drivers/net" "$modules/extra"
cp "$all"/modules.builtin* "$all/modules.order" "$modules/"
for part in arch crypto fs lib net drivers/char drivers/infiniband/core drivers/infiniband/sw drivers/virtio; do
    mv "$all/kernel/$part" "$modules/kernel/$part"
done
find "$all/kernel/drivers/net" -maxdepth 1 -name '*.ko' -exec mv -t "$modules/kernel/drivers/net" {} +

echo "-- siw, as it is and with peer-to-peer mode and CRC"
tar -xJf "unpacked/usr/src/linux-source-$series.tar.xz" --strip-components=4 \
    "linux-source-$series/drivers/infiniband/sw/siw"
# The header packages name each other by absolute paths: make those lead to where they are unpacked.
headers=$PWD/unpacked/usr/src/linux-headers-$version
sed -i "s,/usr/src/,$PWD/unpacked/usr/src/,g" "$headers/Makefile"
find unpacked/usr/src -type l -lname '/*' | while read -r link; do
    ln -sfn "$PWD/unpacked$(readlink "$link")" "$link"
done
cp -r siw siw-p2p
sed -i -E 's/^(const bool (peer_to_peer|mpa_crc_required)).*;/\1 = true;/' siw-p2p/siw_main.c
[ "$(grep -cE '^const bool (peer_to_peer|mpa_crc_required) = true;' siw-p2p/siw_main.c)" = 2 ]
for build in siw siw-p2p; do
    make -C "$headers" M="$PWD/$build" CONFIG_RDMA_SIW=m -j2 modules
    strip -g "$build/siw.ko"
done
mv siw/siw.ko "$modules/extra/siw.ko"
mv siw-p2p/siw.ko "$folder/siw-p2p.ko"
depmod -b "$folder" "$version"

# Just enough to mount the root file system of the host; the rest is loaded from there.
echo "-- initial file system"
mkdir -p initial/bin initial/modules
cp "$(command -v busybox)" initial/bin/busybox
cp "$init" initial/init
chmod 755 initial/init
for module in virtio_pci 9pnet_virtio 9p overlay virtio_console; do
    modprobe -d "$folder" -S "$version" --show-depends "$module"
done | while read -r verb file _; do
    if [ "$verb" = insmod ] && ! [ -e "initial/modules/${file##*/}" ]; then
        cp "$file" initial/modules/
        echo "${file##*/}" >>initial/modules/order
    fi
done
(cd initial && find . | cpio --quiet -o -H newc) | gzip -1 >"$folder/initramfs.gz"
rm -r "$folder/work"
