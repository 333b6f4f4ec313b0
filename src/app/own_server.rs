//! The server for other programs, a switch of the window. It answers with the models that the window has loaded, on the
//! same engine. The server itself is [`crate::serve`].

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;

use super::lock::RankedMutex;
use super::{App, AppParts};
use crate::api::OwnServer;
use crate::generate::{CacheUse, GenerationPlan};
use crate::serve::{ConnectionLimits, HostedModels, ModelHost, ServerConfig, listen_for};
use hunch_core::method::Method;
use hunch_error::{Error, Result};

/// Usual port, that of `hunch serve`. If it is taken, any free one is used.
const PORT: u16 = 8033;
/// Requests that wait while one is answered.
const QUEUE: usize = 16;
/// Most conversations whose caches are kept, those of the window included.
const CONVERSATIONS: usize = 4;
/// Time that a running answer has when the server ends.
const GRACE: Duration = Duration::from_secs(2);

/// A running server. Dropping it ends it.
struct RunningServer {
    address: SocketAddr,
    _stop: oneshot::Sender<()>,
}

/// The server, while it runs.
#[derive(Default)]
pub(super) struct OwnServerSlot(RankedMutex<Option<RunningServer>>);

impl App {
    /// Returns the state of the server for other programs.
    pub fn own_server(&self) -> OwnServer {
        let running = self.shared.own_server.0.lock();
        OwnServer { url: running.as_ref().map(|running| format!("http://{}/v1", running.address)) }
    }

    /// Starts or ends the server for other programs on this machine. A running answer has two seconds to end.
    ///
    /// # Errors
    /// If there is no free port, or the system refuses a thread.
    pub fn set_own_server(&self, on: bool) -> Result<OwnServer> {
        let mut running = self.shared.own_server.0.lock();
        match (on, running.is_some()) {
            (true, false) => {
                *running = Some(self.start_own_server(PORT).or_else(|_| self.start_own_server(0))?)
            }
            (false, _) => *running = None,
            (true, true) => {}
        }
        drop(running);
        Ok(self.own_server())
    }

    /// Returns the caches of the conversations of the window and the server, as they were after the last answer.
    pub fn caches(&self) -> CacheUse {
        self.shared.engine.caches()
    }

    pub(super) fn end_own_server(&self) {
        *self.shared.own_server.0.lock() = None;
    }

    fn start_own_server(&self, port: u16) -> Result<RunningServer> {
        let host = Arc::new(WindowModels(Arc::downgrade(&self.shared)));
        let engine = (self.shared.engine.clone(), self.shared.next_id.clone());
        let compute = self.shared.compute.clone();
        let config = ServerConfig {
            address: (Ipv4Addr::LOCALHOST, port).into(),
            model: String::new(),
            installed: None,
            idle: None,
            plan: GenerationPlan { method: Method::Auto, ..GenerationPlan::default() },
            api_key: None,
            queue: QUEUE,
            conversations: CONVERSATIONS,
            limits: ConnectionLimits { grace: GRACE, ..ConnectionLimits::default() },
        };
        let (stop, stopped) = oneshot::channel();
        let (sender, started) = channel();
        let serve = move || serve(sender, stopped, listen_for(host, engine, compute, config));
        thread::Builder::new()
            .name("hunch-serve".into())
            .spawn(serve)
            .map_err(|error| Error::Internal(format!("no thread for the server: {error}")))?;
        let ended = |_| Error::Internal("the server ended at its start".into());
        Ok(RunningServer { address: started.recv().map_err(ended)??, _stop: stop })
    }
}

/// Runs a server until `stopped` completes. Sends its address once it listens.
fn serve(
    started: Sender<Result<SocketAddr>>,
    stopped: oneshot::Receiver<()>,
    listening: impl Future<Output = Result<crate::serve::Listening>>,
) {
    let runtime = match crate::remote::runtime() {
        Ok(runtime) => runtime,
        Err(error) => return drop(started.send(Err(error))),
    };
    runtime.block_on(async move {
        match listening.await {
            Ok(listening) => {
                // Fails if nobody waits any more. The sender of `stopped` is gone then too.
                let _ = started.send(Ok(listening.address()));
                listening.run(async { drop(stopped.await) }).await;
            }
            Err(error) => drop(started.send(Err(error))),
        }
    });
}

/// The models of the window.
struct WindowModels(Weak<AppParts>);

impl ModelHost for WindowModels {
    fn models(&self) -> Result<HostedModels> {
        let shared = self.0.upgrade().ok_or(Error::NoModel)?;
        let ready = shared.models.ready()?;
        Ok(HostedModels {
            name: ready.loaded.target.name.clone(),
            encoder: ready.details.encoder.clone(),
            context: ready.details.context,
            plan: ready.details.plan.clone(),
        })
    }
}
