//! Access control: the API key, and the host name that a browser asks for.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::Server;
use super::errors::{Failure, FailureKind, Protocol};

/// An API key, kept as its SHA-256. Has no text form, so that it cannot be logged.
pub(super) struct ApiKey([u8; 32]);

impl ApiKey {
    pub(super) fn new(key: &str) -> Self {
        Self(Sha256::digest(key.as_bytes()).into())
    }

    /// Compares in constant time. Hashes make the lengths equal.
    fn matches(&self, key: &str) -> bool {
        self.0.ct_eq(&Self::new(key).0).into()
    }
}

/// Lets a request pass if its key and host are right. `/health` needs no key.
pub(super) async fn check(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let protocol = Protocol::of(path);
    let allowed = match &server.key {
        _ if path == "/health" => Ok(()),
        Some(key) => check_key(key, request.headers()),
        None => check_host(&request),
    };
    let response = match allowed {
        Ok(()) => next.run(request).await,
        Err(failure) => failure.response(protocol),
    };
    if response.status().is_client_error() {
        server.metrics.record_refusal();
    }
    response
}

/// Names by which containers of Docker, Podman and Lima reach the machine that they run on.
const OF_CONTAINERS: [&str; 4] =
    ["host.docker.internal", "gateway.docker.internal", "host.containers.internal", "host.lima.internal"];

fn check_key(key: &ApiKey, headers: &HeaderMap) -> Result<(), Failure> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text(header::AUTHORIZATION.as_str()).and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
    });
    match bearer.or_else(|| text("x-api-key")) {
        Some(given) if key.matches(given) => Ok(()),
        Some(_) => {
            Err(Failure::new(FailureKind::WrongKey, "The API key is wrong. Send the key of this server."))
        }
        None => Err(Failure::new(
            FailureKind::WrongKey,
            "The API key is missing. Send it as `Authorization: Bearer KEY` or `x-api-key: KEY`.",
        )),
    }
}

/// Checks that the host name is one of this machine, or a loopback address.
///
/// A web page can point a name of its own at 127.0.0.1 and would then be allowed to read the answers. Names below
/// `.localhost` are always this machine (RFC 6761). The resolver of a network answers for those below `.internal`, so
/// only [`OF_CONTAINERS`] are allowed.
fn check_host(request: &Request) -> Result<(), Failure> {
    let host = request.headers().get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or("");
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    let lower = name.to_ascii_lowercase();
    let is_own = lower == "localhost" || lower.ends_with(".localhost") || OF_CONTAINERS.contains(&&*lower);
    if name.is_empty() || is_own || address.is_ok_and(|ip| ip.is_loopback()) {
        return Ok(());
    }
    Err(Failure::new(
        FailureKind::Forbidden,
        "The host name is not one of this machine. Use 127.0.0.1, or start the server with an API key.",
    ))
}
