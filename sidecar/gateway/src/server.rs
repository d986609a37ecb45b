//! The HTTP side: who is let in, and the upgrade (tunnel contract A.1).

use core::convert::Infallible;
use std::sync::Arc;

use fastwebsockets::upgrade::{is_upgrade_request, upgrade};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::header::AUTHORIZATION;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::job::{Admission, Job, Ticket};
use crate::link::{Link, let_go};
use crate::report::GatewayEvent;
use crate::tunnel;
use crate::wire::{Tail, Wire};

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
    let wire = TokioIo::new(Wire::new(stream, tail.clone()));
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
    let parameter = |name: &str| {
        let value = query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name);
        value.map(|(_, value)| value.to_owned()).unwrap_or_default()
    };
    let (wanted, agent) = (parameter("job"), parameter("agent"));
    let bearer = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| value.strip_prefix("Bearer ")).map(ToOwned::to_owned);
    if !is_upgrade_request(&request) {
        return refuse(job, 400, "no WebSocket upgrade was asked for");
    }
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
    match upgrade(&mut request) {
        Ok((response, upgraded)) => {
            tokio::spawn(hand_over(upgraded, ticket, Arc::clone(job)));
            response
        }
        Err(error) => {
            if let Some(ticket) = ticket {
                job.disconnected(&ticket.agent);
            }
            tracing::warn!(%error, "a bad upgrade request");
            refuse(job, 400, "a bad upgrade request")
        }
    }
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
        socket.downcast::<TokioIo<Wire<TcpStream>>>().expect("every connection is served over a wire");
    let stream = parts.io.into_inner().into_inner();
    match ticket {
        None => let_go(stream).await,
        Some(Ticket { agent, tunnel }) => {
            let link = Link::start(stream, parts.read_buf, &job.options);
            if tunnel.send(link).is_err() {
                // The tunnel ended in this moment; its window had passed.
                job.disconnected(&agent);
            }
        }
    }
}
