/*
 * The border from C's side: sizes, versions, names, NULL, and the life of handles. It is also compiled as C++, and run
 * under the sanitizers and Valgrind. What the functions do with random arguments is tested from Rust (border.rs).
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sidecar.h"

#define EXPECT(condition) ((condition) ? (void)0 : fail(__LINE__, #condition))

static void fail(int line, const char *what) {
    fprintf(stderr, "abi.c:%d: not so: %s\n", line, what);
    exit(EXIT_FAILURE);
}

static uint8_t scratch[sidecar_HEADROOM + 65536];
static uint8_t slot[sidecar_HEADROOM + 65536];

static struct sidecar_agent_config config(void) {
    struct sidecar_agent_config config;
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.host = "gateway";
    config.host_len = 7;
    config.path = "/tunnel";
    config.path_len = 7;
    config.job = "job";
    config.job_len = 3;
    config.agent = "agent";
    config.agent_len = 5;
    config.seed[0] = 7;
    config.slot_bytes = 65536;
    return config;
}

static void versions_and_names(void) {
    EXPECT(sidecar_abi_version() == ((uint32_t)sidecar_ABI_MAJOR << 16 | sidecar_ABI_MINOR));
    EXPECT(strcmp(sidecar_status_name(sidecar_OK), "OK") == 0);
    EXPECT(strcmp(sidecar_status_name(sidecar_ERR_BUG), "ERR_BUG") == 0);
    EXPECT(sidecar_status_name(12345) != NULL);
}

static void null_is_told(void) {
    struct sidecar_worker *worker = NULL;
    struct sidecar_worker_event event;
    memset(&event, 0, sizeof event);
    event.struct_size = sizeof event;
    EXPECT(sidecar_worker_attach("x", 1, NULL, NULL, NULL) == sidecar_ERR_NULL);
    EXPECT(sidecar_worker_attach(NULL, 1, NULL, NULL, &worker) == sidecar_ERR_NULL);
    EXPECT(sidecar_worker_attach(NULL, 0, NULL, NULL, &worker) == sidecar_ERR_VALUE);
    EXPECT(sidecar_worker_next(NULL, 0, &event) == sidecar_ERR_NULL);
    EXPECT(sidecar_agent_process(NULL, 0) == sidecar_ERR_NULL);
    EXPECT(sidecar_observation_is_wanted(NULL) == sidecar_ERR_NULL);
    EXPECT(sidecar_worker_close(NULL) == sidecar_OK);
    EXPECT(sidecar_observation_release(NULL) == sidecar_OK);
    EXPECT(sidecar_reservation_release(NULL) == sidecar_OK);
    EXPECT(sidecar_agent_drop(NULL) == sidecar_OK);
    EXPECT(worker == NULL);
}

/* A caller that is newer than the library, and one that was never there. */
static void other_sizes(void) {
    struct {
        struct sidecar_agent_config known;
        uint64_t newer;
    } larger;
    size_t bytes = 0;
    memset(&larger, 0, sizeof larger);
    larger.known = config();
    larger.known.struct_size = sizeof larger;
    EXPECT(sidecar_agent_place_bytes(&larger.known, &bytes) == sidecar_OK);
    EXPECT(bytes == sidecar_HEADROOM + 65536);
    bytes = 1;
    larger.newer = 1;
    EXPECT(sidecar_agent_place_bytes(&larger.known, &bytes) == sidecar_ERR_STRUCT_SIZE);
    larger.known.struct_size = sizeof larger.known - 8;
    EXPECT(sidecar_agent_place_bytes(&larger.known, &bytes) == sidecar_ERR_STRUCT_SIZE);
    larger.known.struct_size = 0;
    EXPECT(sidecar_agent_place_bytes(&larger.known, &bytes) == sidecar_ERR_STRUCT_SIZE);
    EXPECT(bytes == 1);
}

static void a_failure_in_words(void) {
    static const char path[] = "/nonexistent/region";
    struct sidecar_worker_options options;
    struct sidecar_failure why;
    struct sidecar_worker *worker = NULL;
    memset(&options, 0, sizeof options);
    memset(&why, 0, sizeof why);
    options.struct_size = sizeof options;
    options.timeout_ns = 1;
    why.struct_size = sizeof why;
    EXPECT(sidecar_worker_attach(path, strlen(path), &options, &why, &worker) == sidecar_ERR_NO_SIDECAR);
    EXPECT(why.status == sidecar_ERR_NO_SIDECAR && why.struct_size == sizeof why && worker == NULL);
    EXPECT(strlen(why.text) == why.text_len && strstr(why.text, path) != NULL);
}

static void an_agents_life(void) {
    const struct sidecar_agent_config told = config();
    struct sidecar_agent *agent = NULL;
    struct sidecar_agent_event event;
    struct sidecar_agent_state state;
    uint8_t request[4096];
    uint8_t *memory;
    size_t size = 0, align = 0, written = 0;
    memset(&event, 0, sizeof event);
    memset(&state, 0, sizeof state);
    event.struct_size = sizeof event;
    state.struct_size = sizeof state;
    EXPECT(sidecar_agent_layout(&told, &size, &align) == sidecar_OK && size > 0 && align <= 16);
    memory = (uint8_t *)malloc(size);
    EXPECT(memory != NULL);
    EXPECT(sidecar_agent_init(memory, size - 1, scratch, sizeof scratch, &told, NULL, 1, &agent) ==
           sidecar_ERR_MEMORY);
    EXPECT(sidecar_agent_init(memory, size, scratch, sizeof scratch - 1, &told, NULL, 1, &agent) ==
           sidecar_ERR_MEMORY);
    EXPECT(agent == NULL);
    EXPECT(sidecar_agent_init(memory, size, scratch, sizeof scratch, &told, NULL, 1, &agent) == sidecar_OK);
    EXPECT(sidecar_agent_poll_event(agent, &event) == sidecar_OK && event.kind == sidecar_AGENT_EVENT_DIAL);
    EXPECT(event.attempt == 1 && event.duration_ns == 10000000000U);
    EXPECT(sidecar_agent_poll_event(agent, &event) == sidecar_NOTHING);
    EXPECT(sidecar_agent_handle_connected(agent, 2, "token", 5, request, 16, &written) == sidecar_ERR_LENGTH);
    EXPECT(written == 0);
    EXPECT(sidecar_agent_handle_connected(agent, 2, "a b", 3, request, sizeof request, &written) ==
           sidecar_ERR_TEXT);
    EXPECT(sidecar_agent_handle_connected(agent, 2, "token", 5, request, sizeof request, &written) == sidecar_OK);
    EXPECT(written > 100 && memcmp(request, "GET /tunnel?job=job&agent=agent HTTP/1.1\r\n", 42) == 0);
    EXPECT(sidecar_agent_offer_slot(agent, slot, sizeof slot) == sidecar_OK);
    EXPECT(sidecar_agent_offer_slot(agent, slot, sizeof slot) == sidecar_ERR_STATE);
    EXPECT(sidecar_agent_take_back_slot(agent) == sidecar_OK);
    EXPECT(sidecar_agent_take_back_slot(agent) == sidecar_NOTHING);
    EXPECT(sidecar_agent_get_state(agent, &state) == sidecar_OK && strcmp(state.agent_id, "agent") == 0);
    EXPECT(sidecar_agent_may_send(agent, 1) == sidecar_GONE);
    EXPECT(sidecar_agent_shutdown(agent, 3, 77) == sidecar_ERR_VALUE);
    EXPECT(sidecar_agent_shutdown(agent, 3, sidecar_SHUTDOWN_LEAVE) == sidecar_OK);
    EXPECT(sidecar_agent_drop(agent) == sidecar_OK);
    /* The memory is ours again, and remembers that no agent is there. */
    EXPECT(sidecar_agent_process(agent, 4) == sidecar_ERR_STATE);
    EXPECT(sidecar_agent_drop(agent) == sidecar_ERR_STATE);
    free(memory);
}

int main(void) {
    versions_and_names();
    null_is_told();
    other_sizes();
    a_failure_in_words();
    an_agents_life();
    puts("5 passed, 0 failed");
    return EXIT_SUCCESS;
}
