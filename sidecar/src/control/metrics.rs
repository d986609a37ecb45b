//! `--metrics ADDR`: the statistics page over HTTP, in Prometheus' text format.
//!
//! It reads the region like any outsider would, so that a scrape cannot touch the frame loop.

use core::convert::Infallible;
use core::fmt::Write;
use core::net::SocketAddr;
use core::time::Duration;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use sidecar_shm::stats::{Counter, Gauge, Snapshot, Stage, Stats};
use tokio::sync::Semaphore;

/// So many scrapers at once; more wait. Whoever can reach the port must not be able to take the descriptors that a
/// redial needs.
const CONNECTIONS: usize = 8;
/// How long one may stay: far longer than a scrape takes.
const CONNECTION: Duration = Duration::from_secs(2);

/// Serves until the control thread ends. A port that is taken is reported and the run goes on without metrics.
pub(super) async fn serve(address: SocketAddr, shm: PathBuf) {
    let listener = match tokio::net::TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) => {
            return tracing::error!(%address, %error, "--metrics: cannot listen there; going on without");
        }
    };
    if let Ok(address) = listener.local_addr() {
        tracing::info!(%address, "metrics are served at /metrics");
    }
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // Never closed.
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let shm = shm.clone();
                tokio::task::spawn_local(async move {
                    let service = service_fn(|request| answer(request, &shm));
                    let served = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service);
                    // A scraper that goes away in the middle, or takes too long, is its own affair.
                    let _ = tokio::time::timeout(CONNECTION, served).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "--metrics: a connection was not accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn answer(request: Request<Incoming>, shm: &Path) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, body) = match request.uri().path() {
        "/metrics" => match Stats::open_read_only(shm) {
            Ok(snapshot) => (StatusCode::OK, render(&snapshot)),
            Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
        },
        _ => (StatusCode::NOT_FOUND, "see /metrics\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4"));
    Ok(response)
}

fn render(snapshot: &Snapshot) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    for &counter in Counter::ALL {
        let (name, value) = (counter.name(), snapshot.counter(counter));
        let _ = writeln!(out, "# TYPE sidecar_{name}_total counter\nsidecar_{name}_total {value}");
    }
    for &gauge in Gauge::ALL {
        let (name, value) = (gauge.name(), snapshot.gauge(gauge));
        let _ = writeln!(out, "# TYPE sidecar_{name} gauge\nsidecar_{name} {value}");
    }
    let _ = writeln!(out, "# TYPE sidecar_latency_seconds summary");
    for &stage in Stage::ALL {
        let figures = snapshot.stage(stage);
        let stage = stage.name();
        for (quantile, value) in [("0.5", figures.p50), ("0.9", figures.p90), ("0.99", figures.p99)] {
            let seconds = value.as_secs_f64();
            let _ = writeln!(
                out,
                "sidecar_latency_seconds{{stage=\"{stage}\",quantile=\"{quantile}\"}} {seconds}"
            );
        }
        let sum = figures.mean.as_secs_f64() * figures.count as f64;
        let _ = writeln!(out, "sidecar_latency_seconds_sum{{stage=\"{stage}\"}} {sum}");
        let _ = writeln!(out, "sidecar_latency_seconds_count{{stage=\"{stage}\"}} {}", figures.count);
    }
    let distinct = snapshot.errors.len();
    let _ = writeln!(out, "# TYPE sidecar_distinct_errors gauge\nsidecar_distinct_errors {distinct}");
    out
}
