/*
 * A stub engine and a load generator that cost little, so that the proxy between them is what is measured.
 *
 *   http_load serve PORT INTERVAL_MS CHUNKS
 *       Answers every POST with a completion; if the body holds "stream":true, with CHUNKS server-sent events, one
 *       each INTERVAL_MS, each stamped with the monotonic time of its sending.
 *   http_load requests PORT CONNECTIONS SECONDS
 *       Closed loop: prints {"requests":…,"seconds":…,"errors":…,"p50_ms":…,"p99_ms":…}.
 *   http_load streams PORT STREAMS ROUNDS
 *       STREAMS streams at once, ROUNDS times: prints {"chunks":…,"errors":…,"p50_ms":…,"p99_ms":…} of the delay from
 *       the stamp to the arrival.
 *
 * Loopback only. One thread. No TLS. Understands just the HTTP that it speaks itself and that Envoy makes of it.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER = 1 << 16, EVENTS = 512, MAX_SAMPLES = 4 << 20 };

struct connection {
    int fd;
    size_t used;
    int chunks_left; /* server: events still to send */
    uint64_t started_ns; /* client: when the request was sent */
    int writable;
    char data[BUFFER];
};

static const char COMPLETION[] =
    "{\"id\":\"cmpl-0123456789abcdef0123456789abcdef\",\"object\":\"text_completion\",\"created\":1700000000,"
    "\"model\":\"m\",\"choices\":[{\"index\":0,\"text\":\" one two three four five six seven eight nine ten eleven "
    "twelve thirteen fourteen fifteen\",\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null,"
    "\"token_ids\":null,\"prompt_logprobs\":null}],\"service_tier\":null,\"system_fingerprint\":null,"
    "\"usage\":{\"prompt_tokens\":7,\"total_tokens\":23,\"completion_tokens\":16,\"prompt_tokens_details\":null}}";
static const char BODY[] =
    "{\"model\":\"m\",\"prompt\":\"Say something about the weather in April.\",\"max_tokens\":16,\"temperature\":0.7}";
static const char STREAM_BODY[] =
    "{\"model\":\"m\",\"prompt\":\"Say something about the weather in April.\",\"max_tokens\":16,\"stream\":true}";

static double *samples;
static size_t sampled;

static void die(const char *what) {
    fprintf(stderr, "http_load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void no_delay(int fd) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static struct sockaddr_in loopback(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static void watch(int epoll, int fd, void *with) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = with};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
}

static void send_all(int fd, const char *data, size_t size) {
    while (size) {
        ssize_t n = send(fd, data, size, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EAGAIN) continue;
            return; /* the peer is gone; its close event follows */
        }
        data += n;
        size -= (size_t)n;
    }
}

static void take_sample(double ms) {
    if (sampled < MAX_SAMPLES) samples[sampled++] = ms;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double percentile(double share) {
    if (!sampled) return -1;
    size_t i = (size_t)(share * (double)(sampled - 1) + 0.5);
    return samples[i];
}

/* ---- server ---- */

static void answer(struct connection *c, const char *body, int chunks) {
    char out[2048];
    if (memmem(body, c->used - (size_t)(body - c->data), "\"stream\":true", 13)) {
        int n = snprintf(out, sizeof out,
                         "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                         "transfer-encoding: chunked\r\n\r\n");
        send_all(c->fd, out, (size_t)n);
        c->chunks_left = chunks;
        return;
    }
    int n = snprintf(out, sizeof out, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s",
                     sizeof COMPLETION - 1, COMPLETION);
    send_all(c->fd, out, (size_t)n);
}

static void tick(struct connection *c) {
    char event[1024], out[1200];
    int last = --c->chunks_left == 0;
    int n = snprintf(event, sizeof event,
                     "data: {\"id\":\"cmpl-0123456789abcdef\",\"object\":\"text_completion\",\"created\":1700000000,"
                     "\"model\":\"m\",\"choices\":[{\"index\":0,\"text\":\" word\",\"logprobs\":null,"
                     "\"finish_reason\":%s,\"stop_reason\":null}],\"usage\":null,\"t\":%llu,\"z\":0}\n\n%s",
                     last ? "\"length\"" : "null", (unsigned long long)now_ns(), last ? "data: [DONE]\n\n" : "");
    n = snprintf(out, sizeof out, "%x\r\n%s\r\n%s", n, event, last ? "0\r\n\r\n" : "");
    send_all(c->fd, out, (size_t)n);
}

static void serve(int port, int interval_ms, int chunks) {
    int one = 1, epoll = epoll_create1(0), listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct sockaddr_in address = loopback(port);
    struct connection **all = calloc(65536, sizeof *all);
    struct itimerspec every = {0};
    every.it_interval.tv_nsec = every.it_value.tv_nsec = interval_ms * 1000000L;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1024)) die("listen");
    timerfd_settime(timer, 0, &every, NULL);
    watch(epoll, listener, &listener);
    watch(epoll, timer, &timer);
    struct epoll_event events[EVENTS];
    for (;;) {
        int n = epoll_wait(epoll, events, EVENTS, -1);
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr == &listener) {
                int fd;
                while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                    struct connection *c = calloc(1, sizeof *c);
                    c->fd = fd;
                    no_delay(fd);
                    all[fd] = c;
                    watch(epoll, fd, c);
                }
                continue;
            }
            if (events[i].data.ptr == &timer) {
                uint64_t times;
                if (read(timer, &times, sizeof times) > 0)
                    for (int fd = 0; fd < 65536; fd++)
                        if (all[fd] && all[fd]->chunks_left > 0) tick(all[fd]);
                continue;
            }
            struct connection *c = events[i].data.ptr;
            ssize_t got = recv(c->fd, c->data + c->used, BUFFER - c->used - 1, 0);
            if (got <= 0) {
                if (got < 0 && errno == EAGAIN) continue;
                all[c->fd] = NULL;
                close(c->fd);
                free(c);
                continue;
            }
            c->used += (size_t)got;
            c->data[c->used] = 0;
            char *end = strstr(c->data, "\r\n\r\n"), *length = end ? strcasestr(c->data, "content-length:") : NULL;
            if (!end) continue;
            size_t whole = (size_t)(end + 4 - c->data) + (length && length < end ? (size_t)atol(length + 15) : 0);
            if (c->used < whole) continue;
            answer(c, end + 4, chunks);
            c->used = 0;
        }
    }
}

/* ---- client ---- */

static int dial(int port) {
    struct sockaddr_in address = loopback(port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) die("connect");
    no_delay(fd);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void request(struct connection *c, const char *body) {
    char out[1024];
    int n = snprintf(out, sizeof out,
                     "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nuser-agent: http_load\r\n"
                     "authorization: Bearer abcdefghijklmnop\r\ncontent-type: application/json\r\n"
                     "content-length: %zu\r\n\r\n%s",
                     strlen(body), body);
    c->used = 0;
    c->started_ns = now_ns();
    send_all(c->fd, out, (size_t)n);
}

static void report(const char *unit, uint64_t count, uint64_t errors, double seconds) {
    qsort(samples, sampled, sizeof *samples, by_value);
    printf("{\"%s\": %llu, \"errors\": %llu, \"seconds\": %.3f, \"p50_ms\": %.3f, \"p99_ms\": %.3f}\n", unit,
           (unsigned long long)count, (unsigned long long)errors, seconds, percentile(0.50), percentile(0.99));
}

static void requests(int port, int connections, double seconds) {
    int epoll = epoll_create1(0);
    for (int i = 0; i < connections; i++) {
        struct connection *c = calloc(1, sizeof *c);
        c->fd = dial(port);
        watch(epoll, c->fd, c);
        request(c, BODY);
    }
    struct epoll_event events[EVENTS];
    uint64_t start = now_ns(), stop = start + (uint64_t)(seconds * 1e9), done = 0, errors = 0;
    while (now_ns() < stop) {
        int n = epoll_wait(epoll, events, EVENTS, 100);
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            ssize_t got = recv(c->fd, c->data + c->used, BUFFER - c->used - 1, 0);
            if (got <= 0) {
                if (got < 0 && errno == EAGAIN) continue;
                errors++;
                close(c->fd);
                c->fd = dial(port);
                watch(epoll, c->fd, c);
                request(c, BODY);
                continue;
            }
            c->used += (size_t)got;
            c->data[c->used] = 0;
            char *end = strstr(c->data, "\r\n\r\n"), *length = end ? strcasestr(c->data, "content-length:") : NULL;
            if (!end || !length || c->used < (size_t)(end + 4 - c->data) + (size_t)atol(length + 15)) continue;
            if (memcmp(c->data, "HTTP/1.1 200", 12)) errors++;
            take_sample((double)(now_ns() - c->started_ns) / 1e6);
            done++;
            request(c, BODY);
        }
    }
    report("requests", done, errors, (double)(now_ns() - start) / 1e9);
}

static void streams(int port, int count, int rounds) {
    int epoll = epoll_create1(0);
    uint64_t start = now_ns(), chunks = 0, errors = 0;
    for (int i = 0; i < count; i++) {
        struct connection *c = calloc(1, sizeof *c);
        c->fd = dial(port);
        c->chunks_left = rounds; /* here: rounds left */
        watch(epoll, c->fd, c);
        request(c, STREAM_BODY);
    }
    struct epoll_event events[EVENTS];
    for (int left = count; left > 0;) {
        int n = epoll_wait(epoll, events, EVENTS, 20000);
        if (n == 0) die("no chunk for 20 s");
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            ssize_t got = recv(c->fd, c->data + c->used, BUFFER - c->used - 1, 0);
            if (got < 0 && errno == EAGAIN) continue;
            uint64_t arrived = now_ns();
            if (got <= 0) {
                errors++;
                close(c->fd);
                left--;
                continue;
            }
            c->used += (size_t)got;
            c->data[c->used] = 0;
            if (!memcmp(c->data, "HTTP/1.1 503", 12)) errors++;
            char *rest = c->data, *stamp, *end;
            while ((stamp = strstr(rest, "\"t\":")) && (end = strchr(stamp, ','))) {
                take_sample((double)(arrived - strtoull(stamp + 4, NULL, 10)) / 1e6);
                chunks++;
                rest = end;
            }
            int whole = strstr(rest, "\r\n0\r\n\r\n") != NULL;
            c->used -= (size_t)(rest - c->data);
            memmove(c->data, rest, c->used + 1);
            if (!whole) continue;
            if (--c->chunks_left > 0) {
                request(c, STREAM_BODY);
            } else {
                close(c->fd);
                left--;
            }
        }
    }
    report("chunks", chunks, errors, (double)(now_ns() - start) / 1e9);
}

int main(int argc, char **argv) {
    samples = malloc(MAX_SAMPLES * sizeof *samples);
    if (argc == 5 && !strcmp(argv[1], "serve")) serve(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]));
    if (argc == 5 && !strcmp(argv[1], "requests")) return requests(atoi(argv[2]), atoi(argv[3]), atof(argv[4])), 0;
    if (argc == 5 && !strcmp(argv[1], "streams")) return streams(atoi(argv[2]), atoi(argv[3]), atoi(argv[4])), 0;
    fprintf(stderr, "usage: see the head of http_load.c\n");
    return 2;
}
