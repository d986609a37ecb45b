//! The gateway's own contract on top of WebSocket: control frames (tunnel contract A.2), data frames (A.3)
//! and the identifiers that both carry. What the frames *mean* is [`crate::agent`]'s business.

pub mod control;
pub mod data;
mod ids;

pub use ids::{
    AgentId, Epoch, IdError, JobId, MAX_AGENT_ID, MAX_JOB_ID, MAX_REASON, MAX_SESSION_ID, MAX_TYPE, Reason,
    SessionId, clip,
};
