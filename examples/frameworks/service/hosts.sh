#!/bin/sh
# Runs the service on two hosts: two network namespaces with a network between them. The server runs in one, the client in the
# other. The namespaces are removed at the end.
#
# Needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN, to create namespaces and their network) and the command ip of iproute2.
set -eu

server=rdma-server-$$
client=rdma-client-$$
calls=10.99.0.1:7000
metrics=10.99.0.1:9000
folder=$(mktemp -d)

service() {
    cargo run --quiet --release -p frameworks --example service -- "$@"
}

remove() {
    ip netns delete "$server" 2>/dev/null || true
    ip netns delete "$client" 2>/dev/null || true
    rm -r "$folder"
}
trap remove EXIT
trap 'exit 1' INT TERM

command -v ip >/dev/null || { echo "the command ip is missing: install iproute2" >&2; exit 1; }
service certificates "$folder/certificates"
ip netns add "$server" || { echo "network namespaces need root" >&2; exit 1; }
ip netns add "$client"
ip link add eth0 netns "$server" type veth peer name eth0 netns "$client"
ip -n "$server" address add 10.99.0.1/24 dev eth0
ip -n "$client" address add 10.99.0.2/24 dev eth0
for host in "$server" "$client"; do
    ip -n "$host" link set lo up
    ip -n "$host" link set eth0 up
done

# cargo replaces itself by the program, so $! is the server.
mkfifo "$folder/output"
ip netns exec "$server" cargo run --quiet --release -p frameworks --example service -- \
    serve "$calls" "$metrics" "$folder/certificates" >"$folder/output" &
program=$!
{
    # The first line says that the server listens.
    read -r line
    echo "$line"
    ip netns exec "$client" cargo run --quiet --release -p frameworks --example service -- \
        call "$calls" "$metrics" "$folder/certificates" || echo "the client has failed"
    kill -TERM "$program"
    cat
} <"$folder/output"
wait "$program"
