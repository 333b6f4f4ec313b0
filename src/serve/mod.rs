//! An HTTP server that answers as OpenAI's and Anthropic's do, on the loaded models.
//!
//! `openai` and `anthropic` hold the wire types of one protocol each. `answer` runs a request on the engine, `queue`
//! decides whose turn it is. Answers come from [`crate::generate`]; there is no second way to generate here.

mod access;
mod answer;
mod anthropic;
mod body;
mod connections;
mod errors;
mod hunch_field;
mod metrics;
mod models;
mod openai;
mod queue;
mod sse;
mod thinking;
mod tools;

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tokio::task::spawn_blocking;

use crate::engine::Engine;
use crate::generate::{CacheLimits, GenerationPlan, Models, fresh_seed};
use crate::services::idle::{IdleUnloader, unload_after};
use access::ApiKey;
use answer::hold_engine;
use errors::{Failure, FailureKind, Protocol, json_response};
use hunch_core::propose::Needs;
use hunch_error::{Error, Result};
use hunch_model::device::Compute;
use metrics::Metrics;
use models::{ServedModel, ServedModels};
use queue::RequestQueue;

pub use connections::ConnectionLimits;
pub use models::{DraftChoice, HostedModels, InstalledModels, ModelHost};

/// Longest wait for the engine's thread when the server ends.
const ENGINE_ENDS_WITHIN: Duration = Duration::from_secs(2);

/// Settings of a server.
pub struct ServerConfig {
    /// Address to listen on. Port 0 takes any free port.
    pub address: SocketAddr,
    /// Name of the model, as clients write it.
    pub model: String,
    /// Other models that requests may name. `None` for none.
    pub installed: Option<InstalledModels>,
    /// Time after which idle models are unloaded. `None` keeps them.
    pub idle: Option<Duration>,
    /// Method, sampling and rule of an answer, where the request has no setting of its own.
    pub plan: GenerationPlan,
    /// Key that clients must send. Needed for any address but those of this machine.
    pub api_key: Option<String>,
    /// Number of requests that wait while one is answered.
    pub queue: usize,
    /// Most conversations whose caches are kept, at least 1.
    pub conversations: usize,
    /// Limits of connections and bodies.
    pub limits: ConnectionLimits,
}

/// State shared by all requests.
struct Server {
    engine: Arc<Engine>,
    /// `true` if the engine ends with the server.
    owns_engine: bool,
    models: Arc<ServedModels>,
    idle: IdleUnloader,
    plan: GenerationPlan,
    key: Option<ApiKey>,
    queue: Arc<RequestQueue>,
    metrics: Arc<Metrics>,
    conversations: usize,
    limits: ConnectionLimits,
    /// Seconds since 1970 at the start.
    created: u64,
    /// Random number that makes the IDs of this run distinct.
    run: u64,
    /// Number of the next job of the engine.
    ids: Arc<AtomicU32>,
}

impl Server {
    /// Returns a new number for a generation.
    fn next_id(&self) -> u32 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns a new ID for a response.
    fn response_id(&self, prefix: &str) -> String {
        format!("{prefix}-{}", self.unique())
    }

    /// Returns a new ID for a response of `/v1/responses`, or for one of its items.
    fn item_id(&self, prefix: &str) -> String {
        format!("{prefix}_{}", self.unique())
    }

    /// Returns digits that no other ID has.
    fn unique(&self) -> String {
        format!("{:08x}{:08x}", self.run, self.next_id())
    }

    /// Drops the caches of all conversations but the last one, once the engine is free. Nothing happens without models.
    async fn drop_caches(&self) {
        let id = self.next_id();
        // Fails if the engine has ended, and the caches with it.
        if let Ok(hold) = hold_engine(&self.engine, id).await {
            let keep_one = |models: &mut Models| models.limit_caches(CacheLimits::default());
            if let Err(error) = self.engine.use_held(hold, keep_one) {
                tracing::warn!("The caches of the server could not be dropped. {error}");
            }
        }
    }

    /// Unloads the models if they have been idle for `keep`. Returns the time until the next check, or `None` if no
    /// models are loaded.
    fn unload_if_idle(&self, keep: Duration) -> Option<Duration> {
        unload_after(keep, self.engine.idle_for(), || self.engine.unload())
    }
}

/// Returns the model that a request names. Without a name it is that of the start.
///
/// # Errors
/// If there is no such model, or its file cannot be used.
async fn find_model(server: Arc<Server>, asked: Option<String>) -> Result<AnsweringServer, Failure> {
    let model = match server.models.first_if_named(asked.as_deref()) {
        Some(first) => first,
        None => {
            let models = server.models.clone();
            let found = spawn_blocking(move || models.find(asked.as_deref())).await;
            found.unwrap_or_else(|_| {
                let message = "The model could not be found. This is a bug in Hunch.";
                Err(Failure::new(FailureKind::Internal, message))
            })?
        }
    };
    if !model.encoder.is_probed() {
        let encoder = model.encoder.clone();
        // Without its result, the request itself runs the template.
        let _ = spawn_blocking(move || encoder.probe_template()).await;
    }
    Ok(AnsweringServer { server, model })
}

impl Drop for Server {
    fn drop(&mut self) {
        self.idle.end();
    }
}

/// The server, and the model that answers a request.
#[derive(Clone)]
struct AnsweringServer {
    server: Arc<Server>,
    model: Arc<ServedModel>,
}

impl Deref for AnsweringServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// A server that listens, but answers nothing yet.
pub struct Listening {
    listener: TcpListener,
    address: SocketAddr,
    server: Arc<Server>,
}

impl Listening {
    /// Returns the address of the server, with its port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests until `stop` completes. Running answers then have a few seconds to finish.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let Self { listener, server, .. } = self;
        let limits = server.limits;
        let queue = server.queue.clone();
        connections::serve(listener, router(server.clone()), limits, stop, || queue.close()).await;
        if server.owns_engine {
            server.engine.shutdown(ENGINE_ENDS_WITHIN);
        } else {
            server.drop_caches().await;
        }
    }
}

/// Starts to listen.
///
/// # Errors
/// If the plan cannot run on the models, the address is taken, or it is not of this machine and there is no key.
pub async fn listen(models: Models, compute: Compute, mut config: ServerConfig) -> Result<Listening> {
    models.can_run(&config.plan)?;
    // A low-bit copy is not loaded again, so its target stays.
    if config.plan.method.needs().any(|needs| needs == Needs::LowBitCopy) {
        (config.installed, config.idle) = (None, None);
    }
    let served = ServedModels::new(config.model.clone(), &models, config.installed.take(), compute.clone());
    let engine = Arc::new(Engine::with_models(models, compute)?);
    start(EngineOf { engine, ids: Arc::default(), is_own: true }, served, config).await
}

/// Starts to listen for requests that the models of a host answer, on its engine. `ids` numbers the jobs of that engine.
/// Answers wait while the host uses it. Models, names and idle time of the settings are not used.
///
/// # Errors
/// As [`listen`].
pub async fn listen_for(
    host: Arc<dyn ModelHost>,
    (engine, ids): (Arc<Engine>, Arc<AtomicU32>),
    compute: Compute,
    config: ServerConfig,
) -> Result<Listening> {
    let config = ServerConfig { idle: None, ..config };
    start(EngineOf { engine, ids, is_own: false }, ServedModels::hosted(host, compute), config).await
}

/// An engine, with the numbers of its jobs.
struct EngineOf {
    engine: Arc<Engine>,
    ids: Arc<AtomicU32>,
    /// `true` if it ends with the server.
    is_own: bool,
}

async fn start(engine: EngineOf, models: ServedModels, config: ServerConfig) -> Result<Listening> {
    let ServerConfig { address, idle, plan, api_key, queue, conversations, limits, .. } = config;
    let api_key = check_key(address, api_key.as_deref())?;
    let listener = TcpListener::bind(address).await.map_err(|error| cannot_listen(address, &error))?;
    let address = listener.local_addr().map_err(|error| cannot_listen(address, &error))?;
    let server = Server {
        models: Arc::new(models),
        engine: engine.engine,
        owns_engine: engine.is_own,
        idle: IdleUnloader::new(idle),
        plan,
        key: api_key.map(ApiKey::new),
        queue: Arc::new(RequestQueue::new(queue)),
        metrics: Arc::default(),
        conversations,
        limits,
        created: unix_time(),
        run: fresh_seed(),
        ids: engine.ids,
    };
    let server = Arc::new(server);
    let unloading = Arc::downgrade(&server);
    server.idle.start(move |keep| unloading.upgrade().and_then(|server| server.unload_if_idle(keep)))?;
    Ok(Listening { listener, address, server })
}

/// Checks that a server can listen at an address: that it has a key if it needs one, and that no other program listens
/// there.
///
/// # Errors
/// As [`listen`].
pub fn check_access(address: SocketAddr, api_key: Option<&str>) -> Result<()> {
    check_key(address, api_key)?;
    std::net::TcpListener::bind(address).map(drop).map_err(|error| cannot_listen(address, &error))
}

/// Returns the key of a server at this address.
fn check_key(address: SocketAddr, api_key: Option<&str>) -> Result<Option<&str>> {
    // A variable of the environment may end with the line break of a file.
    let api_key = api_key.map(str::trim);
    if let Some(key) = api_key {
        if key.is_empty() {
            return Err(Error::invalid("The API key is empty. Choose one with at least one character."));
        }
        if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Error::invalid(
                "The API key has characters that no client can send. Use letters, digits and signs of ASCII, without \
                 spaces.",
            ));
        }
    }
    if api_key.is_none() && !address.ip().is_loopback() {
        return Err(Error::invalid(format!(
            "{} can be reached from other machines. Set an API key (--api-key or HUNCH_API_KEY), or listen on \
             127.0.0.1.",
            address.ip()
        )));
    }
    Ok(api_key)
}

fn cannot_listen(address: SocketAddr, error: &std::io::Error) -> Error {
    Error::invalid(format!("Cannot listen on {address}: {error}. Choose another --port."))
}

/// Returns the seconds since 1970.
fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

type ServerState = State<Arc<Server>>;

fn router(server: Arc<Server>) -> Router {
    Router::new()
        .route(
            "/health",
            get(|| async { json_response(StatusCode::OK, &serde_json::json!({ "status": "ok" })) }),
        )
        .route("/metrics", get(metrics_text))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completions))
        .route("/v1/responses", post(responses))
        .route("/v1/messages", post(messages))
        .route("/v1/messages/count_tokens", post(count_tokens))
        .fallback(no_such_endpoint)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(server.clone(), access::check))
        .with_state(server)
}

/// Returns the response, or the failure as a protocol writes it.
fn respond(protocol: Protocol, result: Result<Response, Failure>) -> Response {
    result.unwrap_or_else(|failure| failure.response(protocol))
}

async fn chat(State(server): ServerState, request: Request) -> Response {
    respond(Protocol::OpenAi, openai::chat(server, request).await)
}

async fn completions(State(server): ServerState, request: Request) -> Response {
    respond(Protocol::OpenAi, openai::completions(server, request).await)
}

async fn responses(State(server): ServerState, request: Request) -> Response {
    respond(Protocol::OpenAi, openai::responses::create(server, request).await)
}

async fn messages(State(server): ServerState, request: Request) -> Response {
    respond(Protocol::Anthropic, anthropic::messages(server, request).await)
}

async fn count_tokens(State(server): ServerState, request: Request) -> Response {
    respond(Protocol::Anthropic, anthropic::count_tokens(server, request).await)
}

async fn models(State(server): ServerState) -> Response {
    respond(Protocol::OpenAi, openai::models(server).await)
}

async fn model(
    State(server): ServerState,
    headers: HeaderMap,
    id: Result<Path<String>, PathRejection>,
) -> Response {
    // Both protocols have this endpoint.
    let protocol = match headers.contains_key("anthropic-version") {
        true => Protocol::Anthropic,
        false => Protocol::OpenAi,
    };
    let Ok(Path(id)) = id else {
        let message = "The name of the model is not UTF-8. GET /v1/models lists the models.";
        return Failure::new(FailureKind::ModelNotFound, message).response(protocol);
    };
    respond(protocol, openai::model(server, id).await)
}

async fn metrics_text(State(server): ServerState) -> Response {
    let (inside, running) = server.queue.held();
    let text = server.metrics.text(inside - running, running, server.engine.caches());
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

async fn no_such_endpoint(uri: Uri) -> Response {
    let message = format!("There is no endpoint {}. docs/serve.md lists them.", uri.path());
    Failure::new(FailureKind::NoSuchEndpoint, message).response(Protocol::of(uri.path()))
}

async fn wrong_method(request: Request) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    let message = format!("{method} is not a method of {path}. POST a request, or GET a list.");
    Failure::new(FailureKind::WrongMethod, message).response(Protocol::of(path))
}
