//! Requests to a server, and the streamed answer.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt};
use hunch_core::chat::ChatMessage;
use hunch_core::stats::GenerationStats;
use hunch_core::token::TokenOrigin;
use hunch_error::{Error, Refusal, Result, ServerRemedy};
use hunch_library::http;
use hunch_library::http::ProxyChoice;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE};
use reqwest::{Client, Method, RequestBuilder, Response, Url};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sse_stream::SseByteStream;
use tokio::runtime::Runtime;
use ts_rs::TS;

use super::address::{ServerAddress, ServerKey};
use super::chunk::{Chunk, error_message};
use super::speculation::{Speculation, VllmCounters};

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
/// Fewest pieces of an answer whose speed is measured. Fewer were gathered by a proxy, or by the server.
const MEASURED_PIECES: u32 = 3;
/// Longest name of a model, in bytes.
const NAME_BYTES: usize = 512;

/// Program that a server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum ServerKind {
    /// `hunch serve`.
    Hunch,
    /// llama.cpp's llama-server.
    LlamaCpp,
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// Any other program.
    Other,
}

impl ServerKind {
    /// Returns the kind that a list of models shows, by the owner of its models.
    fn of_owner(owner: &str) -> Self {
        match owner {
            "hunch" => Self::Hunch,
            "llamacpp" => Self::LlamaCpp,
            "vllm" => Self::Vllm,
            "sglang" => Self::Sglang,
            _ => Self::Other,
        }
    }

    /// Returns the name for people.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Hunch => "Hunch",
            Self::LlamaCpp => "llama.cpp",
            Self::Vllm => "vLLM",
            Self::Sglang => "SGLang",
            Self::Other => "server",
        }
    }
}

/// A model that a server offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct RemoteModel {
    /// Name, as requests write it.
    pub id: String,
    /// Program that runs it.
    pub kind: ServerKind,
    /// Context length in tokens, if the server says so.
    pub context: Option<u64>,
}

/// A request for an answer. Parameters that are `None` keep the server's defaults.
#[derive(Clone, Debug, Default)]
pub struct RemoteRequest {
    /// Conversation. Empty for a raw prompt.
    pub messages: Vec<ChatMessage>,
    /// Prompt that is continued without a chat template, in place of a conversation.
    pub raw: Option<String>,
    /// Most tokens to generate.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer.
    pub stop: Vec<String>,
    /// Schema that the answer follows.
    pub schema: Option<Value>,
    /// Sampling parameters by their names in the protocol of `hunch serve`, such as `temperature`. A server that names
    /// one differently gets its own name.
    pub sampling: Map<String, Value>,
}

impl RemoteRequest {
    /// Returns the body for a model.
    fn body(&self, model: &RemoteModel) -> Value {
        let mut body = Map::from_iter([
            ("model".to_owned(), json!(model.id)),
            ("stream".to_owned(), json!(true)),
            ("stream_options".to_owned(), json!({ "include_usage": true })),
        ]);
        let mut set = |name: &str, value: Value| body.insert(name.to_owned(), value);
        match &self.raw {
            Some(prompt) => set("prompt", json!(prompt)),
            None => set("messages", json!(self.messages)),
        };
        if let Some(limit) = self.max_tokens {
            set("max_tokens", json!(limit));
        }
        if !self.stop.is_empty() {
            set("stop", json!(self.stop));
        }
        if let Some(schema) = &self.schema {
            let named = json!({ "name": "answer", "strict": true, "schema": schema });
            set("response_format", json!({ "type": "json_schema", "json_schema": named }));
        }
        // Others refuse fields that they do not know.
        match model.kind {
            ServerKind::Hunch => set("hunch", json!(true)),
            ServerKind::Sglang => set("return_spec_tokens_details", json!(true)),
            _ => None,
        };
        let name_of = |name: &String| match (name.as_str(), model.kind) {
            ("repeat_penalty", ServerKind::Vllm | ServerKind::Sglang) => "repetition_penalty".to_owned(),
            (name, _) => name.to_owned(),
        };
        body.extend(self.sampling.iter().map(|(name, value)| (name_of(name), value.clone())));
        Value::Object(body)
    }
}

/// Returns a number as a person writes it: 0.7, not 0.699999988.
pub fn exact(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

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

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TextPiece {
    /// Its text: a token of a Hunch server, else what one event of the stream holds.
    pub text: String,
    /// Origin of the token. Known of Hunch servers only.
    pub origin: Option<TokenOrigin>,
    /// True for thinking, which is not part of the answer.
    pub thinking: bool,
}

/// Numbers of tokens, as the server counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Tokens of the answer, thinking included.
    pub generated: u64,
}

/// A finished answer and its figures.
#[derive(Clone, Debug, Serialize)]
pub struct RemoteAnswer {
    /// Why it ended, in the server's word: usually `stop` or `length`.
    pub finish_reason: String,
    /// Numbers of tokens, if the server counts them.
    pub usage: Option<Usage>,
    /// Speculation, if the server reports it.
    pub speculation: Option<Speculation>,
    /// Tokens per second after the prompt, if the server reports them.
    pub reported_tok_s: Option<f64>,
    /// Figures of a Hunch server.
    pub stats: Option<GenerationStats>,
    /// Number of events of the stream that held text. Few of them say nothing about the speed.
    pub pieces: u32,
    /// Tokens of thinking that the server counts in the answer, but did not send.
    pub hidden_tokens: u64,
    /// From the request to the first piece, in milliseconds, measured here.
    pub first_ms: f64,
    /// From the request to the end, in milliseconds, measured here.
    pub wall_ms: f64,
}

impl RemoteAnswer {
    /// Returns the tokens per second after the first piece, measured here. The network is part of it. `None` for an
    /// answer that came at once, or in too few pieces.
    pub fn measured_tok_s(&self) -> Option<f64> {
        if self.pieces < MEASURED_PIECES {
            return None;
        }
        let sent = self.usage?.generated.saturating_sub(self.hidden_tokens);
        let (tokens, ms) = (sent.checked_sub(1)?, self.wall_ms - self.first_ms);
        (tokens > 0 && ms > 0.0).then(|| 1000.0 * tokens as f64 / ms)
    }
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

    /// Lists the models that the server offers, each name once.
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
        let mut seen = HashSet::new();
        let models = entries.iter().filter_map(model_of_entry);
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
        let mut answer = Progress::default();
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
        let remedy = match status.as_u16() {
            300..=399 => ServerRemedy::FollowRedirect,
            401 | 403 if self.key.is_none() => ServerRemedy::AddKey,
            401 | 403 => ServerRemedy::CheckKey,
            404 => ServerRemedy::CheckProtocol,
            400 | 422 => ServerRemedy::ChangeRequest,
            429 | 503 => ServerRemedy::Wait,
            _ => ServerRemedy::Retry,
        };
        let body = self.read_small(response).await.unwrap_or_default();
        let said = match serde_json::from_slice::<Value>(&body) {
            Ok(json) => error_message(json.get("error").unwrap_or(&json)),
            Err(_) => String::new(),
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

/// An answer as far as it has arrived.
#[derive(Default)]
struct Progress {
    finish_reason: Option<String>,
    usage: Option<Usage>,
    speculation: Option<Speculation>,
    reported_tok_s: Option<f64>,
    stats: Option<GenerationStats>,
    first_ms: Option<f64>,
    /// Events that held text.
    pieces: u32,
    /// Tokens of thinking, as the server counts them.
    reasoning_tokens: u64,
    /// True once thinking arrived.
    thought: bool,
    /// True once the server said that the stream is complete.
    done: bool,
}

impl Progress {
    /// Adds a chunk and returns its pieces.
    fn add(&mut self, mut chunk: Chunk) -> Vec<TextPiece> {
        self.speculation = Speculation::of_chunk(&chunk).or(self.speculation);
        if let Some(usage) = &chunk.usage {
            self.usage = Some(Usage { prompt: usage.prompt_tokens, generated: usage.completion_tokens });
            self.reasoning_tokens = usage.completion_tokens_details.reasoning_tokens;
        }
        if let Some(timings) = &chunk.timings {
            self.reported_tok_s = timings.predicted_per_second.or(self.reported_tok_s);
        }
        let hunch = chunk.hunch.take().unwrap_or_default();
        if let Some(stats) = hunch.stats {
            self.reported_tok_s = Some(stats.decode_tok_s);
            self.stats = Some(stats);
        }
        let Some(choice) = chunk.choices.into_iter().next() else { return Vec::new() };
        self.finish_reason = choice.finish_reason.or(self.finish_reason.take());
        let piece = |text: Option<String>, thinking| {
            text.filter(|text| !text.is_empty()).map(|text| TextPiece { text, origin: None, thinking })
        };
        let thought = piece(choice.delta.reasoning_content.or(choice.delta.reasoning), true);
        let text = choice.delta.content.or(choice.text).unwrap_or_default();
        // The tokens of a Hunch server say the same text, piece by piece.
        let by_token = hunch.texts.len() == hunch.origins.len() && hunch.texts.concat() == text;
        let answer: Vec<_> = match by_token {
            true => hunch
                .texts
                .into_iter()
                .zip(hunch.origins)
                .map(|(text, origin)| TextPiece { text, origin: Some(origin), thinking: false })
                .collect(),
            false => piece(Some(text), false).into_iter().collect(),
        };
        self.thought |= thought.is_some();
        let pieces: Vec<_> = thought.into_iter().chain(answer).collect();
        self.pieces = self.pieces.saturating_add(u32::from(!pieces.is_empty()));
        pieces
    }

    /// Returns the answer, or `None` if the server ended before it.
    fn finish(self, wall_ms: f64) -> Option<RemoteAnswer> {
        let finish_reason = self.finish_reason.or_else(|| self.done.then(|| "stop".to_owned()))?;
        Some(RemoteAnswer {
            finish_reason,
            usage: self.usage,
            speculation: self.speculation,
            reported_tok_s: self.reported_tok_s.filter(|rate| rate.is_finite()),
            stats: self.stats,
            pieces: self.pieces,
            hidden_tokens: if self.thought { 0 } else { self.reasoning_tokens },
            first_ms: self.first_ms.unwrap_or(wall_ms),
            wall_ms,
        })
    }
}

/// Returns whether a response is a web page, such as the start page of a router.
fn is_page(response: &Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("text/html"))
}

/// Returns whether a model's name can be shown on a line.
fn is_usable_name(name: &str) -> bool {
    (1..=NAME_BYTES).contains(&name.len()) && !name.chars().any(char::is_control)
}

/// Reads an entry of a list of models, unless its name cannot be used.
fn model_of_entry(entry: &Value) -> Option<RemoteModel> {
    let context = [&entry["context_length"], &entry["max_model_len"], &entry["meta"]["n_ctx"]];
    Some(RemoteModel {
        id: entry["id"].as_str().filter(|id| is_usable_name(id))?.to_owned(),
        kind: ServerKind::of_owner(entry["owned_by"].as_str().unwrap_or_default()),
        context: context.iter().find_map(|value| value.as_u64()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(chunks: &[Value], wall_ms: f64) -> RemoteAnswer {
        let mut progress = Progress { first_ms: Some(100.0), ..Progress::default() };
        for chunk in chunks {
            progress.add(serde_json::from_value(chunk.clone()).unwrap());
        }
        progress.done = true;
        progress.finish(wall_ms).unwrap()
    }

    fn piece(delta: Value) -> Value {
        json!({ "choices": [{ "delta": delta }] })
    }

    #[test]
    fn speed_is_measured_only_of_what_arrived_piece_by_piece() {
        let usage = json!({ "usage": { "prompt_tokens": 3, "completion_tokens": 1011,
            "completion_tokens_details": { "reasoning_tokens": 1000 } } });
        let text = piece(json!({ "content": "a" }));
        let at_once = finished(&[text.clone(), usage.clone()], 101.0);
        assert_eq!(at_once.measured_tok_s(), None);
        let hidden = finished(&[text.clone(), text.clone(), text.clone(), usage.clone()], 1100.0);
        assert_eq!(hidden.measured_tok_s(), Some(10.0));
        let thought = piece(json!({ "reasoning": "so" }));
        let shown = finished(&[thought, text.clone(), text, usage], 1100.0);
        assert_eq!(shown.measured_tok_s(), Some(1010.0));
    }

    #[test]
    fn models_with_unusable_names_are_left_out() {
        let id = |id: &str| model_of_entry(&json!({ "id": id })).map(|model| model.id);
        assert_eq!(id("org/model:8b").as_deref(), Some("org/model:8b"));
        assert_eq!((id(""), id("a\nb"), id(&"a".repeat(513))), (None, None, None));
    }
}
