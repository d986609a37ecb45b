//! The whole client: dial, phases, sessions, heartbeat, reconnect, drain.

mod config;
mod event;
mod place;

pub use config::{Config, Endpoint, Limits, MAX_HOST, MAX_PATH, Resume, Timers};
pub use event::{
    CloseBy, DialFailure, Disconnect, DropKind, End, Event, HangUp, Kind, Notice, Outcome, Refused, Shutdown,
    Violation,
};
pub use place::{HEADROOM, Memory, Place, Read};
