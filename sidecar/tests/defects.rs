//! What WebSocket clients, gateways and agents for this tunnel were found to get wrong, by number, and the tests that
//! hold this implementation to better.
//!
//! Three lists: defects of clients (found in a widely used library), habits of real gateways that a client has to bear
//! (gorilla/websocket, and what lies between it and us), and defects of the agents that people run on this tunnel. A row
//! says what goes wrong elsewhere, what is done here, and which tests fail if it is not. The behaviour is tested there
//! and not again here; what is tested here is that no number is without a test, and that each named test exists and runs.

#![allow(missing_docs, reason = "a test binary has no readers of documentation")]

use std::fs;
use std::path::Path;

/// One defect: its number, what goes wrong elsewhere, what is done here, and the tests that say so, each by file and
/// name.
type Row = (u32, &'static str, &'static str, &'static [(&'static str, &'static str)]);

const ANSWER: &str = "core/src/ws/handshake/tests.rs";
const FRAME: &str = "core/src/ws/frame.rs";
const MESSAGE: &str = "core/src/ws/message.rs";
const CLOSE: &str = "core/src/ws/close.rs";
const CODEC: &str = "core/tests/codec/defects.rs";
const UPGRADE: &str = "core/tests/agent/handshake.rs";
const RULES: &str = "core/tests/agent/rules.rs";
const STREAM: &str = "core/tests/agent/stream.rs";
const PLACEMENT: &str = "core/tests/agent/placement.rs";
const HEARTBEAT: &str = "core/tests/agent/heartbeat.rs";
const REDIAL: &str = "core/tests/agent/redial.rs";
const SESSIONS: &str = "core/tests/agent/sessions.rs";
const ENDING: &str = "core/tests/agent/ending.rs";
const EXCHANGE: &str = "shm/src/owner/tests/exchange.rs";
const ANNOUNCE: &str = "sidecar/src/bridge/announce.rs";
const SOCKET: &str = "sidecar/src/driver/socket.rs";
const DRIVER: &str = "sidecar/src/driver/conformance.rs";
const SIMULATION: &str = "sidecar/simulation/tests/seeds.rs";
const PLAY: &str = "sidecar/tests/play.rs";
const CRASH: &str = "sidecar/tests/crash/main.rs";
const HOSTILE: &str = "sidecar/tests/hostile_gateway/corpus.rs";
const PYTHON: &str = "bindings/python/tests/test_serve.py";

const CLIENT: &[Row] = &[
    (
        1,
        "Sec-WebSocket-Accept, extensions and subprotocol of the answer are never looked at",
        "each is checked; the attempt has failed and is made again",
        &[
            (ANSWER, "an_acceptance_of_something_else_is_an_error"),
            (ANSWER, "what_was_not_offered_cannot_be_accepted"),
            (UPGRADE, "an_answer_that_is_none_is_tried_again"),
        ],
    ),
    (
        2,
        "`Connection: keep-alive, Upgrade` is refused",
        "the field is a list of tokens, in any case",
        &[(ANSWER, "names_and_lists_are_read_in_any_case_and_form")],
    ),
    (
        3,
        "a masked frame of the server is delivered, still masked",
        "1002, whatever the frame is",
        &[
            (MESSAGE, "a_masked_frame_is_refused_whatever_it_is"),
            (CODEC, "what_others_let_pass_is_refused_with_the_right_code_however_it_is_cut"),
            (RULES, "each_broken_rule_has_its_code"),
        ],
    ),
    (
        4,
        "a new message inside an unfinished one is taken, and what came before it is lost",
        "1002",
        &[
            (MESSAGE, "a_new_message_inside_an_unfinished_one_is_refused"),
            (CODEC, "what_others_let_pass_is_refused_with_the_right_code_however_it_is_cut"),
            (RULES, "each_broken_rule_has_its_code"),
        ],
    ),
    (
        5,
        "the limit is on a frame, so that a message in fragments has none",
        "limits on the message and on its number of fragments, empty ones included",
        &[
            (MESSAGE, "the_length_limit_is_on_the_message_not_on_the_frame"),
            (MESSAGE, "empty_fragments_count"),
            (PLACEMENT, "an_oversized_message_in_fragments_is_discarded_in_sequence"),
        ],
    ),
    (
        6,
        "pongs and closes of more than 125 bytes are taken, and the close is echoed",
        "1002 for all three kinds",
        &[
            (FRAME, "control_frames_over_125_bytes_are_refused_whichever_kind"),
            (CODEC, "what_others_let_pass_is_refused_with_the_right_code_however_it_is_cut"),
        ],
    ),
    (
        7,
        "a read that is given up between header and payload takes the payload for a header",
        "what was parsed lies in the agent, never in a call: any cut gives the same",
        &[
            (STREAM, "every_cut_point_gives_the_same"),
            (PLACEMENT, "a_slot_is_taken_back_only_while_nothing_lies_in_it"),
        ],
    ),
    (
        8,
        "a message of exactly the limit is refused",
        "limits are inclusive",
        &[
            (CODEC, "what_others_refuse_without_need_is_taken"),
            (RULES, "limits_are_inclusive"),
            (PLACEMENT, "a_message_of_a_slot_and_not_a_byte_more_fits"),
        ],
    ),
    (
        9,
        "a length in a wider form than it needs is taken",
        "1002",
        &[
            (FRAME, "lengths_in_a_wider_form_than_needed_are_refused"),
            (RULES, "each_broken_rule_has_its_code"),
        ],
    ),
    (
        10,
        "the length that a header claims is allocated at once",
        "nothing is allocated: what fits no slot is read past",
        &[
            (PLACEMENT, "a_length_that_is_only_claimed_reserves_nothing"),
            (HOSTILE, "everything_malformed_is_survived_and_a_drain_ends_it_with_0"),
        ],
    ),
    (
        11,
        "a broken rule ends the connection without a close frame",
        "the close frame with its code leaves first",
        &[
            (RULES, "each_broken_rule_has_its_code"),
            (DRIVER, "an_orderly_end_loses_no_byte_even_when_the_peer_is_sending"),
        ],
    ),
    (
        12,
        "nothing is read after a close, and nothing bounds it",
        "read on until the peer's end, for the time of a close at most",
        &[
            (ENDING, "an_observation_behind_our_close_is_read_past"),
            (ENDING, "shutdown_is_bounded_when_the_gateway_is_mute"),
            (RULES, "a_close_that_can_not_be_sent_does_not_hold_up_the_redial_for_long"),
        ],
    ),
];

const GATEWAY: &[Row] = &[
    (
        1,
        "an Origin header is compared with the gateway's host",
        "none is sent",
        &[
            (ANSWER, "the_request_is_the_pinned_text"),
            (
                "core/tests/codec/handshake.rs",
                "tungstenite_takes_our_request_and_we_take_its_answer_at_every_cut_point",
            ),
        ],
    ),
    (
        2,
        "servers and proxies change the case of header names in both directions",
        "sent in Title-Case, taken in any",
        &[
            (ANSWER, "the_request_is_the_pinned_text"),
            (ANSWER, "names_and_lists_are_read_in_any_case_and_form"),
        ],
    ),
    (
        3,
        "bytes of the client in front of the 101 make some refuse the upgrade",
        "nothing is sent before the whole 101 is there",
        &[(UPGRADE, "nothing_is_sent_before_the_101")],
    ),
    (
        4,
        "permessage-deflate is used wherever it is offered, and costs ten times the transport",
        "not offered; an answer or a frame that uses it breaks a rule",
        &[
            (ANSWER, "the_request_is_the_pinned_text"),
            (ANSWER, "what_was_not_offered_cannot_be_accepted"),
            (RULES, "each_broken_rule_has_its_code"),
        ],
    ),
    (
        5,
        "messages come in fragments of 4 KiB",
        "put together in the slot, where the payload belongs",
        &[
            (STREAM, "fragments_are_received_in_large_reads"),
            (STREAM, "a_message_in_very_small_fragments_arrives"),
            (PLAY, "fragments_empty_finals_single_bytes_and_pings_between_change_nothing"),
        ],
    ),
    (
        6,
        "the last fragment is empty",
        "taken as the end",
        &[
            (MESSAGE, "control_frames_between_fragments_change_nothing"),
            (CODEC, "what_others_refuse_without_need_is_taken"),
            (PLAY, "fragments_empty_finals_single_bytes_and_pings_between_change_nothing"),
        ],
    ),
    (
        7,
        "pongs alone move the read deadline, so that a client that only sends actions is cut",
        "each ping is answered at once with its payload, between fragments and during inference",
        &[
            (HEARTBEAT, "a_ping_is_answered_with_its_payload"),
            (STREAM, "pings_between_fragments_are_answered_at_once"),
            (SIMULATION, "fixed_seeds_keep_every_promise"),
        ],
    ),
    (
        8,
        "while the client does not drain, the gateway's pings cannot be sent and time out",
        "reading goes on up to the next message's header; behind that, pongs of our own accord",
        &[(PLACEMENT, "with_all_slots_taken_reading_stops_behind_the_next_header")],
    ),
    (
        9,
        "over the cap the close frame comes in the segment of the 101",
        "what follows the 101 is parsed; a close there means the cap",
        &[
            (UPGRADE, "over_the_cap_the_101_and_its_close_end_it"),
            (UPGRADE, "frames_in_the_segment_of_the_101_are_processed"),
            ("sidecar/tests/start.rs", "over_the_parallelism_cap_says_so_or_keeps_trying_when_told_to"),
        ],
    ),
    (
        10,
        "a connection ends without a close frame",
        "an end like another, dialled again; 1006 is never on the wire",
        &[
            (REDIAL, "after_a_fin_or_close_it_is_the_gateways_window"),
            (CLOSE, "the_codes_that_may_be_on_the_wire_are_these"),
            (CLOSE, "payloads_that_the_rfc_rules_out_are_refused"),
        ],
    ),
    (
        11,
        "a reset follows the close frame and hides its code",
        "the close is reported, not the reset",
        &[
            (RULES, "a_close_is_reported_rather_than_the_reset_behind_it"),
            (DRIVER, "what_came_before_a_reset_is_received_before_it"),
        ],
    ),
    (
        12,
        "a cable is pulled, and no error comes",
        "a ping of our own after 20 s, the end after 40; TCP_USER_TIMEOUT for what we send",
        &[
            (HEARTBEAT, "silence_is_met_with_a_ping_and_then_given_up"),
            (SOCKET, "small_writes_leave_at_once_and_a_dead_peer_is_given_up"),
            (
                "sidecar/tests/network.rs",
                "a_cut_shorter_than_the_window_is_redialled_and_the_session_goes_on",
            ),
        ],
    ),
    (
        13,
        "a pong is queued behind a long message and counted as missing",
        "any byte received is a sign of life",
        &[(HEARTBEAT, "any_byte_is_a_sign_of_life")],
    ),
    (
        14,
        "Nagle's algorithm holds a small action back for 20 to 40 ms",
        "TCP_NODELAY",
        &[(SOCKET, "small_writes_leave_at_once_and_a_dead_peer_is_given_up")],
    ),
    (
        15,
        "reads and writes wait for each other until both ends are stuck",
        "a receive completes while a send is blocked",
        &[(DRIVER, "a_receive_pending_while_a_send_is_blocked_still_completes")],
    ),
];

const TUNNEL: &[Row] = &[
    (
        1,
        "attempts are counted over the whole job: the sixth cut ends it",
        "every useful frame makes the next cut a first one",
        &[
            (REDIAL, "every_useful_frame_makes_the_next_cut_a_first_one"),
            (PLAY, "ten_cuts_are_ten_first_cuts"),
        ],
    ),
    (
        2,
        "an answer is bound to the socket that its question came from, and lost with it",
        "kept, and sent on the next connection once that has proved to stay",
        &[
            (REDIAL, "kept_answers_wait_for_the_first_frame_after_a_redial"),
            (REDIAL, "a_connection_that_is_closed_at_once_swallows_no_answer"),
            (PLAY, "a_cut_in_mid_session_is_mended_and_no_answer_is_given_twice"),
        ],
    ),
    (
        3,
        "a handler that raises gives no answer at all: the simulator waits for ever",
        "the worker reports it, and --on-failure decides; nothing is made up",
        &[
            (PYTHON, "test_a_failing_handler_is_logged_and_reported"),
            (CRASH, "three_deaths_on_one_observation_leave_it_to_the_failure_policy"),
            (PLAY, "a_configured_reply_answers_what_no_slot_can_hold"),
        ],
    ),
    (
        4,
        "a task for each frame: no bound, and answers in any order",
        "a slot for each, then backpressure; first in, first out",
        &[
            (PLACEMENT, "with_all_slots_taken_reading_stops_behind_the_next_header"),
            (
                EXCHANGE,
                "thousands_of_frames_keep_their_bytes_and_their_order_while_both_sides_sleep_and_spin",
            ),
            (SIMULATION, "fixed_seeds_keep_every_promise"),
        ],
    ),
    (
        5,
        "`drain` closes at once and loses the answers that are being computed",
        "waited for, sent, then closed",
        &[(ENDING, "drain_waits_for_the_answer_then_closes"), (PLAY, "drain_in_mid_session_ends_with_0")],
    ),
    (
        6,
        "the warm-up loads weights and runs no forward pass: the first observation pays for it",
        "--warmup-payload is a first observation, answered before `ready`",
        &[(PLAY, "a_warm_up_payload_is_answered_before_ready_and_goes_no_further")],
    ),
    (
        7,
        "a failed warm-up is logged, and the job hangs in WARMUP",
        "the run ends with the worker's message and exit code 1",
        &[
            (ENDING, "a_failed_warm_up_ends_it_cleanly"),
            (PLAY, "a_warm_up_payload_is_answered_before_ready_and_goes_no_further"),
            (PYTHON, "test_a_failing_warm_up_ends_the_sidecar_with_its_message"),
        ],
    ),
    (
        8,
        "a stray http_proxy takes the dial and burns the retries",
        "the environment's proxies are ignored",
        &[(PLAY, "proxy_variables_are_ignored")],
    ),
    (
        9,
        "permessage-deflate is offered by default",
        "not offered",
        &[(ANSWER, "the_request_is_the_pinned_text")],
    ),
    (
        10,
        "`queued` is unknown",
        "told, and waited out for as long as it takes",
        &[(SESSIONS, "queued_is_told_and_waited_out_for_as_long_as_it_takes")],
    ),
    (
        11,
        "the worker hears of no session, and keeps the last one's state",
        "it is told of each opening and close, in order with the observations",
        &[
            (EXCHANGE, "records_pass_both_ways_in_order"),
            (ANNOUNCE, "a_resumed_session_is_told_again_without_a_close_and_a_successor_hears_everything"),
            (PYTHON, "test_a_whole_job_with_its_hooks"),
        ],
    ),
    (
        12,
        "a payload is copied five times before the model sees it",
        "received where the worker reads it",
        &[
            (PLACEMENT, "in_lockstep_nothing_is_moved_after_the_first_of_a_size_class"),
            ("bindings/python/tests/test_arrays.py", "test_numpy_reads_the_slot_itself"),
        ],
    ),
    // From the field, beyond the agents' code.
    (
        13,
        "the tunnel is up again, and nothing comes for 20 minutes",
        "the last action is sent once more; then a diagnosis, and a fresh agent id if that is allowed",
        &[
            (SESSIONS, "an_action_that_a_cut_may_have_swallowed_is_sent_once_more"),
            (SESSIONS, "a_wedged_tunnel_is_reported_once"),
            (CRASH, "a_cut_with_a_stalling_simulator_is_unfrozen"),
        ],
    ),
    (
        14,
        "the process that was killed was a wrapper; the model behind it keeps the GPU",
        "a process group of its own, which ends with the sidecar",
        &[(CRASH, "a_survivor_is_ended_by_the_sidecar_that_took_it_over")],
    ),
    (
        15,
        "the empty warm-up frame crashes the handler",
        "the worker libraries answer it with the no-op",
        &[
            (SESSIONS, "an_empty_session_id_is_the_warm_up_round_trip"),
            (PLAY, "the_empty_warm_up_frame_is_answered"),
            (PYTHON, "test_a_whole_job_with_its_hooks"),
        ],
    ),
    (
        16,
        "an undocumented control frame (`evaluating`) comes",
        "one line for each new type, then ignored",
        &[
            (SESSIONS, "control_frames_that_mean_nothing_here_are_ignored"),
            (PLAY, "fragments_empty_finals_single_bytes_and_pings_between_change_nothing"),
        ],
    ),
];

#[test]
fn every_number_has_a_test_that_runs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for (list, rows, last) in [("client", CLIENT, 12), ("gateway", GATEWAY, 15), ("tunnel", TUNNEL, 16)] {
        let numbers: Vec<u32> = rows.iter().map(|(number, ..)| *number).collect();
        assert_eq!(numbers, (1..=last).collect::<Vec<_>>(), "{list}");
        for (number, defect, ours, held_by) in rows {
            assert!(!held_by.is_empty(), "{list} {number}: {defect}; here: {ours}: nothing holds it");
            for (file, test) in *held_by {
                let text = fs::read_to_string(root.join(file))
                    .unwrap_or_else(|error| panic!("{list} {number}: {file}: {error}"));
                assert!(runs(&text, test), "{list} {number} ({defect}): {file} has no test {test} that runs");
            }
        }
    }
}

/// Whether `text` has a test of this name, in Rust or Python, that nobody set aside.
fn runs(text: &str, test: &str) -> bool {
    let (rust, python) = (format!("fn {test}("), format!("def {test}("));
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    lines.iter().position(|line| line.starts_with(&rust) || line.starts_with(&python)).is_some_and(|at| {
        let mut above = lines[..at].iter().rev().take_while(|line| line.starts_with(['#', '@']));
        let set_aside = |line: &&&str| line.contains("ignore") || line.contains("skip");
        let is_python = lines[at].starts_with("def");
        // Within `proptest!` the attribute stands there as well.
        let is_test = is_python || above.clone().any(|line| *line == "#[test]");
        is_test && above.find(set_aside).is_none()
    })
}

#[test]
fn a_test_that_is_gone_or_set_aside_is_noticed() {
    assert!(runs("#[test]\nfn a() {", "a"));
    assert!(runs("    def test_a(x):", "test_a"));
    for text in ["#[test]\nfn ab() {", "fn a() {", "#[test]\n#[ignore = \"slow\"]\nfn a() {", "// fn a()"] {
        assert!(!runs(text, "a"), "{text}");
    }
    assert!(!runs("@pytest.mark.skip\ndef test_a():", "test_a"));
}
