/*
 * Requests of 64 bytes and their completions, on the device of tests/fake with the line `instant`: the calls that the verbs
 * provider makes, in C.
 *
 *   posts LINE THREADS       for every number on standard input, so many operations on each of the threads, which have a core,
 *                            a queue pair and a completion queue each; prints the nanoseconds of one
 *
 * The lines are those of main.rs: `future` (sleeps until the completion channel is readable, as a program does that waits), `polled`,
 * `inline`, `batch` and `receive`; those of lanes make the calls of the same line without, and chains. The queue pairs are moved to their states by hand: the device asks for no connection manager.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>

#include <infiniband/verbs.h>

enum { MESSAGE = 64, LONG = 1 << 20, DEPTH = 64, CHAIN = 16, BATCH = 16, THREADS = 2, TRIES = 20 };
/* The operations before those that are measured, and the most receives with those before. */
enum { WARM_UP = 512, RECEIVES = 4096 + WARM_UP };

struct track {
	int core;
	pthread_t thread;
	struct ibv_comp_channel *channel;
	struct ibv_cq *queue;
	struct ibv_qp *pair;
	struct ibv_pd *domain;
	struct ibv_mr *region;
	int epoll;
	uint64_t begin, end;
	/* The number of receives that were posted to the queue pair. */
	unsigned int received;
	/* As many buffers as tracks.rs has: one for each receive, CHAIN for the requests of a doorbell, and one for a send. */
	char memory[RECEIVES][MESSAGE];
} __attribute__((aligned(256)));

static struct ibv_context *device;
static struct track tracks[THREADS];
static int threads;
static pthread_barrier_t barrier;
/* How often a thread was ready to begin. */
static atomic_int ready;
static void (*run)(struct track *, long);
static long operations;

static void fail(const char *what)
{
	fprintf(stderr, "posts: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* For calls that return an error number, or -1 and errno. */
static void check(int result, const char *what)
{
	if (result > 0)
		errno = result;
	if (result != 0)
		fail(what);
}

static void move(struct ibv_qp *pair, struct ibv_qp *peer)
{
	struct ibv_qp_attr attributes = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num,
		.ah_attr = { .is_global = 1, .port_num = 1 }, .max_rd_atomic = 1, .max_dest_rd_atomic = 1,
		.retry_cnt = 7, .rnr_retry = 7, .timeout = 14, .min_rnr_timer = 12,
	};

	check(ibv_modify_qp(pair, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
	      "ibv_modify_qp INIT");
	attributes.qp_state = IBV_QPS_RTR;
	check(ibv_modify_qp(pair, &attributes, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "ibv_modify_qp RTR");
	attributes.qp_state = IBV_QPS_RTS;
	check(ibv_modify_qp(pair, &attributes, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), "ibv_modify_qp RTS");
}

static struct ibv_qp *make_pair(struct track *track)
{
	struct ibv_qp_init_attr attributes = {
		.qp_type = IBV_QPT_RC, .send_cq = track->queue, .recv_cq = track->queue,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1,
			 .max_inline_data = MESSAGE },
	};
	struct ibv_qp *pair = ibv_create_qp(track->domain, &attributes);

	if (!pair)
		fail("ibv_create_qp");
	return pair;
}

static void connect_pair(struct track *track)
{
	struct ibv_qp *peer = make_pair(track);

	track->pair = make_pair(track);
	move(track->pair, peer);
	move(peer, track->pair);
}

static void make_track(struct track *track)
{
	struct epoll_event watched = { .events = EPOLLIN };

	if (!(track->domain = ibv_alloc_pd(device)))
		fail("ibv_alloc_pd");
	if (!(track->channel = ibv_create_comp_channel(device)))
		fail("ibv_create_comp_channel");
	if (!(track->queue = ibv_create_cq(device, 2 * (DEPTH + RECEIVES), NULL, track->channel, 0)))
		fail("ibv_create_cq");
	if (!(track->region = ibv_reg_mr_iova2(track->domain, track->memory, sizeof track->memory,
					      (uintptr_t)track->memory, IBV_ACCESS_LOCAL_WRITE)))
		fail("ibv_reg_mr");
	connect_pair(track);
	if ((track->epoll = epoll_create1(EPOLL_CLOEXEC)) < 0)
		fail("epoll_create1");
	check(epoll_ctl(track->epoll, EPOLL_CTL_ADD, track->channel->fd, &watched), "epoll_ctl");
}

static struct ibv_sge buffer(struct track *track, unsigned int place)
{
	return (struct ibv_sge){ (uintptr_t)track->memory[place], MESSAGE, track->region->lkey };
}

static void post_send(struct track *track, unsigned int flags)
{
	struct ibv_sge entry = buffer(track, 0);
	struct ibv_send_wr request = {
		.sg_list = &entry, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED | flags
	}, *bad;

	check(ibv_post_send(track->pair, &request, &bad), "ibv_post_send");
}

/* Takes what is there. Returns how much that was. */
static int take(struct track *track)
{
	struct ibv_wc completions[BATCH];
	int count = ibv_poll_cq(track->queue, BATCH, completions);

	if (count < 0)
		fail("ibv_poll_cq");
	for (int i = 0; i < count; i++)
		if (completions[i].status != IBV_WC_SUCCESS)
			fail("a request failed");
	return count;
}

static void poll_one(struct track *track)
{
	struct ibv_wc completion;
	int count;

	do {
		count = ibv_poll_cq(track->queue, 1, &completion);
	} while (count == 0);
	if (count < 0 || completion.status != IBV_WC_SUCCESS)
		fail("a request failed");
}

static void poll_for(struct track *track, int count)
{
	while (count > 0)
		count -= take(track);
}

/* The fewest calls with which a program sleeps and misses nothing: arm, look, sleep. */
static void run_future(struct track *track, long count)
{
	struct epoll_event ready;
	struct ibv_cq *source;
	void *context;

	check(ibv_req_notify_cq(track->queue, 0), "ibv_req_notify_cq");
	for (; count > 0; count--) {
		post_send(track, 0);
		for (int found = 0; found == 0;) {
			if (epoll_wait(track->epoll, &ready, 1, -1) < 0 && errno != EINTR)
				fail("epoll_wait");
			check(ibv_get_cq_event(track->channel, &source, &context), "ibv_get_cq_event");
			ibv_ack_cq_events(source, 1);
			check(ibv_req_notify_cq(source, 0), "ibv_req_notify_cq");
			found = take(track);
		}
	}
}

static void run_polled(struct track *track, long count)
{
	for (; count > 0; count--) {
		post_send(track, 0);
		poll_for(track, 1);
	}
}

static void run_inline(struct track *track, long count)
{
	for (; count > 0; count--) {
		post_send(track, IBV_SEND_INLINE);
		poll_for(track, 1);
	}
}

static void run_batch(struct track *track, long count)
{
	for (; count > 0; count -= CHAIN) {
		struct ibv_sge entries[CHAIN];
		struct ibv_send_wr requests[CHAIN], *bad;

		for (int i = 0; i < CHAIN; i++) {
			entries[i] = buffer(track, i);
			requests[i] = (struct ibv_send_wr){
				.next = i + 1 < CHAIN ? &requests[i + 1] : NULL, .sg_list = &entries[i],
				.num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED
			};
		}
		check(ibv_post_send(track->pair, requests, &bad), "ibv_post_send");
		poll_for(track, CHAIN);
	}
}

static void run_receive(struct track *track, long count)
{
	for (; count > 0; count--) {
		struct ibv_sge entry = buffer(track, track->received++);
		struct ibv_recv_wr request = { .sg_list = &entry, .num_sge = 1 }, *bad;

		check(ibv_post_recv(track->pair, &request, &bad), "ibv_post_recv");
	}
}

static void run_receives(struct track *track, long count)
{
	for (; count > 0; count -= CHAIN) {
		struct ibv_sge entries[CHAIN];
		struct ibv_recv_wr requests[CHAIN], *bad;

		for (int i = 0; i < CHAIN; i++) {
			entries[i] = buffer(track, track->received++);
			requests[i] = (struct ibv_recv_wr){
				.next = i + 1 < CHAIN ? &requests[i + 1] : NULL, .sg_list = &entries[i], .num_sge = 1
			};
		}
		check(ibv_post_recv(track->pair, requests, &bad), "ibv_post_recv");
	}
}

static void post_write(struct track *track)
{
	struct ibv_sge entry = { (uintptr_t)track->memory, LONG, track->region->lkey };
	struct ibv_send_wr request = {
		.sg_list = &entry, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED
	}, *bad;

	/* The device reads nothing, and writes nothing. */
	check(ibv_post_send(track->pair, &request, &bad), "ibv_post_send");
}

static void run_write(struct track *track, long count)
{
	for (int i = 0; i < CHAIN; i++)
		post_write(track);
	for (; count > 0; count--) {
		poll_one(track);
		post_write(track);
	}
	poll_for(track, CHAIN);
}

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* Waits for all threads, without sleep: they would wake up one after the other. */
static void begin_together(void)
{
	int all = (atomic_fetch_add(&ready, 1) / threads + 1) * threads;

	while (atomic_load(&ready) < all)
		sched_yield();
}

static void *work(void *argument)
{
	struct track *track = argument;
	cpu_set_t cores;

	CPU_ZERO(&cores);
	CPU_SET(track->core, &cores);
	/* On a machine with fewer cores the threads share one. */
	(void)sched_setaffinity(0, sizeof cores, &cores);
	for (;;) {
		pthread_barrier_wait(&barrier);
		/* The device keeps what is posted: a new queue pair has room again. */
		if (run == run_receive || run == run_receives) {
			connect_pair(track);
			track->received = 0;
		}
		run(track, WARM_UP);
		begin_together();
		track->begin = now();
		run(track, operations);
		track->end = now();
		pthread_barrier_wait(&barrier);
	}
	return NULL;
}

/* Whether most of the time of the longest track is in all of them. */
static bool overlap(void)
{
	uint64_t begin = tracks[0].begin, end = tracks[0].end;

	for (int i = 1; i < threads; i++) {
		begin = tracks[i].begin > begin ? tracks[i].begin : begin;
		end = tracks[i].end < end ? tracks[i].end : end;
	}
	for (int i = 0; i < threads; i++)
		if (end < begin || (end - begin) * 10 < (tracks[i].end - tracks[i].begin) * 8)
			return false;
	return true;
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*run)(struct track *, long); } lines[] = {
		{ "future", run_future }, { "polled", run_polled }, { "inline", run_inline },
		{ "batch", run_batch }, { "receive", run_receive },
		{ "lane-send", run_polled }, { "lane-send-now", run_polled }, { "lane-batch", run_batch },
		{ "lane-write", run_write }, { "lane-receive", run_receive }, { "lane-receives", run_receives },
	};
	struct ibv_device **list = ibv_get_device_list(NULL);

	for (size_t i = 0; argc == 3 && i < sizeof lines / sizeof *lines; i++)
		if (strcmp(argv[1], lines[i].name) == 0)
			run = lines[i].run;
	threads = argc == 3 ? atoi(argv[2]) : 0;
	if (!run || threads < 1 || threads > THREADS) {
		fprintf(stderr, "usage: posts LINE 1|2\n");
		return 2;
	}
	if (!list || !list[0] || !(device = ibv_open_device(list[0])))
		fail("ibv_open_device");
	check(pthread_barrier_init(&barrier, NULL, (unsigned int)threads + 1), "pthread_barrier_init");
	for (int i = 0; i < threads; i++) {
		tracks[i].core = i;
		make_track(&tracks[i]);
		check(pthread_create(&tracks[i].thread, NULL, work, &tracks[i]), "pthread_create");
	}
	while (scanf("%ld", &operations) == 1 && operations > 0) {
		double rate = 0;
		int tries = 0;

		/* Threads that did not run at the same time, as others had their cores, try again. */
		do {
			pthread_barrier_wait(&barrier);
			pthread_barrier_wait(&barrier);
		} while (!overlap() && ++tries < TRIES);
		/* What matters is how much all do in a time. */
		for (int i = 0; i < threads; i++)
			rate += (double)operations / (double)(tracks[i].end - tracks[i].begin);
		printf("%f\n", threads / rate);
		fflush(stdout);
	}
	/* The end of the process takes everything with it. */
	return 0;
}
