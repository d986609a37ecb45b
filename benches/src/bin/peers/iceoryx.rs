//! A ping-pong over iceoryx2 between two processes, both polling: the other side of the hop through shared memory.
//!
//! `ping` prints one line of JSON: nanoseconds there and back, a number for each batch of trips.

use core::time::Duration;

use iceoryx2::port::client::Client;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::server::Server;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;
use sidecar_benches::batches::{self, Batches};

use crate::Failure;

/// `sidecar-bench-peers iceoryx`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which end
    end: End,
    /// By what
    #[arg(long)]
    pattern: Pattern,
    /// Of this run alone
    #[arg(long)]
    service: String,
    /// Payload on the way there; the way back has 64 bytes
    #[arg(long)]
    bytes: usize,
    /// Write the payload on this side and read it on the other, or leave it alone
    #[arg(long)]
    touch: bool,
    /// Trips in a batch
    #[arg(long, default_value_t = 64)]
    trips: u32,
    /// Batches
    #[arg(long, default_value_t = 200)]
    batches: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum End {
    Ping,
    Pong,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Pattern {
    PublishSubscribe,
    RequestResponse,
}

type Service = ipc::Service;
/// What comes back.
type Reply = [u8; 64];

/// The other end may be still starting.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    set_log_level(LogLevel::Fatal);
    let node = NodeBuilder::new().create::<Service>()?;
    match args.pattern {
        Pattern::PublishSubscribe => {
            let forth = format!("{}-forth", args.service);
            let back = format!("{}-back", args.service);
            let forth = node
                .service_builder(&forth.as_str().try_into()?)
                .publish_subscribe::<[u8]>()
                .max_publishers(1)
                .max_subscribers(1)
                .open_or_create()?;
            let back = node
                .service_builder(&back.as_str().try_into()?)
                .publish_subscribe::<Reply>()
                .max_publishers(1)
                .max_subscribers(1)
                .open_or_create()?;
            match args.end {
                End::Ping => {
                    let publisher = forth.publisher_builder().initial_max_slice_len(args.bytes).create()?;
                    let subscriber = back.subscriber_builder().create()?;
                    ping(args, |patience| publish_ping(args, &publisher, &subscriber, patience))
                }
                End::Pong => {
                    let publisher = back.publisher_builder().create()?;
                    let subscriber = forth.subscriber_builder().create()?;
                    loop {
                        publish_pong(args, &publisher, &subscriber)?;
                    }
                }
            }
        }
        Pattern::RequestResponse => {
            let service = node
                .service_builder(&args.service.as_str().try_into()?)
                .request_response::<[u8], Reply>()
                .max_clients(1)
                .max_servers(1)
                .open_or_create()?;
            match args.end {
                End::Ping => {
                    let client = service.client_builder().initial_max_slice_len(args.bytes).create()?;
                    ping(args, |patience| request_ping(args, &client, patience))
                }
                End::Pong => {
                    let server = service.server_builder().create()?;
                    loop {
                        request_pong(args, &server)?;
                    }
                }
            }
        }
    }
}

fn ping(args: &Args, mut trip: impl FnMut(Duration) -> Result<bool, Failure>) -> Result<(), Failure> {
    // Until the other end is there nothing comes back.
    let started = sidecar_shm::clock::now();
    while !trip(LOOK_AGAIN)? {
        if sidecar_shm::clock::now().since(started) > PATIENCE {
            return Err("the other end did not come".into());
        }
    }
    let plan = Batches { trips: args.trips, batches: args.batches };
    let nanos = plan.run(|| match trip(PATIENCE) {
        Ok(true) => Ok(()),
        Ok(false) => Err("a trip was lost".to_owned()),
        Err(error) => Err(error.to_string()),
    })?;
    println!("{}", batches::to_line(&nanos));
    Ok(())
}

/// Before the other end is there a trip is given up after this, and another one made.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

fn poll<T>(
    patience: Duration,
    mut look: impl FnMut() -> Result<Option<T>, Failure>,
) -> Result<Option<T>, Failure> {
    let started = sidecar_shm::clock::now();
    loop {
        for _ in 0..4096 {
            if let Some(found) = look()? {
                return Ok(Some(found));
            }
            core::hint::spin_loop();
        }
        if sidecar_shm::clock::now().since(started) > patience {
            return Ok(None);
        }
    }
}

fn publish_ping(
    args: &Args,
    publisher: &Publisher<Service, [u8], ()>,
    subscriber: &Subscriber<Service, Reply, ()>,
    patience: Duration,
) -> Result<bool, Failure> {
    let mut sample = publisher.loan_slice_uninit(args.bytes)?;
    batches::write_if(args.touch, sample.payload_mut());
    // SAFETY: bytes of any value are bytes; untouched ones hold what the shared memory held before.
    unsafe { sample.assume_init() }.send()?;
    Ok(poll(patience, || Ok(subscriber.receive()?))?.is_some())
}

fn publish_pong(
    args: &Args,
    publisher: &Publisher<Service, Reply, ()>,
    subscriber: &Subscriber<Service, [u8], ()>,
) -> Result<(), Failure> {
    let Some(sample) = poll(LOOK_AGAIN, || Ok(subscriber.receive()?))? else { return Ok(()) };
    let seen = batches::read_if(args.touch, sample.payload());
    let mut reply = [0; 64];
    reply[..8].copy_from_slice(&seen.to_le_bytes());
    publisher.loan_uninit()?.write_payload(reply).send()?;
    Ok(())
}

fn request_ping(
    args: &Args,
    client: &Client<Service, [u8], (), Reply, ()>,
    patience: Duration,
) -> Result<bool, Failure> {
    let mut request = client.loan_slice_uninit(args.bytes)?;
    batches::write_if(args.touch, request.payload_mut());
    // SAFETY: as in `publish_ping`.
    let pending = unsafe { request.assume_init() }.send()?;
    Ok(poll(patience, || Ok(pending.receive()?))?.is_some())
}

fn request_pong(args: &Args, server: &Server<Service, [u8], (), Reply, ()>) -> Result<(), Failure> {
    let Some(request) = poll(LOOK_AGAIN, || Ok(server.receive()?))? else { return Ok(()) };
    let seen = batches::read_if(args.touch, request.payload());
    let mut reply = [0; 64];
    reply[..8].copy_from_slice(&seen.to_le_bytes());
    request.loan_uninit()?.write_payload(reply).send()?;
    Ok(())
}
