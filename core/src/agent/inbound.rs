//! Bytes to frames to messages, in the caller's memory. Headers, control frames and texts are copied out a few bytes
//! at a time; the payload of a data frame is left where it was received when that is where it belongs, and moved there
//! otherwise. Where the next bytes go is decided in [`super::reading`].
//!
//! Nothing here knows time, timers or what a frame means.

use super::event::DropKind;
use super::expect::Expect;
use super::place::{HEADROOM, Memory, Place, Window};
use crate::time::Instant;
use crate::tunnel::control::{Control, ControlLexer};
use crate::tunnel::data::{DataError, DataHead, MAX_DATA_HEAD, Progress, skip_data_head};
use crate::tunnel::{Epoch, SessionId};
use crate::ws::Violation;
use crate::ws::frame::{Decoded, MAX_HEADER, decode};
use crate::ws::message::{Assembler, ControlKind, Kind, MessageLimits, Part};
use crate::ws::utf8::Utf8;

use super::config::Limits;
use super::outbox::Short;

/// What parsing on came to. Texts stay behind, for [`Inbound::take_control_payload`] and [`Inbound::take_control`]: a
/// step is made for every frame, and is small.
pub(super) enum Step {
    /// More bytes are needed.
    Starved,
    /// The next bytes belong into a slot, and none is on offer.
    NeedSlot,
    /// Something was consumed.
    Went,
    /// A ping, pong or close.
    Control(ControlKind),
    /// A text message.
    Text {
        /// It may be a control frame of the tunnel.
        readable: bool,
    },
    /// A data message lies complete in the slot, which is not on offer any more.
    Data(Complete),
    /// A data message had too much payload for a slot.
    TooLarge { epoch: Epoch, size: u64 },
    /// A data message was dropped.
    Dropped(DropKind),
}

/// A payload in its slot.
#[derive(Copy, Clone, Debug)]
pub(super) struct Complete {
    pub(super) epoch: Epoch,
    pub(super) length: u32,
    pub(super) moved: u32,
    pub(super) first_byte: Instant,
    pub(super) last_byte: Instant,
}

/// Where in the stream of bytes we are.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// No connection.
    Off,
    /// The answer to the upgrade.
    Answer,
    /// A frame's header; `Inbound::header[..header_have]` is there.
    Header,
    /// Payload of a control frame.
    Control(ControlKind),
    /// Payload of a data frame; `last`: of its message's last one.
    Data { last: bool },
}

/// The message that was begun.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Message {
    None,
    /// `readable`: a control frame so far.
    Text {
        readable: bool,
    },
    /// Binary, the tunnel's header incomplete; `fed` bytes of it are there.
    Head {
        fed: u32,
    },
    /// Binary; `filled` bytes of payload lie in the slot. `filled <= slot_bytes`.
    Payload {
        epoch: Epoch,
        filled: u32,
    },
    TooLarge {
        epoch: Epoch,
        size: u64,
    },
    Dropping(DropKind),
}

#[derive(Debug)]
pub(super) struct Inbound {
    pub(super) limits: Limits,
    pub(super) window: Window,
    /// The read that was handed out: place, offset, max.
    pub(super) reading: Option<(Place, u32, u32)>,
    pub(super) stage: Stage,
    pub(super) message: Message,
    /// A slot is on offer.
    pub(super) slot: bool,
    /// When the bytes in the window were received.
    pub(super) received_at: Instant,
    pub(super) header: [u8; MAX_HEADER],
    pub(super) header_have: usize,
    /// Bytes of the frame's payload that have not been consumed.
    pub(super) remaining: u64,
    pub(super) head: DataHead,
    pub(super) expect: Expect,
    /// Bytes of following messages that had to be moved out of a finished slot.
    pub(super) carried: u64,
    control: Short,
    assembler: Assembler,
    lexer: ControlLexer,
    utf8: Utf8,
    /// Of the message: size of its first header, bytes after the headers, payload bytes moved, first byte's time.
    first_header: u32,
    length: u64,
    moved: u32,
    pub(super) first_byte: Instant,
}

impl Inbound {
    pub(super) fn new(limits: Limits, now: Instant) -> Self {
        // Offsets are u32 and count from the start of the headroom.
        let limits = Limits { slot_bytes: limits.slot_bytes.min(u32::MAX - HEADROOM), ..limits };
        Self {
            limits,
            window: Window::EMPTY,
            reading: None,
            stage: Stage::Off,
            message: Message::None,
            slot: false,
            received_at: now,
            header: [0; MAX_HEADER],
            header_have: 0,
            remaining: 0,
            head: DataHead::new(),
            expect: Expect::UNKNOWN,
            carried: 0,
            control: Short::new(),
            assembler: assembler(limits),
            lexer: ControlLexer::new(),
            utf8: Utf8::new(),
            first_header: 0,
            length: 0,
            moved: 0,
            first_byte: now,
        }
    }

    /// Forgets the connection's bytes; an offered slot stays on offer, empty.
    pub(super) fn reset(&mut self, stage: Stage) {
        self.window = Window::EMPTY;
        self.reading = None;
        self.stage = stage;
        self.message = Message::None;
        self.header_have = 0;
        self.remaining = 0;
        self.assembler = assembler(self.limits);
    }

    /// The answer to the upgrade ends `consumed` bytes into the window; frames follow.
    pub(super) fn begin_frames(&mut self, consumed: u32) {
        self.window.skip(consumed);
        self.stage = Stage::Header;
    }

    /// Payload of the control frame that was told last.
    pub(super) fn take_control_payload(&mut self) -> Short {
        core::mem::take(&mut self.control)
    }

    /// The text message that was told last, if it is a control frame of the tunnel.
    pub(super) fn take_control(&mut self) -> Option<Control> {
        self.lexer.finish().ok()
    }

    /// Parses on. `session` is the one that is open.
    ///
    /// # Errors
    /// The connection has to be failed.
    pub(super) fn step(
        &mut self,
        memory: &mut impl Memory,
        session: Option<(&SessionId, Epoch)>,
    ) -> Result<Step, Violation> {
        match self.stage {
            Stage::Off | Stage::Answer => Ok(Step::Starved),
            Stage::Header => self.step_header(memory),
            Stage::Control(kind) => Ok(self.step_control(memory, kind)),
            Stage::Data { last } if self.remaining == 0 => self.end_of_frame(memory, last),
            Stage::Data { .. } => self.step_data(memory, session),
        }
    }

    fn step_header(&mut self, memory: &impl Memory) -> Result<Step, Violation> {
        if self.window.is_empty() {
            return Ok(Step::Starved);
        }
        if self.header_have == 0 && self.message == Message::None {
            self.first_byte = self.received_at;
        }
        let count = self.window.peek(memory, &mut self.header[self.header_have..]);
        let have = self.header_have + count;
        let (header, size) = match decode(&self.header[..have])? {
            Decoded::NeedMore => {
                self.window.skip(count as u32);
                self.header_have = have;
                return Ok(Step::Starved);
            }
            Decoded::Header { header, size } => (header, size),
        };
        self.window.skip(size.saturating_sub(self.header_have) as u32);
        self.header_have = 0;
        self.remaining = header.length;
        match self.assembler.handle_frame(&header)? {
            Part::Control(kind) => {
                self.control.clear();
                self.stage = Stage::Control(kind);
            }
            Part::Data { kind, first, last, .. } => {
                if first {
                    self.begin_message(kind, size as u32);
                }
                self.length = self.length.saturating_add(header.length);
                self.stage = Stage::Data { last };
                self.check_size();
            }
        }
        Ok(Step::Went)
    }

    fn begin_message(&mut self, kind: Kind, header: u32) {
        self.first_header = header;
        self.length = 0;
        self.moved = 0;
        self.message = match kind {
            Kind::Text => {
                self.lexer = ControlLexer::new();
                self.utf8 = Utf8::new();
                Message::Text { readable: true }
            }
            Kind::Binary => {
                self.head.reset();
                Message::Head { fed: 0 }
            }
        };
    }

    /// What the frame still brings has to fit into the slot; else the message is only counted.
    fn check_size(&mut self) {
        if let Message::Payload { epoch, filled } = self.message
            && u64::from(filled).saturating_add(self.remaining) > u64::from(self.limits.slot_bytes)
        {
            self.message = Message::TooLarge { epoch, size: u64::from(filled) };
        }
    }

    fn step_control(&mut self, memory: &impl Memory, kind: ControlKind) -> Step {
        let mut bytes = [0; 125];
        let wanted = bytes.len().min(self.remaining as usize);
        let count = self.window.peek(memory, &mut bytes[..wanted]);
        // The decoder refuses control frames of more than 125 bytes, so this fits.
        let _ = self.control.extend_from_slice(&bytes[..count]);
        self.consume(count);
        if self.remaining > 0 {
            return Step::Starved;
        }
        self.stage = Stage::Header;
        Step::Control(kind)
    }

    fn consume(&mut self, count: usize) {
        self.window.skip(count as u32);
        self.remaining = self.remaining.saturating_sub(count as u64);
    }

    /// How many bytes of the frame's payload lie in the window.
    fn present(&self) -> u32 {
        u32::try_from(self.remaining).unwrap_or(u32::MAX).min(self.window.len())
    }

    fn step_data(
        &mut self,
        memory: &mut impl Memory,
        session: Option<(&SessionId, Epoch)>,
    ) -> Result<Step, Violation> {
        if !self.slot && matches!(self.message, Message::Payload { .. }) {
            return Ok(Step::NeedSlot);
        }
        let present = self.present();
        if present == 0 {
            return Ok(Step::Starved);
        }
        match self.message {
            Message::Text { readable } => self.take_text(memory, readable)?,
            Message::Head { fed } => self.take_head(memory, fed, session),
            Message::Payload { epoch, filled } => {
                self.place(memory, HEADROOM + filled, present);
                self.message = Message::Payload { epoch, filled: filled + present };
            }
            Message::TooLarge { epoch, size } => {
                self.message = Message::TooLarge { epoch, size: size.saturating_add(u64::from(present)) };
                self.consume(present as usize);
            }
            Message::None | Message::Dropping(_) => self.consume(present as usize),
        }
        Ok(Step::Went)
    }

    fn take_text(&mut self, memory: &impl Memory, readable: bool) -> Result<(), Violation> {
        let mut bytes = [0; 256];
        let wanted = bytes.len().min(self.present() as usize);
        let count = self.window.peek(memory, &mut bytes[..wanted]);
        self.utf8.feed(&bytes[..count])?;
        let readable = readable && self.lexer.feed(&bytes[..count]).is_ok();
        self.message = Message::Text { readable };
        self.consume(count);
        Ok(())
    }

    fn take_head(&mut self, memory: &impl Memory, fed: u32, session: Option<(&SessionId, Epoch)>) {
        let mut bytes = [0; MAX_DATA_HEAD];
        let wanted = bytes.len().min(self.present() as usize);
        let count = self.window.peek(memory, &mut bytes[..wanted]);
        if fed == 0
            && let Some((id, epoch)) = session
            && let Some(length) = skip_data_head(&bytes[..count], id)
        {
            self.consume(length);
            self.message = Message::Payload { epoch, filled: 0 };
            return self.check_size();
        }
        match self.head.feed(&bytes[..count]) {
            Ok(Progress::NeedMore) => {
                self.consume(count);
                self.message = Message::Head { fed: fed + count as u32 };
            }
            Ok(Progress::Complete { consumed }) => {
                self.consume(consumed);
                self.message = match epoch_of(self.head.session().unwrap_or_default(), session) {
                    Some(epoch) => Message::Payload { epoch, filled: 0 },
                    None => Message::Dropping(DropKind::UnknownSession),
                };
                self.check_size();
            }
            Err(error) => self.message = Message::Dropping(error.into()),
        }
    }

    /// Sees to it that the next `count` bytes, payload, lie at `target` of the slot, and consumes them.
    fn place(&mut self, memory: &mut impl Memory, target: u32, count: u32) {
        let from = self.window;
        self.consume(count as usize);
        if from.place == Place::Slot && from.start == target {
            return;
        }
        if from.place == Place::Slot && from.start < target {
            // Moving up would run over what follows.
            self.carry(memory);
        }
        memory.relocate(from.place, from.start, Place::Slot, target, count);
        self.moved = self.moved.saturating_add(count);
    }

    /// Moves what is left of the window out of the slot.
    fn carry(&mut self, memory: &mut impl Memory) {
        let length = self.window.len();
        if self.window.place == Place::Slot && length > 0 {
            memory.relocate(Place::Slot, self.window.start, Place::Scratch, 0, length);
            self.carried = self.carried.saturating_add(u64::from(length));
            self.window = Window { place: Place::Scratch, start: 0, end: length };
        }
    }

    fn end_of_frame(&mut self, memory: &mut impl Memory, last: bool) -> Result<Step, Violation> {
        if !last {
            self.stage = Stage::Header;
            return Ok(Step::Went);
        }
        let step = match self.message {
            Message::None => Step::Went,
            Message::Text { readable } => {
                self.utf8.finish()?;
                Step::Text { readable }
            }
            Message::Head { .. } => {
                // A head that is complete has moved on to another state.
                let kind = self.head.finish().err().map_or(DropKind::TooShort, Into::into);
                Step::Dropped(kind)
            }
            Message::Payload { .. } if !self.slot => return Ok(Step::NeedSlot),
            Message::Payload { epoch, filled } => {
                self.carry(memory);
                self.slot = false;
                self.expect.learn(self.first_header, self.length);
                Step::Data(Complete {
                    epoch,
                    length: filled,
                    moved: self.moved,
                    first_byte: self.first_byte,
                    last_byte: self.received_at,
                })
            }
            Message::TooLarge { epoch, size } => Step::TooLarge { epoch, size },
            Message::Dropping(kind) => Step::Dropped(kind),
        };
        self.message = Message::None;
        self.stage = Stage::Header;
        Ok(step)
    }
}

fn assembler(limits: Limits) -> Assembler {
    Assembler::new(MessageLimits {
        text_bytes: u64::from(limits.text_bytes),
        // What is too long for a slot is discarded; it costs the connection nothing.
        binary_bytes: u64::MAX,
        fragments: limits.fragments,
    })
}

/// The epoch that a session id in a data frame stands for; the empty one is the warm-up round trip's (A.3).
fn epoch_of(id: &str, session: Option<(&SessionId, Epoch)>) -> Option<Epoch> {
    match session {
        Some((open, epoch)) if open.as_str() == id => Some(epoch),
        _ if id.is_empty() => Some(Epoch(0)),
        _ => None,
    }
}

impl From<DataError> for DropKind {
    fn from(error: DataError) -> Self {
        match error {
            DataError::TooShort { .. } => Self::TooShort,
            DataError::SessionIdTooLong { .. } => Self::SessionIdTooLong,
            DataError::SessionIdOverrun { .. } => Self::SessionIdOverrun,
            DataError::NotUtf8 => Self::SessionIdNotUtf8,
        }
    }
}
