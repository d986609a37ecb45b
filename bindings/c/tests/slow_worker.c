/*
 * A worker that thinks about each observation, for the tests that kill it meanwhile (sidecar/tests/crash):
 *
 *     SIDECAR_SHM=REGION ./slow_worker SECONDS
 *
 * It answers in each way that there is, in turn, and says on standard error why it ends.
 */

#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../examples/cartpole.h"
#include "sidecar.h"

static const char SHORT[] = "too short for a cart-pole observation";

static void think(double seconds) {
    struct timespec left;
    left.tv_sec = (time_t)seconds;
    left.tv_nsec = (long)((seconds - floor(seconds)) * 1e9);
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

static int32_t answer_in_place(struct sidecar_worker *worker, struct sidecar_observation *observation, uint8_t push) {
    struct sidecar_reservation *reservation = NULL;
    uint8_t *bytes = NULL;
    size_t room = 0;
    int32_t status = sidecar_worker_reserve(worker, observation, 1, &reservation);
    if (status != sidecar_OK) {
        return status;
    }
    status = sidecar_reservation_get_bytes(reservation, &bytes, &room);
    if (status == sidecar_OK) {
        bytes[0] = push;
        status = sidecar_worker_answer_reserved(worker, observation, reservation, 1);
    }
    if (status != sidecar_OK) {
        sidecar_reservation_release(reservation);
    }
    return status;
}

static int32_t answer(struct sidecar_worker *worker, struct sidecar_observation *observation, double seconds) {
    struct sidecar_observation_view seen;
    uint8_t action;
    int push;
    int32_t status;
    memset(&seen, 0, sizeof seen);
    seen.struct_size = sizeof seen;
    status = sidecar_observation_get_view(observation, &seen);
    if (status != sidecar_OK) {
        return status;
    }
    think(seconds);
    if (sidecar_observation_is_wanted(observation) == sidecar_GONE) {
        return sidecar_observation_release(observation);
    }
    push = cartpole(seen.payload, seen.payload_len);
    if (push < 0) {
        return sidecar_worker_failed(worker, observation, SHORT, strlen(SHORT));
    }
    action = (uint8_t)push;
    switch (seen.sequence % 3) {
    case 0:
        return sidecar_worker_answer(worker, observation, &action, 1);
    case 1:
        return answer_in_place(worker, observation, action);
    default:
        status = sidecar_observation_try_answer(observation, &action, 1);
        return status == sidecar_NO_ROOM ? sidecar_worker_answer(worker, observation, &action, 1) : status;
    }
}

int main(int count, char **arguments) {
    const char *region = getenv("SIDECAR_SHM");
    const double seconds = count == 2 ? atof(arguments[1]) : -1;
    struct sidecar_worker *worker = NULL;
    struct sidecar_failure why;
    int32_t status;
    if (region == NULL || seconds < 0) {
        fputs("usage: SIDECAR_SHM=REGION slow_worker SECONDS\n", stderr);
        return EXIT_FAILURE;
    }
    memset(&why, 0, sizeof why);
    why.struct_size = sizeof why;
    status = sidecar_worker_attach(region, strlen(region), NULL, &why, &worker);
    while (status >= 0) {
        struct sidecar_worker_event event;
        memset(&event, 0, sizeof event);
        event.struct_size = sizeof event;
        status = sidecar_worker_next(worker, sidecar_FOREVER, &event);
        if (status == sidecar_ENDED) {
            sidecar_worker_close(worker);
            return EXIT_SUCCESS;
        }
        if (status == sidecar_OK && event.kind == sidecar_WORKER_EVENT_WARMUP) {
            status = sidecar_worker_ready(worker, event.member);
        } else if (status == sidecar_OK && event.kind == sidecar_WORKER_EVENT_OBSERVATION) {
            status = answer(worker, event.observation, seconds);
        }
    }
    if (worker != NULL) {
        sidecar_worker_get_failure(worker, &why);
    }
    fprintf(stderr, "slow_worker: %s: %s\n", sidecar_status_name(status), why.text);
    return EXIT_FAILURE;
}
