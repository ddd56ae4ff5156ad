/*
 * Private data over librdmacm, in lengths that its own programs do not use.
 *
 *     private_data listen ADDRESS PORT LENGTH     accepts one connection with so many bytes
 *     private_data connect ADDRESS PORT LENGTH    connects with so many bytes
 *
 * Byte number i is i. Prints how many bytes the other side sent, fails when they are others, waits for a message, and
 * disconnects. Built by the test.
 */
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int good, const char *what)
{
    if (!good) {
        perror(what);
        exit(1);
    }
}

static void look(const struct rdma_cm_event *event)
{
    const unsigned char *data = event->param.conn.private_data;
    int length = event->param.conn.private_data_len;

    for (int i = 0; i < length; i++) {
        check(data[i] == i, "other bytes");
    }
    printf("received %d\n", length);
    fflush(stdout);
}

static char message[16];

static void post(struct rdma_cm_id *id)
{
    struct ibv_mr *mr = rdma_reg_msgs(id, message, sizeof message);

    check(mr && !rdma_post_recv(id, NULL, message, sizeof message, mr), "rdma_post_recv");
}

int main(int count, char **words)
{
    struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *address;
    struct ibv_qp_init_attr queues = {
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
    };
    struct rdma_conn_param param = {0};
    struct rdma_cm_id *listener, *id;
    unsigned char data[256];
    struct ibv_wc completion;

    check(count == 5, "private_data listen|connect ADDRESS PORT LENGTH");
    for (int i = 0; i < 256; i++) {
        data[i] = i;
    }
    param.private_data = data;
    param.private_data_len = atoi(words[4]);
    param.responder_resources = param.initiator_depth = 1;

    if (strcmp(words[1], "listen") == 0) {
        hints.ai_flags = RAI_PASSIVE;
        check(!rdma_getaddrinfo(words[2], words[3], &hints, &address), "rdma_getaddrinfo");
        check(!rdma_create_ep(&listener, address, NULL, &queues), "rdma_create_ep");
        check(!rdma_listen(listener, 1), "rdma_listen");
        check(!rdma_get_request(listener, &id), "rdma_get_request");
        look(id->event);
        post(id);
        check(!rdma_accept(id, &param), "rdma_accept");
    } else {
        check(!rdma_getaddrinfo(words[2], words[3], &hints, &address), "rdma_getaddrinfo");
        check(!rdma_create_ep(&id, address, NULL, &queues), "rdma_create_ep");
        post(id);
        check(!rdma_connect(id, &param), "rdma_connect");
        look(id->event);
    }
    check(rdma_get_recv_comp(id, &completion) == 1 && completion.status == IBV_WC_SUCCESS, "rdma_get_recv_comp");
    rdma_disconnect(id);
    rdma_destroy_ep(id);
    return 0;
}
