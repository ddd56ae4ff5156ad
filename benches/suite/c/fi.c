/* The two ends of a libfabric connection (FI_EP_MSG over the provider "tcp"), which obey the same orders on standard
 * input as the other contenders of the suite: "ping 64 200", "window 1048576 64", "read 1048576 64", "single 4096 1024".
 *
 *   fi server            prints its port and serves one client
 *   fi client PORT       its client
 *
 * With "spin" as the last argument both poll for completions, otherwise they sleep in fi_cq_sread. The client answers
 * with nanoseconds, the server with 0. */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <arpa/inet.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LARGEST = 1 << 20, MESSAGE = 64, WINDOW = 16, RECEIVES = 2, SECONDS = 60 };

/* The word of the server to its client: where it may read and write. */
struct grant {
    uint64_t address;
    uint64_t key;
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_eq *events;
static struct fid_cq *sent, *received;
static struct fid_ep *endpoint;
static struct fid_mr *block_region, *message_region;
static char *block, *messages;
static struct grant grant;
static bool spin;
static unsigned in_flight, next_receive;

static void check(long result, const char *what) {
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", what, fi_strerror((int)-result));
        exit(1);
    }
}

static struct fi_info *hints(void) {
    struct fi_info *wanted = fi_allocinfo();
    if (!wanted) exit(1);
    wanted->ep_attr->type = FI_EP_MSG;
    wanted->caps = FI_MSG | FI_RMA;
    wanted->mode = FI_CONTEXT;
    wanted->addr_format = FI_SOCKADDR_IN;
    wanted->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
    wanted->tx_attr->msg_order = FI_ORDER_SAS | FI_ORDER_SAW | FI_ORDER_RAS;
    wanted->fabric_attr->prov_name = strdup("tcp");
    return wanted;
}

static void *local(struct fid_mr *region) { return fi_mr_desc(region); }

static char *message(unsigned index) { return messages + index * MESSAGE; }

static void post_receive(unsigned index) {
    ssize_t result;
    while ((result = fi_recv(endpoint, message(index), MESSAGE, local(message_region), 0, message(index))) ==
           -FI_EAGAIN)
        ;
    check(result, "fi_recv");
}

/* One more completion. */
static void completion(struct fid_cq *queue) {
    struct fi_cq_entry entry;
    for (;;) {
        ssize_t count = spin ? fi_cq_read(queue, &entry, 1) : fi_cq_sread(queue, &entry, 1, NULL, -1);
        if (count == 1) return;
        if (count == -FI_EAVAIL) {
            struct fi_cq_err_entry error = {0};
            fi_cq_readerr(queue, &error, 0);
            check(-(long)error.err, "completion");
        }
        if (count != -FI_EAGAIN && count != -FI_EINTR) check(count, "fi_cq_read");
    }
}

static void open_domain(void) {
    struct fi_cq_attr attributes = {
        .size = 128, .format = FI_CQ_FORMAT_CONTEXT, .wait_obj = spin ? FI_WAIT_NONE : FI_WAIT_UNSPEC};
    check(fi_domain(fabric, info, &domain, NULL), "fi_domain");
    check(fi_cq_open(domain, &attributes, &sent, NULL), "fi_cq_open");
    check(fi_cq_open(domain, &attributes, &received, NULL), "fi_cq_open");
    block = aligned_alloc(4096, LARGEST);
    messages = aligned_alloc(4096, 4096);
    if (!block || !messages) exit(1);
    memset(block, 0, LARGEST);
    memset(messages, 0, 4096);
    uint64_t access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    check(fi_mr_reg(domain, block, LARGEST, access, 0, 1, 0, &block_region, NULL), "fi_mr_reg");
    check(fi_mr_reg(domain, messages, 4096, FI_SEND | FI_RECV, 0, 2, 0, &message_region, NULL), "fi_mr_reg");
}

static void open_endpoint(void) {
    check(fi_endpoint(domain, info, &endpoint, NULL), "fi_endpoint");
    check(fi_ep_bind(endpoint, &events->fid, 0), "fi_ep_bind");
    check(fi_ep_bind(endpoint, &sent->fid, FI_TRANSMIT), "fi_ep_bind");
    check(fi_ep_bind(endpoint, &received->fid, FI_RECV), "fi_ep_bind");
    check(fi_enable(endpoint), "fi_enable");
    for (unsigned index = 0; index < RECEIVES; index++) post_receive(index);
}

/* Waits for this event; what came with a connection request or its acceptance is copied out. */
static struct fi_info *expect(uint32_t wanted, void *data, size_t length) {
    char room[sizeof(struct fi_eq_cm_entry) + 256];
    struct fi_eq_cm_entry *entry = (void *)room;
    uint32_t event;
    ssize_t size = fi_eq_sread(events, &event, room, sizeof room, SECONDS * 1000, 0);
    check(size, "fi_eq_sread");
    if (event != wanted) exit(1);
    if (data && (size_t)size >= sizeof *entry + length) memcpy(data, entry->data, length);
    return entry->info;
}

static void open_fabric(void) {
    struct fi_eq_attr attributes = {.wait_obj = FI_WAIT_UNSPEC};
    check(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
    check(fi_eq_open(fabric, &attributes, &events, NULL), "fi_eq_open");
}

static void serve(void) {
    struct fid_pep *passive;
    struct sockaddr_in address;
    size_t length = sizeof address;
    check(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", "0", FI_SOURCE, hints(), &info), "fi_getinfo");
    open_fabric();
    check(fi_passive_ep(fabric, info, &passive, NULL), "fi_passive_ep");
    check(fi_pep_bind(passive, &events->fid, 0), "fi_pep_bind");
    check(fi_listen(passive), "fi_listen");
    check(fi_getname(&passive->fid, &address, &length), "fi_getname");
    printf("127.0.0.1:%u\n", ntohs(address.sin_port));
    fflush(stdout);
    info = expect(FI_CONNREQ, NULL, 0);
    open_domain();
    open_endpoint();
    bool virtual = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR;
    grant = (struct grant){virtual ? (uintptr_t)block : 0, fi_mr_key(block_region)};
    check(fi_accept(endpoint, &grant, sizeof grant), "fi_accept");
    expect(FI_CONNECTED, NULL, 0);
}

static void connect_to(const char *port) {
    check(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", port, 0, hints(), &info), "fi_getinfo");
    open_fabric();
    open_domain();
    open_endpoint();
    check(fi_connect(endpoint, info->dest_addr, NULL, 0), "fi_connect");
    expect(FI_CONNECTED, &grant, sizeof grant);
}

static void post_send(void) {
    ssize_t result;
    while ((result = fi_send(endpoint, message(RECEIVES), MESSAGE, local(message_region), 0, NULL)) == -FI_EAGAIN)
        ;
    check(result, "fi_send");
}

static void await_receive(void) {
    completion(received);
    post_receive(next_receive);
    next_receive = (next_receive + 1) % RECEIVES;
}

static void ping(void) {
    post_send();
    completion(sent);
    await_receive();
}

static void echo(void) {
    await_receive();
    post_send();
    completion(sent);
}

/* One block, with at most this many in flight. */
static void transfer(bool write, size_t size, unsigned window) {
    ssize_t result;
    if (in_flight == window) {
        completion(sent);
        in_flight--;
    }
    for (;;) {
        result = write ? fi_write(endpoint, block, size, local(block_region), 0, grant.address, grant.key, NULL)
                       : fi_read(endpoint, block, size, local(block_region), 0, grant.address, grant.key, NULL);
        if (result != -FI_EAGAIN) break;
        if (in_flight) {
            completion(sent);
            in_flight--;
        }
    }
    check(result, "fi_write or fi_read");
    in_flight++;
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static int by_value(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

static int64_t median_of_pings(size_t count) {
    int64_t *times = calloc(count, sizeof *times), median;
    if (!times) exit(1);
    for (size_t index = 0; index < count; index++) {
        int64_t start = now();
        ping();
        times[index] = now() - start;
    }
    qsort(times, count, sizeof *times, by_value);
    median = times[count / 2];
    free(times);
    return median;
}

static int64_t obey(bool client, const char *verb, size_t size, size_t count) {
    if (!strcmp(verb, "ping")) {
        if (client) return median_of_pings(count);
        while (count--) echo();
        return 0;
    }
    if (!client) {
        /* A message says that the last block is through. */
        echo();
        return 0;
    }
    unsigned window = strcmp(verb, "single") ? WINDOW : 1;
    int64_t start = now();
    while (count--) transfer(strcmp(verb, "read"), size, window);
    for (; in_flight; in_flight--) completion(sent);
    ping();
    return now() - start;
}

int main(int count, char **words) {
    if (count < 2) return 2;
    bool client = !strcmp(words[1], "client");
    spin = !strcmp(words[count - 1], "spin");
    if (client && count > 2)
        connect_to(words[2]);
    else
        serve();
    char verb[16];
    size_t size, number;
    while (scanf("%15s %zu %zu", verb, &size, &number) == 3) {
        if (!number || size > LARGEST) return 2;
        printf("%lld\n", (long long)obey(client, verb, size, number));
        fflush(stdout);
    }
    return 0;
}
