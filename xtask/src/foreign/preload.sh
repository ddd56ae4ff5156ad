# Programs with plain sockets under librspreload, with the example `proxy` at the other end, which has a stream for each connection.
# Arguments: the folder of the libraries, the proxy, and the device of the programs: rxe, or siw with the proxy on another host.
libraries=$1 proxy=$2 device=$3
cd "$TOKIO_RDMA_SCRATCH" || exit 125
place="$device: "

case $device in
rxe) programs=$TOKIO_RDMA_RXE_ADDR proxies=$TOKIO_RDMA_RXE_ADDR there= ;;
siw)
    programs=$TOKIO_RDMA_SIW_ADDR proxies=10.78.0.2 there="ip netns exec far"
    # veth3 is the other end of the cable of siw0.
    ip netns add far && ip link set veth3 netns far || exit 125
    ip -n far address add $proxies/24 dev veth3
    ip -n far link set veth3 up
    ip -n far link set lo up
    ;;
esac

# A program with the library.
preloaded() {
    env LD_LIBRARY_PATH="$libraries:$LD_LIBRARY_PATH" LD_PRELOAD="$libraries/librspreload.so" timeout 120 "$@"
}

# A program on the host of the proxy.
plain() { $there timeout 120 "$@"; }

# serve COMMAND ...: runs in the background, without a time limit.
serve() { "$@" >>serving.log 2>&1 & }

# until_answers COMMAND ...: waits until it does.
until_answers() {
    tries=0
    until timeout 10 "$@" >/dev/null 2>&1 || [ $tries -ge 30 ]; do
        sleep 1
        tries=$((tries + 1))
    done
}

# Stores a file of 8 MB under a name, and reads it back: its checksum.
file() {
    runs=$1
    shift
    $runs redis-cli "$@" -x SET file <numbers >/dev/null
    # The client adds the end of a line.
    $runs redis-cli "$@" --raw GET file | head -c -1 | md5sum
}
seq 1000000 1999999 >numbers
sum=$(md5sum <numbers)

# Stores and reads a value of memcached. The end of the input is not passed on: the server ends by `quit`.
cache() {
    runs=$1
    shift
    { printf 'set k 0 0 5\r\nhello\r\nget k\r\nquit\r\n'; sleep 5; } | $runs nc.traditional -w 10 "$@"
}

redis="redis-server --protected-mode no --appendonly no --dir ."
run="env LD_LIBRARY_PATH=$libraries:$LD_LIBRARY_PATH LD_PRELOAD=$libraries/librspreload.so"

echo "-- servers under the library: $(redis-server --version | cut -d ' ' -f 3), $(memcached --version), $(iperf3 --version | head -n 1)"
serve $run $redis --save "" --bind "$programs" --port 6379
serve $run memcached -u root -U 0 -l "$programs" -p 11211
serve $run iperf3 -s -B "$programs"
serve $there "$proxy" tcp-to-rdma 127.0.0.1:7001 "$programs:6379"
serve $there "$proxy" tcp-to-rdma 127.0.0.1:7002 "$programs:11211"
serve $there "$proxy" tcp-to-rdma 127.0.0.1:5201 "$programs:5201"
until_answers $there redis-cli -p 7001 PING
check "redis-cli C to C" "^PONG" preloaded redis-cli -h "$programs" PING
check "redis-server: PING" "^PONG" plain redis-cli -p 7001 PING
check "redis-server: SET" "^OK" plain redis-cli -p 7001 SET color blue
check "redis-server: GET" "^blue" plain redis-cli -p 7001 GET color
check "redis-server: a value of 8 MB" "^$sum" file plain -p 7001
check "redis-server: redis-benchmark" "^\"GET\"" \
    plain redis-benchmark -p 7001 -n 1000 -c 10 -t ping_mbulk,set,get,lpush,lrange_100 --csv
check "redis-server: redis-benchmark, pipelines of values of 10,000 bytes" "^\"GET\"" \
    plain redis-benchmark -p 7001 -n 500 -c 5 -P 8 -d 10000 -t set,get --csv
check "redis-server: 100 connections, one after another" "^100$" \
    sh -c "for i in \$(seq 100); do $there redis-cli -p 7001 PING; done | grep -c PONG"
check "memcached" "^hello" cache plain 127.0.0.1 7002
check "iperf3, it receives" "receiver" plain iperf3 -c 127.0.0.1 -t 2
check "iperf3, it sends" "receiver" plain iperf3 -c 127.0.0.1 -t 2 -R
check "iperf3, four connections" "SUM.*receiver" plain iperf3 -c 127.0.0.1 -t 2 -P 4

echo "-- clients under the library"
serve $there $redis --save "" --bind 127.0.0.1 --port 6380
serve $there memcached -u root -U 0 -l 127.0.0.1 -p 11212
serve $there iperf3 -s -B 127.0.0.1 -p 5202
serve $there "$proxy" rdma-to-tcp "$proxies:8001" 127.0.0.1:6380
serve $there "$proxy" rdma-to-tcp "$proxies:8002" 127.0.0.1:11212
serve $there "$proxy" rdma-to-tcp "$proxies:5202" 127.0.0.1:5202
until_answers $run redis-cli -h "$proxies" -p 8001 PING
check "redis-cli: PING" "^PONG" preloaded redis-cli -h "$proxies" -p 8001 PING
check "redis-cli: SET" "^OK" preloaded redis-cli -h "$proxies" -p 8001 SET color blue
check "redis-cli: GET" "^blue" preloaded redis-cli -h "$proxies" -p 8001 GET color
check "redis-cli: a value of 8 MB" "^$sum" file preloaded -h "$proxies" -p 8001
check "nc, with memcached behind the proxy" "^hello" cache preloaded "$proxies" 8002
check "iperf3, it sends" "receiver" preloaded iperf3 -c "$proxies" -p 5202 -t 2
check "iperf3, it receives" "receiver" preloaded iperf3 -c "$proxies" -p 5202 -t 2 -R
grep -v -e "listens on" serving.log | grep -i -e error -e panic | tail -n 10
exit $failed
