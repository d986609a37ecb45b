//! An echo client made of the codec alone, over a blocking socket: how the parts of [`sidecar_core::ws`] are put
//! together by a caller who does the I/O. `receiver` is the way in, `connection` the rest.
//!
//! It plays the Autobahn test suite's cases against a fuzzing server, which judges each of them:
//!
//! ```text
//! cargo run --package sidecar-core --example echo -- 127.0.0.1:9001
//! ```
//!
//! `cargo xtask test --only conformance` does that with a server of its own and compares the verdicts with
//! `core/tests/autobahn/codec.txt`. This program judges nothing: it echoes, and says how far it is.

#![allow(missing_docs, reason = "a program has no readers of documentation")]

mod connection;
mod receiver;

use std::io;
use std::process::ExitCode;

use sidecar_core::ws::frame::Opcode;

use connection::Connection;
use receiver::Message;

/// The name that the server files the results under.
const AGENT: &str = "sidecar-core";

fn main() -> ExitCode {
    let Some(address) = std::env::args().nth(1) else {
        eprintln!("usage: echo HOST:PORT");
        return ExitCode::FAILURE;
    };
    match play(&address) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {address}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Every case of the server in turn; then has it write its report.
fn play(address: &str) -> io::Result<()> {
    let mut count = Connection::open(address, "/getCaseCount")?;
    let Some(Message::Text(number)) = count.next()? else {
        return Err(io::Error::other("the number of cases did not come"));
    };
    while count.next()?.is_some() {}
    let cases: u32 = number.parse().map_err(io::Error::other)?;
    for case in 1..=cases {
        // What becomes of the connection is the server's to judge.
        if let Err(error) = echo(address, &format!("/runCase?case={case}&agent={AGENT}")) {
            eprintln!("case {case} of {cases}: {error}");
        }
    }
    let mut report = Connection::open(address, &format!("/updateReports?agent={AGENT}"))?;
    while report.next()?.is_some() {}
    println!("{cases} cases played");
    Ok(())
}

/// Sends back what comes until the connection is over.
fn echo(address: &str, path_and_query: &str) -> io::Result<()> {
    let mut connection = Connection::open(address, path_and_query)?;
    while let Some(message) = connection.next()? {
        match message {
            Message::Text(text) => connection.send(Opcode::Text, text.as_bytes())?,
            Message::Binary(bytes) => connection.send(Opcode::Binary, &bytes)?,
            Message::Ping(payload) => connection.send(Opcode::Pong, &payload)?,
            // Asked for or not, a pong is answered with nothing; a close was answered where it was received.
            Message::Pong(_) | Message::Close(..) => {}
        }
    }
    Ok(())
}
