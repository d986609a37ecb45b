//! The functions through their C signatures, with whatever arguments a caller may come up with: NULL, absurd lengths and
//! sizes, numbers out of range, handles of the wrong kind or dropped, calls in any order. Nothing crashes, and what is
//! wrong is told with a status of the caller's block.
//!
//! What cannot be tried is a pointer to nowhere: no library can see that.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "all of it breaks rules on purpose, except for wild pointers"
)]
#![allow(clippy::multiple_unsafe_ops_per_block, reason = "as above")]

use core::ffi::c_char;
use core::ptr::{null, null_mut};

use proptest::prelude::*;
use sidecar_c::agent::*;
use sidecar_c::answer::*;
use sidecar_c::config::*;
use sidecar_c::device::*;
use sidecar_c::event::*;
use sidecar_c::failure::Failure;
use sidecar_c::observation::*;
use sidecar_c::status::*;
use sidecar_c::stream::*;
use sidecar_c::worker::*;

const SLOT_BYTES: u32 = 4096;
const PLACE: usize = HEADROOM as usize + SLOT_BYTES as usize;

/// A struct of zeroes, which every struct of the header may be.
fn zeroed<T: Copy>() -> T {
    unsafe { core::mem::zeroed() }
}

fn config() -> AgentConfig {
    AgentConfig {
        struct_size: size_of::<AgentConfig>() as u32,
        host: c"gateway".as_ptr(),
        host_len: 7,
        path: c"/tunnel".as_ptr(),
        path_len: 7,
        job: c"job".as_ptr(),
        job_len: 3,
        agent: c"agent".as_ptr(),
        agent_len: 5,
        seed: [9; 32],
        slot_bytes: SLOT_BYTES,
        ..zeroed()
    }
}

/// An agent with its memory.
struct Stage {
    agent: *mut sidecar_c_agent::border::Marked<Agent>,
    _memory: Vec<u128>,
    _scratch: Vec<u8>,
    slots: [Vec<u8>; 2],
}

impl Stage {
    fn new() -> Self {
        let (config, mut size, mut align) = (config(), 0, 0);
        assert_eq!(unsafe { sidecar_agent_layout(&config, &mut size, &mut align) }, OK);
        assert!(align <= align_of::<u128>());
        let mut memory = vec![0_u128; size.div_ceil(16)];
        let mut scratch = vec![0; PLACE];
        let mut agent = null_mut();
        let status = unsafe {
            sidecar_agent_init(
                memory.as_mut_ptr().cast(),
                size,
                scratch.as_mut_ptr(),
                PLACE,
                &config,
                null(),
                1,
                &mut agent,
            )
        };
        assert_eq!(status, OK);
        Self { agent, _memory: memory, _scratch: scratch, slots: [vec![0; PLACE], vec![0; PLACE]] }
    }
}

impl Stage {
    /// Up to the gateway's `101`.
    fn open(&mut self) {
        const KEY: &[u8] = b"Sec-WebSocket-Key: ";
        let mut event = AgentEvent { struct_size: size_of::<AgentEvent>() as u32, ..zeroed() };
        assert_eq!(unsafe { sidecar_agent_poll_event(self.agent, &mut event) }, OK);
        assert_eq!(event.kind, AGENT_EVENT_DIAL);
        let (mut request, mut length) = ([0; 4096], 0);
        let (out, room) = (request.as_mut_ptr(), request.len());
        let status = unsafe {
            sidecar_agent_handle_connected(self.agent, 2, c"token".as_ptr(), 5, out, room, &mut length)
        };
        assert_eq!(status, OK);
        assert_eq!(unsafe { sidecar_agent_handle_sent(self.agent, 2) }, OK);
        let at = request[..length].windows(KEY.len()).position(|window| window == KEY).unwrap() + KEY.len();
        let accept = sidecar_core::ws::handshake::accept_for(request[at..].first_chunk().unwrap());
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {}\r\n\r\n",
            core::str::from_utf8(&accept).unwrap()
        );
        let mut read = ReadPlace { struct_size: size_of::<ReadPlace>() as u32, ..zeroed() };
        assert_eq!(unsafe { sidecar_agent_poll_read(self.agent, &mut read) }, OK);
        assert!(read.max >= answer.len());
        unsafe { core::ptr::copy_nonoverlapping(answer.as_ptr(), read.into, answer.len()) };
        assert_eq!(unsafe { sidecar_agent_handle_received(self.agent, 3, answer.len()) }, OK);
        assert_eq!(unsafe { sidecar_agent_process(self.agent, 3) }, OK);
        assert_eq!(unsafe { sidecar_agent_poll_event(self.agent, &mut event) }, OK);
        assert_eq!(event.kind, AGENT_EVENT_UPGRADED);
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        assert_eq!(unsafe { sidecar_agent_drop(self.agent) }, OK);
    }
}

/// Lengths that a caller may have: small ones, exact ones, absurd ones.
fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![
        0_usize..64,
        Just(PLACE),
        Just(PLACE - 1),
        Just(4096_usize),
        Just(isize::MAX as usize),
        Just(usize::MAX)
    ]
}

/// One call: which, and numbers to make arguments of.
fn calls() -> impl Strategy<Value = Vec<(u8, u64, u32, usize, bool, Vec<u8>)>> {
    let bytes = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..64),
        Just(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n".to_vec()),
        Just(b"HTTP/1.1 503 Busy\r\n\r\n".to_vec()),
        Just(b"\x81\x11{\"type\":\"warmup\"}".to_vec()),
        Just(b"\x81\x28{\"type\":\"session_open\",\"session_id\":\"s\"}".to_vec()),
        Just(b"\x81\x10{\"type\":\"drain\"}".to_vec()),
        Just(b"\x82\x0b\0\0\0\x01spayload"[..12].to_vec()),
        Just(b"\x82\x7e\x10\x05\0\0\0\x01s".to_vec()),
        Just(b"\x89\x02hi".to_vec()),
        Just(b"\x88\x02\x03\xe8".to_vec()),
    ];
    let call = (0_u8..24, any::<u64>(), prop_oneof![0_u32..8, any::<u32>()], lengths(), any::<bool>(), bytes);
    proptest::collection::vec(call, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn an_agent_takes_any_calls_in_any_order(open in any::<bool>(), calls in calls()) {
        let mut stage = Stage::new();
        if open {
            stage.open();
        }
        let agent = stage.agent;
        let mut now = 1;
        for (which, time, number, length, with, bytes) in calls {
            now += time % 1_000_000_000;
            let mut room = [0_u8; 8192];
            // Never more than there is, unless the length is refused before a byte is touched.
            let fits = |length: usize, real: usize| if length > isize::MAX as usize { length } else { length.min(real) };
            let data = if with { bytes.as_ptr() } else { null() };
            let len = fits(length, bytes.len());
            let text: *const c_char = data.cast();
            let (out, out_len) = (if with { room.as_mut_ptr() } else { null_mut() }, fits(length, room.len()));
            let mut written = 0;
            let written: *mut usize = if number % 5 == 4 { null_mut() } else { &mut written };
            let status = unsafe {
                match which {
                    0 => sidecar_agent_handle_connected(agent, now, text, len, out, out_len, written),
                    1 => sidecar_agent_handle_connected(agent, now, c"token".as_ptr(), 5, room.as_mut_ptr(), room.len(), written),
                    2 => sidecar_agent_handle_dial_failed(agent, now, number),
                    3 | 4 => {
                        let mut read = ReadPlace { struct_size: size_of::<ReadPlace>() as u32, ..zeroed() };
                        if number % 7 == 6 {
                            read.struct_size = number;
                        }
                        let asked = sidecar_agent_poll_read(agent, &mut read);
                        if asked == OK && number % 7 != 6 {
                            assert!(read.max > 0 && read.max <= PLACE);
                            let count = bytes.len().min(read.max);
                            core::ptr::copy_nonoverlapping(bytes.as_ptr(), read.into, count);
                            sidecar_agent_handle_received(agent, now, count)
                        } else {
                            asked
                        }
                    }
                    5 => sidecar_agent_handle_received(agent, now, length),
                    6 => sidecar_agent_handle_end(agent, now, number),
                    7 | 8 => sidecar_agent_process(agent, now),
                    9 => sidecar_agent_wants_slot(agent),
                    10 => {
                        let slot = &mut stage.slots[number as usize % 2];
                        let length = fits(length, slot.len());
                        sidecar_agent_offer_slot(agent, if with { slot.as_mut_ptr() } else { null_mut() }, length)
                    }
                    11 => sidecar_agent_take_back_slot(agent),
                    12 | 13 => {
                        let mut event = AgentEvent { struct_size: size_of::<AgentEvent>() as u32, ..zeroed() };
                        if number % 7 == 6 {
                            event.struct_size = number % 600;
                        }
                        let status = sidecar_agent_poll_event(agent, &mut event);
                        assert!(event.text_len < 260 && event.session_len < 260);
                        status
                    }
                    14 => sidecar_agent_poll_transmit(agent, now, out, out_len, written),
                    15 => sidecar_agent_handle_sent(agent, now),
                    16 => sidecar_agent_may_send(agent, number),
                    17 => sidecar_agent_begin_action(agent, now, number, time, data, len, out, out_len, written),
                    18 => sidecar_agent_handle_action_sent(agent, now, number, time),
                    19 => sidecar_agent_close_session(agent, now, number, text, len),
                    20 => sidecar_agent_shutdown(agent, now, number),
                    21 => sidecar_agent_replace_agent(agent, now, text, len),
                    22 => {
                        let mut at = 0;
                        let status = sidecar_agent_poll_timeout(agent, if with { &mut at } else { null_mut() });
                        if status == OK { sidecar_agent_handle_timeout(agent, at) } else { status }
                    }
                    _ => {
                        let mut state = AgentState { struct_size: number, ..zeroed() };
                        // It may say that it is larger than it is only as far as it is refused.
                        state.struct_size = state.struct_size.min(size_of::<AgentState>() as u32);
                        sidecar_agent_set_unanswered(agent, number).min(sidecar_agent_get_state(agent, &mut state))
                    }
                }
            };
            prop_assert!(status > -100, "call {which} came to {status}");
        }
    }

    #[test]
    fn a_configuration_is_taken_or_refused(
        size in prop_oneof![0_u32..300, Just(256_u32), any::<u32>()],
        flags in prop_oneof![0_u32..8, any::<u32>()],
        text in proptest::collection::vec(any::<u8>(), 0..80),
        lengths in proptest::array::uniform4(lengths()),
        nulls in any::<[bool; 4]>(),
        numbers in any::<[u32; 4]>(),
        times in any::<[u64; 4]>(),
    ) {
        // A tail of zeroes, as a newer caller may have.
        let mut memory = [0_u64; (1 << 16) / 8 + 64];
        let pointer = |null: bool| if null { core::ptr::null() } else { text.as_ptr().cast::<c_char>() };
        let length = |at: usize| if lengths[at] > isize::MAX as usize { lengths[at] } else { lengths[at].min(text.len()) };
        let config = AgentConfig {
            struct_size: size,
            flags,
            host: pointer(nulls[0]),
            host_len: length(0),
            path: pointer(nulls[1]),
            path_len: length(1),
            job: pointer(nulls[2]),
            job_len: length(2),
            agent: pointer(nulls[3]),
            agent_len: length(3),
            slot_bytes: numbers[0],
            fragments: numbers[1],
            text_bytes: numbers[2],
            timer_divisor: numbers[3],
            dial_ns: times[0],
            unfreeze_ns: times[1],
            backoff_max_ns: times[2],
            close_ns: times[3],
            ..config()
        };
        let at = memory.as_mut_ptr().cast::<AgentConfig>();
        unsafe { at.write(config) };
        let mut bytes = 77;
        let status = unsafe { sidecar_agent_place_bytes(at, &mut bytes) };
        prop_assert!(status == OK || (-99..0).contains(&status), "{status}");
        prop_assert!(status == OK || bytes == 77, "nothing is written on failure");
    }
}

#[test]
fn every_function_of_the_worker_tells_null() {
    let mut event = WorkerEvent { struct_size: size_of::<WorkerEvent>() as u32, ..zeroed() };
    let mut view = ObservationView { struct_size: size_of::<ObservationView>() as u32, ..zeroed() };
    let mut info = WorkerInfo { struct_size: size_of::<WorkerInfo>() as u32, ..zeroed() };
    let mut failure = Failure { struct_size: size_of::<Failure>() as u32, ..zeroed() };
    let (mut worker, mut reservation) = (null_mut(), null_mut());
    let (mut fd, mut bytes, mut length) = (0, null_mut(), 0);
    let statuses = unsafe {
        [
            sidecar_worker_attach(null(), 3, null(), null_mut(), &mut worker),
            sidecar_worker_attach_many(null(), null(), 1, null(), null_mut(), &mut worker),
            sidecar_worker_next(null_mut(), 0, &mut event),
            sidecar_worker_ready(null_mut(), 0),
            sidecar_worker_warmup_failed(null_mut(), 0, null(), 0),
            sidecar_worker_fd(null_mut(), &mut fd),
            sidecar_worker_get_info(null_mut(), 0, &mut info),
            sidecar_worker_get_failure(null(), &mut failure),
            sidecar_worker_answer(null_mut(), null_mut(), null(), 0),
            sidecar_worker_failed(null_mut(), null_mut(), null(), 0),
            sidecar_worker_reserve(null_mut(), null(), 1, &mut reservation),
            sidecar_worker_answer_reserved(null_mut(), null_mut(), null_mut(), 0),
            sidecar_observation_get_view(null(), &mut view),
            sidecar_observation_is_wanted(null()),
            sidecar_observation_try_answer(null_mut(), null(), 0),
            sidecar_observation_try_failed(null_mut(), null(), 0),
            sidecar_worker_answer_from_device(null_mut(), null_mut(), 0, 0, null_mut()),
            sidecar_observation_try_answer_from_device(null_mut(), 0, 0, null_mut()),
            sidecar_reservation_get_bytes(null_mut(), &mut bytes, &mut length),
        ]
    };
    assert_eq!(statuses, [ERR_NULL; 19]);
    let counts = [0, 1025, usize::MAX];
    for count in counts {
        let status =
            unsafe { sidecar_worker_attach_many(null(), null(), count, null(), null_mut(), &mut worker) };
        assert_eq!(status, ERR_VALUE);
    }
    assert!(worker.is_null());
}

#[test]
fn a_handle_of_another_kind_is_told() {
    let stage = Stage::new();
    let mut event = WorkerEvent { struct_size: size_of::<WorkerEvent>() as u32, ..zeroed() };
    assert_eq!(unsafe { sidecar_worker_next(stage.agent.cast(), 0, &mut event) }, ERR_STATE);
    assert_eq!(unsafe { sidecar_observation_is_wanted(stage.agent.cast()) }, ERR_STATE);
    assert_eq!(unsafe { sidecar_reservation_release(stage.agent.cast()) }, ERR_STATE);
    let odd = stage.agent.wrapping_byte_add(1);
    assert_eq!(unsafe { sidecar_agent_process(odd, 1) }, ERR_VALUE);
}

#[test]
fn a_panic_stops_at_the_border_and_spoils_its_handle_alone() {
    let (stage, other) = (Stage::new(), Stage::new());
    let border = unsafe { sidecar_c_agent::border::Border::new() };
    assert_eq!(border.handle(stage.agent, |_| panic!("on purpose")), ERR_BUG);
    assert_eq!(unsafe { sidecar_agent_process(stage.agent, 1) }, ERR_BUG);
    assert_eq!(unsafe { sidecar_agent_wants_slot(stage.agent) }, ERR_BUG);
    assert_eq!(unsafe { sidecar_agent_wants_slot(other.agent) }, NOTHING);
}
