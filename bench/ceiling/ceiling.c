/* The smallest server that the clients of the benchmarks can use: the limit of the machine.
 *
 *     ceiling PORT FOLDER PARTITIONS SEGMENT BATCH_BYTES BATCH_RECORDS BATCHES
 *
 * One thread, epoll, blocking sends. It receives requests, writes the records of Produce requests
 * to FOLDER/N.log with one pwritev for all requests of a recv, and sends the responses in one call.
 * A Fetch is a sendfile of SEGMENT, whose batches have the same size and consecutive offsets. Every
 * topic exists and has PARTITIONS partitions. Nothing is checked, and nothing is remembered but the
 * end of each file. Any error ends the server or the connection.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAX_PARTITIONS 64
#define MAX_VECTORS 1024
#define BUFFER_BYTES (4 << 20)
#define RESPONSE_BYTES (4 << 20)

enum { PRODUCE = 0, FETCH = 1, LIST_OFFSETS = 2, METADATA = 3, API_VERSIONS = 18 };
enum { PRODUCE_V = 7, FETCH_V = 4, LIST_OFFSETS_V = 1, METADATA_V = 4 };
enum { UNSUPPORTED_VERSION = 35 };

struct connection {
    int fd;
    size_t filled;
    uint8_t *buffer;
};

static int port, partitions;
static int logs[MAX_PARTITIONS];
static off_t ends[MAX_PARTITIONS];
static int segment;
static int64_t batch_bytes, batch_records, batches;

/* Records of Produce requests that are not written yet, all of one partition. */
static struct iovec vectors[MAX_VECTORS];
static int vector_count, vector_partition;

static uint8_t response[RESPONSE_BYTES];
static size_t response_size;

static void die(const char *what) {
    perror(what);
    exit(1);
}

/* --- encoding */

static void put(const void *data, size_t size) {
    if (response_size + size > RESPONSE_BYTES) {
        fprintf(stderr, "response too large\n");
        exit(1);
    }
    memcpy(response + response_size, data, size);
    response_size += size;
}
static void put8(uint8_t value) { put(&value, 1); }
static void put16(uint16_t value) { value = htobe16(value); put(&value, 2); }
static void put32(uint32_t value) { value = htobe32(value); put(&value, 4); }
static void put64(uint64_t value) { value = htobe64(value); put(&value, 8); }
static void put_string(const uint8_t *text, uint16_t size) { put16(size); put(text, size); }

static uint16_t get16(const uint8_t **at) { uint16_t v; memcpy(&v, *at, 2); *at += 2; return be16toh(v); }
static uint32_t get32(const uint8_t **at) { uint32_t v; memcpy(&v, *at, 4); *at += 4; return be32toh(v); }
static uint64_t get64(const uint8_t **at) { uint64_t v; memcpy(&v, *at, 8); *at += 8; return be64toh(v); }
static const uint8_t *get_string(const uint8_t **at, uint16_t *size) {
    *size = get16(at);
    if (*size == 0xffff) *size = 0;
    const uint8_t *text = *at;
    *at += *size;
    return text;
}

/* --- sending */

static int send_all(int fd, const uint8_t *data, size_t size, int flags) {
    while (size) {
        ssize_t sent = send(fd, data, size, flags | MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return -1;
        data += sent;
        size -= sent;
    }
    return 0;
}

static int send_file(int fd, off_t position, size_t size) {
    while (size) {
        ssize_t sent = sendfile(fd, segment, &position, size);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return -1;
        size -= sent;
    }
    return 0;
}

static void write_records(void) {
    struct iovec *at = vectors;
    int count = vector_count, partition = vector_partition;
    while (count) {
        ssize_t written = pwritev(logs[partition], at, count, ends[partition]);
        if (written < 0) die("pwritev");
        ends[partition] += written;
        while (count && (size_t)written >= at->iov_len) written -= at->iov_len, at++, count--;
        if (count) at->iov_base = (uint8_t *)at->iov_base + written, at->iov_len -= written;
    }
    vector_count = 0;
}

/* --- requests. Each appends its body to `response`. */

static void produce(const uint8_t *at) {
    uint16_t size;
    get_string(&at, &size); /* transactional id */
    at += 2 + 4;            /* acks, timeout */
    uint32_t topics = get32(&at);
    put32(topics);
    while (topics--) {
        const uint8_t *name = get_string(&at, &size);
        put_string(name, size);
        uint32_t count = get32(&at);
        put32(count);
        while (count--) {
            uint32_t partition = get32(&at), bytes = get32(&at);
            if (vector_count == MAX_VECTORS || (vector_count && vector_partition != (int)partition)) write_records();
            vector_partition = partition % MAX_PARTITIONS;
            vectors[vector_count++] = (struct iovec){(void *)at, bytes};
            at += bytes;
            put32(partition);
            put16(0);
            put64(0);  /* base offset */
            put64(-1); /* log append time */
            put64(0);  /* log start offset */
        }
    }
    put32(0);
}

static void metadata(const uint8_t *at) {
    uint16_t size;
    put32(0); /* throttle time */
    put32(1);
    put32(0);
    put_string((const uint8_t *)"127.0.0.1", 9);
    put32(port);
    put16(-1); /* rack */
    put16(-1); /* cluster id */
    put32(0);  /* controller */
    uint32_t topics = get32(&at);
    if (topics == 0xffffffff) topics = 0;
    put32(topics);
    while (topics--) {
        const uint8_t *name = get_string(&at, &size);
        put16(0);
        put_string(name, size);
        put8(0);
        put32(partitions);
        for (int partition = 0; partition < partitions; partition++) {
            put16(0);
            put32(partition);
            put32(0);
            put32(1), put32(0); /* replicas */
            put32(1), put32(0); /* ISR */
        }
    }
}

static void list_offsets(const uint8_t *at) {
    uint16_t size;
    at += 4; /* replica id */
    uint32_t topics = get32(&at);
    put32(topics);
    while (topics--) {
        const uint8_t *name = get_string(&at, &size);
        put_string(name, size);
        uint32_t count = get32(&at);
        put32(count);
        while (count--) {
            put32(get32(&at));
            int64_t timestamp = get64(&at);
            put16(0);
            put64(-1);
            put64(timestamp == -1 ? batches * batch_records : 0);
        }
    }
}

static void api_versions(int16_t version) {
    static const int16_t apis[][2] = {
        {PRODUCE, PRODUCE_V}, {FETCH, FETCH_V}, {LIST_OFFSETS, LIST_OFFSETS_V}, {METADATA, METADATA_V}, {API_VERSIONS, 0},
    };
    put16(version ? UNSUPPORTED_VERSION : 0);
    put32(5);
    for (int i = 0; i < 5; i++) put16(apis[i][0]), put16(apis[i][1]), put16(apis[i][1]);
}

/* Send the response of a Fetch of one partition: the head, then the slice of the segment. */
static int fetch(int fd, size_t start, const uint8_t *at) {
    uint16_t size;
    at += 4 + 4 + 4 + 4 + 1; /* replica id, max wait, min and max bytes, isolation level */
    uint32_t topics = get32(&at);
    if (topics != 1) return -1;
    const uint8_t *name = get_string(&at, &size);
    if (get32(&at) != 1) return -1;
    uint32_t partition = get32(&at);
    int64_t batch = get64(&at) / batch_records, count = get32(&at) / batch_bytes;
    if (count > batches - batch) count = batches - batch;
    if (count < 0) count = 0;
    put32(0); /* throttle time */
    put32(1);
    put_string(name, size);
    put32(1);
    put32(partition);
    put16(0);
    put64(batches * batch_records); /* high watermark */
    put64(batches * batch_records); /* last stable offset */
    put32(-1);                      /* aborted transactions */
    put32(count * batch_bytes);
    uint32_t total = htobe32(response_size - start - 4 + count * batch_bytes);
    memcpy(response + start, &total, 4);
    if (send_all(fd, response, response_size, count ? MSG_MORE : 0)) return -1;
    response_size = 0;
    return send_file(fd, batch * batch_bytes, count * batch_bytes);
}

/* --- connections */

static int handle(int fd, const uint8_t *at) {
    size_t start = response_size;
    int16_t key = get16(&at), version = get16(&at);
    put32(0);
    put32(get32(&at)); /* correlation id */
    uint16_t size;
    get_string(&at, &size); /* client id; the headers of all versions here have no tags */
    switch (key) {
    case PRODUCE: produce(at); break;
    case FETCH: return fetch(fd, start, at);
    case LIST_OFFSETS: list_offsets(at); break;
    case METADATA: metadata(at); break;
    case API_VERSIONS: api_versions(version); break;
    default: return -1;
    }
    uint32_t total = htobe32(response_size - start - 4);
    memcpy(response + start, &total, 4);
    return 0;
}

static int receive(struct connection *connection) {
    ssize_t received = recv(connection->fd, connection->buffer + connection->filled, BUFFER_BYTES - connection->filled, 0);
    if (received <= 0) return -1;
    connection->filled += received;
    const uint8_t *at = connection->buffer, *end = at + connection->filled;
    while (end - at >= 4) {
        const uint8_t *body = at;
        uint32_t size = get32(&body);
        if (size > BUFFER_BYTES - 4) return -1;
        if ((size_t)(end - body) < size) break;
        if (handle(connection->fd, body)) return -1;
        at = body + size;
    }
    if (vector_count) write_records();
    if (response_size && send_all(connection->fd, response, response_size, 0)) return -1;
    response_size = 0;
    connection->filled = end - at;
    memmove(connection->buffer, at, connection->filled);
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 8) return 2;
    port = atoi(argv[1]);
    partitions = atoi(argv[3]);
    batch_bytes = atoll(argv[5]), batch_records = atoll(argv[6]), batches = atoll(argv[7]);
    if (partitions < 1 || partitions > MAX_PARTITIONS || batch_bytes < 1 || batch_records < 1) return 2;
    for (int partition = 0; partition < MAX_PARTITIONS; partition++) {
        char path[4096];
        if (partition < partitions) {
            snprintf(path, sizeof path, "%s/%d.log", argv[2], partition);
            if ((logs[partition] = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0644)) < 0) die(path);
        } else {
            logs[partition] = -1;
        }
    }
    if ((segment = open(argv[4], O_RDONLY)) < 0) die(argv[4]);

    int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0), poll = epoll_create1(0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 256)) die("listen");
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL}, events[64];
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int count = epoll_wait(poll, events, 64, -1);
        for (int i = 0; i < count; i++) {
            struct connection *connection = events[i].data.ptr;
            if (connection == NULL) {
                connection = malloc(sizeof *connection);
                *connection = (struct connection){.fd = accept(listener, NULL, NULL), .buffer = malloc(BUFFER_BYTES)};
                setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                event = (struct epoll_event){.events = EPOLLIN, .data.ptr = connection};
                epoll_ctl(poll, EPOLL_CTL_ADD, connection->fd, &event);
            } else if (receive(connection)) {
                vector_count = response_size = 0;
                close(connection->fd);
                free(connection->buffer);
                free(connection);
            }
        }
    }
}
