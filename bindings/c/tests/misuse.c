/*
 * What a caller can do wrong with a live worker, and what it is told. It runs as a sidecar's worker, plays the
 * rehearsal gateway's cart-pole, and between two answers it makes every mistake of the tables below: each has to come to
 * its status and to change nothing, so that the game goes on to its last step. Run under the sanitizers and Valgrind, no
 * mistake may touch memory that is not ours.
 *
 *     sidecar ... -- ./misuse
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../examples/cartpole.h"
#include "sidecar.h"

static const uint8_t bytes[1 << 17];
static const char text[] = "text";
static const char no_text[] = "\xff";

/* What the mistakes are made with. */
static struct {
    struct sidecar_worker *worker;
    struct sidecar_worker *closed;
    struct sidecar_observation *observation;
    struct sidecar_observation *answered;
    struct sidecar_reservation *reservation;
    struct sidecar_reservation *spent;
} on;

/* What must not be written on failure. */
static struct sidecar_worker_event event;
static struct sidecar_observation_view view;
static struct sidecar_worker_info info;
static struct sidecar_failure failure;
static struct sidecar_reservation *reservation;
static uint8_t *room;
static size_t length;
static int32_t fd;
static uint64_t address;

#define WORKER(other) ((struct sidecar_worker *)(void *)(other))
#define OBSERVATION(other) ((struct sidecar_observation *)(void *)(other))
#define RESERVATION(other) ((struct sidecar_reservation *)(void *)(other))
#define ODD(handle) ((void *)((char *)(handle) + 1))

/* Calls, and what they come to. */
#define MISTAKES(M)                                                                                                    \
    /* NULL where something has to be. */                                                                              \
    M(sidecar_worker_next(NULL, 0, &event), ERR_NULL)                                                                  \
    M(sidecar_worker_next(on.worker, 0, NULL), ERR_NULL)                                                               \
    M(sidecar_worker_ready(NULL, 0), ERR_NULL)                                                                         \
    M(sidecar_worker_warmup_failed(on.worker, 0, NULL, 3), ERR_NULL)                                                   \
    M(sidecar_worker_fd(on.worker, NULL), ERR_NULL)                                                                    \
    M(sidecar_worker_get_info(on.worker, 0, NULL), ERR_NULL)                                                           \
    M(sidecar_worker_get_failure(on.worker, NULL), ERR_NULL)                                                           \
    M(sidecar_observation_get_view(on.observation, NULL), ERR_NULL)                                                    \
    M(sidecar_observation_is_wanted(NULL), ERR_NULL)                                                                   \
    M(sidecar_worker_answer(on.worker, NULL, bytes, 1), ERR_NULL)                                                      \
    M(sidecar_worker_answer(NULL, on.observation, bytes, 1), ERR_NULL)                                                 \
    M(sidecar_worker_answer(on.worker, on.observation, NULL, 1), ERR_NULL)                                             \
    M(sidecar_observation_try_answer(on.observation, NULL, 1), ERR_NULL)                                               \
    M(sidecar_worker_failed(on.worker, on.observation, NULL, 1), ERR_NULL)                                             \
    M(sidecar_worker_reserve(on.worker, NULL, 1, &reservation), ERR_NULL)                                              \
    M(sidecar_worker_reserve(on.worker, on.observation, 1, NULL), ERR_NULL)                                            \
    M(sidecar_reservation_get_bytes(on.reservation, NULL, &length), ERR_NULL)                                          \
    M(sidecar_reservation_get_bytes(on.reservation, &room, NULL), ERR_NULL)                                            \
    M(sidecar_worker_answer_reserved(on.worker, on.observation, NULL, 1), ERR_NULL)                                    \
    M(sidecar_worker_get_pin_failure(on.worker, 0, NULL), ERR_NULL)                                                    \
    M(sidecar_observation_get_device_address(on.observation, NULL), ERR_NULL)                                          \
    M(sidecar_observation_copy_to_device(NULL, 0, 0, NULL), ERR_NULL)                                                  \
    M(sidecar_worker_get_arrival_failure(on.worker, 0, NULL), ERR_NULL)                                                \
    M(sidecar_observation_get_arrival(on.observation, NULL), ERR_NULL)                                                 \
    M(sidecar_observation_hold_back(NULL, NULL), ERR_NULL)                                                             \
    M(sidecar_worker_answer_from_device(NULL, on.observation, 0, 0, NULL), ERR_NULL)                                   \
    M(sidecar_worker_answer_from_device(on.worker, NULL, 0, 0, NULL), ERR_NULL)                                        \
    M(sidecar_observation_try_answer_from_device(NULL, 0, 0, NULL), ERR_NULL)                                          \
    /* Numbers and lengths out of their range. */                                                                      \
    M(sidecar_worker_next(on.worker, -2, &event), ERR_VALUE)                                                           \
    M(sidecar_worker_ready(on.worker, 1), ERR_VALUE)                                                                   \
    M(sidecar_worker_ready(on.worker, UINT32_MAX), ERR_VALUE)                                                          \
    M(sidecar_worker_get_info(on.worker, 1, &info), ERR_VALUE)                                                         \
    M(sidecar_worker_get_pin_failure(on.worker, 1, &failure), ERR_VALUE)                                               \
    M(sidecar_worker_get_arrival_failure(on.worker, 1, &failure), ERR_VALUE)                                           \
    M(sidecar_worker_answer(on.worker, on.observation, bytes, SIZE_MAX), ERR_LENGTH)                                   \
    M(sidecar_worker_failed(on.worker, on.observation, text, SIZE_MAX), ERR_LENGTH)                                    \
    M(sidecar_worker_failed(on.worker, on.observation, no_text, 1), ERR_TEXT)                                          \
    M(sidecar_observation_try_failed(on.observation, no_text, 1), ERR_TEXT)                                            \
    M(sidecar_worker_warmup_failed(on.worker, 0, no_text, 1), ERR_TEXT)                                                \
    M(sidecar_worker_answer(on.worker, on.observation, bytes, sizeof bytes), ERR_ACTION_TOO_LARGE)                     \
    M(sidecar_observation_try_answer(on.observation, bytes, sizeof bytes), ERR_ACTION_TOO_LARGE)                       \
    M(sidecar_worker_reserve(on.worker, on.observation, sizeof bytes, &reservation), ERR_ACTION_TOO_LARGE)             \
    M(sidecar_worker_reserve(on.worker, on.observation, SIZE_MAX, &reservation), ERR_ACTION_TOO_LARGE)                 \
    M(sidecar_worker_answer_reserved(on.worker, on.observation, on.reservation, 2), ERR_LENGTH)                        \
    M(sidecar_worker_answer_reserved(on.worker, on.observation, on.reservation, SIZE_MAX), ERR_LENGTH)                 \
    /* The same observation answered twice, in every way. */                                                           \
    M(sidecar_worker_answer(on.worker, on.answered, bytes, 1), ERR_STATE)                                              \
    M(sidecar_observation_try_answer(on.answered, bytes, 1), ERR_STATE)                                                \
    M(sidecar_worker_failed(on.worker, on.answered, text, 4), ERR_STATE)                                               \
    M(sidecar_observation_try_failed(on.answered, text, 4), ERR_STATE)                                                 \
    M(sidecar_worker_answer_reserved(on.worker, on.answered, on.reservation, 1), ERR_STATE)                            \
    M(sidecar_worker_reserve(on.worker, on.answered, 1, &reservation), ERR_STATE)                                      \
    M(sidecar_observation_get_view(on.answered, &view), ERR_STATE)                                                     \
    M(sidecar_observation_is_wanted(on.answered), ERR_STATE)                                                           \
    M(sidecar_observation_release(on.answered), ERR_STATE)                                                             \
    /* A reservation that was used. */                                                                                 \
    M(sidecar_worker_answer_reserved(on.worker, on.observation, on.spent, 1), ERR_STATE)                               \
    M(sidecar_reservation_get_bytes(on.spent, &room, &length), ERR_STATE)                                              \
    M(sidecar_reservation_release(on.spent), ERR_STATE)                                                                \
    /* A worker that was closed. */                                                                                    \
    M(sidecar_worker_next(on.closed, 0, &event), ERR_STATE)                                                            \
    M(sidecar_worker_ready(on.closed, 0), ERR_STATE)                                                                   \
    M(sidecar_worker_warmup_failed(on.closed, 0, text, 4), ERR_STATE)                                                  \
    M(sidecar_worker_fd(on.closed, &fd), ERR_STATE)                                                                    \
    M(sidecar_worker_get_info(on.closed, 0, &info), ERR_STATE)                                                         \
    M(sidecar_worker_get_failure(on.closed, &failure), ERR_STATE)                                                      \
    M(sidecar_worker_answer(on.closed, on.observation, bytes, 1), ERR_STATE)                                           \
    M(sidecar_worker_answer_reserved(on.closed, on.observation, on.reservation, 1), ERR_STATE)                         \
    M(sidecar_worker_failed(on.closed, on.observation, text, 4), ERR_STATE)                                            \
    M(sidecar_worker_reserve(on.closed, on.observation, 1, &reservation), ERR_STATE)                                   \
    M(sidecar_worker_close(on.closed), ERR_STATE)                                                                      \
    /* A GPU that the worker has not, and observations that are gone. */                                               \
    M(sidecar_observation_copy_to_device(on.observation, 4096, sizeof bytes, NULL), ERR_STATE)                         \
    M(sidecar_observation_used_by_device(on.observation, NULL), ERR_STATE)                                             \
    M(sidecar_observation_copy_to_device(on.answered, 4096, sizeof bytes, NULL), ERR_STATE)                            \
    M(sidecar_observation_used_by_device(on.answered, NULL), ERR_STATE)                                                \
    M(sidecar_observation_get_device_address(on.answered, &address), ERR_STATE)                                        \
    M(sidecar_worker_answer_from_device(on.worker, on.observation, 4096, 1, NULL), ERR_STATE)                          \
    M(sidecar_worker_answer_from_device(on.worker, on.answered, 4096, 1, NULL), ERR_STATE)                             \
    M(sidecar_worker_answer_from_device(on.closed, on.observation, 4096, 1, NULL), ERR_STATE)                          \
    M(sidecar_observation_try_answer_from_device(on.observation, 4096, SIZE_MAX, NULL), ERR_STATE)                     \
    M(sidecar_observation_try_answer_from_device(on.answered, 4096, 1, NULL), ERR_STATE)                               \
    /* One kind of handle for another, and no handle at all. */                                                        \
    M(sidecar_worker_next(WORKER(on.observation), 0, &event), ERR_STATE)                                               \
    M(sidecar_worker_close(WORKER(on.reservation)), ERR_STATE)                                                         \
    M(sidecar_observation_release(OBSERVATION(on.worker)), ERR_STATE)                                                  \
    M(sidecar_worker_answer(on.worker, OBSERVATION(on.worker), bytes, 1), ERR_STATE)                                   \
    M(sidecar_worker_answer_from_device(on.worker, OBSERVATION(on.worker), 4096, 1, NULL), ERR_STATE)                  \
    M(sidecar_worker_answer_reserved(on.worker, on.observation, RESERVATION(on.observation), 1), ERR_STATE)            \
    M(sidecar_reservation_release(RESERVATION(on.observation)), ERR_STATE)                                             \
    M(sidecar_worker_next(WORKER(ODD(on.worker)), 0, &event), ERR_VALUE)                                               \
    M(sidecar_observation_release(OBSERVATION(ODD(on.observation))), ERR_VALUE)

/* With the size of the struct that is given left unset, too small, or absurd. */
#define SIZES(M)                                                                                                       \
    M(sidecar_worker_next(on.worker, 0, &event))                                                                       \
    M(sidecar_observation_get_view(on.observation, &view))                                                             \
    M(sidecar_worker_get_info(on.worker, 0, &info))                                                                    \
    M(sidecar_worker_get_failure(on.worker, &failure))

static unsigned long made;

static void expect(const char *call, int32_t status, int32_t expected) {
    made++;
    if (status != expected) {
        fprintf(stderr, "misuse: %s came to %s, not to %s\n", call, sidecar_status_name(status),
                sidecar_status_name(expected));
        exit(EXIT_FAILURE);
    }
}

static void set_sizes(uint32_t fresh_event, uint32_t fresh_view, uint32_t fresh_info, uint32_t fresh_failure) {
    memset(&event, 0, sizeof event);
    memset(&view, 0, sizeof view);
    memset(&info, 0, sizeof info);
    memset(&failure, 0, sizeof failure);
    event.struct_size = fresh_event;
    view.struct_size = fresh_view;
    info.struct_size = fresh_info;
    failure.struct_size = fresh_failure;
}

static void make_mistakes(void) {
    size_t at;
    reservation = NULL;
    room = NULL;
    length = 77;
    fd = -1;
    address = 77;
    set_sizes(sizeof event, sizeof view, sizeof info, sizeof failure);
#define MAKE(call, status) expect(#call, call, sidecar_##status);
    MISTAKES(MAKE)
    if (reservation != NULL || room != NULL || length != 77 || fd != -1 || address != 77 || event.kind != 0 ||
        view.payload != NULL) {
        fputs("misuse: something was written on failure\n", stderr);
        exit(EXIT_FAILURE);
    }
    for (at = 0; at < 3; at++) {
        const uint32_t wrong[] = {0, 4, 1U << 20};
        set_sizes(wrong[at], wrong[at], wrong[at], wrong[at]);
#define RESIZE(call) expect(#call " of another size", call, sidecar_ERR_STRUCT_SIZE);
        SIZES(RESIZE)
    }
}

static int32_t reserve(struct sidecar_reservation **slot, uint8_t action) {
    int32_t status = sidecar_worker_reserve(on.worker, on.observation, 1, slot);
    if (status == sidecar_OK) {
        status = sidecar_reservation_get_bytes(*slot, &room, &length);
    }
    if (status == sidecar_OK) {
        *room = action;
    }
    return status;
}

/* Everything wrong, then the answer. */
static int32_t answer(void) {
    int32_t status;
    int push;
    set_sizes(sizeof event, sizeof view, sizeof info, sizeof failure);
    status = sidecar_observation_get_view(on.observation, &view);
    if (status != sidecar_OK) {
        return status;
    }
    push = cartpole(view.payload, view.payload_len);
    if (push < 0) {
        push = 0;
    }
    status = reserve(&on.reservation, (uint8_t)push);
    if (status != sidecar_OK) {
        return status;
    }
    if (on.answered != NULL) {
        make_mistakes();
    }
    status = sidecar_worker_answer_reserved(on.worker, on.observation, on.reservation, 1);
    on.answered = on.observation;
    on.spent = on.reservation;
    return status;
}

static int32_t attach(const char *region, struct sidecar_worker **worker) {
    struct sidecar_failure why;
    int32_t status;
    memset(&why, 0, sizeof why);
    why.struct_size = sizeof why;
    /* A predecessor's end is known to the sidecar a moment later. */
    do {
        status = sidecar_worker_attach(region, strlen(region), NULL, &why, worker);
    } while (status == sidecar_ERR_REFUSED);
    if (status != sidecar_OK) {
        fprintf(stderr, "misuse: attaching: %s: %s\n", sidecar_status_name(status), why.text);
    }
    return status;
}

int main(void) {
    const char *region = getenv("SIDECAR_SHM");
    struct sidecar_worker_event told;
    int32_t status;
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    if (region == NULL || attach(region, &on.closed) != sidecar_OK) {
        return EXIT_FAILURE;
    }
    expect("the first close", sidecar_worker_close(on.closed), sidecar_OK);
    if (attach(region, &on.worker) != sidecar_OK) {
        return EXIT_FAILURE;
    }
    for (;;) {
        memset(&told, 0, sizeof told);
        told.struct_size = sizeof told;
        status = sidecar_worker_next(on.worker, sidecar_FOREVER, &told);
        if (status == sidecar_OK && told.kind == sidecar_WORKER_EVENT_WARMUP) {
            status = sidecar_worker_ready(on.worker, told.member);
        } else if (status == sidecar_OK && told.kind == sidecar_WORKER_EVENT_OBSERVATION) {
            on.observation = told.observation;
            status = answer();
        } else if (status == sidecar_ENDED) {
            break;
        }
        if (status < 0) {
            fprintf(stderr, "misuse: %s\n", sidecar_status_name(status));
            return EXIT_FAILURE;
        }
    }
    expect("the close", sidecar_worker_close(on.worker), sidecar_OK);
    printf("%lu mistakes told\n", made);
    return made > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
