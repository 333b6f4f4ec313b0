//! Requests to a server, and the streamed answer.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt};
use hunch_error::{Error, Refusal, Result, ServerRemedy};
use hunch_library::http;
use hunch_library::http::ProxyChoice;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE};
use reqwest::{Client, Method, RequestBuilder, Response, Url};
use serde_json::Value;
use sse_stream::SseByteStream;
use tokio::runtime::Runtime;

use super::address::{ServerAddress, ServerKey};
use crate::server_answers::{
    Chunk, PartialAnswer, RemoteAnswer, RemoteModel, RemoteRequest, ServerKind, TextPiece, VllmCounters,
    error_message, model_of_entry,
};

/// Time until an answer notices that it was cancelled.
const STOPS_WITHIN: Duration = Duration::from_millis(20);
/// Longest silence of a server. Long prompts are read without a word.
const SILENCE: Duration = Duration::from_secs(600);
/// Limit of small responses: the list of models, metrics, errors.
const SMALL: Duration = Duration::from_secs(10);
/// Largest small response, in bytes.
const SMALL_BYTES: usize = 4 << 20;
/// Largest answer, in bytes of its stream. A chunk of one token takes some 300.
const ANSWER_BYTES: usize = 256 << 20;

/// Time that vLLM's counters may take. They are worth no longer wait: an answer can do without them.
const COUNTERS: Duration = Duration::from_secs(1);

/// Returns a runtime for requests of this thread.
///
/// # Errors
/// [`Error::Internal`] if the system gives it no resources.
pub fn runtime() -> Result<Runtime> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| Error::Internal(format!("no runtime for requests: {error}")))
}

/// Runs `work` to its end. Returns `None`, and drops the work, once `cancelled` returns true.
pub async fn unless_cancelled<T>(cancelled: &dyn Fn() -> bool, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    while !cancelled() {
        if let Ok(done) = tokio::time::timeout(STOPS_WITHIN, work.as_mut()).await {
            return Some(done);
        }
    }
    None
}

/// Client of one server.
pub struct RemoteServer {
    http: Client,
    address: ServerAddress,
    key: Option<ServerKey>,
}

impl RemoteServer {
    /// Creates a client. Nothing is sent.
    ///
    /// # Errors
    /// [`Refusal::UnencryptedKey`] if others could read the key on its way. If the proxy's address is invalid or TLS
    /// cannot be set up.
    pub fn new(address: ServerAddress, key: Option<ServerKey>) -> Result<Self> {
        if key.is_some() {
            address.check_private()?;
        }
        let proxy = if address.is_here() { ProxyChoice::None } else { ProxyChoice::System };
        let http = http::build(http::client_builder(&proxy)?.read_timeout(SILENCE))?;
        Ok(Self { http, address, key })
    }

    /// Lists the models that the server offers, each name once, with loaded ones first.
    ///
    /// # Errors
    /// [`Error::Server`] if it cannot be reached, refuses, or sends no list.
    pub async fn models(&self) -> Result<Vec<RemoteModel>> {
        let response =
            self.send(self.request(Method::GET, self.address.endpoint("models")).timeout(SMALL)).await?;
        let list: Value = serde_json::from_slice(&self.read_small(response).await?)
            .map_err(|_| self.failure("its list of models is not JSON", ServerRemedy::CheckProtocol))?;
        let entries = list["data"]
            .as_array()
            .ok_or_else(|| self.failure("it sent no list of models", ServerRemedy::CheckProtocol))?;
        // mlx-vlm lists every model of the Hub's cache, and would load the first one.
        let (loaded, others): (Vec<_>, Vec<_>) = entries.iter().partition(|entry| entry["loaded"] == true);
        let mut seen = HashSet::new();
        let models = loaded.into_iter().chain(others).filter_map(model_of_entry);
        Ok(models.filter(|model| seen.insert(model.id.clone())).collect())
    }

    /// Returns the model of this name, or the first one.
    ///
    /// # Errors
    /// As [`RemoteServer::models`]. [`Refusal::NoSuchServerModel`], with the names there are.
    pub async fn model(&self, name: Option<&str>) -> Result<RemoteModel> {
        let mut models = self.models().await?;
        let index = match name {
            None => (!models.is_empty()).then_some(0),
            Some(name) => models.iter().position(|model| model.id == name),
        };
        let Some(index) = index else {
            let names: Vec<_> = models.iter().map(|model| http::quotable(&model.id)).collect();
            let detail = match names.len() {
                0 => "It offers none. Load one there.".to_owned(),
                _ => format!("It offers: {}.", names.join(", ")),
            };
            let model = name.unwrap_or("any").to_owned();
            return Err(
                Refusal::NoSuchServerModel { address: self.address.to_string(), model, detail }.into()
            );
        };
        Ok(models.swap_remove(index))
    }

    /// Answers a request, and calls `show` with every piece as it arrives, and with the time of the request. Ends early, without an error, when `show`
    /// breaks. Dropping the future cancels the answer on the server.
    ///
    /// # Errors
    /// [`Error::Server`] if the server cannot be reached, refuses, sends an error or something else than an answer, or
    /// ends before the answer does.
    pub async fn answer(
        &self,
        model: &RemoteModel,
        request: &RemoteRequest,
        mut show: impl FnMut(&TextPiece, Instant) -> ControlFlow<()>,
    ) -> Result<RemoteAnswer> {
        let before = self.counters(model).await;
        let endpoint = if request.raw.is_some() { "completions" } else { "chat/completions" };
        let begun = Instant::now();
        let elapsed_ms = || begun.elapsed().as_secs_f64() * 1000.0;
        let sent = self.request(Method::POST, self.address.endpoint(endpoint)).json(&request.body(model));
        let response = self.send(sent).await?;
        if is_page(&response) {
            return Err(self.failure("it sent a web page", ServerRemedy::CheckProtocol));
        }
        let mut received = 0;
        let bytes = response.bytes_stream().map_err(|error| self.lost(&error)).and_then(|bytes| {
            received += bytes.len();
            let fits = received <= ANSWER_BYTES;
            std::future::ready(if fits {
                Ok(bytes)
            } else {
                Err(self.failure("its answer does not end", ServerRemedy::Retry))
            })
        });
        let mut events = std::pin::pin!(SseByteStream::new(bytes));
        let mut answer = PartialAnswer::default();
        while let Some(event) = events.next().await {
            let event = event.map_err(|error| self.broken(error))?;
            let Some(data) = event.data.filter(|data| !data.trim().is_empty()) else { continue };
            if data.trim() == "[DONE]" {
                answer.done = true;
                break;
            }
            let chunk: Chunk = serde_json::from_str(&data).map_err(|_| {
                self.failure(
                    &format!("it sent no JSON ({})", self.quoted(&data)),
                    ServerRemedy::CheckProtocol,
                )
            })?;
            if let Some(error) = &chunk.error {
                return Err(self.failure(&self.quoted(&error_message(error)), ServerRemedy::Retry));
            }
            let pieces = answer.add(chunk);
            if answer.first_ms.is_none() && !pieces.is_empty() {
                answer.first_ms = Some(elapsed_ms());
            }
            if pieces.iter().any(|piece| show(piece, begun).is_break()) {
                answer.done = true;
                answer.finish_reason.get_or_insert_with(|| "cancelled".to_owned());
                break;
            }
        }
        let wall_ms = elapsed_ms();
        let mut answer = answer
            .finish(wall_ms)
            .ok_or_else(|| self.failure("it ended before its answer did", ServerRemedy::Retry))?;
        answer.speculation = answer.speculation.map(|speculation| speculation.of_kind(model.kind));
        if answer.speculation.is_none() {
            let after = self.counters(model).await;
            answer.speculation = before.zip(after).and_then(|(before, after)| after.since(before));
        }
        Ok(answer)
    }

    /// Reads the counters of speculation, which only vLLM has. Failures count as absence: the answer matters more.
    async fn counters(&self, model: &RemoteModel) -> Option<VllmCounters> {
        if model.kind != ServerKind::Vllm {
            return None;
        }
        let response =
            self.send(self.request(Method::GET, self.address.metrics()).timeout(COUNTERS)).await.ok()?;
        VllmCounters::parse(&String::from_utf8_lossy(&self.read_small(response).await.ok()?))
    }

    fn request(&self, method: Method, url: Url) -> RequestBuilder {
        let request = self.http.request(method, url);
        match &self.key {
            Some(key) => request.header(AUTHORIZATION, key.header()),
            None => request,
        }
    }

    /// Sends a request and returns the successful response.
    async fn send(&self, request: RequestBuilder) -> Result<Response> {
        let response = request.send().await.map_err(|error| self.lost(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let answers = response.url().path().ends_with("completions");
        let body = self.read_small(response).await.unwrap_or_default();
        let json = serde_json::from_slice::<Value>(&body).ok();
        let said =
            json.as_ref().map_or_else(String::new, |json| error_message(json.get("error").unwrap_or(json)));
        let remedy = match status.as_u16() {
            300..=399 => ServerRemedy::FollowRedirect,
            // Hunch and others refuse host names that are not their own so.
            403 if said.to_lowercase().contains("host") => ServerRemedy::CheckAddress,
            401 | 403 if self.key.is_none() => ServerRemedy::AddKey,
            401 | 403 => ServerRemedy::CheckKey,
            // Servers of the protocol send this error if the model is missing or cannot be loaded.
            404 if answers && json.as_ref().is_some_and(|json| json.get("error").is_some()) => {
                ServerRemedy::ChooseModel
            }
            404 => ServerRemedy::CheckProtocol,
            400 | 422 => ServerRemedy::ChangeRequest,
            429 | 503 => ServerRemedy::Wait,
            _ => ServerRemedy::Retry,
        };
        let said = if said.is_empty() { said } else { format!(" ({})", self.quoted(&said)) };
        Err(self.failure(&format!("it responded with status {}{said}", status.as_u16()), remedy))
    }

    async fn read_small(&self, mut response: Response) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.lost(&error))? {
            body.extend_from_slice(&chunk);
            if body.len() > SMALL_BYTES {
                return Err(self.failure("its response is too long", ServerRemedy::CheckProtocol));
            }
        }
        Ok(body)
    }

    fn failure(&self, reason: &str, remedy: ServerRemedy) -> Error {
        Error::Server { address: self.address.to_string(), reason: reason.to_owned(), remedy }
    }

    /// Quotes a message of the server, without the key.
    fn quoted(&self, text: &str) -> String {
        let hidden = self.key.as_ref().map_or_else(|| text.to_owned(), |key| key.redact(text));
        format!("\"{}\"", http::quotable(&hidden))
    }

    fn lost(&self, error: &reqwest::Error) -> Error {
        let reason = if error.is_timeout() {
            "it was silent for too long".to_owned()
        } else {
            http::describe_failure(error)
        };
        self.failure(&reason, ServerRemedy::CheckAddress)
    }

    /// Returns the failure inside an error of the event stream, or one that says that the stream is no event stream.
    fn broken(&self, error: sse_stream::Error) -> Error {
        match error {
            sse_stream::Error::Body(inner) => match inner.downcast::<Error>() {
                Ok(ours) => *ours,
                Err(other) => self.failure(&other.to_string(), ServerRemedy::Retry),
            },
            other => self.failure(&format!("it sent no event stream ({other})"), ServerRemedy::CheckProtocol),
        }
    }
}

/// Returns whether a response is a web page, such as the start page of a router.
fn is_page(response: &Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("text/html"))
}
