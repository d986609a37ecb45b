//! Faults on request: what can be asked for, how it is written, and which of it is still due.
//!
//! A fault with a step fires once, the first time that any case of the job comes to that step; a step that is asked
//! again after a cut is played without it.

use core::fmt;
use core::str::FromStr;

use thiserror::Error;

/// Why a text names no fault.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} is not {wanted}")]
pub struct FaultError {
    text: String,
    wanted: &'static str,
}

/// How the socket is cut at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutHow {
    /// The observation is sent whole, then the socket closed without a close frame (the agent sees an end of file).
    After,
    /// The socket is reset instead of sending the observation.
    Before,
    /// About half of the observation's frame is sent, then the socket reset.
    MidFrame,
}

/// `--cut-at STEP[:after|before|mid-frame]`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CutAt {
    /// Step within a case, from 0.
    pub step: u32,
    /// In which way.
    pub how: CutHow,
}

/// `--close-at STEP[:CODE]`: a close frame instead of the observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CloseAt {
    /// Step within a case, from 0.
    pub step: u32,
    /// Close code; 1001 (going away) unless said.
    pub code: u16,
}

/// `--refuse STATUS:N`: that status instead of an upgrade, for N dials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refuse {
    /// HTTP status, 400 to 599.
    pub status: u16,
    /// Dials that get it.
    pub dials: u32,
}

/// A frame that breaks RFC 6455 or the tunnel contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// A masked frame from the server (RFC 6455 section 5.1).
    Masked,
    /// A reserved bit without an extension (section 5.2).
    Rsv,
    /// A reserved opcode (section 5.2).
    Opcode,
    /// A 64-bit length with its highest bit set (section 5.2).
    Length,
    /// A data frame of 3 bytes (tunnel contract A.3).
    ShortData,
    /// A session id that runs past the end of the frame (A.3).
    SidOverrun,
    /// A control frame that is no JSON (A.2).
    Json,
}

/// `--malformed KIND[:STEP]`: such a frame in front of the observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MalformedAt {
    /// Step within a case, from 0; 10 unless said.
    pub step: u32,
    /// What is wrong with it.
    pub kind: Malformed,
}

/// Everything that shall go wrong at a step or a dial.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// Cuts.
    pub cut: Vec<CutAt>,
    /// Steps from which on the connection is silent in both directions.
    pub silent: Vec<u32>,
    /// Close frames.
    pub close: Vec<CloseAt>,
    /// Malformed frames.
    pub malformed: Vec<MalformedAt>,
    /// A step at which the job is drained in mid-session.
    pub drain: Option<u32>,
    /// Refusals of the first dials, in order.
    pub refuse: Vec<Refuse>,
    /// Upgrades that are closed at once, after the refusals.
    pub instant_close: u32,
}

/// A fault that is due at a step, in the order in which they fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepFault {
    Malformed(Malformed),
    Silent,
    Close(u16),
    Cut(CutHow),
    Drain,
}

impl Faults {
    /// Takes what is due at a step.
    pub(crate) fn take_step(&mut self, step: u32) -> Vec<StepFault> {
        let mut due = Vec::new();
        due.extend(
            self.malformed.extract_if(.., |at| at.step == step).map(|at| StepFault::Malformed(at.kind)),
        );
        due.extend(self.silent.extract_if(.., |at| *at == step).map(|_| StepFault::Silent));
        due.extend(self.close.extract_if(.., |at| at.step == step).map(|at| StepFault::Close(at.code)));
        due.extend(self.cut.extract_if(.., |at| at.step == step).map(|at| StepFault::Cut(at.how)));
        due.extend(self.drain.take_if(|at| *at == step).map(|_| StepFault::Drain));
        due
    }

    /// Takes the status that the next dial shall be refused with.
    pub(crate) fn take_refusal(&mut self) -> Option<u16> {
        let first = self.refuse.iter_mut().find(|refuse| refuse.dials > 0)?;
        first.dials -= 1;
        Some(first.status)
    }

    /// Whether the next upgrade shall be closed at once; counts it.
    pub(crate) fn take_instant_close(&mut self) -> bool {
        let due = self.instant_close > 0;
        self.instant_close = self.instant_close.saturating_sub(1);
        due
    }

    /// Faults with a step that have not fired.
    pub(crate) fn left(&self) -> usize {
        self.malformed.len()
            + self.silent.len()
            + self.close.len()
            + self.cut.len()
            + usize::from(self.drain.is_some())
    }
}

impl fmt::Display for CutHow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::After => "cut after the observation",
            Self::Before => "cut before the observation",
            Self::MidFrame => "cut in mid-frame",
        })
    }
}

/// The text in front of the colon and behind it.
fn parts(text: &str) -> (&str, Option<&str>) {
    text.split_once(':').map_or((text, None), |(before, after)| (before, Some(after)))
}

impl FromStr for CutAt {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let refused = || FaultError {
            text: text.to_owned(),
            wanted: "STEP, STEP:after, STEP:before or STEP:mid-frame",
        };
        let (step, how) = parts(text);
        let how = match how {
            None | Some("after") => CutHow::After,
            Some("before") => CutHow::Before,
            Some("mid-frame") => CutHow::MidFrame,
            Some(_) => return Err(refused()),
        };
        Ok(Self { step: step.parse().map_err(|_| refused())?, how })
    }
}

impl FromStr for CloseAt {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let refused = || FaultError {
            text: text.to_owned(),
            wanted: "STEP or STEP:CODE with a close code of 1000 to 4999",
        };
        let (step, code) = parts(text);
        let code = code.map_or(Ok(1001), str::parse).map_err(|_| refused())?;
        if !(1000..5000).contains(&code) {
            return Err(refused());
        }
        Ok(Self { step: step.parse().map_err(|_| refused())?, code })
    }
}

impl FromStr for Refuse {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let refused = || FaultError { text: text.to_owned(), wanted: "STATUS:N with a status of 400 to 599" };
        let (status, dials) = text.split_once(':').ok_or_else(refused)?;
        let status = status.parse().ok().filter(|status| (400..600).contains(status)).ok_or_else(refused)?;
        Ok(Self { status, dials: dials.parse().map_err(|_| refused())? })
    }
}

impl FromStr for MalformedAt {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let refused = || FaultError {
            text: text.to_owned(),
            wanted: "KIND or KIND:STEP with masked, rsv, opcode, length, short-data, sid-overrun or json as kind",
        };
        let (kind, step) = parts(text);
        let kind = match kind {
            "masked" => Malformed::Masked,
            "rsv" => Malformed::Rsv,
            "opcode" => Malformed::Opcode,
            "length" => Malformed::Length,
            "short-data" => Malformed::ShortData,
            "sid-overrun" => Malformed::SidOverrun,
            "json" => Malformed::Json,
            _ => return Err(refused()),
        };
        Ok(Self { kind, step: step.map_or(Ok(10), str::parse).map_err(|_| refused())? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_as_they_are_documented() {
        assert_eq!("40".parse(), Ok(CutAt { step: 40, how: CutHow::After }));
        assert_eq!("40:before".parse(), Ok(CutAt { step: 40, how: CutHow::Before }));
        assert_eq!("0:mid-frame".parse(), Ok(CutAt { step: 0, how: CutHow::MidFrame }));
        assert_eq!("7".parse(), Ok(CloseAt { step: 7, code: 1001 }));
        assert_eq!("7:1011".parse(), Ok(CloseAt { step: 7, code: 1011 }));
        assert_eq!("500:3".parse(), Ok(Refuse { status: 500, dials: 3 }));
        assert_eq!("rsv".parse(), Ok(MalformedAt { kind: Malformed::Rsv, step: 10 }));
        assert_eq!("json:2".parse(), Ok(MalformedAt { kind: Malformed::Json, step: 2 }));
    }

    #[test]
    fn what_is_no_fault_is_refused_with_its_text() {
        let messages = [
            "x".parse::<CutAt>().unwrap_err(),
            "4:later".parse::<CutAt>().unwrap_err(),
            "4:999".parse::<CloseAt>().unwrap_err(),
            "500".parse::<Refuse>().unwrap_err(),
            "200:1".parse::<Refuse>().unwrap_err(),
            "odd".parse::<MalformedAt>().unwrap_err(),
            "rsv:x".parse::<MalformedAt>().unwrap_err(),
        ];
        for error in messages {
            assert!(error.to_string().contains(&format!("{:?}", error.text)), "{error}");
        }
    }

    #[test]
    fn each_fault_fires_once_and_in_order() {
        let mut faults = Faults {
            cut: vec!["5".parse().unwrap(), "6:before".parse().unwrap()],
            malformed: vec!["rsv:5".parse().unwrap()],
            silent: vec![9],
            refuse: vec!["500:2".parse().unwrap(), "429:1".parse().unwrap()],
            instant_close: 1,
            ..Faults::default()
        };
        assert_eq!(faults.left(), 4);
        let due = [StepFault::Malformed(Malformed::Rsv), StepFault::Cut(CutHow::After)];
        assert_eq!(faults.take_step(5), due);
        assert_eq!(faults.take_step(5), []);
        assert_eq!(faults.left(), 2);
        let refusals: Vec<_> = core::iter::from_fn(|| faults.take_refusal()).collect();
        assert_eq!(refusals, [500, 500, 429]);
        assert!(faults.take_instant_close());
        assert!(!faults.take_instant_close());
    }
}
