//! Connections: accepting, time limits, and the end of the server. Knows no endpoint.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use futures_util::future::{Either, select};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;

/// Time limits and sizes of requests.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Maximum bytes of a body.
    pub body_bytes: usize,
    /// Maximum time until the body of a request has arrived.
    pub body_time: Duration,
    /// Maximum time until the header of a request has arrived, and between two requests.
    pub header_time: Duration,
    /// Maximum time that a client takes no data of its answer.
    pub write_time: Duration,
    /// Time after which a stream begins, with comments, though its answer still waits.
    pub stream_begins: Duration,
    /// Maximum number of open connections. Further ones wait.
    pub connections: usize,
    /// Maximum time for a running answer to finish when the server ends.
    pub grace: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            body_bytes: 4 << 20,
            body_time: Duration::from_secs(30),
            header_time: Duration::from_secs(30),
            write_time: Duration::from_secs(60),
            stream_begins: Duration::from_secs(15),
            connections: 256,
            grace: Duration::from_secs(10),
        }
    }
}

/// Pause after an accept that failed, for example because of too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves connections until `stop` completes, then lets running answers finish within the grace.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: ConnectionLimits,
    stop: impl Future<Output = ()>,
    stopping: impl FnOnce(),
) {
    let (stop_sender, stop_receiver) = watch::channel(false);
    let places = Arc::new(Semaphore::new(limits.connections));
    let mut open = JoinSet::new();
    let mut stop = pin!(stop);
    loop {
        let accepting = pin!(accept(&listener, &places));
        let (stream, place) = match select(accepting, stop.as_mut()).await {
            Either::Left((Ok(accepted), _)) => accepted,
            Either::Left((Err(_), _)) => {
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
            Either::Right(_) => break,
        };
        let (router, stop_receiver) = (router.clone(), stop_receiver.clone());
        open.spawn(async move {
            connection(stream, router, limits, stop_receiver).await;
            drop(place);
        });
        // Forget connections that have ended.
        while open.try_join_next().is_some() {}
    }
    drop(listener);
    stopping();
    let _ = stop_sender.send(true);
    let all_ended = async { while open.join_next().await.is_some() {} };
    let _ = timeout(limits.grace, all_ended).await;
    // Dropping the set ends the remaining connections, and that cancels their answers.
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _): (_, SocketAddr) = listener.accept().await?;
    Ok((stream, place))
}

async fn connection(
    stream: TcpStream,
    router: Router,
    limits: ConnectionLimits,
    mut stop_receiver: watch::Receiver<bool>,
) {
    // Tokens are small and should leave at once.
    let _ = stream.set_nodelay(true);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits.write_time));
    let mut stream = pin!(TokioIo::new(Box::pin(stream)));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_time)
        .serve_connection(stream.as_mut(), TowerToHyperService::new(router));
    let mut served = pin!(served);
    let stop = pin!(async { stop_receiver.wait_for(|stop| *stop).await.is_ok() });
    // Errors are those of the client, which is gone.
    if let Either::Right(_) = select(served.as_mut(), stop).await {
        served.as_mut().graceful_shutdown();
        let _ = served.await;
    }
}
