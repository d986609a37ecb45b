//! The streaming reader of one control frame.
//!
//! One state and a stack of bits follow the JSON grammar (RFC 8259) byte by byte. Of all that passes, three
//! strings directly in the outermost object are kept: `type`, `session_id`, `reason`. Fields may come in any
//! order; of fields that come twice the last one counts, as in the gateway's own reader. A `reason` that is
//! no string counts as none, and so does a `session_id` where none is needed: the contract ignores it there.

use super::super::{MAX_REASON, MAX_SESSION_ID, MAX_TYPE, SessionId, clip};
use super::number::Number;
use super::text::{Kept, Step, Unescape};
use super::{Control, ControlError};
use crate::ws::utf8::Utf8;

/// Deepest nesting of objects and arrays, the outermost object included.
pub const MAX_DEPTH: u32 = 32;

/// Longer than any name of a field that matters.
const KEY_SIZE: usize = 16;

#[derive(Copy, Clone, Debug)]
enum State {
    /// Before the outermost object.
    Start,
    /// After `{`: a key or the end.
    FirstKey,
    /// After a comma in an object.
    NextKey,
    Key(Unescape),
    Colon,
    /// After `[`: a value or the end.
    FirstItem,
    /// A value has to follow.
    Value,
    String(Unescape),
    Number(Number),
    /// What has to follow of `true`, `false` or `null`.
    Literal(&'static [u8]),
    /// After a value: a comma or the container's end; outside the outermost object only space.
    AfterValue,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Field {
    Type,
    Session,
    Reason,
    Other,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Container {
    Object,
    Array,
}

/// A field that is wanted, if its last value was a string.
#[derive(Clone, Debug)]
struct Wanted<const N: usize> {
    text: Kept<N>,
    given: bool,
}

impl<const N: usize> Wanted<N> {
    const fn new() -> Self {
        Self { text: Kept::new(), given: false }
    }

    fn begin(&mut self, given: bool) {
        self.text.clear();
        self.given = given;
    }

    fn get(&self) -> Option<&str> {
        self.given.then(|| self.text.as_str())
    }
}

/// Reads one control frame after the other, each in as many pieces as it comes in.
#[derive(Clone, Debug)]
pub struct ControlLexer {
    state: State,
    utf8: Utf8,
    /// Containers around the present place; `depth <= MAX_DEPTH`.
    depth: u32,
    /// Bit `depth - 1` is the innermost container: 1 for an object.
    objects: u32,
    key: Kept<KEY_SIZE>,
    field: Field,
    kind: Wanted<MAX_TYPE>,
    session: Wanted<MAX_SESSION_ID>,
    reason: Wanted<MAX_REASON>,
    /// Bytes before the present one.
    position: u64,
    failed: Option<ControlError>,
}

impl ControlLexer {
    /// A lexer at the start of a frame.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            state: State::Start,
            utf8: Utf8::new(),
            depth: 0,
            objects: 0,
            key: Kept::new(),
            field: Field::Other,
            kind: Wanted::new(),
            session: Wanted::new(),
            reason: Wanted::new(),
            position: 0,
            failed: None,
        }
    }

    /// Takes the next bytes of the frame.
    ///
    /// # Errors
    /// As soon as the frame cannot become a control frame; from then on always. Bytes are still checked to
    /// be UTF-8 after it is known that they are no JSON, since that alone ends the connection.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), ControlError> {
        if self.failed != Some(ControlError::NotUtf8) && self.utf8.feed(bytes).is_err() {
            self.failed = Some(ControlError::NotUtf8);
        }
        for byte in bytes {
            if let Some(error) = self.failed {
                return Err(error);
            }
            self.failed = self.take(*byte).err();
            self.position += 1;
        }
        self.failed.map_or(Ok(()), Err)
    }

    /// Says what the frame was, and starts over for the next one.
    ///
    /// # Errors
    /// If it was no control frame.
    pub fn finish(&mut self) -> Result<Control, ControlError> {
        let control = self.control();
        *self = Self::new();
        control
    }

    fn control(&self) -> Result<Control, ControlError> {
        match self.failed {
            Some(error @ ControlError::NotUtf8) => return Err(error),
            // A message that ends within a character is no text, whatever else it is not.
            _ if self.utf8.finish().is_err() => return Err(ControlError::NotUtf8),
            Some(error) => return Err(error),
            None if self.depth > 0 || !matches!(self.state, State::AfterValue) => {
                return Err(ControlError::Unfinished);
            }
            None => {}
        }
        let reason = clip(self.reason.get().unwrap_or_default());
        Ok(match self.kind.get().ok_or(ControlError::NoType)? {
            "warmup" => Control::Warmup,
            "ready" => Control::Ready,
            "queued" => Control::Queued { reason },
            "session_open" => Control::SessionOpen { session: self.session_id()? },
            "session_close" => Control::SessionClose { session: self.session_id()?, reason },
            "drain" => Control::Drain { reason },
            unknown => Control::Unknown { kind: clip(unknown) },
        })
    }

    fn session_id(&self) -> Result<SessionId, ControlError> {
        let text = self.session.get().filter(|text| !text.is_empty()).ok_or(ControlError::NoSession)?;
        if self.session.text.is_cut() {
            return Err(ControlError::SessionTooLong);
        }
        SessionId::new(text).map_err(|_| ControlError::SessionTooLong)
    }

    fn take(&mut self, byte: u8) -> Result<(), ControlError> {
        let is_space = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        match self.state {
            State::Key(unescape) => return self.take_key(unescape, byte),
            State::String(unescape) => return self.take_string(unescape, byte),
            State::Literal([next, rest @ ..]) if *next == byte => {
                self.state = if rest.is_empty() { State::AfterValue } else { State::Literal(rest) };
            }
            State::Literal(_) => return Err(self.unexpected(byte)),
            State::Number(number) => {
                if let Some(next) = number.next(byte) {
                    self.state = State::Number(next);
                } else if number.may_end() {
                    self.state = State::AfterValue;
                    return self.take(byte);
                } else {
                    return Err(self.unexpected(byte));
                }
            }
            _ if is_space => {}
            State::Start if byte == b'{' => self.open(Container::Object)?,
            State::Start => return Err(ControlError::NotAnObject),
            State::FirstKey if byte == b'}' => self.close(Container::Object),
            State::FirstKey | State::NextKey if byte == b'"' => {
                self.key.clear();
                self.state = State::Key(Unescape::new());
            }
            State::Colon if byte == b':' => self.state = State::Value,
            State::FirstItem if byte == b']' => self.close(Container::Array),
            State::FirstItem | State::Value => self.begin_value(byte)?,
            State::AfterValue => self.take_after_value(byte)?,
            State::FirstKey | State::NextKey | State::Colon => return Err(self.unexpected(byte)),
        }
        Ok(())
    }

    fn begin_value(&mut self, byte: u8) -> Result<(), ControlError> {
        self.begin_wanted(byte == b'"');
        match byte {
            b'{' => self.open(Container::Object)?,
            b'[' => self.open(Container::Array)?,
            b'"' => self.state = State::String(Unescape::new()),
            b't' => self.state = State::Literal(b"rue"),
            b'f' => self.state = State::Literal(b"alse"),
            b'n' => self.state = State::Literal(b"ull"),
            _ => {
                self.state = State::Number(Number::begin(byte).ok_or_else(|| self.unexpected(byte))?);
            }
        }
        Ok(())
    }

    fn take_after_value(&mut self, byte: u8) -> Result<(), ControlError> {
        match (self.innermost(), byte) {
            (Some(Container::Object), b',') => self.state = State::NextKey,
            (Some(Container::Array), b',') => self.state = State::Value,
            (Some(Container::Object), b'}') => self.close(Container::Object),
            (Some(Container::Array), b']') => self.close(Container::Array),
            _ => return Err(self.unexpected(byte)),
        }
        Ok(())
    }

    fn take_key(&mut self, mut unescape: Unescape, byte: u8) -> Result<(), ControlError> {
        let step = unescape.feed(byte, |bytes| self.key.push(bytes)).map_err(|_| self.unexpected(byte))?;
        self.state = match step {
            Step::Within => State::Key(unescape),
            Step::End => {
                self.field = match self.key.as_str() {
                    _ if self.key.is_cut() => Field::Other,
                    "type" => Field::Type,
                    "session_id" => Field::Session,
                    "reason" => Field::Reason,
                    _ => Field::Other,
                };
                State::Colon
            }
        };
        Ok(())
    }

    fn take_string(&mut self, mut unescape: Unescape, byte: u8) -> Result<(), ControlError> {
        let field = self.wanted();
        let keep = |bytes: &[u8]| match field {
            Field::Type => self.kind.text.push(bytes),
            Field::Session => self.session.text.push(bytes),
            Field::Reason => self.reason.text.push(bytes),
            Field::Other => {}
        };
        let step = unescape.feed(byte, keep).map_err(|_| self.unexpected(byte))?;
        self.state = match step {
            Step::Within => State::String(unescape),
            Step::End => State::AfterValue,
        };
        Ok(())
    }

    /// The field whose value stands directly in the outermost object, if that is where we are.
    const fn wanted(&self) -> Field {
        if self.depth == 1 { self.field } else { Field::Other }
    }

    fn begin_wanted(&mut self, given: bool) {
        match self.wanted() {
            Field::Type => self.kind.begin(given),
            Field::Session => self.session.begin(given),
            Field::Reason => self.reason.begin(given),
            Field::Other => {}
        }
    }

    const fn innermost(&self) -> Option<Container> {
        match self.depth {
            0 => None,
            depth if self.objects >> (depth - 1) & 1 == 1 => Some(Container::Object),
            _ => Some(Container::Array),
        }
    }

    fn open(&mut self, container: Container) -> Result<(), ControlError> {
        if self.depth == MAX_DEPTH {
            return Err(ControlError::TooDeep);
        }
        let bit = 1 << self.depth;
        self.depth += 1;
        match container {
            Container::Object => {
                self.objects |= bit;
                self.state = State::FirstKey;
            }
            Container::Array => {
                self.objects &= !bit;
                self.state = State::FirstItem;
            }
        }
        Ok(())
    }

    /// Leaves the innermost container, which the caller has found to be this one.
    fn close(&mut self, container: Container) {
        debug_assert_eq!(self.innermost(), Some(container));
        self.depth -= 1;
        self.state = State::AfterValue;
    }

    const fn unexpected(&self, byte: u8) -> ControlError {
        ControlError::Unexpected { byte, position: self.position }
    }
}

impl Default for ControlLexer {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
