//! The HTTP side: who is let in, and the upgrade (tunnel contract A.1).

use core::convert::Infallible;
use std::sync::Arc;

use fastwebsockets::upgrade::{is_upgrade_request, upgrade};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, SEC_WEBSOCKET_KEY};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::job::{Admission, Job, Ticket};
use crate::link::{Link, let_go};
use crate::report::GatewayEvent;
use crate::tunnel;
use crate::wire::{Paced, Tail, Wire};

/// A close frame: 1013 (try again later), and why.
fn close_frame(why: &str) -> Vec<u8> {
    // Control frames hold at most 125 bytes (RFC 6455 section 5.5).
    let reason = &why.as_bytes()[..why.len().min(123)];
    let mut frame = vec![0x88, (reason.len() + 2) as u8];
    frame.extend_from_slice(&1013_u16.to_be_bytes());
    frame.extend_from_slice(reason);
    frame
}

/// Serves one TCP connection.
pub(crate) async fn serve(stream: TcpStream, job: Arc<Job>) {
    // Lockstep traffic; without the option observations would wait for acknowledgements.
    let _ = stream.set_nodelay(true);
    let tail = Tail::default();
    let paced = Paced { inner: stream, pace: job.options.framing.pace() };
    let wire = TokioIo::new(Wire::new(paced, tail.clone()));
    let service = service_fn(|request| {
        let response = answer(request, &job, &tail);
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .title_case_headers(true)
        .serve_connection(wire, service)
        .with_upgrades();
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a dial came to nothing");
    }
}

fn answer(mut request: Request<Incoming>, job: &Arc<Job>, tail: &Tail) -> Response<Empty<Bytes>> {
    let query = request.uri().query().unwrap_or_default();
    let (wanted, agent) = (parameter(query, "job"), parameter(query, "agent"));
    let bearer = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| value.strip_prefix("Bearer ")).map(ToOwned::to_owned);
    // Sixteen bytes in base64 (RFC 6455 section 4.2.1).
    let keyed = request.headers().get(SEC_WEBSOCKET_KEY).is_some_and(|key| key.len() == 24);
    if !is_upgrade_request(&request) || request.method() != Method::GET || !keyed {
        return refuse(job, 400, "no WebSocket upgrade was asked for");
    }
    let Ok((response, upgraded)) = upgrade(&mut request) else {
        return refuse(job, 400, "the WebSocket version is not 13");
    };
    let admission =
        job.admit(&wanted, &agent, bearer.as_deref(), || tunnel::start(Arc::clone(job), agent.clone()));
    let ticket = match admission {
        Admission::Refuse(status, why) => return refuse(job, status, why),
        Admission::CloseAtOnce(why) => {
            job.tell(GatewayEvent::Refused { status: 101, why: why.to_owned() });
            tail.set(close_frame(why));
            None
        }
        Admission::Welcome(ticket) => Some(ticket),
    };
    tokio::spawn(hand_over(upgraded, ticket, Arc::clone(job)));
    response
}

/// The value of a query parameter with its percent-encoding undone; empty if there is none.
fn parameter(query: &str, name: &str) -> String {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name).and_then(|(_, value)| decoded(value)).unwrap_or_default()
}

fn decoded(value: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, behind) = rest.split_first_chunk::<2>()?;
        let [high, low] = digits.map(|digit| char::from(digit).to_digit(16));
        bytes.push(u8::try_from(high? * 16 + low?).ok()?);
        rest = behind;
    }
    String::from_utf8(bytes).ok()
}

fn refuse(job: &Job, status: u16, why: &str) -> Response<Empty<Bytes>> {
    job.tell(GatewayEvent::Refused { status, why: why.to_owned() });
    let mut response = Response::new(Empty::new());
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

/// Takes the socket back from hyper and gives it to its tunnel; without a ticket the close frame has left already.
async fn hand_over(upgraded: fastwebsockets::upgrade::UpgradeFut, ticket: Option<Ticket>, job: Arc<Job>) {
    let socket = match upgraded.await {
        Ok(socket) => socket.into_inner().into_inner(),
        Err(error) => {
            tracing::debug!(%error, "an upgrade was not taken up");
            return ticket.iter().for_each(|ticket| job.disconnected(&ticket.agent));
        }
    };
    let parts =
        socket.downcast::<TokioIo<Wire<Paced<TcpStream>>>>().expect("every connection is served over a wire");
    let mut stream = parts.io.into_inner().into_inner().inner;
    match ticket {
        None => {
            // It may be gone by itself.
            let _ = stream.shutdown().await;
            let_go(stream).await;
        }
        Some(Ticket { agent, tunnel }) => {
            let link = Link::start(stream, parts.read_buf, &job.options);
            if tunnel.send(link).is_err() {
                // The tunnel ended in this moment; its window had passed.
                job.disconnected(&agent);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_parameters_are_found_and_decoded() {
        assert_eq!(parameter("job=a&agent=b-1", "agent"), "b-1");
        assert_eq!(parameter("x=1&job=%61%2Fb", "job"), "a/b");
        for query in ["", "agent=b", "job", "job=", "job=%6", "job=%zz", "job=%ff"] {
            assert_eq!(parameter(query, "job"), "", "{query}");
        }
    }
}
