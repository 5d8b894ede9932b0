/*
 * sre/servers/load_stub.py in C: the same answers at a tenth of the cost, so that of two clients the faster one is not
 * held up by what it loads.
 *
 *   load_stub FIRST_TOKEN_MS TOKEN_MS TOKENS
 *       Prints its port, ends with its stdin. Answers every POST with a stream of TOKENS events.
 *
 * Loopback only. One thread. Understands just the HTTP that clients of benchmarks speak. Both waits are the same for all
 * streams, so that what is due comes in the order in which it was put off: two queues, no heap.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER = 1 << 14, EVENTS = 512, QUEUE = 1 << 17 };

struct connection {
    int fd, left;
    unsigned life; /* which of the connections that this memory served */
    size_t used;
    uint64_t due_ns;
    struct connection *next_free;
    char data[BUFFER];
};
struct due {
    struct connection *connection;
    unsigned life;
};
struct queue {
    uint64_t wait_ns;
    unsigned head, tail;
    struct due entries[QUEUE];
};

static struct queue first, later;
static struct connection *spare;
static int tokens;
static char token[512], last[1024], head[512];
static size_t token_size, last_size, head_size;

static void die(const char *what) {
    fprintf(stderr, "load_stub: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static size_t chunk(char *to, size_t room, const char *events) {
    return (size_t)snprintf(to, room, "%zx\r\n%s\r\n", strlen(events), events);
}

static void write_answers(void) {
    static const char form[] =
        "data: {\"id\":\"cmpl-stub\",\"object\":\"text_completion\",\"created\":0,\"model\":\"stub\",\"choices\":"
        "[{\"index\":0,\"text\":\" token\",\"logprobs\":null,\"finish_reason\":%s}]}\n\n";
    char event[512];
    head_size = (size_t)snprintf(head, sizeof head,
                                 "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                                 "Transfer-Encoding: chunked\r\n\r\n");
    snprintf(event, sizeof event, form, "null");
    token_size = chunk(token, sizeof token, event);
    snprintf(event, sizeof event, form, "\"length\"");
    last_size = chunk(last, sizeof last, event);
    snprintf(event, sizeof event,
             "data: {\"id\":\"cmpl-stub\",\"object\":\"text_completion\",\"created\":0,\"model\":\"stub\",\"choices\":[],"
             "\"usage\":{\"prompt_tokens\":256,\"total_tokens\":%d,\"completion_tokens\":%d}}\n\ndata: [DONE]\n\n",
             256 + tokens, tokens);
    last_size += chunk(last + last_size, sizeof last - last_size, event);
    last_size += (size_t)snprintf(last + last_size, sizeof last - last_size, "0\r\n\r\n");
}

static void put_off(struct queue *queue, struct connection *c, uint64_t from_ns) {
    if (queue->tail - queue->head == QUEUE) die("too many streams");
    c->due_ns = from_ns + queue->wait_ns;
    queue->entries[queue->tail++ % QUEUE] = (struct due){c, c->life};
}

static void send_token(struct connection *c) {
    char out[2048];
    size_t size = 0;
    if (c->left == tokens) memcpy(out, head, size = head_size);
    const char *text = --c->left ? token : last;
    size_t length = c->left ? token_size : last_size;
    memcpy(out + size, text, length);
    send(c->fd, out, size + length, MSG_NOSIGNAL | MSG_DONTWAIT); /* a client that does not read is none to wait for */
    if (c->left) put_off(&later, c, c->due_ns);
}

/* Serves what is due, and returns when the next is; 0: nothing waits. */
static uint64_t serve_due(struct queue *queue) {
    while (queue->head != queue->tail) {
        struct due *entry = &queue->entries[queue->head % QUEUE];
        struct connection *c = entry->connection;
        if (c->life == entry->life) {
            if (c->due_ns > now_ns()) return c->due_ns;
            send_token(c);
        }
        queue->head++;
    }
    return 0;
}

static void watch(int epoll, int fd, void *with) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = with};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
}

static void take_in(int epoll, int listener) {
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        struct connection *c = spare ? spare : calloc(1, sizeof *c);
        if (!c) die("calloc");
        if (c == spare) spare = c->next_free;
        c->fd = fd, c->used = 0, c->left = 0;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        watch(epoll, fd, c);
    }
}

static void read_request(struct connection *c) {
    ssize_t got = recv(c->fd, c->data + c->used, BUFFER - c->used - 1, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
        close(c->fd);
        c->life++, c->next_free = spare, spare = c;
        return;
    }
    c->used += (size_t)got;
    c->data[c->used] = 0;
    char *end = strstr(c->data, "\r\n\r\n"), *length = end ? strcasestr(c->data, "\r\ncontent-length:") : NULL;
    if (!end) return;
    size_t whole = (size_t)(end + 4 - c->data) + (length && length < end ? (size_t)atol(length + 17) : 0);
    if (c->used < whole) return;
    c->used = 0;
    if (strncmp(c->data, "POST ", 5)) {
        static const char none[] = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
        send(c->fd, none, sizeof none - 1, MSG_NOSIGNAL);
        return;
    }
    c->left = tokens;
    put_off(&first, c, now_ns());
}

int main(int argc, char **argv) {
    if (argc != 4) return fprintf(stderr, "usage: load_stub FIRST_TOKEN_MS TOKEN_MS TOKENS\n"), 2;
    first.wait_ns = (uint64_t)(atof(argv[1]) * 1e6), later.wait_ns = (uint64_t)(atof(argv[2]) * 1e6);
    tokens = atoi(argv[3]);
    write_answers();
    int epoll = epoll_create1(0), listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), input;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 4096)) die("listen");
    getsockname(listener, (struct sockaddr *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    watch(epoll, listener, &listener);
    watch(epoll, 0, &input);
    struct epoll_event events[EVENTS];
    for (;;) {
        uint64_t one = serve_due(&first), other = serve_due(&later), now = now_ns();
        uint64_t next = one && other ? (one < other ? one : other) : one + other;
        uint64_t wait = next > now ? next - now : 0;
        struct timespec timeout = {(time_t)(wait / 1000000000u), (long)(wait % 1000000000u)};
        int n = epoll_pwait2(epoll, events, EVENTS, next ? &timeout : NULL, NULL);
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr == &input) return 0;
            if (events[i].data.ptr == &listener)
                take_in(epoll, listener);
            else
                read_request(events[i].data.ptr);
        }
    }
}
