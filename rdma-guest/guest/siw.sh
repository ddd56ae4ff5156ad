#!/bin/sh
# guest-siw stock|p2p: loads that build of siw in place of the one that is loaded, and makes siw0 over veth2 with it.
set -eu
case ${1-} in
stock) build=$TOKIO_RDMA_GUEST_SIW_STOCK ;;
p2p) build=$TOKIO_RDMA_GUEST_SIW_P2P ;;
*)
    echo "usage: guest-siw stock|p2p" >&2
    exit 2
    ;;
esac
if [ -d /sys/module/siw ]; then
    rmmod siw
fi
insmod "$build"
rdma link add siw0 type siw netdev "${TOKIO_RDMA_SIW_LINK:-veth2}"
