/*
 * Plain sockets, and nothing that knows of RDMA: what a preloaded library makes of them is its business.
 *
 *     plain_sockets listen ADDRESS PORT WAY             accepts one connection and sends back what it reads
 *     plain_sockets connect ADDRESS PORT WAY [LENGTH]   sends so many bytes and looks at what comes back
 *
 * WAY is `block` (a piece each way at a time), `poll` or `select` (both ways at once, without blocking). Each end shuts
 * its way down after its last byte, and fails when it reads anything but the right bytes. With the WAY `exit`, either end
 * sends ROOM bytes, waits for one, and exits without closing anything. With the WAY `close`, the client makes LENGTH
 * connections, one after another. To each it sends STREAM bytes, or as many as it can, and closes. Built by the test.
 */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#define PIECE 5000
#define ROOM 100000
#define STREAM 4000000

static void check(int good, const char *what)
{
    if (!good) {
        perror(what);
        exit(1);
    }
}

/* Byte number i of the client. */
static unsigned char byte(long i)
{
    return i % 251 + i / 251;
}

static void look(const unsigned char *data, long length, long from)
{
    for (long i = 0; i < length; i++) {
        check(data[i] == byte(from + i), "other bytes");
    }
}

static void fill(unsigned char *data, long length, long from)
{
    for (long i = 0; i < length; i++) {
        data[i] = byte(from + i);
    }
}

static void write_all(int fd, const unsigned char *data, long length)
{
    while (length > 0) {
        long written = write(fd, data, length);

        check(written > 0, "write");
        data += written;
        length -= written;
    }
}

static void end_sending(int fd)
{
    check(!shutdown(fd, SHUT_WR), "shutdown");
}

static long serve_blocking(int fd)
{
    unsigned char data[PIECE];
    long total = 0, length;

    while ((length = read(fd, data, sizeof data)) > 0) {
        write_all(fd, data, length);
        total += length;
    }
    check(length == 0, "read");
    end_sending(fd);
    return total;
}

static void call_blocking(int fd, long length)
{
    unsigned char data[PIECE];
    long total = 0;

    /* Pieces of different lengths, from one byte on. */
    for (long piece = 1; total < length; piece = piece % (PIECE - 1) * 2 % PIECE + 1) {
        long part = piece < length - total ? piece : length - total;

        fill(data, part, total);
        write_all(fd, data, part);
        for (long back = 0; back < part;) {
            long got = read(fd, data, part - back);

            check(got > 0, "read");
            look(data, got, total + back);
            back += got;
        }
        total += part;
    }
    end_sending(fd);
    check(read(fd, data, sizeof data) == 0, "bytes after the last one");
}

/* Waits until one of these can be done; in *can, what. */
static void wait_for(int fd, const char *way, int events, int *can)
{
    if (strcmp(way, "poll") == 0) {
        struct pollfd entry = {.fd = fd, .events = events};

        check(poll(&entry, 1, -1) > 0, "poll");
        *can = entry.revents;
    } else {
        fd_set in, out;

        FD_ZERO(&in);
        FD_ZERO(&out);
        if (events & POLLIN) {
            FD_SET(fd, &in);
        }
        if (events & POLLOUT) {
            FD_SET(fd, &out);
        }
        check(select(fd + 1, &in, &out, NULL, NULL) > 0, "select");
        *can = (FD_ISSET(fd, &in) ? POLLIN : 0) | (FD_ISSET(fd, &out) ? POLLOUT : 0);
    }
}

static int not_now(long result)
{
    return result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

/* With a length: the client. Otherwise the server, which sends back what is in the buffer. */
static long exchange(int fd, const char *way, long length)
{
    static unsigned char buffer[ROOM], data[PIECE];
    long received = 0, sent = 0;
    int reading = 1, writing = 1, client = length >= 0;

    check(!fcntl(fd, F_SETFL, O_NONBLOCK), "fcntl");
    while (reading || writing) {
        int room = client || received - sent < ROOM;
        int something = client ? sent < length : sent < received;
        int can, events = (reading && room ? POLLIN : 0) | (writing && something ? POLLOUT : 0);

        if (!events) {
            end_sending(fd);
            writing = 0;
            continue;
        }
        wait_for(fd, way, events, &can);
        if (reading && room && can & ~POLLOUT) {
            long most = client || ROOM - (received - sent) > PIECE ? PIECE : ROOM - (received - sent);
            long got = read(fd, data, most);

            check(got >= 0 || not_now(got), "read");
            reading = got != 0;
            if (got > 0 && client) {
                look(data, got, received);
            }
            for (long i = 0; i < got && !client; i++) {
                buffer[(received + i) % ROOM] = data[i];
            }
            received += got > 0 ? got : 0;
        }
        if (writing && something && can & POLLOUT) {
            long most = client ? length - sent : received - sent;
            long part = most < PIECE ? most : PIECE, done;

            for (long i = 0; i < part; i++) {
                data[i] = client ? byte(sent + i) : buffer[(sent + i) % ROOM];
            }
            done = write(fd, data, part);
            check(done > 0 || not_now(done), "write");
            sent += done > 0 ? done : 0;
        }
        if (writing && (client ? sent == length : !reading && sent == received)) {
            end_sending(fd);
            writing = 0;
        }
    }
    check(received == sent && (!client || sent == length), "other counts");
    return received;
}

static void send_and_exit(int fd)
{
    static unsigned char data[ROOM];

    fill(data, ROOM, 0);
    write_all(fd, data, ROOM);
    check(read(fd, data, 1) == 1, "read");
    _exit(0);
}

static void send_and_close(const struct addrinfo *address, long times)
{
    static unsigned char data[ROOM];

    fill(data, ROOM, 0);
    for (long time = 0; time < times; time++) {
        int fd = socket(address->ai_family, SOCK_STREAM, 0);

        check(fd >= 0, "socket");
        check(!connect(fd, address->ai_addr, address->ai_addrlen), "connect");
        for (long sent = 0, written = 1; sent < STREAM && written > 0; sent += written) {
            written = write(fd, data, ROOM);
        }
        close(fd);
        printf("closed %ld\n", time + 1);
        fflush(stdout);
    }
}

int main(int count, char **words)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST}, *address;
    int fd, one = 1;
    long total;

    check(count >= 5, "plain_sockets listen|connect ADDRESS PORT WAY [LENGTH]");
    check(!getaddrinfo(words[2], words[3], &hints, &address), "getaddrinfo");
    if (strcmp(words[4], "close") == 0) {
        send_and_close(address, count > 5 ? atol(words[5]) : 0);
        return 0;
    }
    fd = socket(address->ai_family, SOCK_STREAM, 0);
    check(fd >= 0, "socket");
    if (strcmp(words[1], "listen") == 0) {
        int listener = fd;

        check(!setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one), "setsockopt");
        check(!bind(listener, address->ai_addr, address->ai_addrlen), "bind");
        check(!listen(listener, 5), "listen");
        fd = accept(listener, NULL, NULL);
        check(fd >= 0, "accept");
        if (strcmp(words[4], "exit") == 0) {
            send_and_exit(fd);
        }
        total = strcmp(words[4], "block") == 0 ? serve_blocking(fd) : exchange(fd, words[4], -1);
        printf("served %ld\n", total);
    } else {
        total = count > 5 ? atol(words[5]) : 0;
        check(!connect(fd, address->ai_addr, address->ai_addrlen), "connect");
        if (strcmp(words[4], "exit") == 0) {
            send_and_exit(fd);
        }
        if (strcmp(words[4], "block") == 0) {
            call_blocking(fd, total);
        } else {
            exchange(fd, words[4], total);
        }
        printf("echoed %ld\n", total);
    }
    fflush(stdout);
    close(fd);
    return 0;
}
