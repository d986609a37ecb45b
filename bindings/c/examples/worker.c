/*
 * A worker in C: balances the rehearsal gateway's cart-pole.
 *
 *     sidecar --shm /dev/shm/obs0 ... -- ./worker          (the path comes in SIDECAR_SHM)
 *     ./worker /dev/shm/obs0 [/dev/shm/obs1 ...]           (one model for several sidecars)
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cartpole.h"
#include "sidecar.h"

#define MOST_REGIONS 16

static const char SHORT[] = "too short for a cart-pole observation";

static int complain(const char *what, int32_t status, const struct sidecar_failure *why) {
    fprintf(stderr, "worker: %s: %s", what, sidecar_status_name(status));
    if (why != NULL && why->status == status) {
        fprintf(stderr, ": %s", why->text);
    }
    fputc('\n', stderr);
    return EXIT_FAILURE;
}

/* The worker keeps why its last call failed. */
static int complain_of(const struct sidecar_worker *worker, const char *what, int32_t status) {
    struct sidecar_failure why = {0};
    why.struct_size = sizeof why;
    return complain(what, status, sidecar_worker_get_failure(worker, &why) == sidecar_OK ? &why : NULL);
}

/* Answers in the action slot itself; an empty observation asks for the action that does nothing. */
static int32_t answer(struct sidecar_worker *worker, struct sidecar_observation *observation) {
    struct sidecar_observation_view seen = {0};
    struct sidecar_reservation *reservation = NULL;
    uint8_t *action = NULL;
    size_t room = 0;
    int push;
    int32_t status;

    seen.struct_size = sizeof seen;
    status = sidecar_observation_get_view(observation, &seen);
    if (status != sidecar_OK) {
        return status;
    }
    if ((seen.flags & sidecar_OBSERVATION_EMPTY) != 0) {
        return sidecar_worker_answer(worker, observation, NULL, 0);
    }
    push = cartpole(seen.payload, seen.payload_len);
    if (push < 0) {
        return sidecar_worker_failed(worker, observation, SHORT, strlen(SHORT));
    }
    status = sidecar_worker_reserve(worker, observation, 1, &reservation);
    if (status != sidecar_OK) {
        return status;
    }
    status = sidecar_reservation_get_bytes(reservation, &action, &room);
    if (status == sidecar_OK) {
        action[0] = (uint8_t)push;
        status = sidecar_worker_answer_reserved(worker, observation, reservation, 1);
    }
    if (status != sidecar_OK) {
        sidecar_reservation_release(reservation);
    }
    return status;
}

static int serve(struct sidecar_worker *worker) {
    unsigned long answers = 0;
    for (;;) {
        struct sidecar_worker_event event = {0};
        int32_t status;
        event.struct_size = sizeof event;
        status = sidecar_worker_next(worker, sidecar_FOREVER, &event);
        if (status == sidecar_ENDED) {
            printf("worker: %lu answers\n", answers);
            return EXIT_SUCCESS;
        }
        if (status == sidecar_NOTHING) {
            continue; /* A signal came. */
        }
        if (status != sidecar_OK) {
            return complain_of(worker, "waiting", status);
        }
        switch (event.kind) {
        case sidecar_WORKER_EVENT_WARMUP:
            /* Here the model is loaded. */
            status = sidecar_worker_ready(worker, event.member);
            break;
        case sidecar_WORKER_EVENT_SESSION_OPENED:
            printf("worker: session %.*s%s\n", (int)event.session_len, event.session,
                   (event.flags & sidecar_FLAG_RESUMED) != 0 ? ", resumed" : "");
            break;
        case sidecar_WORKER_EVENT_OBSERVATION:
            status = answer(worker, event.observation);
            if (status != sidecar_OK) {
                sidecar_observation_release(event.observation);
            }
            answers++;
            break;
        default: /* Nothing to be done about it, or newer than this program. */
            break;
        }
        if (status != sidecar_OK) {
            return complain_of(worker, "answering", status);
        }
    }
}

int main(int count, char **arguments) {
    const char *paths[MOST_REGIONS];
    size_t lengths[MOST_REGIONS];
    size_t regions = 0;
    struct sidecar_failure why = {0};
    struct sidecar_worker *worker = NULL;
    int32_t status;
    int result;
    int i;

    /* The sidecar ends its worker with SIGTERM after a drain: what was said should be out by then. */
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    if (sidecar_abi_version() >> 16 != sidecar_ABI_MAJOR) {
        fputs("worker: libsidecar is of another version than sidecar.h\n", stderr);
        return EXIT_FAILURE;
    }
    for (i = 1; i < count && regions < MOST_REGIONS; i++) {
        paths[regions++] = arguments[i];
    }
    if (regions == 0 && getenv("SIDECAR_SHM") != NULL) {
        paths[regions++] = getenv("SIDECAR_SHM");
    }
    if (regions == 0) {
        fputs("usage: worker REGION... (or SIDECAR_SHM=REGION worker)\n", stderr);
        return EXIT_FAILURE;
    }
    for (i = 0; (size_t)i < regions; i++) {
        lengths[i] = strlen(paths[i]);
    }
    why.struct_size = sizeof why;
    status = sidecar_worker_attach_many(paths, lengths, regions, NULL, &why, &worker);
    if (status != sidecar_OK) {
        return complain("attaching", status, &why);
    }
    result = serve(worker);
    sidecar_worker_close(worker);
    return result;
}
