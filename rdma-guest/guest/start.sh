#!/bin/sh
# Sets the guest machine up and runs the command of this run in it. `settings` gives GUEST_FOLDER (where the kernel
# and its modules are), GUEST_DEVICES (those of rxe and siw that are made), GUEST_SIW (stock or p2p) and GUEST_SECONDS (how
# long the command may take).
. /run/guest/settings
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# Ends the machine; what the host finds in the folder of the run tells how it went.
end() {
    dmesg >/run/guest/dmesg
    sync
    exec busybox poweroff -f
}
fail() {
    echo "$1" >/run/guest/failure
    end
}

# Not every system has the package `mount`, and busybox is there in any case.
mkdir -p /dev/pts /dev/shm
busybox mount -t devpts devpts /dev/pts
busybox mount -t tmpfs -o mode=1777 tmpfs /dev/shm
ln -s /proc/self/fd /dev/fd
for stream in 0:stdin 1:stdout 2:stderr; do
    ln -s "/proc/self/fd/${stream%:*}" "/dev/${stream#*:}"
done

kernel=$(uname -r)
mkdir -p "/lib/modules/$kernel"
busybox mount -o bind "$GUEST_FOLDER/lib/modules/$kernel" "/lib/modules/$kernel"
# rxe fails without a generic CRC-32, which it does not load by itself.
modprobe -a crc32_generic crc32c_generic libcrc32c rdma_rxe rdma_ucm ib_umad ib_uverbs veth || fail "cannot load the modules"

# Each device has a network of its own, so that an address names one device. veth1 and veth3 are the far ends.
ip link set lo up
ip link add veth0 type veth peer name veth1
ip link add veth2 type veth peer name veth3
for link in veth0 veth1 veth2 veth3; do
    ip link set "$link" up
done
ip address add 10.77.0.1/24 dev veth0
ip address add fd77::1/64 dev veth0 nodad
ip address add 10.78.0.1/24 dev veth2
ip address add fd78::1/64 dev veth2 nodad
for device in $GUEST_DEVICES; do
    case $device in
    rxe) rdma link add rxe0 type rxe netdev veth0 || fail "cannot make rxe0" ;;
    siw) /run/guest/bin/guest-siw "$GUEST_SIW" || fail "cannot make siw0" ;;
    esac
done

ulimit -l unlimited
mkdir -m 1777 /run/scratch

# The command writes to pipes as it would anywhere; what comes out of them goes through a port of the machine each.
mkfifo /run/out /run/err
for stream in out err; do
    for port in /sys/class/virtio-ports/*; do
        if [ "$(cat "$port/name")" = "$stream" ]; then
            cat "/run/$stream" >"/dev/${port##*/}" &
            copies="$copies $!"
        fi
    done
done
read -r started _ </proc/uptime
timeout -s KILL "$GUEST_SECONDS" /bin/sh /run/guest/command </dev/null >/run/out 2>/run/err
echo "$?" >/run/guest/status.part
read -r ended _ </proc/uptime
if [ $((${ended%.*} - ${started%.*})) -ge "$GUEST_SECONDS" ]; then
    : >/run/guest/late
fi
# A process that the command left behind can hold the pipes open for as long as it likes.
timeout 5 tail --pid="${copies##* }" -f /dev/null
timeout 5 tail --pid="$(echo $copies | cut -d ' ' -f 1)" -f /dev/null
mv /run/guest/status.part /run/guest/status
end
