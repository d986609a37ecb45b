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

#ifndef SIDECAR_H
#define SIDECAR_H

#include <stddef.h>
#include <stdint.h>

/* Marks what changes hands with a call. */
#define sidecar_OWN

// Version of the binary interface: changes with it break callers.
#define sidecar_ABI_MAJOR 0

// Version of the binary interface: changes with it only add.
#define sidecar_ABI_MINOR 4

// Done.
#define sidecar_OK 0

// There is nothing to do: no event, nothing to read or to send, nothing within the timeout; or the answer is no.
#define sidecar_NOTHING 1

// No room at the moment: try again later.
#define sidecar_NO_ROOM 2

// The sidecar has ended in order, and nothing more will come.
#define sidecar_ENDED 3

// The tunnel is down: keep the action, ask again later.
#define sidecar_DOWN 16

// The tunnel was redialled a moment ago, or another action is on its way: keep the action, ask again later.
#define sidecar_HELD 17

// The session is over: drop the action.
#define sidecar_GONE 18

// The tunnel is being closed: drop the action.
#define sidecar_CLOSING 19

// The caller: a pointer that has to point somewhere is NULL.
#define sidecar_ERR_NULL (-1)

// The caller: `struct_size` is too small, absurd, or counts bytes that this library does not know and that are set.
#define sidecar_ERR_STRUCT_SIZE (-2)

// The caller: a number is out of its range.
#define sidecar_ERR_VALUE (-3)

// The caller: a text is not UTF-8, or holds what it must not.
#define sidecar_ERR_TEXT (-4)

// The caller: a buffer is too short, or its length absurd.
#define sidecar_ERR_LENGTH (-5)

// The caller: not now, or not with this handle (it may have been dropped).
#define sidecar_ERR_STATE (-6)

// The caller: the memory is too small or not aligned.
#define sidecar_ERR_MEMORY (-7)

// The caller: these two handles do not belong together.
#define sidecar_ERR_MISMATCH (-8)

// A limit: an action is larger than its slot; raise the sidecar's `--action-bytes`.
#define sidecar_ERR_ACTION_TOO_LARGE (-100)

// A limit: the caller has reserved all action slots.
#define sidecar_ERR_ALL_RESERVED (-101)

// The sidecar: there is none.
#define sidecar_ERR_NO_SIDECAR (-200)

// The sidecar: it said no; another worker may be attached.
#define sidecar_ERR_REFUSED (-201)

// The sidecar: its region can't be used.
#define sidecar_ERR_REGION (-202)

// The sidecar: it ended, and none followed.
#define sidecar_ERR_ORPHANED (-203)

// The sidecar: it gave this worker's place to another one.
#define sidecar_ERR_REPLACED (-204)

// The sidecar: it found nonsense in this worker's pages and reads them no more.
#define sidecar_ERR_DETACHED (-205)

// The sidecar: its pages hold nonsense.
#define sidecar_ERR_DAMAGED (-206)

// The system refused something.
#define sidecar_ERR_SYSTEM (-300)

// This library: a mistake of its own. The handle is of no more use.
#define sidecar_ERR_BUG (-400)

// For `sidecar_worker_options.flags`: when a sidecar has ended in order, wait for the next one as after a crash.
#define sidecar_WORKER_STAY 1

// For `sidecar_worker_options.flags`: page-lock the observation slots for the GPU that is device 0 in this process, as
// it is under a sidecar. What keeps them from it is no error: see `sidecar_worker_get_pin_failure`.
#define sidecar_WORKER_PIN 2

// Make the model ready, then say `sidecar_worker_ready` or `sidecar_worker_warmup_failed`.
#define sidecar_WORKER_EVENT_WARMUP 1

// `session` is open; its observations carry `epoch`. `sidecar_FLAG_RESUMED`: it had been open, and its context still holds.
#define sidecar_WORKER_EVENT_SESSION_OPENED 2

// The session of `epoch` is over.
#define sidecar_WORKER_EVENT_SESSION_CLOSED 3

// Answer `observation`, which is yours from here on.
#define sidecar_WORKER_EVENT_OBSERVATION 4

// No more sessions will come; the sidecar ends soon.
#define sidecar_WORKER_EVENT_DRAIN 5

// The sidecar is gone. Go on waiting: the next one is attached to.
#define sidecar_WORKER_EVENT_SIDECAR_GONE 6

// The sidecar has ended in order; nothing more comes from this region.
#define sidecar_WORKER_EVENT_ENDED 7

// For `sidecar_worker_info.flags`: a sidecar is there.
#define sidecar_INFO_ATTACHED 1

// For `sidecar_worker_info.flags`: the observation slots are page-locked.
#define sidecar_INFO_PINNED 2

// For the timeout of `sidecar_worker_next`: wait for ever.
#define sidecar_FOREVER (-1)

// For `sidecar_observation_view.flags`: the payload is empty; answer with the action that does nothing.
#define sidecar_OBSERVATION_EMPTY 1

// For `sidecar_observation_view.flags`: another worker got it before and did not answer.
#define sidecar_OBSERVATION_REDELIVERED 2

// On a wedge, ask for a fresh agent id (`sidecar_AGENT_EVENT_FRESH_AGENT`) and start over. This forfeits the open session.
#define sidecar_AGENT_FRESH_AGENT_ON_WEDGE 1

// Over the parallelism cap: keep trying instead of ending with `sidecar_OUTCOME_CAPACITY`.
#define sidecar_AGENT_WAIT_FOR_SLOT 2

// A time that never comes, for `unfreeze_ns` and `wedge_after_ns`.
#define sidecar_NEVER UINT64_MAX

// For `sidecar_agent_resume.flags`: a tunnel of this job and agent was up once.
#define sidecar_RESUME_CONNECTED_ONCE 1

// For `sidecar_agent_resume.flags`: `warmup` had been received.
#define sidecar_RESUME_WARMUP_SEEN 2

// For `sidecar_agent_resume.flags`: `ready` had been sent.
#define sidecar_RESUME_READY_SENT 4

// For `sidecar_agent_resume.flags`: `drain` had been received; the agent never dials again.
#define sidecar_RESUME_DRAIN_SEEN 8

// For `sidecar_agent_resume.flags`: `session` was open.
#define sidecar_RESUME_SESSION_OPEN 16

// For `sidecar_agent_resume.flags`: `last_byte_ns` is known.
#define sidecar_RESUME_LAST_BYTE 32

// For `sidecar_agent_resume.flags`: `queued` or a session had come after `ready`; without it, `ready` is said again.
#define sidecar_RESUME_READY_HEARD 64

// For `sidecar_agent_resume.flags`: `session` is one that the predecessor had closed, with none opened after it: the
// gateway may not have heard of that, and is told again. Not together with `sidecar_RESUME_SESSION_OPEN`.
#define sidecar_RESUME_SESSION_CLOSED 128

// Dial: resolve and connect within `duration_ns`, then say `sidecar_agent_handle_connected` or
// `sidecar_agent_handle_dial_failed`. `attempt` counts within one outage; see `sidecar_FLAG_REREAD_TOKEN`.
#define sidecar_AGENT_EVENT_DIAL 1

// End the connection as `cause` (`sidecar_HANG_UP_...`) says; nothing more of it is told to the agent.
#define sidecar_AGENT_EVENT_HANG_UP 2

// The gateway accepted, at `attempt`. `sidecar_FLAG_RESUMED`: a tunnel of this job and agent had been up before.
#define sidecar_AGENT_EVENT_UPGRADED 3

// A connection, or an attempt at one, is over: `cause` (`sidecar_DISCONNECT_...`), `code`, `text`. `sidecar_FLAG_UNTIL`: it is dialled
// again, until `until_ns` at most; otherwise never again.
#define sidecar_AGENT_EVENT_DISCONNECTED 4

// Warm the model up, then say `sidecar_agent_worker_ready` or `sidecar_agent_worker_failed`.
#define sidecar_AGENT_EVENT_WARMUP 5

// `ready` was received, but the gateway has no GPU free; `text` is its reason.
#define sidecar_AGENT_EVENT_QUEUED 6

// `ready` was handed out for sending.
#define sidecar_AGENT_EVENT_READY_SENT 7

// `session` is open under `epoch`. `sidecar_FLAG_RESUMED`: it had been open, and its context still holds.
#define sidecar_AGENT_EVENT_SESSION_OPENED 8

// `session` of `epoch` is over: `cause` (`sidecar_CLOSE_BY_...`), `text`.
#define sidecar_AGENT_EVENT_SESSION_CLOSED 9

// `length` bytes lie at `payload`, in `slot`, which is yours again. Answer them under `epoch` and `sequence`. An
// empty one asks for the action that does nothing.
#define sidecar_AGENT_EVENT_OBSERVATION 10

// An observation of `length` bytes was larger than a slot, and was discarded.
#define sidecar_AGENT_EVENT_OBSERVATION_TOO_LARGE 11

// No more sessions: answer what is open, then say `sidecar_agent_finish_drain`. `text` is the gateway's reason.
#define sidecar_AGENT_EVENT_DRAIN 12

// Nothing has come since the cut: send the action for this `epoch` and `sequence` once more.
#define sidecar_AGENT_EVENT_UNFREEZE 13

// The tunnel is up and a session open, but nothing has come for `duration_ns`.
#define sidecar_AGENT_EVENT_WEDGED 14

// Say `sidecar_agent_replace_agent` with an id never used before.
#define sidecar_AGENT_EVENT_FRESH_AGENT 15

// Worth a line in a log: `text`; `cause` (`sidecar_NOTICE_...`).
#define sidecar_AGENT_EVENT_NOTICE 16

// It is over: `cause` (`sidecar_OUTCOME_...`), `text`. No event follows.
#define sidecar_AGENT_EVENT_FINISHED 17

// See `sidecar_UPGRADED`, `sidecar_SESSION_OPENED`.
#define sidecar_FLAG_RESUMED 1

// See `sidecar_DIAL`: the last token was refused; read the token's source again first.
#define sidecar_FLAG_REREAD_TOKEN 2

// `until_ns` is set.
#define sidecar_FLAG_UNTIL 4

// `code` is set: a close code (RFC 6455 7.4) or an HTTP status.
#define sidecar_FLAG_CODE 8

// See `sidecar_OUTCOME_TOKEN_REFUSED`: it was refused on the first dial.
#define sidecar_FLAG_FIRST 16

// Let what was handed out for sending leave, send FIN, read on until the peer's FIN for a moment, close.
#define sidecar_HANG_UP_ORDERLY 1

// Close at once.
#define sidecar_HANG_UP_ABORT 2

// A close frame was received or sent, with `code`.
#define sidecar_DISCONNECT_CLOSED 1

// FIN without a close frame.
#define sidecar_DISCONNECT_EOF 2

// Reset.
#define sidecar_DISCONNECT_RESET 3

// No byte for too long.
#define sidecar_DISCONNECT_SILENT 4

// The gateway broke RFC 6455, or a limit; `code` is what it was told.
#define sidecar_DISCONNECT_PROTOCOL 5

// No connection came about.
#define sidecar_DISCONNECT_DIAL_FAILED 6

// The upgrade was answered with the HTTP status `code`.
#define sidecar_DISCONNECT_REFUSED 7

// Closed right after the upgrade: over the parallelism cap, or the agent is still connected.
#define sidecar_DISCONNECT_CAPACITY 8

// The answer to the upgrade was none.
#define sidecar_DISCONNECT_HANDSHAKE 9

// Given up for a fresh agent id.
#define sidecar_DISCONNECT_REPLACED 10

// The gateway closed the session.
#define sidecar_CLOSE_BY_GATEWAY 1

// The gateway opened another one.
#define sidecar_CLOSE_BY_REPLACED 2

// We closed it.
#define sidecar_CLOSE_BY_US 3

// A control frame of an unknown type was ignored.
#define sidecar_NOTICE_UNKNOWN_CONTROL 1

// A text message that is no control frame was ignored.
#define sidecar_NOTICE_MALFORMED_CONTROL 2

// A control frame that only an agent sends was ignored.
#define sidecar_NOTICE_WRONG_DIRECTION 3

// A `session_close` for a session that is not open was ignored.
#define sidecar_NOTICE_STRAY_SESSION_CLOSE 4

// A data frame was dropped.
#define sidecar_NOTICE_DROPPED_FRAME 5

// The model is not warm yet, and the gateway waits.
#define sidecar_NOTICE_READY_OVERDUE 6

// A `warmup` was answered at once.
#define sidecar_NOTICE_WARM_ALREADY 7

// All slots are taken: the next observation waits in the network.
#define sidecar_NOTICE_BLOCKED 8

// A slot came free.
#define sidecar_NOTICE_UNBLOCKED 9

// A ping was received; its pong is queued.
#define sidecar_NOTICE_PINGED 10

// The gateway restored a session that was closed here; it is told again.
#define sidecar_NOTICE_RESTORED_AFTER_CLOSE 11

// After a drain: the job is done.
#define sidecar_OUTCOME_DRAINED 1

// `sidecar_SHUTDOWN_CLOSE` is done.
#define sidecar_OUTCOME_CLOSED 2

// `sidecar_SHUTDOWN_LEAVE` is done.
#define sidecar_OUTCOME_LEFT 3

// The gateway refused the token with `code`. `sidecar_FLAG_FIRST`: token and job do not match; otherwise the job has ended.
#define sidecar_OUTCOME_TOKEN_REFUSED 4

// Over the parallelism cap.
#define sidecar_OUTCOME_CAPACITY 5

// The first dial came to nothing within its time; `text` is the last failure.
#define sidecar_OUTCOME_DIAL_BUDGET 6

// The redial came to nothing within the gateway's window; `text` is the last failure.
#define sidecar_OUTCOME_REDIAL_BUDGET 7

// The warm-up failed.
#define sidecar_OUTCOME_WORKER_FAILED 8

// Bytes in front of the payload in a slot.
#define sidecar_HEADROOM 4096

// For `sidecar_agent_handle_dial_failed`: the host's name could not be resolved.
#define sidecar_DIAL_FAILURE_DNS 1

// For `sidecar_agent_handle_dial_failed`: connection refused.
#define sidecar_DIAL_FAILURE_REFUSED 2

// For `sidecar_agent_handle_dial_failed`: no route to the host.
#define sidecar_DIAL_FAILURE_UNREACHABLE 3

// For `sidecar_agent_handle_dial_failed`: no answer in time.
#define sidecar_DIAL_FAILURE_TIMEOUT 4

// For `sidecar_agent_handle_dial_failed`: anything else.
#define sidecar_DIAL_FAILURE_OTHER 5

// For `sidecar_agent_shutdown`: close the session and the tunnel.
#define sidecar_SHUTDOWN_CLOSE 1

// For `sidecar_agent_shutdown`: end the connection, and leave the session open for a successor.
#define sidecar_SHUTDOWN_LEAVE 2

// Waiting for `warmup`.
#define sidecar_PHASE_QUEUED 0

// `warmup` came, `ready` was not sent.
#define sidecar_PHASE_WARMUP 1

// `ready` was sent.
#define sidecar_PHASE_RUNNING 2

// `drain` came.
#define sidecar_PHASE_DRAINING 3

// For `sidecar_agent_state.flags`: the tunnel is up.
#define sidecar_STATE_OPEN 1

// For `sidecar_agent_state.flags`: the model is warm.
#define sidecar_STATE_WARM 2

// For `sidecar_agent_state.flags`: a tunnel of this job and agent was up once.
#define sidecar_STATE_CONNECTED_ONCE 4

// For `sidecar_agent_state.flags`: a session is open.
#define sidecar_STATE_SESSION_OPEN 8

// For `sidecar_agent_state.flags`: `last_byte_ns` is known.
#define sidecar_STATE_LAST_BYTE 16

// Room for what `sidecar_agent_poll_transmit` writes. More than core needs today: it may grow, this number may not.
#define sidecar_MAX_TRANSMIT 4096

// Room for what `sidecar_agent_begin_action` writes in front of a payload; as above.
#define sidecar_MAX_HEAD 512

// For `sidecar_agent_handle_end`: FIN was received.
#define sidecar_END_EOF 1

// For `sidecar_agent_handle_end`: it was reset, or an operation on it failed.
#define sidecar_END_RESET 2

// For `sidecar_read.flags`: all `max` bytes are known to come, and nothing has to be looked at before (MSG_WAITALL).
#define sidecar_READ_EXACT 1

// The whole client, without sockets, clock or memory of its own.
struct sidecar_agent;

// An observation that has to be answered or released.
struct sidecar_observation;

// An action slot that the caller writes into.
struct sidecar_reservation;

// An attached worker.
struct sidecar_worker;

// How to attach, and when to give up. 0 is the default everywhere.
struct sidecar_worker_options {
  // `sizeof(struct sidecar_worker_options)`.
  uint32_t struct_size;
  // Sum of `sidecar_WORKER_STAY` and `sidecar_WORKER_PIN`, or 0.
  uint32_t flags;
  // How long to wait for a sidecar that is not there yet; default 30 s. 1 does not wait.
  uint64_t timeout_ns;
  // How long to look for a new sidecar after the last one died; default 90 s.
  uint64_t orphan_grace_ns;
};

// Why something did not work.
struct sidecar_failure {
  // `sizeof(struct sidecar_failure)`, to be set before the call.
  uint32_t struct_size;
  // The status that was returned.
  int32_t status;
  // Number of the region that it concerns, in the order in which they were given.
  uint32_t member;
  // The other worker, where one is in the way; 0: not known.
  uint32_t pid;
  // Bytes of `text`.
  uint32_t text_len;
  // For people, ended by NUL, cut where it is too long.
  char text[516];
};

// What a worker is told.
struct sidecar_worker_event {
  // `sizeof(struct sidecar_worker_event)`, to be set before the call.
  uint32_t struct_size;
  // `sidecar_WORKER_EVENT_...`; a caller ignores those that it does not know.
  uint32_t kind;
  // Number of the region that it came from, in the order in which they were given.
  uint32_t member;
  // `sidecar_FLAG_RESUMED`, or 0.
  uint32_t flags;
  // Number of the session on this machine.
  uint32_t epoch;
  // Bytes of `session`.
  uint32_t session_len;
  // With `sidecar_WORKER_EVENT_OBSERVATION`: yours, until it is answered or released. Otherwise NULL.
  struct sidecar_observation *observation;
  // The session's id at the gateway, ended by NUL (it may also hold some).
  char session[264];
};

// What a worker may want to know about a region.
struct sidecar_worker_info {
  // `sizeof(struct sidecar_worker_info)`, to be set before the call.
  uint32_t struct_size;
  // Sum of `sidecar_INFO_...`.
  uint32_t flags;
  // How many regions the worker has.
  uint32_t members;
  // 0.
  uint32_t reserved;
  // Largest action in bytes.
  uint64_t action_bytes;
  // Id of the region; another one means that it was made anew and is mapped elsewhere.
  uint64_t region_id;
  // The memory that holds all observation slots, for page-locking.
  uint8_t *memory;
  // Bytes of `memory`.
  size_t memory_len;
};

// An observation, as it can be looked at.
struct sidecar_observation_view {
  // `sizeof(struct sidecar_observation_view)`, to be set before the call.
  uint32_t struct_size;
  // Sum of `sidecar_OBSERVATION_...`.
  uint32_t flags;
  // Number of the region that it came from.
  uint32_t member;
  // The slot that it lies in.
  uint32_t slot;
  // Number of its session.
  uint32_t epoch;
  // 0.
  uint32_t reserved;
  // Where it was received. Borrowed: until the observation is answered or released.
  const uint8_t *payload;
  // Bytes of `payload`.
  size_t payload_len;
  // Counts observations.
  uint64_t sequence;
  // When its first byte came from the gateway; all times are of CLOCK_BOOTTIME.
  uint64_t first_byte_ns;
  // When its last byte did.
  uint64_t last_byte_ns;
  // When the sidecar put it into the worker's ring.
  uint64_t published_ns;
  // When this worker took it.
  uint64_t taken_ns;
};

// What an agent is told once. 0 is the default everywhere, so that `{0}` with `struct_size`, the endpoint, the ids
// and the seed set is complete. All of it is copied.
struct sidecar_agent_config {
  // `sizeof(struct sidecar_agent_config)`.
  uint32_t struct_size;
  // Sum of `sidecar_AGENT_...`.
  uint32_t flags;
  // Value of the `Host` header: the host, and the port unless it is the scheme's own. At most 260 bytes.
  const char *host;
  // Bytes of `host`.
  size_t host_len;
  // Path with an optional query, `/` first; `job=` and `agent=` are appended. At most 1024 bytes.
  const char *path;
  // Bytes of `path`.
  size_t path_len;
  // The job: 1 to 64 bytes.
  const char *job;
  // Bytes of `job`.
  size_t job_len;
  // The agent's id, its own for each process: 1 to 64 bytes.
  const char *agent;
  // Bytes of `agent`.
  size_t agent_len;
  // From a source that cannot be predicted (getrandom): mask keys come from it. Not all zero.
  uint8_t seed[32];
  // Payload bytes of a slot, headroom not counted; default 8 MiB.
  uint32_t slot_bytes;
  // Most fragments of one message; default 65536.
  uint32_t fragments;
  // Most bytes of one text message; default 1 MiB.
  uint32_t text_bytes;
  // Every timer that is left at its default is divided by this; for tests and rehearsals.
  uint32_t timer_divisor;
  // The least time to wait after a cut before the last action is sent once more; default 60 s, or `sidecar_NEVER`.
  uint64_t unfreeze_ns;
  // Report a wedge when nothing came for this long after a redial; default 120 s, or `sidecar_NEVER`.
  uint64_t wedge_after_ns;
  // First dial: how long it is tried; default 300 s.
  uint64_t dial_ns;
  // One attempt, from the dial to the upgrade; default 10 s.
  uint64_t connect_ns;
  // Redial budget after a silent loss, from the last byte on; default 75 s.
  uint64_t redial_after_silence_ns;
  // Redial budget after a received FIN or close; default 33 s.
  uint64_t redial_after_close_ns;
  // A close this soon after the upgrade means the parallelism cap; default 2 s.
  uint64_t capacity_window_ns;
  // After a redial, kept answers wait this long for a first frame; default 1 s.
  uint64_t hold_answers_ns;
  // Our own ping after this long without a byte received; default 20 s.
  uint64_t ping_after_ns;
  // The connection is lost after this long without a byte received; default 40 s.
  uint64_t dead_after_ns;
  // Between pongs that nobody asked for while all slots are taken; default 15 s.
  uint64_t blocked_pong_ns;
  // A notice when the model is not warm this long after `warmup`; default 60 s.
  uint64_t ready_warning_ns;
  // How long a drain waits for answers; default 60 s.
  uint64_t drain_ns;
  // How long a close handshake may take; default 5 s.
  uint64_t close_ns;
  // Delay before the first retry; default: none.
  uint64_t backoff_first_ns;
  // Upper bound of the delay before the second retry, doubled by each further one; default 250 ms.
  uint64_t backoff_base_ns;
  // Largest upper bound of a delay; default 5 s.
  uint64_t backoff_max_ns;
};

// Where a predecessor stopped that died, so that its session goes on. Its clock must be ours.
struct sidecar_agent_resume {
  // `sizeof(struct sidecar_agent_resume)`.
  uint32_t struct_size;
  // Sum of `sidecar_RESUME_...`.
  uint32_t flags;
  // The session that was open, or closed, as the flags say; at most 256 bytes.
  const char *session;
  // Bytes of `session`.
  size_t session_len;
  // When the last byte was received; the redial budget counts from there.
  uint64_t last_byte_ns;
  // Number for the next observation; 0 counts as 1.
  uint64_t next_sequence;
  // Epoch of that session, or the last one given.
  uint32_t epoch;
  // 0.
  uint32_t reserved;
};

// Where an agent stands: what a successor has to know, and what a person may want to.
struct sidecar_agent_state {
  // `sizeof(struct sidecar_agent_state)`, to be set before the call.
  uint32_t struct_size;
  // Sum of `sidecar_STATE_...`.
  uint32_t flags;
  // `sidecar_PHASE_...`.
  uint32_t phase;
  // Epoch of the open session.
  uint32_t epoch;
  // When the last byte was received, with `sidecar_STATE_LAST_BYTE`.
  uint64_t last_byte_ns;
  // Bytes of following messages that had to be moved out of a finished slot, ever.
  uint64_t carried;
  // Bytes of `session`.
  uint32_t session_len;
  // Bytes of `agent_id`.
  uint32_t agent_id_len;
  // The open session's id, ended by NUL (it may also hold some).
  char session[260];
  // The present agent id, ended by NUL (it may also hold some).
  char agent_id[68];
};

// Where the next bytes go.
struct sidecar_read {
  // `sizeof(struct sidecar_read)`, to be set before the call.
  uint32_t struct_size;
  // Sum of `sidecar_READ_...`.
  uint32_t flags;
  // In scratch or in the slot on offer.
  uint8_t *into;
  // At most this many bytes, at least one.
  size_t max;
};

// Something that happened. Which fields mean something is said at each kind; the others are 0.
struct sidecar_agent_event {
  // `sizeof(struct sidecar_agent_event)`, to be set before the call.
  uint32_t struct_size;
  // `sidecar_AGENT_EVENT_...`; a caller ignores those that it does not know.
  uint32_t kind;
  // Sum of `sidecar_FLAG_...`.
  uint32_t flags;
  // See the kind.
  uint32_t cause;
  // Close code or HTTP status, with `sidecar_FLAG_CODE`.
  uint32_t code;
  // Counts dials within one outage, from 1.
  uint32_t attempt;
  // Number of the session on this side; never reused. 0: the warm-up's empty session.
  uint32_t epoch;
  // Bytes of an observation that had to be moved to where they lie.
  uint32_t moved;
  // Counts observations, from 1.
  uint64_t sequence;
  // Bytes of an observation.
  uint64_t length;
  // When the first byte of an observation was received.
  uint64_t first_byte_ns;
  // When the last one was.
  uint64_t last_byte_ns;
  // With `sidecar_FLAG_UNTIL`.
  uint64_t until_ns;
  // See the kind.
  uint64_t duration_ns;
  // An observation, in `slot`.
  uint8_t *payload;
  // The slot that was offered.
  uint8_t *slot;
  // Bytes of `session`.
  uint32_t session_len;
  // Bytes of `text`.
  uint32_t text_len;
  // A session's id, ended by NUL (it may also hold some).
  char session[260];
  // For people, ended by NUL, cut where it is too long.
  char text[260];
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the binary interface that the library has: the major number in the high half, the minor in the low.
// A caller that was compiled with this header can go on if the major numbers are equal and the library's minor number
// is not smaller than `sidecar_ABI_MINOR`.
uint32_t sidecar_abi_version(void);

// The name of a status, as in this header without `sidecar_`: static, ended by NUL, never NULL.
const char *sidecar_status_name(int32_t status);

// Attaches to the sidecar that owns the region at `path` (its `--shm`), waiting for it to exist as long as
// the options say. `options` may be NULL: the defaults. `why` may be NULL; it is filled when a sidecar was
// asked and attaching failed. The handle in `worker` is yours until `sidecar_worker_close`. The process's
// working directory counts if `path` is relative, and it is looked for again when a sidecar dies.
//
// Errors: `sidecar_ERR_VALUE`, an empty path or one with a NUL, an unknown flag; `sidecar_ERR_NO_SIDECAR`, none came in
// time; `sidecar_ERR_REFUSED`, another worker is attached (`why->pid`), or the sidecar says another reason in
// `why->text`; `sidecar_ERR_REGION`, it can't be mapped.
int32_t sidecar_worker_attach(const char *path,
                              size_t path_len,
                              const struct sidecar_worker_options *options,
                              struct sidecar_failure *why,
                              struct sidecar_worker **worker);

// Attaches to the sidecars of `count` regions, 1 to 1024, one after the other, for one model that serves
// them all: the `n`th path has `path_lens[n]` bytes. What comes is given out in the order of its arrival,
// from one region or another.
//
// Errors: as `sidecar_worker_attach`, for the first region that fails (`why->member`); the others are let
// go. `sidecar_ERR_VALUE` also for a `count` out of its range.
int32_t sidecar_worker_attach_many(const char *const *paths,
                                   const size_t *path_lens,
                                   size_t count,
                                   const struct sidecar_worker_options *options,
                                   struct sidecar_failure *why,
                                   struct sidecar_worker **worker);

// Detaches. Observations and reservations that are still held stay valid, and have to be released. What
// was not answered is left to the next worker. NULL is allowed.
int32_t sidecar_worker_close(struct sidecar_worker *sidecar_OWN worker);

// The next thing to do. `sidecar_NOTHING`: nothing came within the timeout, or a signal interrupted the wait. A
// `timeout_ns` of `sidecar_FOREVER` never ends, one of 0 only looks, one above 0 waits for as many nanoseconds.
// `sidecar_ENDED`: every region has ended, and nothing will come any more. For a batch, wait for one observation
// and then call with 0 until it says `sidecar_NOTHING`.
//
// Errors concern one region (`sidecar_worker_get_failure` says which), which has no more to give; the
// others go on: `sidecar_ERR_ORPHANED`, `sidecar_ERR_REPLACED`, `sidecar_ERR_DETACHED`, `sidecar_ERR_DAMAGED`, `sidecar_ERR_SYSTEM`. `sidecar_ERR_VALUE`:
// another negative timeout.
int32_t sidecar_worker_next(struct sidecar_worker *worker,
                            int64_t timeout_ns,
                            struct sidecar_worker_event *event);

// The model is warm, for the sidecar of region `member` (from 0). Waits for room.
//
// Errors: `sidecar_ERR_VALUE`, no such member; otherwise those of `sidecar_worker_next`.
int32_t sidecar_worker_ready(struct sidecar_worker *worker, uint32_t member);

// The model could not be made ready; the sidecar of region `member` (from 0) ends with this message, of
// which it keeps the first 256 bytes. Waits for room.
//
// Errors: `sidecar_ERR_TEXT`, not UTF-8; otherwise as `sidecar_worker_ready`.
int32_t sidecar_worker_warmup_failed(struct sidecar_worker *worker,
                                     uint32_t member,
                                     const char *message,
                                     size_t message_len);

// A descriptor for poll loops, the same for the life of the worker, which keeps it: do not close it. It
// becomes readable when `sidecar_worker_next` has something. Call that with a timeout of 0 until it says
// `sidecar_NOTHING`, then poll.
//
// Errors: `sidecar_ERR_SYSTEM`.
int32_t sidecar_worker_fd(struct sidecar_worker *worker, int32_t *fd);

// What there is to know about the region `member` (from 0).
//
// Errors: `sidecar_ERR_VALUE`, no such member.
int32_t sidecar_worker_get_info(struct sidecar_worker *worker,
                                uint32_t member,
                                struct sidecar_worker_info *info);

// Why the last call that failed did so, if it was for something else than its arguments; `sidecar_NOTHING`: none
// did.
int32_t sidecar_worker_get_failure(const struct sidecar_worker *worker,
                                   struct sidecar_failure *failure);

// Looks at an observation: its payload, where it was received, and what is known about it.
int32_t sidecar_observation_get_view(const struct sidecar_observation *observation,
                                     struct sidecar_observation_view *view);

// `sidecar_OK`: it is still wanted. `sidecar_GONE`: its session is over, and an action for it would be dropped. Costs one
// load: ask between the steps of a long inference.
int32_t sidecar_observation_is_wanted(const struct sidecar_observation *observation);

// Gives its slot back. Without an answer, this worker hears of the observation no more, and the gateway
// goes on waiting for its action: it is left to a successor of this worker. Meant for one that is not
// wanted any more. NULL is allowed.
int32_t sidecar_observation_release(struct sidecar_observation *sidecar_OWN observation);

// Answers an observation with a copy of `action`, and gives its slot back. Waits for room. If its session
// is over, the action goes nowhere. Unless it returns `sidecar_OK`, the observation is still yours. 0 to
// `sidecar_worker_info.action_bytes` bytes.
//
// Errors: `sidecar_ERR_ACTION_TOO_LARGE`; `sidecar_ERR_ALL_RESERVED`; `sidecar_ERR_MISMATCH`, the observation is another worker's;
// otherwise those of `sidecar_worker_next`.
int32_t sidecar_worker_answer(struct sidecar_worker *worker,
                              struct sidecar_observation *sidecar_OWN observation,
                              const uint8_t *action,
                              size_t action_len);

// The same without a worker and without waiting, on any thread. `sidecar_NO_ROOM`: try again later, or answer
// through the worker.
//
// Errors: `sidecar_ERR_ACTION_TOO_LARGE`, `sidecar_ERR_ALL_RESERVED`.
int32_t sidecar_observation_try_answer(struct sidecar_observation *sidecar_OWN observation,
                                       const uint8_t *action,
                                       size_t action_len);

// Says that no action comes; the sidecar's failure policy (`--on-failure`) decides. Gives the slot back.
// Waits for room. Of `message`, 256 bytes are kept. Unless it returns `sidecar_OK`, the observation is still
// yours.
//
// Errors: `sidecar_ERR_TEXT`, not UTF-8; `sidecar_ERR_MISMATCH`, the observation is another worker's; otherwise those of
// `sidecar_worker_next`.
int32_t sidecar_worker_failed(struct sidecar_worker *worker,
                              struct sidecar_observation *sidecar_OWN observation,
                              const char *message,
                              size_t message_len);

// The same without a worker and without waiting, on any thread. `sidecar_NO_ROOM`: try again later.
//
// Errors: `sidecar_ERR_TEXT`, not UTF-8.
int32_t sidecar_observation_try_failed(struct sidecar_observation *sidecar_OWN observation,
                                       const char *message,
                                       size_t message_len);

// A slot to write an action of at most `length` bytes into, 0 to `sidecar_worker_info.action_bytes`, for
// an answer to `observation` or to another one of the same region. Waits for one. The handle in
// `reservation` is yours until it is answered with or released.
//
// Errors: `sidecar_ERR_ACTION_TOO_LARGE`; `sidecar_ERR_ALL_RESERVED`, the caller has them all; `sidecar_ERR_MISMATCH`, the
// observation is another worker's; otherwise those of `sidecar_worker_next`.
int32_t sidecar_worker_reserve(struct sidecar_worker *worker,
                               const struct sidecar_observation *observation,
                               size_t length,
                               struct sidecar_reservation **reservation);

// The bytes to write the action into, `length` of them; they hold whatever was there before. Borrowed:
// until the reservation is answered with or released.
int32_t sidecar_reservation_get_bytes(struct sidecar_reservation *reservation,
                                      uint8_t **bytes,
                                      size_t *length);

// Answers an observation with the first `length` bytes of a reservation, and gives its slot back. Waits
// for room. Unless it returns `sidecar_OK`, both are still yours.
//
// Errors: `sidecar_ERR_LENGTH`, more than was reserved; `sidecar_ERR_MISMATCH`, the reservation is of another region, or
// either of them another worker's; otherwise those of `sidecar_worker_next`.
int32_t sidecar_worker_answer_reserved(struct sidecar_worker *worker,
                                       struct sidecar_observation *sidecar_OWN observation,
                                       struct sidecar_reservation *sidecar_OWN reservation,
                                       size_t length);

// Gives an action slot back unused. NULL is allowed.
int32_t sidecar_reservation_release(struct sidecar_reservation *sidecar_OWN reservation);

// Why the slots of region `member` are not page-locked, though `sidecar_WORKER_PIN` asked for it; its status is
// `sidecar_ERR_SYSTEM`. `sidecar_NOTHING`: they are, or nobody asked.
int32_t sidecar_worker_get_pin_failure(struct sidecar_worker *worker,
                                       uint32_t member,
                                       struct sidecar_failure *failure);

// Where a kernel on the GPU sees the payload, without any copy. `sidecar_NOTHING`: the slots are not page-locked, or
// the GPU cannot see them. Borrowed: until the observation is answered or released.
int32_t sidecar_observation_get_device_address(const struct sidecar_observation *observation,
                                               uint64_t *address);

// Starts the copy of the payload to `length` bytes of device memory at `device_address`, on a stream (NULL:
// the default stream), and does not wait. The slot is given back only when the copy is over, whenever the
// observation is answered or released; that waits for it, the action does not. The device memory has to live
// until the stream is done with it. From slots that are not page-locked it works as well, but slower.
//
// Errors: `sidecar_ERR_LENGTH`, the payload is longer; `sidecar_ERR_STATE`, the worker has no GPU; `sidecar_ERR_SYSTEM`, the driver
// refused, and nothing is on its way.
int32_t sidecar_observation_copy_to_device(struct sidecar_observation *observation,
                                           uint64_t device_address,
                                           size_t length,
                                           void *stream);

// The GPU uses the slot in what was put on this stream so far (NULL: the default stream): it is given back
// only when that is over. For copies and kernels of the caller's own.
//
// Errors: `sidecar_ERR_STATE`, the worker has no GPU; `sidecar_ERR_SYSTEM`, the driver refused.
int32_t sidecar_observation_used_by_device(struct sidecar_observation *observation, void *stream);

// Why observations of region `member` are not found on the GPU (`sidecar_observation_get_arrival`), though its sidecar
// copies them there (`--device-copy`); its status is `sidecar_ERR_SYSTEM`. `sidecar_NOTHING`: they are, or it copies none.
int32_t sidecar_worker_get_arrival_failure(struct sidecar_worker *worker,
                                           uint32_t member,
                                           struct sidecar_failure *failure);

// Where the payload lies on the GPU already, copied there by a sidecar with `--device-copy`. `sidecar_NOTHING`: it does
// not, or not where this worker can see it; it wants `sidecar_WORKER_PIN`. It may still be arriving: see
// `sidecar_observation_hold_back`. Borrowed: until the observation is answered or released, and as long as its
// sidecar lives. Work that reads it then has to be named to `sidecar_observation_used_by_device`.
int32_t sidecar_observation_get_arrival(const struct sidecar_observation *observation,
                                        uint64_t *address);

// Waits until the payload has arrived on the GPU, so that what is put on this stream (NULL: the default stream), or
// on any other, from now on finds it there. It waits for two seconds at most: a sidecar that died over the copy never
// finishes it, and a stream would wait for ever.
//
// Errors: `sidecar_ERR_STATE`, it does not lie there; `sidecar_ERR_SYSTEM`, the driver refused, or the sidecar died.
int32_t sidecar_observation_hold_back(const struct sidecar_observation *observation,
                                      void *stream);

// Answers an observation with an action of `length` bytes that lies in device memory at `device_address`: it is
// copied into an action slot behind all that is on the stream (NULL: the default stream), which is waited for,
// and sent. Memory and stream have to live until this returns. Waits for room. Unless it returns `sidecar_OK`, the
// observation is still yours. 0 to `sidecar_worker_info.action_bytes` bytes.
//
// Errors: `sidecar_ERR_STATE`, the worker has no GPU; `sidecar_ERR_SYSTEM`, the driver refused, or what is on the stream
// went wrong; `sidecar_ERR_ACTION_TOO_LARGE`; `sidecar_ERR_ALL_RESERVED`; `sidecar_ERR_MISMATCH`, the observation is another's;
// otherwise those of `sidecar_worker_next`.
int32_t sidecar_worker_answer_from_device(struct sidecar_worker *worker,
                                          struct sidecar_observation *sidecar_OWN observation,
                                          uint64_t device_address,
                                          size_t length,
                                          void *stream);

// The same without a worker, on any thread: it waits for the stream, but not for room. `sidecar_NO_ROOM`: try again
// later, or answer through the worker.
//
// Errors: `sidecar_ERR_STATE`, `sidecar_ERR_SYSTEM`, `sidecar_ERR_ACTION_TOO_LARGE`, `sidecar_ERR_ALL_RESERVED`.
int32_t sidecar_observation_try_answer_from_device(struct sidecar_observation *sidecar_OWN observation,
                                                   uint64_t device_address,
                                                   size_t length,
                                                   void *stream);

// Size in bytes and alignment of the memory that an agent lives in.
//
// Errors: those of the configuration: `sidecar_ERR_VALUE`, an unknown flag, a seed of zeroes, a slot that is too
// large; `sidecar_ERR_TEXT`, an empty or too long text, a path without its `/`, a text that is not UTF-8 or could
// not stand in a request.
int32_t sidecar_agent_layout(const struct sidecar_agent_config *config, size_t *size, size_t *align);

// Bytes of scratch, and of each slot: `sidecar_HEADROOM` and `slot_bytes`.
//
// Errors: those of the configuration, see `sidecar_agent_layout`.
int32_t sidecar_agent_place_bytes(const struct sidecar_agent_config *config, size_t *bytes);

// Makes an agent that wants to dial at once, in the caller's `memory` (`sidecar_agent_layout`). Both that
// and `scratch` (`sidecar_agent_place_bytes`) are the agent's until `sidecar_agent_drop`. `resume` may be
// NULL: there was no predecessor. `now_ns` counts from an origin of the caller's choice, here and
// everywhere, and never goes back.
//
// Errors: those of the configuration, see `sidecar_agent_layout`; the same of `resume`; `sidecar_ERR_MEMORY`,
// `memory` or `scratch` is too small, or `memory` not aligned.
int32_t sidecar_agent_init(uint8_t *memory,
                           size_t memory_len,
                           uint8_t *scratch,
                           size_t scratch_len,
                           const struct sidecar_agent_config *config,
                           const struct sidecar_agent_resume *resume,
                           uint64_t now_ns,
                           struct sidecar_agent **agent);

// Ends an agent: its memory, scratch and slots are the caller's again. Says nothing to the gateway; see
// `sidecar_agent_shutdown`. NULL is allowed.
int32_t sidecar_agent_drop(struct sidecar_agent *sidecar_OWN agent);

// The dial came to nothing: `failure` is a `sidecar_DIAL_FAILURE_...`.
//
// Errors: `sidecar_ERR_VALUE`, it is none.
int32_t sidecar_agent_handle_dial_failed(struct sidecar_agent *agent,
                                         uint64_t now_ns,
                                         uint32_t failure);

// The model is warm: `ready` is sent as soon as the gateway has said `warmup`. Once is enough, also for
// later tunnels.
int32_t sidecar_agent_worker_ready(struct sidecar_agent *agent, uint64_t now_ns);

// The model could not be warmed up: the agent ends, with `sidecar_OUTCOME_WORKER_FAILED`.
int32_t sidecar_agent_worker_failed(struct sidecar_agent *agent, uint64_t now_ns);

// How many observations wait for an answer: bounds how much of a following message is received along.
int32_t sidecar_agent_set_unanswered(struct sidecar_agent *agent, uint32_t count);

// Closes the session of `epoch`, if it is still open: tells the gateway, now or after the redial. Of
// `reason`, 256 bytes are sent at most.
//
// Errors: `sidecar_ERR_TEXT`, not UTF-8.
int32_t sidecar_agent_close_session(struct sidecar_agent *agent,
                                    uint64_t now_ns,
                                    uint32_t epoch,
                                    const char *reason,
                                    size_t reason_len);

// Everything that had to be answered after a drain was sent: closes the tunnel. `sidecar_AGENT_EVENT_FINISHED`
// follows. Without a drain it does nothing.
int32_t sidecar_agent_finish_drain(struct sidecar_agent *agent, uint64_t now_ns);

// Ends the tunnel as `how` (`sidecar_SHUTDOWN_...`) says. `sidecar_AGENT_EVENT_FINISHED` follows.
//
// Errors: `sidecar_ERR_VALUE`, it says nothing known.
int32_t sidecar_agent_shutdown(struct sidecar_agent *agent, uint64_t now_ns, uint32_t how);

// Goes on under another agent id, 1 to 64 bytes, after `sidecar_AGENT_EVENT_FRESH_AGENT`.
//
// Errors: `sidecar_ERR_TEXT`, an id that is empty, too long, or could not stand in a request.
int32_t sidecar_agent_replace_agent(struct sidecar_agent *agent,
                                    uint64_t now_ns,
                                    const char *id,
                                    size_t id_len);

// When `sidecar_agent_handle_timeout` has to be called, on the caller's clock; `sidecar_NOTHING`: never, as things
// stand. Ask again after each call that changes something.
int32_t sidecar_agent_poll_timeout(const struct sidecar_agent *agent, uint64_t *at_ns);

// Time has passed. Too early or without need it does nothing.
int32_t sidecar_agent_handle_timeout(struct sidecar_agent *agent, uint64_t now_ns);

// Where the agent stands.
int32_t sidecar_agent_get_state(const struct sidecar_agent *agent,
                                struct sidecar_agent_state *state);

// TCP (and TLS) is up: writes the upgrade request to `out`, whose first `written` bytes are to be sent,
// then say `sidecar_agent_handle_sent`. The token goes into the request and is not kept. 4096 bytes and
// the token's length are always enough.
//
// Errors: `sidecar_ERR_STATE`, no dial is under way; `sidecar_ERR_LENGTH`, `out` is too short; `sidecar_ERR_TEXT`, a token that
// could not stand in a request.
int32_t sidecar_agent_handle_connected(struct sidecar_agent *agent,
                                       uint64_t now_ns,
                                       const char *token,
                                       size_t token_len,
                                       uint8_t *out,
                                       size_t out_len,
                                       size_t *written);

// Where the next bytes go; `sidecar_NOTHING`: nothing is to be read now. Ask when no read is outstanding: the
// answer holds until `sidecar_agent_handle_received`, or until the connection is over.
int32_t sidecar_agent_poll_read(struct sidecar_agent *agent, struct sidecar_read *read);

// `length` bytes were written where `sidecar_agent_poll_read` said; 0 takes that read back. More than was
// asked for are not taken.
//
// Errors: `sidecar_ERR_LENGTH`, it does not fit 32 bits.
int32_t sidecar_agent_handle_received(struct sidecar_agent *agent, uint64_t now_ns, size_t length);

// The connection ended from outside, as `end` (`sidecar_END_...`) says. The bytes before its end come
// first.
//
// Errors: `sidecar_ERR_VALUE`, it says nothing known.
int32_t sidecar_agent_handle_end(struct sidecar_agent *agent, uint64_t now_ns, uint32_t end);

// Parses on. `sidecar_OK`: something was done; take the events and call again. `sidecar_NOTHING`: more bytes, or a slot,
// are needed.
int32_t sidecar_agent_process(struct sidecar_agent *agent, uint64_t now_ns);

// `sidecar_OK`: a slot would be used if one were offered. `sidecar_NOTHING`: not now.
int32_t sidecar_agent_wants_slot(const struct sidecar_agent *agent);

// Offers a slot (`sidecar_agent_place_bytes`). It is the agent's until `sidecar_AGENT_EVENT_OBSERVATION` names it
// or it is taken back. Align `slot` to a page, and the payload is.
//
// Errors: `sidecar_ERR_MEMORY`, it is too short; `sidecar_ERR_STATE`, one is on offer already.
int32_t sidecar_agent_offer_slot(struct sidecar_agent *agent, uint8_t *slot, size_t slot_len);

// Takes the offered slot back. `sidecar_NOTHING`: bytes of a message lie in it or are on their way into it, or it
// waits in an event, or none is on offer.
int32_t sidecar_agent_take_back_slot(struct sidecar_agent *agent);

// The next event, in order; `sidecar_NOTHING`: there is none. Take them all after each call that may cause some.
int32_t sidecar_agent_poll_event(struct sidecar_agent *agent, struct sidecar_agent_event *event);

// The next control frame: send the first `written` bytes of `out` before anything else, then say
// `sidecar_agent_handle_sent`. `sidecar_NOTHING`: there is none. Ask while nothing is being sent; `out` has to
// have `sidecar_MAX_TRANSMIT` bytes.
//
// Errors: `sidecar_ERR_LENGTH`, `out` is too short.
int32_t sidecar_agent_poll_transmit(struct sidecar_agent *agent,
                                    uint64_t now_ns,
                                    uint8_t *out,
                                    size_t out_len,
                                    size_t *written);

// All of a control frame, or of the upgrade request, was sent.
int32_t sidecar_agent_handle_sent(struct sidecar_agent *agent, uint64_t now_ns);

// Whether an action of `epoch` may be sent now: `sidecar_OK`, `sidecar_DOWN`, `sidecar_HELD`, `sidecar_GONE` or `sidecar_CLOSING`.
int32_t sidecar_agent_may_send(const struct sidecar_agent *agent, uint32_t epoch);

// Starts the action that answers the observation `sequence` of `epoch`: writes it to `out`, framed and
// masked, and its first `written` bytes are to be sent. `out` has to have `sidecar_MAX_HEAD` bytes and the
// payload's length, and must not overlap the payload. From here until `sidecar_agent_handle_action_sent`
// no control frame is given out. Otherwise as `sidecar_agent_may_send`; `sidecar_HELD` also while another action
// is on its way. What was begun counts as sent; after a cut, `sidecar_AGENT_EVENT_UNFREEZE` says when to send it
// once more.
//
// Errors: `sidecar_ERR_LENGTH`, `out` is too short, or the payload does not fit 32 bits; `sidecar_ERR_VALUE`, they
// overlap.
int32_t sidecar_agent_begin_action(struct sidecar_agent *agent,
                                   uint64_t now_ns,
                                   uint32_t epoch,
                                   uint64_t sequence,
                                   const uint8_t *payload,
                                   size_t payload_len,
                                   uint8_t *out,
                                   size_t out_len,
                                   size_t *written);

// The last byte of that action was sent. For any other it does nothing.
int32_t sidecar_agent_handle_action_sent(struct sidecar_agent *agent,
                                         uint64_t now_ns,
                                         uint32_t epoch,
                                         uint64_t sequence);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#if defined(__cplusplus) && __cplusplus >= 201103L
#define sidecar_ASSERT_SIZE(type, size) static_assert(sizeof(type) == (size), #type)
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define sidecar_ASSERT_SIZE(type, size) _Static_assert(sizeof(type) == (size), #type)
#endif
#if defined(sidecar_ASSERT_SIZE) && UINTPTR_MAX == UINT64_MAX
sidecar_ASSERT_SIZE(struct sidecar_failure, 536);
sidecar_ASSERT_SIZE(struct sidecar_worker_options, 24);
sidecar_ASSERT_SIZE(struct sidecar_worker_event, 296);
sidecar_ASSERT_SIZE(struct sidecar_worker_info, 48);
sidecar_ASSERT_SIZE(struct sidecar_observation_view, 80);
sidecar_ASSERT_SIZE(struct sidecar_agent_config, 256);
sidecar_ASSERT_SIZE(struct sidecar_agent_resume, 48);
sidecar_ASSERT_SIZE(struct sidecar_agent_event, 624);
sidecar_ASSERT_SIZE(struct sidecar_agent_state, 368);
sidecar_ASSERT_SIZE(struct sidecar_read, 24);
#endif
#undef sidecar_ASSERT_SIZE

#endif /* SIDECAR_H */
