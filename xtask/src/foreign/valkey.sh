# Valkey at one end, the example `valkey` at the other, on rxe0. Arguments: the folder of Valkey, the example.
valkey=$1 example=$2 address=$TOKIO_RDMA_RXE_ADDR
cd "$TOKIO_RDMA_SCRATCH" || exit 125

# The programs, none of which may wait for ever.
ours() { timeout 180 "$example" "$@"; }
cli() { timeout 60 "$valkey/src/valkey-cli" --rdma -h "$address" "$@"; }
benchmark() { timeout 300 "$valkey/src/valkey-benchmark" --rdma -h "$address" --csv "$@"; }
own_test() { timeout 180 "$valkey/tests/rdma/rdma-test" -h "$address" "$@"; }

# fails COMMAND ...: the command ends with 1.
fails() {
    "$@"
    [ $? -eq 1 ]
}

# during COMMAND -- COMMAND ...: the second command runs while the first one waits.
during() {
    first=
    while [ "$1" != -- ]; do
        first="$first $1"
        shift
    done
    shift
    { sleep 3 && "$@" >/dev/null 2>&1; } &
    $first
    status=$?
    wait $!
    return $status
}

# together COUNT COMMAND ...: so many at a time, each of which has to end with 0.
together() {
    count=$1 running= status=0
    shift
    while [ "$count" -gt 0 ]; do
        "$@" &
        running="$running $!" count=$((count - 1))
    done
    for process in $running; do
        wait "$process" || status=1
    done
    return $status
}

# until_says FILE PATTERN: waits for a line.
until_says() {
    tries=0
    until grep -q -e "$2" "$1" || [ $tries -ge 60 ]; do
        sleep 1
        tries=$((tries + 1))
    done
}

echo "-- the server is Valkey's: $("$valkey/src/valkey-server" --version)"
"$valkey/src/valkey-server" --port 0 --protected-mode no --appendonly no --save "" --dir . \
    --rdma-bind "$address" "$TOKIO_RDMA_RXE_ADDR6" --rdma-port 6379 >valkey.log 2>&1 &
until_says valkey.log "Ready to accept connections rdma"
server=$address:6379
check "rdma-test, its own" "test \[OK\]" own_test -t 4 -M 300 -m 200
check "a command" "^PONG" ours call "$server" PING
check "a command over IPv6" "^PONG" ours call "[$TOKIO_RDMA_RXE_ADDR6]:6379" PING
check "an error" "^(error) ERR unknown command" fails ours call "$server" NONSENSE
check "values of up to 3 MiB" "^client: 64 values" ours check "$server"
check "a ring of 64 KiB" "^client: 16 values" ours --ring 65536 check "$server" --values 16
check "a ring of 1001 bytes" "^client: 7 values" ours --ring 1001 check "$server" --values 7
check "four clients" "^client: 16 values" together 4 ours check "$server" --values 16
check "signs of life while a client waits" "^(nil)" ours call "$server" BLPOP nothing 10
check "a client that is killed" "^Error: the peer disconnected" \
    during fails ours call "$server" BLPOP nothing 20 -- ours call "$server" CLIENT KILL TYPE normal SKIPME yes
check "a server that saves in a child" "^Background saving started" ours call "$server" BGSAVE
check "a server that ends" "^Error: the peer disconnected" \
    during fails ours call "$server" BLPOP nothing 20 -- ours call "$server" SHUTDOWN NOSAVE
check "no server" "nobody listens at the port" fails ours call "$server" PING

echo "-- the server is ours"
"$example" serve "$address:6380" >ours.log 2>&1 &
ours_server=$!
until_says ours.log "listens on"
check "valkey-cli: PING" "^PONG" cli -p 6380 PING
check "valkey-cli: SET" "^OK" cli -p 6380 SET color blue
check "valkey-cli: GET" "^blue" cli -p 6380 GET color
check "rdma-test" "test \[OK\]" own_test -p 6380 -t 2 -M 300 -m 200
check "valkey-benchmark" "^\"GET\"" benchmark -p 6380 -n 1000 -c 5 -t ping_mbulk,set,get
check "valkey-benchmark, values of 100,000 bytes" "^\"GET\"" \
    benchmark -p 6380 -n 200 -c 5 -P 4 -d 100000 -t set,get
check "our client" "^client: 16 values" ours check "$address:6380" --values 16
in_good_order() { ! grep -v -e "listens on" -e "the peer disconnected" ours.log && tail -n 1 ours.log; }
check "the ends of all connections" "the peer disconnected" in_good_order
kill "$ours_server"
exit $failed
