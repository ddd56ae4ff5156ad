#!/bin/busybox sh
# The first program of the guest machine. Makes a root file system of the host's, read-only underneath, and a layer
# in memory that takes what is written; mounts the folder of this run, and goes on there with `start`.
export PATH=/bin
/bin/busybox --install -s /bin

# Nothing can be done without the root file system: say so on the console, and end the machine.
fail() {
    echo "guest: $1"
    poweroff -f
}

mkdir -p /proc /sys /dev /host /layer /new
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
while read -r module; do
    insmod "/modules/$module" || fail "cannot load $module"
done </modules/order

plan9=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o "ro,$plan9,cache=loose" root /host || fail "cannot mount the host's root file system"
mount -t tmpfs -o mode=755 tmpfs /layer
mkdir /layer/upper /layer/work
mount -t overlay -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work overlay /new || fail "cannot overlay"
mount -t tmpfs -o mode=755 tmpfs /new/run
mkdir /new/run/guest
mount -t 9p -o "$plan9" run /new/run/guest || fail "cannot mount the folder of this run"
for folder in proc sys dev; do
    mount --move "/$folder" "/new/$folder"
done
exec switch_root /new /bin/sh /run/guest/start
