//! Actions between the worker's ring and the wire: copied once out of shared memory, masked there, kept until they
//! are acknowledged.
//!
//! `0 <= kept <= capacity`: an action is kept for an observation that waits, and the action that was sent last for
//! the case that it has to be sent again. Nothing is allocated after the start.

use sidecar_core::agent::MAX_HEAD;
use sidecar_core::time::Instant;
use sidecar_core::tunnel::Epoch;
use sidecar_shm::journal::LastAction;

/// When an action passed which point, for the latency figures.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Stamps {
    pub(super) last_byte: Instant,
    pub(super) taken: Instant,
    pub(super) published: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// To be sent when the agent allows it.
    Waiting,
    /// The kernel has the bytes.
    Sending,
    /// Sent; kept until the session's next observation shows that it arrived.
    Sent,
}

#[derive(Debug)]
pub(super) struct Kept {
    pub(super) epoch: Epoch,
    pub(super) sequence: u64,
    pub(super) state: State,
    pub(super) resend: bool,
    pub(super) stamps: Stamps,
    length: usize,
    /// What the payload in `buffer` is masked with, rotated so that it starts at the payload's first byte.
    mask: [u8; 4],
    buffer: Box<[u8]>,
}

impl Kept {
    /// The whole frame: `head`, then the payload masked with `mask` from `mask_offset` on.
    pub(super) fn frame(&mut self, head: &[u8], mask: [u8; 4], mask_offset: usize) -> &[u8] {
        let wanted: [u8; 4] = core::array::from_fn(|index| mask[(mask_offset + index) % 4]);
        // One pass whatever it was masked with before: nothing, or the key of an earlier connection.
        let change = core::array::from_fn(|index| wanted[index] ^ self.mask[index]);
        sidecar_core::ws::mask::apply(change, 0, &mut self.buffer[MAX_HEAD..MAX_HEAD + self.length]);
        self.mask = wanted;
        let start = MAX_HEAD - head.len();
        self.buffer[start..MAX_HEAD].copy_from_slice(head);
        &self.buffer[start..MAX_HEAD + self.length]
    }

    /// It was sent, perhaps to be sent once more: the session's next observation shows that it arrived.
    pub(super) fn is_past(&self) -> bool {
        self.state == State::Sent || self.waits_again()
    }

    fn waits_again(&self) -> bool {
        self.state == State::Waiting && self.resend
    }

    /// What it is masked with, and the payload that is.
    pub(super) fn payload(&self) -> ([u8; 4], &[u8]) {
        (self.mask, &self.buffer[MAX_HEAD..MAX_HEAD + self.length])
    }

    pub(super) fn payload_length(&self) -> u32 {
        u32::try_from(self.length).expect("an action slot's length is a u32")
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Outbox {
    kept: Vec<Kept>,
    spare: Vec<Box<[u8]>>,
}

impl Outbox {
    /// Room for `actions` actions of at most `action_bytes` each.
    pub(super) fn new(actions: usize, action_bytes: usize) -> Self {
        let buffer = || vec![0xa5; MAX_HEAD + action_bytes].into_boxed_slice();
        Self { kept: Vec::with_capacity(actions), spare: (0..actions).map(|_| buffer()).collect() }
    }

    pub(super) fn has_room(&self) -> bool {
        !self.spare.is_empty()
    }

    /// Keeps an action of `length` bytes; `fill` writes the payload. The caller has checked for room and length.
    pub(super) fn keep(
        &mut self,
        epoch: Epoch,
        sequence: u64,
        length: usize,
        stamps: Stamps,
        fill: impl FnOnce(&mut [u8]),
    ) {
        let mut buffer = self.spare.pop().expect("the caller asked has_room");
        fill(&mut buffer[MAX_HEAD..MAX_HEAD + length]);
        let state = State::Waiting;
        self.kept.push(Kept { epoch, sequence, state, resend: false, stamps, length, mask: [0; 4], buffer });
    }

    /// Keeps the last action of a dead predecessor, which counts as sent. One that is too long for this region is not
    /// kept.
    pub(super) fn keep_sent(&mut self, action: &LastAction) {
        let length = action.payload.len();
        let Some(mut buffer) = self.spare.pop_if(|buffer| MAX_HEAD + length <= buffer.len()) else { return };
        buffer[MAX_HEAD..MAX_HEAD + length].copy_from_slice(&action.payload);
        let &LastAction { epoch, sequence, mask, .. } = action;
        let (state, stamps) = (State::Sent, Stamps::default());
        self.kept.push(Kept { epoch, sequence, state, resend: false, stamps, length, mask, buffer });
    }

    pub(super) fn find(&mut self, sequence: u64) -> Option<&mut Kept> {
        self.kept.iter_mut().find(|kept| kept.sequence == sequence)
    }

    pub(super) fn has(&self, sequence: u64) -> bool {
        self.kept.iter().any(|kept| kept.sequence == sequence)
    }

    pub(super) fn sending(&mut self) -> Option<&mut Kept> {
        self.kept.iter_mut().find(|kept| kept.state == State::Sending)
    }

    /// The oldest action that waits to be sent.
    pub(super) fn waiting(&mut self) -> Option<&mut Kept> {
        self.kept.iter_mut().find(|kept| kept.state == State::Waiting)
    }

    /// The connection is lost: whether something is to be sent once more over the next one is for the agent to say.
    pub(super) fn take_back(&mut self) {
        for kept in self.kept.iter_mut().filter(|kept| kept.waits_again()) {
            kept.state = State::Sent;
            kept.resend = false;
        }
    }

    /// Something waits or is on its way.
    pub(super) fn is_busy(&self) -> bool {
        self.kept.iter().any(|kept| kept.state != State::Sent)
    }

    /// An observation of the session of `epoch` came: the action before it has arrived.
    pub(super) fn acknowledge(&mut self, epoch: Epoch) {
        self.forget(|kept| kept.is_past() && kept.epoch == epoch);
    }

    /// Forgets what `gone` picks; returns how many of those were never sent. What the kernel is still reading
    /// stays until `sent` has been called for it.
    pub(super) fn forget(&mut self, gone: impl Fn(&Kept) -> bool) -> u64 {
        let mut unsent = 0;
        let mut index = 0;
        while index < self.kept.len() {
            let kept = &self.kept[index];
            if kept.state != State::Sending && gone(kept) {
                unsent += u64::from(kept.state == State::Waiting && !kept.resend);
                let kept = self.kept.remove(index);
                self.spare.push(kept.buffer);
            } else {
                index += 1;
            }
        }
        unsent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outbox_with(payload: &[u8]) -> Outbox {
        let mut outbox = Outbox::new(2, 64);
        outbox.keep(Epoch(1), 7, payload.len(), Stamps::default(), |into| into.copy_from_slice(payload));
        outbox
    }

    fn unmasked(frame: &[u8], head: usize, mask: [u8; 4], offset: usize) -> Vec<u8> {
        frame[head..].iter().enumerate().map(|(index, byte)| byte ^ mask[(offset + index) % 4]).collect()
    }

    #[test]
    fn a_frame_is_masked_from_where_the_head_ended_and_anew_for_each_sending() {
        let mut outbox = outbox_with(b"left right");
        let kept = outbox.find(7).unwrap();
        for (mask, offset) in [([1, 2, 3, 4], 0), ([9, 8, 7, 6], 3), ([0xff, 0, 0x55, 0xaa], 40)] {
            let frame = kept.frame(b"head", mask, offset).to_vec();
            assert_eq!(&frame[..4], b"head");
            assert_eq!(unmasked(&frame, 4, mask, offset), b"left right");
        }
    }

    #[test]
    fn what_is_being_sent_is_not_forgotten_under_the_kernel() {
        let mut outbox = outbox_with(b"x");
        outbox.find(7).unwrap().state = State::Sending;
        assert_eq!(outbox.forget(|_| true), 0);
        outbox.sending().unwrap().state = State::Sent;
        assert_eq!(outbox.forget(|_| true), 0);
        assert!(outbox.find(7).is_none());
    }

    #[test]
    fn what_was_to_be_sent_once_more_waits_for_another_word_after_a_cut_and_what_was_never_sent_does_not() {
        let mut outbox = outbox_with(b"x");
        outbox.keep(Epoch(1), 8, 0, Stamps::default(), |_| {});
        outbox.find(7).unwrap().resend = true;
        assert!(outbox.find(7).unwrap().is_past() && !outbox.find(8).unwrap().is_past());
        outbox.take_back();
        assert_eq!(outbox.waiting().unwrap().sequence, 8);
        assert!(outbox.find(7).unwrap().is_past());
    }

    #[test]
    fn a_forgotten_action_gives_its_room_back_and_counts_when_it_was_never_sent() {
        let mut outbox = outbox_with(b"x");
        outbox.keep(Epoch(2), 8, 0, Stamps::default(), |_| {});
        assert!(!outbox.has_room());
        assert_eq!(outbox.forget(|kept| kept.epoch == Epoch(1)), 1);
        assert!(outbox.has_room() && outbox.find(8).is_some());
    }
}
