/* An MCP server at the speed of C, so that the load generators in front of it are the limit.
 *
 * Promises: over Streamable HTTP with JSON answers (revision 2026-07-28) it answers server/discover,
 * resources/list and resources/read with the request's own id; the resource's text has 1,024 characters.
 * Refuses to be a server for anything else: no legacy revision, no event streams, no check of what it is sent,
 * and a connection that breaks HTTP is closed. One thread; listens on loopback, prints its URL.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECTIONS 4096 /* file descriptors; more are refused */
#define REQUEST_BYTES 8192
#define ANSWER_BYTES 4096
#define EVENTS 256
#define TEXT_BYTES 1024
#define HTTP "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n"
#define FRESH "\"resultType\":\"complete\",\"ttlMs\":0,\"cacheScope\":\"private\""

struct connection {
    size_t filled;
    char request[REQUEST_BYTES + 1];
};

static struct connection *connections[CONNECTIONS];
static char text[TEXT_BYTES + 1];

/* The answer to a request; its length. */
static size_t answer(const char *body, char *out) {
    char json[ANSWER_BYTES / 2];
    const char *found = strstr(body, "\"id\":");
    int id_bytes = found ? (int)strcspn(found + 5, ",}") : 0;
    if (!id_bytes)
        return (size_t)sprintf(out, HTTP, "202 Accepted", (size_t)0);
    int size = sprintf(json, "{\"jsonrpc\":\"2.0\",\"id\":%.*s,\"result\":{" FRESH, id_bytes, found + 5);
    if (strstr(body, "\"resources/read\""))
        size += sprintf(json + size, ",\"contents\":[{\"uri\":\"bench:///item/0\",\"mimeType\":\"text/plain\","
                        "\"text\":\"%s\"}]}}", text);
    else if (strstr(body, "\"resources/list\""))
        size += sprintf(json + size, ",\"resources\":[{\"uri\":\"bench:///item/0\",\"name\":\"item-0\"}]}}");
    else
        size += sprintf(json + size, ",\"supportedVersions\":[\"2026-07-28\"],"
                        "\"capabilities\":{\"resources\":{}}}}");
    int head = sprintf(out, HTTP, "200 OK", (size_t)size);
    memcpy(out + head, json, (size_t)size);
    return (size_t)(head + size);
}

static void drop(int fd) {
    free(connections[fd]);
    connections[fd] = NULL;
    close(fd);
}

/* Receive once; answer when that completes the request. */
static void serve(int fd) {
    struct connection *this = connections[fd];
    char out[ANSWER_BYTES];
    ssize_t count = recv(fd, this->request + this->filled, REQUEST_BYTES - this->filled, 0);
    if (count <= 0) {
        drop(fd);
        return;
    }
    this->filled += (size_t)count;
    this->request[this->filled] = 0;
    char *end = strstr(this->request, "\r\n\r\n");
    char *length = strcasestr(this->request, "\r\ncontent-length:");
    if (!end || !length || length > end) {
        if (end || this->filled == REQUEST_BYTES)
            drop(fd);
        return;
    }
    size_t whole = (size_t)(end + 4 - this->request) + strtoul(length + 17, NULL, 10);
    if (this->filled < whole) {
        if (whole > REQUEST_BYTES)
            drop(fd);
        return;
    }
    this->filled = 0;
    size_t size = answer(end + 4, out);
    if (send(fd, out, size, MSG_NOSIGNAL) != (ssize_t)size)
        drop(fd);
}

static void take(int listener, int poller) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), yes = 1;
    if (fd < 0)
        return;
    if (fd >= CONNECTIONS || !(connections[fd] = calloc(1, sizeof **connections))) {
        close(fd);
        return;
    }
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
}

int main(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), poller = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[EVENTS];
    memset(text, 'x', TEXT_BYTES);
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, CONNECTIONS) ||
        getsockname(listener, (struct sockaddr *)&address, &size) ||
        epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event)) {
        perror("responder");
        return 1;
    }
    printf("http://127.0.0.1:%d/mcp\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        int ready = epoll_wait(poller, events, EVENTS, -1);
        if (ready < 0 && errno != EINTR)
            return 1;
        for (int place = 0; place < ready; place++)
            if (events[place].data.fd == listener)
                take(listener, poller);
            else if (connections[events[place].data.fd])
                serve(events[place].data.fd);
    }
}
