//! RFC 6455 from the client's side, in parts that do not know each other: the opening handshake
//! ([`handshake`]), one frame's header ([`frame`]), the mask ([`mask`]), how frames make messages
//! ([`message`]), how a connection ends ([`close`]), text ([`utf8`]).
//!
//! No part holds a payload. What a peer can do wrong is gathered in [`Violation`], which knows the close
//! code that the peer is owed.

pub mod close;
pub mod frame;
pub mod handshake;
pub mod mask;
pub mod message;
pub mod utf8;
mod violation;

pub use violation::Violation;
