/*
 * 64 bytes there and back over a reliable connection, event driven: what the reactor of the verbs provider does, in C.
 *
 *   pingpong serve ADDRESS PORT [level]      says that it listens, and echoes what one client sends
 *   pingpong ping ADDRESS PORT [level]       for every number on standard input, so many round trips; prints the
 *                                            median of their times in nanoseconds
 *
 * The queue pair is our own (`id->qp` stays NULL), with one completion queue for both its queues. Waiting is as in the
 * provider: epoll reports an edge of the completion channel, its events are taken until there are none and acknowledged,
 * the queue is armed and then polled until it is empty. With `level` epoll reports the level instead and one event is
 * taken at a time, which saves the read that finds nothing: the fewest calls that C gets by with.
 */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>

#include <rdma/rdma_cma.h>

enum { MESSAGE = 64, DEPTH = 16, BATCH = 32, MOST = 100000, RESOLVE_MS = 2000 };

/* The sends and receives of the completions that are not waited for yet. */
static unsigned int sent, received;

static bool level;
static int epoll;
static struct rdma_event_channel *events;
static struct rdma_cm_id *id;
static struct ibv_pd *domain;
static struct ibv_comp_channel *channel;
static struct ibv_cq *queue;
static struct ibv_qp *pair;
static struct ibv_mr *region;
static char memory[2][MESSAGE];

static void fail(const char *what)
{
	fprintf(stderr, "pingpong: %s: %s\n", what, strerror(errno));
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

/* Waits for an event of the connection, which is expected to be this one. */
static struct rdma_cm_event *next(enum rdma_cm_event_type wanted)
{
	struct rdma_cm_event *event;

	check(rdma_get_cm_event(events, &event), "rdma_get_cm_event");
	if (event->event != wanted) {
		fprintf(stderr, "pingpong: %s, status %d, instead of %s\n", rdma_event_str(event->event),
			event->status, rdma_event_str(wanted));
		exit(1);
	}
	return event;
}

static void expect(enum rdma_cm_event_type wanted)
{
	rdma_ack_cm_event(next(wanted));
}

static void move(enum ibv_qp_state state)
{
	struct ibv_qp_attr attributes = { .qp_state = state };
	int mask;

	check(rdma_init_qp_attr(id, &attributes, &mask), "rdma_init_qp_attr");
	if (state == IBV_QPS_INIT)
		attributes.qp_access_flags =
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
	check(ibv_modify_qp(pair, &attributes, mask), "ibv_modify_qp");
}

/* A queue pair in its first state, and what it needs. */
static void make_pair(void)
{
	struct epoll_event watched = { .events = level ? EPOLLIN : EPOLLIN | EPOLLET };
	struct ibv_qp_init_attr attributes = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	if (!(domain = ibv_alloc_pd(id->verbs)))
		fail("ibv_alloc_pd");
	if (!(channel = ibv_create_comp_channel(id->verbs)))
		fail("ibv_create_comp_channel");
	if (!(queue = ibv_create_cq(id->verbs, 2 * DEPTH, NULL, channel, 0)))
		fail("ibv_create_cq");
	if (!(region = ibv_reg_mr(domain, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE)))
		fail("ibv_reg_mr");
	attributes.send_cq = attributes.recv_cq = queue;
	if (!(pair = ibv_create_qp(domain, &attributes)))
		fail("ibv_create_qp");
	move(IBV_QPS_INIT);
	check(ibv_req_notify_cq(queue, 0), "ibv_req_notify_cq");

	check(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK), "fcntl");
	if ((epoll = epoll_create1(EPOLL_CLOEXEC)) < 0)
		fail("epoll_create1");
	check(epoll_ctl(epoll, EPOLL_CTL_ADD, channel->fd, &watched), "epoll_ctl");
}

/* The same that the provider says. */
static struct rdma_conn_param parameters(void)
{
	struct rdma_conn_param param = {
		.responder_resources = 1,
		.initiator_depth = 1,
		.flow_control = 1,
		.retry_count = 7,
		.rnr_retry_count = 7,
		.qp_num = pair->qp_num,
	};
	return param;
}

static void post_receive(int which)
{
	struct ibv_sge entry = { (uintptr_t)memory[which], MESSAGE, region->lkey };
	struct ibv_recv_wr request = { .sg_list = &entry, .num_sge = 1 }, *bad;

	check(ibv_post_recv(pair, &request, &bad), "ibv_post_recv");
}

static void post_send(int which)
{
	struct ibv_sge entry = { (uintptr_t)memory[which], MESSAGE, region->lkey };
	struct ibv_send_wr request = {
		.sg_list = &entry, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED
	}, *bad;

	check(ibv_post_send(pair, &request, &bad), "ibv_post_send");
}

/* Sleeps until there are completions, and counts them. False once the connection is over. */
static bool progress(void)
{
	struct ibv_wc completions[BATCH];
	struct epoll_event ready;
	struct ibv_cq *source;
	unsigned int taken = 0;
	void *context;
	int count;

	if (epoll_wait(epoll, &ready, 1, -1) < 0 && errno != EINTR)
		fail("epoll_wait");
	while (ibv_get_cq_event(channel, &source, &context) == 0) {
		taken++;
		if (level)
			break;
	}
	if (taken > 0)
		ibv_ack_cq_events(queue, taken);
	check(ibv_req_notify_cq(queue, 0), "ibv_req_notify_cq");
	while ((count = ibv_poll_cq(queue, BATCH, completions)) > 0) {
		for (int i = 0; i < count; i++) {
			if (completions[i].status != IBV_WC_SUCCESS)
				return false;
			if (completions[i].opcode & IBV_WC_RECV)
				received++;
			else
				sent++;
		}
	}
	return count == 0;
}

/* Waits for one completion of this kind. */
static bool wait_for(unsigned int *kind)
{
	while (*kind == 0)
		if (!progress())
			return false;
	--*kind;
	return true;
}

static void serve(struct sockaddr *address)
{
	struct rdma_conn_param param;
	struct rdma_cm_event *request;
	struct rdma_cm_id *listener;

	check(rdma_create_id(events, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
	check(rdma_bind_addr(listener, address), "rdma_bind_addr");
	check(rdma_listen(listener, 1), "rdma_listen");
	puts("listening");
	fflush(stdout);
	request = next(RDMA_CM_EVENT_CONNECT_REQUEST);
	id = request->id;
	rdma_ack_cm_event(request);
	make_pair();
	post_receive(0);
	post_receive(1);
	move(IBV_QPS_RTR);
	move(IBV_QPS_RTS);
	param = parameters();
	check(rdma_accept(id, &param), "rdma_accept");
	expect(RDMA_CM_EVENT_ESTABLISHED);
	/* Ends with the client, whose queue pair answers no more. */
	for (int turn = 0; wait_for(&received); turn ^= 1) {
		post_send(turn);
		if (!wait_for(&sent))
			break;
		post_receive(turn);
	}
}

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static int by_size(const void *one, const void *other)
{
	uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;

	return (a > b) - (a < b);
}

static void ping(struct sockaddr *address)
{
	static uint64_t samples[MOST];
	struct rdma_conn_param param;
	int count;

	check(rdma_create_id(events, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	check(rdma_resolve_addr(id, NULL, address, RESOLVE_MS), "rdma_resolve_addr");
	expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	check(rdma_resolve_route(id, RESOLVE_MS), "rdma_resolve_route");
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
	make_pair();
	param = parameters();
	check(rdma_connect(id, &param), "rdma_connect");
	expect(RDMA_CM_EVENT_CONNECT_RESPONSE);
	move(IBV_QPS_RTR);
	move(IBV_QPS_RTS);
	check(rdma_establish(id), "rdma_establish");
	while (scanf("%d", &count) == 1 && count > 0 && count <= MOST) {
		for (int i = 0; i < count; i++) {
			uint64_t start = now();

			post_receive(0);
			post_send(1);
			if (!wait_for(&sent) || !wait_for(&received)) {
				fprintf(stderr, "pingpong: the connection broke\n");
				exit(1);
			}
			samples[i] = now() - start;
		}
		qsort(samples, (size_t)count, sizeof *samples, by_size);
		printf("%llu\n", (unsigned long long)samples[count / 2]);
		fflush(stdout);
	}
	check(rdma_disconnect(id), "rdma_disconnect");
}

int main(int argc, char **argv)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV }, *found;

	if (argc < 4 || getaddrinfo(argv[2], argv[3], &hints, &found) != 0) {
		fprintf(stderr, "usage: pingpong serve|ping ADDRESS PORT [level]\n");
		return 2;
	}
	level = argc > 4 && strcmp(argv[4], "level") == 0;
	if (!(events = rdma_create_event_channel()))
		fail("rdma_create_event_channel");
	if (strcmp(argv[1], "serve") == 0)
		serve(found->ai_addr);
	else
		ping(found->ai_addr);
	/* The end of the process takes everything with it. */
	freeaddrinfo(found);
	return 0;
}
