/*
 * The worker library and the protocol core of sidecar, for C and C++.
 *
 * Two parts that do not need each other:
 *
 *   sidecar_worker_...   for the process that has the model: attach to a sidecar's shared memory, wait for
 *                        observations, answer them. One handle may serve several sidecars.
 *   sidecar_agent_...    the tunnel to the gateway as a state machine, for programs that have sockets and a loop of
 *                        their own: bytes and time go in, bytes and events come out. It blocks nowhere, allocates
 *                        nothing, reads no clock. It is also in libsidecar_agent.a, which needs no allocator.
 *
 * Rules, for all functions:
 *
 *   - They return a status: 0 is done; a positive one is an outcome (nothing to do, not now), a negative one an error,
 *     in blocks by who is to blame (sidecar_ERR_...). sidecar_status_name() has the name of each.
 *   - What is written comes last, and nothing is written unless the status is sidecar_OK. The exception says so.
 *   - Bytes are a pointer and a length. NULL with length 0 is allowed. Texts are UTF-8 and not ended by NUL.
 *   - A struct begins with its own size, which the caller sets to sizeof; set the rest to 0 for the defaults. Fields are
 *     only ever appended. Reserved fields are 0.
 *   - sidecar_OWN marks what a call takes over. It does so if it returns sidecar_OK; otherwise it is still yours. What is
 *     borrowed stays as it is until the time that is said there.
 *   - A handle is for one thread at a time, and may go from one to another. Calls that take it as const may run together.
 *   - Pointers are NULL, or aligned and to memory of the length that is said. A handle that was given away is gone: a call
 *     with it comes to sidecar_ERR_STATE, as long as its memory was not used again (a worker's handles: not before 64
 *     others of the kind were given back; an agent's memory is yours).
 *   - Any function may return sidecar_ERR_NULL, sidecar_ERR_VALUE (a pointer that is not aligned), sidecar_ERR_STATE (a handle
 *     of another kind, or one that was given away), sidecar_ERR_STRUCT_SIZE, sidecar_ERR_LENGTH (a length above PTRDIFF_MAX)
 *     and sidecar_ERR_BUG. What else it returns is said there.
 *   - Times are in nanoseconds; sizes and lengths in bytes.
 *   - A mistake in the library is sidecar_ERR_BUG, and that handle is of no more use but to be dropped or closed. (The
 *     library without an allocator aborts instead.) No signal, no hook of the process and no locale is touched.
 *   - Attached processes must not fork and go on using a handle in the child.
 *
 * Made by cbindgen from the Rust sources; do not edit.
 */
