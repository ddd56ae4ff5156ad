#!/bin/sh
# Both ends of rping, C programs of rdma-core, over each device: cargo rdma-guest run -- sh rping.sh
set -eu
for address in "$TOKIO_RDMA_RXE_ADDR" "$TOKIO_RDMA_SIW_ADDR"; do
    rping -s -a "$address" -C 3 >/dev/null &
    until rdma resource show cm_id | grep -q "state LISTEN.*pid $! "; do
        sleep 0.1
    done
    rping -c -a "$address" -C 3 -v
    echo "rping works over $address"
    # The original's server may end with the status of a thread that has lost its race to the end.
    wait $! || true
done
