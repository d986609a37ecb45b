/*
 * The protocol core in a loop of one's own: a TCP socket, epoll, and sidecar_agent_... It plays the rehearsal
 * gateway's cart-pole without a sidecar, without shared memory and without a single allocation.
 *
 *     JOB_TOKEN=... ./direct_agent 127.0.0.1 9000 /api/challenge/tunnel [JOB]
 *
 * It links libsidecar_agent.a, which needs nothing but the C library's memory functions; libsidecar has the same
 * functions. What a real stack would add: name resolution, TLS, a model that does not answer at once.
 */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "cartpole.h"
#include "sidecar.h"

#define SLOT_BYTES (1U << 20)
#define SLOTS 2
#define NANOS 1000000000ULL

/* All the memory there is. A slot begins on a page, and so does the payload behind its headroom. */
static uint8_t agent_memory[1 << 16] __attribute__((aligned(64)));
static uint8_t scratch[sidecar_HEADROOM + SLOT_BYTES];
static uint8_t slots[SLOTS][sidecar_HEADROOM + SLOT_BYTES] __attribute__((aligned(4096)));
static uint8_t outgoing[sidecar_MAX_TRANSMIT + 8192];

enum sending { NOTHING_LEAVES, FRAME_LEAVES, ACTION_LEAVES };

/* An action, and what it answers. */
struct action {
    int is_due;
    uint32_t epoch;
    uint64_t sequence;
    uint8_t payload[1];
    size_t length;
};

struct client {
    struct sidecar_agent *agent;
    struct sockaddr_in gateway;
    const char *token;
    int loop, socket;
    int is_connecting, is_draining, is_over, result;
    uint32_t watched;
    int is_lent[SLOTS];
    enum sending sending;
    size_t out_len, out_sent;
    struct action action;
    unsigned long actions, sessions;
};

/* printf may allocate a buffer; this does not. */
static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...) {
    char line[512];
    va_list rest;
    int length;
    va_start(rest, format);
    length = vsnprintf(line, sizeof line - 1, format, rest);
    va_end(rest);
    if (length > (int)sizeof line - 2) {
        length = (int)sizeof line - 2;
    }
    line[length++] = '\n';
    if (write(STDOUT_FILENO, line, (size_t)length) < 0) {
        return; /* Nobody reads it. */
    }
}

/* For what can only fail by a mistake in this program. */
static void must(const char *what, int32_t status) {
    if (status < 0) {
        say("direct_agent: %s: %s", what, sidecar_status_name(status));
        _exit(2);
    }
}

/* Goes on while the machine sleeps, as the gateway's clock does. */
static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_BOOTTIME, &time);
    return (uint64_t)time.tv_sec * NANOS + (uint64_t)time.tv_nsec;
}

static void watch(struct client *client, uint32_t events) {
    struct epoll_event event;
    if (client->socket < 0 || client->watched == events) {
        return;
    }
    event.events = events;
    event.data.u64 = 0;
    epoll_ctl(client->loop, EPOLL_CTL_MOD, client->socket, &event);
    client->watched = events;
}

static void hang_up(struct client *client) {
    if (client->socket >= 0) {
        close(client->socket);
    }
    client->socket = -1;
    client->is_connecting = 0;
    client->sending = NOTHING_LEAVES;
}

static void dial_failed(struct client *client) {
    hang_up(client);
    must("dial failed", sidecar_agent_handle_dial_failed(client->agent, now(), sidecar_DIAL_FAILURE_REFUSED));
}

static void dial(struct client *client) {
    struct epoll_event event;
    int on = 1;
    hang_up(client);
    client->socket = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (client->socket < 0) {
        dial_failed(client);
        return;
    }
    setsockopt(client->socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    event.events = client->watched = EPOLLOUT;
    event.data.u64 = 0;
    epoll_ctl(client->loop, EPOLL_CTL_ADD, client->socket, &event);
    client->is_connecting = 1;
    if (connect(client->socket, (struct sockaddr *)&client->gateway, sizeof client->gateway) < 0 &&
        errno != EINPROGRESS) {
        dial_failed(client);
    }
}

static void ended(struct client *client, uint32_t how) {
    must("end", sidecar_agent_handle_end(client->agent, now(), how));
}

/* Sends what is left; 1 when all of it went. */
static int flush(struct client *client) {
    while (client->sending != NOTHING_LEAVES && client->out_sent < client->out_len) {
        const ssize_t sent = send(client->socket, outgoing + client->out_sent, client->out_len - client->out_sent,
                                  MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent < 0) {
            /* Anything but a full buffer: the reading side will say how the connection ended. */
            return 0;
        }
        client->out_sent += (size_t)sent;
    }
    if (client->sending == ACTION_LEAVES) {
        struct action *action = &client->action;
        must("action sent",
             sidecar_agent_handle_action_sent(client->agent, now(), action->epoch, action->sequence));
        must("unanswered", sidecar_agent_set_unanswered(client->agent, 0));
        action->is_due = 0;
        client->actions++;
    } else if (client->sending == FRAME_LEAVES) {
        must("sent", sidecar_agent_handle_sent(client->agent, now()));
    }
    client->sending = NOTHING_LEAVES;
    return 1;
}

/* Takes the next thing that has to be sent: control frames first, then the action. */
static int take_outgoing(struct client *client) {
    struct action *action = &client->action;
    int32_t status;
    client->out_sent = 0;
    status = sidecar_agent_poll_transmit(client->agent, now(), outgoing, sizeof outgoing, &client->out_len);
    must("transmit", status);
    if (status == sidecar_OK) {
        client->sending = FRAME_LEAVES;
        return 1;
    }
    if (!action->is_due) {
        return 0;
    }
    status = sidecar_agent_begin_action(client->agent, now(), action->epoch, action->sequence, action->payload,
                                        action->length, outgoing, sizeof outgoing, &client->out_len);
    must("action", status);
    if (status == sidecar_GONE || status == sidecar_CLOSING) {
        action->is_due = 0;
    } else if (status == sidecar_OK) {
        client->sending = ACTION_LEAVES;
        return 1;
    }
    return 0; /* DOWN, HELD: later. */
}

static int transmit(struct client *client) {
    if (client->socket < 0 || client->is_connecting) {
        return 1;
    }
    while (client->sending != NOTHING_LEAVES || take_outgoing(client)) {
        if (!flush(client)) {
            return 0;
        }
    }
    return 1;
}

/* Lets what was handed out leave, says FIN, and waits for the peer's, a second at most. */
static void hang_up_orderly(struct client *client) {
    struct pollfd wait;
    uint8_t rest[256];
    const uint64_t until = now() + NANOS;
    wait.fd = client->socket;
    wait.events = POLLOUT;
    while (!transmit(client) && now() < until && poll(&wait, 1, 100) >= 0 && (wait.revents & POLLERR) == 0) {
    }
    if (client->socket >= 0) {
        shutdown(client->socket, SHUT_WR);
        wait.events = POLLIN;
        while (now() < until && poll(&wait, 1, 100) >= 0) {
            const ssize_t got = recv(client->socket, rest, sizeof rest, 0);
            if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
                break;
            }
        }
    }
    hang_up(client);
}

/* The model: it answers at once, so the slot is free again at once. */
static void observe(struct client *client, const struct sidecar_agent_event *event) {
    struct action *action = &client->action;
    int i;
    action->is_due = 1;
    action->epoch = event->epoch;
    action->sequence = event->sequence;
    action->length = 0;
    if (event->length > 0) {
        const int push = cartpole(event->payload, (size_t)event->length);
        action->payload[0] = push > 0;
        action->length = 1;
    }
    must("unanswered", sidecar_agent_set_unanswered(client->agent, 1));
    for (i = 0; i < SLOTS; i++) {
        if (event->slot == slots[i]) {
            client->is_lent[i] = 0;
        }
    }
}

static void handle(struct client *client, const struct sidecar_agent_event *event) {
    switch (event->kind) {
    case sidecar_AGENT_EVENT_DIAL:
        dial(client);
        break;
    case sidecar_AGENT_EVENT_HANG_UP:
        if (event->cause == sidecar_HANG_UP_ORDERLY) {
            hang_up_orderly(client);
        } else {
            hang_up(client);
        }
        break;
    case sidecar_AGENT_EVENT_DISCONNECTED:
        say("direct_agent: disconnected: %s", event->text);
        break;
    case sidecar_AGENT_EVENT_WARMUP:
        /* Here the model is loaded. */
        must("ready", sidecar_agent_worker_ready(client->agent, now()));
        break;
    case sidecar_AGENT_EVENT_SESSION_OPENED:
        client->sessions += (event->flags & sidecar_FLAG_RESUMED) == 0;
        break;
    case sidecar_AGENT_EVENT_OBSERVATION:
        observe(client, event);
        break;
    case sidecar_AGENT_EVENT_DRAIN:
        client->is_draining = 1;
        break;
    case sidecar_AGENT_EVENT_UNFREEZE:
        if (client->action.epoch == event->epoch && client->action.sequence == event->sequence) {
            client->action.is_due = 1;
        }
        break;
    case sidecar_AGENT_EVENT_FINISHED:
        say("direct_agent: %s; %lu sessions, %lu actions", event->text, client->sessions, client->actions);
        client->is_over = 1;
        client->result = event->cause == sidecar_OUTCOME_DRAINED ? EXIT_SUCCESS : EXIT_FAILURE;
        break;
    case sidecar_AGENT_EVENT_NOTICE:
        if (event->cause != sidecar_NOTICE_PINGED) {
            say("direct_agent: %s", event->text);
        }
        break;
    default: /* Nothing to be done about it, or newer than this program. */
        break;
    }
}

/* Parses and acts until nothing is left to be done. */
static void advance(struct client *client) {
    struct sidecar_agent_event event = {0};
    int32_t went;
    int i;
    event.struct_size = sizeof event;
    do {
        if (sidecar_agent_wants_slot(client->agent) == sidecar_OK) {
            for (i = 0; i < SLOTS && client->is_lent[i]; i++) {
            }
            if (i < SLOTS) {
                must("slot", sidecar_agent_offer_slot(client->agent, slots[i], sizeof slots[i]));
                client->is_lent[i] = 1;
            }
        }
        went = sidecar_agent_process(client->agent, now());
        must("process", went);
        while (sidecar_agent_poll_event(client->agent, &event) == sidecar_OK) {
            handle(client, &event);
            went = sidecar_OK;
        }
    } while (went == sidecar_OK && !client->is_over);
    if (client->is_draining && !client->action.is_due && client->sending == NOTHING_LEAVES) {
        must("drain", sidecar_agent_finish_drain(client->agent, now()));
    }
}

/* Receives to where the agent wants it; whether to come back for more at once. */
static int receive(struct client *client, int *wanted) {
    struct sidecar_read read = {0};
    ssize_t got;
    read.struct_size = sizeof read;
    *wanted = 0;
    if (client->socket < 0 || client->is_connecting ||
        sidecar_agent_poll_read(client->agent, &read) != sidecar_OK) {
        return 0;
    }
    got = recv(client->socket, read.into, read.max, 0);
    must("received", sidecar_agent_handle_received(client->agent, now(), got > 0 ? (size_t)got : 0));
    if (got == 0) {
        ended(client, sidecar_END_EOF);
    } else if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        *wanted = 1;
        return 0;
    } else if (got < 0) {
        ended(client, sidecar_END_RESET);
    }
    return 1;
}

/* The connection is there, or not. */
static void finish_dial(struct client *client) {
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(client->socket, SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) {
        dial_failed(client);
        return;
    }
    client->is_connecting = 0;
    client->out_sent = 0;
    must("connected", sidecar_agent_handle_connected(client->agent, now(), client->token, strlen(client->token),
                                                     outgoing, sizeof outgoing, &client->out_len));
    client->sending = FRAME_LEAVES;
}

static int milliseconds_until(uint64_t at) {
    const uint64_t start = now();
    /* Rounded up: a timer that is looked at too early would be looked at again and again. */
    const uint64_t wait = at > start ? (at - start + 999999) / 1000000 : 0;
    return wait > 60000 ? 60000 : (int)wait;
}

static int play(struct client *client) {
    while (!client->is_over) {
        struct epoll_event event;
        uint64_t at = 0;
        int wanted = 0, is_sent, count, wait = -1;
        advance(client);
        is_sent = transmit(client);
        if (client->is_over) {
            break;
        }
        if (receive(client, &wanted)) {
            continue;
        }
        if (sidecar_agent_poll_timeout(client->agent, &at) == sidecar_OK) {
            wait = milliseconds_until(at);
        }
        /* Only what can be taken is waited for: bytes that stay where they are would wake us without end. */
        watch(client, (client->is_connecting || !is_sent ? EPOLLOUT : 0U) | (wanted ? EPOLLIN : 0U));
        count = epoll_wait(client->loop, &event, 1, wait);
        if (count > 0 && client->is_connecting) {
            finish_dial(client);
        }
        if (at != 0 && now() >= at) {
            must("timeout", sidecar_agent_handle_timeout(client->agent, now()));
        }
    }
    hang_up(client);
    return client->result;
}

static void start(struct client *client, const char *host, const char *path, const char *job) {
    struct sidecar_agent_config config = {0};
    uint8_t id[16];
    char name[33];
    size_t size = 0, align = 0, i;
    config.struct_size = sizeof config;
    config.host = host;
    config.host_len = strlen(host);
    config.path = path;
    config.path_len = strlen(path);
    config.job = job;
    config.job_len = strlen(job);
    config.slot_bytes = SLOT_BYTES;
    if (getrandom(config.seed, sizeof config.seed, 0) != sizeof config.seed ||
        getrandom(id, sizeof id, 0) != sizeof id) {
        say("direct_agent: no randomness");
        _exit(2);
    }
    for (i = 0; i < sizeof id; i++) {
        snprintf(name + 2 * i, 3, "%02x", id[i]);
    }
    config.agent = name;
    config.agent_len = 2 * sizeof id;
    must("layout", sidecar_agent_layout(&config, &size, &align));
    if (size > sizeof agent_memory || (uintptr_t)agent_memory % align != 0) {
        say("direct_agent: an agent takes %lu bytes, aligned to %lu", (unsigned long)size, (unsigned long)align);
        _exit(2);
    }
    must("init", sidecar_agent_init(agent_memory, sizeof agent_memory, scratch, sizeof scratch,
                                    &config, NULL, now(), &client->agent));
}

int main(int count, char **arguments) {
    static struct client client;
    char host[64];
    int result;
    client.token = getenv("JOB_TOKEN");
    if (count < 4 || client.token == NULL || inet_pton(AF_INET, arguments[1], &client.gateway.sin_addr) != 1) {
        say("usage: JOB_TOKEN=... direct_agent ADDRESS PORT PATH [JOB]");
        return EXIT_FAILURE;
    }
    signal(SIGPIPE, SIG_IGN);
    client.gateway.sin_family = AF_INET;
    client.gateway.sin_port = htons((uint16_t)strtoul(arguments[2], NULL, 10));
    client.socket = -1;
    client.loop = epoll_create1(EPOLL_CLOEXEC);
    snprintf(host, sizeof host, "%s:%s", arguments[1], arguments[2]);
    start(&client, host, arguments[3], count > 4 ? arguments[4] : "rehearsal");
    result = play(&client);
    must("drop", sidecar_agent_drop(client.agent));
    close(client.loop);
    return result;
}
