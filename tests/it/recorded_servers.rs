//! Answers recorded from real servers, replayed to `hunch run --server`: text, figures and errors.
//!
//! `tests/golden/servers/README.md` says what was recorded. A recording is the status and content type on one line, an
//! empty line, and the body. Bodies arrive in pieces of 7 bytes, so characters and lines are split.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::stream;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::cli::{command, last_json, text};
use crate::remote::failure;

/// A recorded response.
#[derive(Clone)]
struct Recording {
    status: StatusCode,
    content_type: String,
    body: Bytes,
}

fn path_of(folder: &str, name: &str) -> PathBuf {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/servers");
    golden.join(folder).join(format!("{name}.http"))
}

impl Recording {
    fn read(folder: &str, name: &str) -> Self {
        let path = path_of(folder, name);
        let whole = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let end = whole.windows(2).position(|pair| pair == b"\n\n").unwrap();
        let head = text(&whole[..end]);
        let (status, content_type) = head.split_once(' ').unwrap();
        let body = Bytes::copy_from_slice(&whole[end + 2..]);
        Self { status: status.parse().unwrap(), content_type: content_type.to_owned(), body }
    }

    fn response(self) -> Response {
        let pieces: Vec<_> =
            self.body.chunks(7).map(|piece| Ok::<_, std::io::Error>(piece.to_vec())).collect();
        let kind = [(header::CONTENT_TYPE, self.content_type)];
        (self.status, kind, Body::from_stream(stream::iter(pieces))).into_response()
    }
}

/// A server that sends recordings of one folder. Ends when dropped.
struct Replay {
    address: SocketAddr,
    _runtime: Runtime,
}

impl Replay {
    /// Starts a server that responds to every question with the recording of this name.
    fn start(folder: &'static str, name: &str) -> Self {
        Self::sending(folder, Recording::read(folder, name))
    }

    /// Starts a server that responds to every question with a recording.
    fn sending(folder: &'static str, answer: Recording) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0))).unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(AtomicBool::new(false));
        let was_asked = asked.clone();
        let send_answer = move || async move {
            asked.store(true, Ordering::SeqCst);
            answer.response()
        };
        let send_metrics = move || async move {
            let name = if was_asked.load(Ordering::SeqCst) { "metrics-after" } else { "metrics-before" };
            match path_of(folder, name).exists() {
                true => Recording::read(folder, name).response(),
                false => StatusCode::NOT_FOUND.into_response(),
            }
        };
        let router = Router::new()
            .route("/v1/models", get(move || async move { Recording::read(folder, "models").response() }))
            .route("/v1/chat/completions", post(send_answer.clone()))
            .route("/v1/completions", post(send_answer))
            .route("/metrics", get(send_metrics));
        runtime.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, _runtime: runtime }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let data = tempfile::tempdir().unwrap();
        let url = format!("http://{}", self.address);
        let mut given = vec!["run", "a question", "--server", &url];
        given.extend(arguments);
        command(data.path(), &given).env("HUNCH_SERVER_KEY", "sk-secret").output().unwrap()
    }
}

/// An answer as Hunch must read it.
struct Expected {
    folder: &'static str,
    kind: &'static str,
    model: &'static str,
    context: Option<u64>,
    text: &'static str,
    thinking: &'static str,
    /// Events that held text.
    pieces: u64,
    speculation: fn() -> Value,
    tok_s: Option<f64>,
    /// Line of figures that people see.
    reported: &'static str,
}

/// Fields that most recorded chats share.
const CHAT: Expected = Expected {
    folder: "",
    kind: "other",
    model: "smollm2",
    context: None,
    text: "",
    thinking: "",
    pieces: 0,
    speculation: || Value::Null,
    tok_s: None,
    reported: "server reports no figures of its own",
};
const REPEATED: &str = "\"🙂, Grüße, Grüße, Grüße, Grüße,";
const VLLM: Expected = Expected {
    kind: "vllm",
    context: Some(512),
    text: REPEATED,
    reported: "vLLM reports no figures of its own",
    ..CHAT
};
const SGLANG: Expected =
    Expected { kind: "sglang", reported: "SGLang reports no figures of its own", ..VLLM };
const LLAMA_CPP: Expected = Expected { kind: "llama_cpp", pieces: 23, ..VLLM };

const ANSWERS: &[Expected] = &[
    Expected { folder: "vllm", pieces: 23, ..VLLM },
    Expected {
        folder: "vllm-ngram",
        pieces: 9,
        speculation: || json!({ "drafted": 20, "accepted": 14, "passes": 5, "source": "vllm_counters" }),
        // Five of ten passes checked a draft.
        reported: "vLLM (all requests in that period) reports: 14 of 20 drafted accepted (70%)   2.40 tokens per pass",
        ..VLLM
    },
    Expected {
        folder: "vllm-metrics",
        text: "",
        thinking: REPEATED,
        pieces: 9,
        speculation: || json!({ "drafted": 20, "accepted": 14, "passes": 5, "source": "vllm_response" }),
        tok_s: Some(1000.0 / 21.5938509563389),
        reported: "vLLM reports: 46.3 tok/s decode   14 of 20 drafted accepted (70%)   2.40 tokens per pass",
        ..VLLM
    },
    Expected { folder: "sglang", pieces: 23, ..SGLANG },
    Expected {
        folder: "sglang-spec",
        text: "",
        thinking: REPEATED,
        pieces: 23,
        speculation: || json!({ "drafted": 30, "accepted": 14, "passes": 10, "source": "sglang_response" }),
        reported: "SGLang reports: 14 of 30 drafted accepted (47%)   2.40 tokens per pass",
        ..SGLANG
    },
    Expected {
        folder: "mlx-lm",
        model: "/models/smollm2",
        text: "\"🙂 日本語, Grüße！\"\n\nThis is a Japanese",
        pieces: 18,
        ..CHAT
    },
    Expected {
        folder: "mlx-lm-draft",
        model: "/models/smollm2",
        text: "The text is: \"🙂 日本語, Grüße 🙂 日本",
        pieces: 17,
        ..CHAT
    },
    Expected {
        folder: "mlx-vlm",
        text: "\"🙂 日本語, Grüße！\"\n\nThis is a Japanese",
        pieces: 19,
        tok_s: Some(6.119973677221889),
        reported: "server reports: 6.1 tok/s decode\n",
        ..CHAT
    },
    Expected {
        folder: "mlx-vlm-draft",
        model: "qwen-tiny",
        text: " mistressilililil uniformsimentarykanucks coronCmd icontimezone Veteransething Pour pairwise Bayesianwnwn spirclustercluster fosters",
        pieces: 24,
        speculation: || json!({ "drafted": 53, "accepted": 5, "passes": 18, "source": "timings" }),
        tok_s: Some(36.06675598365342),
        reported: "server reports: 36.1 tok/s decode   5 of 53 drafted accepted (9%)   1.26 tokens per pass",
        ..CHAT
    },
    Expected {
        folder: "transformers",
        model: "example/smollm2",
        text: "\"🙂 日本語, Grüße！\"\n\nThis is a Japanese",
        pieces: 18,
        ..CHAT
    },
    Expected {
        folder: "llama-server",
        tok_s: Some(12.094161990257364),
        reported: "llama.cpp reports: 12.1 tok/s decode\n",
        ..LLAMA_CPP
    },
    Expected {
        folder: "llama-server-draft",
        speculation: || json!({ "drafted": 17, "accepted": 17, "passes": null, "source": "llama_cpp_timings" }),
        tok_s: Some(13.853819317283785),
        reported: "llama.cpp reports: 13.9 tok/s decode   17 of 17 drafted accepted (100%)   3.43 tokens per pass",
        ..LLAMA_CPP
    },
    Expected {
        folder: "llama-server-ngram",
        speculation: || json!({ "drafted": 14, "accepted": 12, "passes": null, "source": "llama_cpp_timings" }),
        tok_s: Some(19.48837095012587),
        reported: "llama.cpp reports: 19.5 tok/s decode   12 of 14 drafted accepted (86%)   2.00 tokens per pass",
        ..LLAMA_CPP
    },
];

#[test]
fn recorded_chats_are_read_with_their_figures() {
    for expected in ANSWERS {
        let server = Replay::start(expected.folder, "chat");
        let json = last_json(&server.run(&["--json"]));
        let folder = expected.folder;
        let model = json!({ "id": expected.model, "kind": expected.kind, "context": expected.context });
        assert_eq!(json["model"], model, "{folder}");
        assert_eq!(json["text"], expected.text, "{folder}");
        assert_eq!(json["thinking"], expected.thinking, "{folder}");
        let answer = &json["answer"];
        assert_eq!(answer["finish_reason"], "length", "{folder}");
        assert_eq!(answer["usage"], json!({ "prompt": 72, "generated": 24 }), "{folder}");
        assert_eq!(answer["pieces"], expected.pieces, "{folder}");
        assert_eq!(answer["hidden_tokens"], 0, "{folder}");
        assert_eq!(answer["speculation"], (expected.speculation)(), "{folder}");
        let tok_s = answer["reported_tok_s"].as_f64();
        assert_eq!(tok_s.is_some(), expected.tok_s.is_some(), "{folder}");
        let difference = tok_s.zip(expected.tok_s).map_or(0.0, |(read, sent)| (read - sent).abs());
        assert!(difference < 1e-9, "{folder}: {tok_s:?}");
        let out = text(&Replay::start(expected.folder, "chat").run(&[]).stdout);
        assert!(out.contains(expected.reported), "{folder}: {out}");
    }
}

#[test]
fn recorded_completions_end_at_their_stop_string() {
    for (folder, pieces) in [("vllm", 5), ("sglang", 4), ("mlx-lm", 4), ("llama-server", 4)] {
        let server = Replay::start(folder, "completion");
        let json = last_json(&server.run(&["--json", "--raw"]));
        assert_eq!(json["text"], "Grüße", "{folder}");
        let answer = &json["answer"];
        assert_eq!(answer["finish_reason"], "stop", "{folder}");
        assert_eq!(answer["usage"], json!({ "prompt": 39, "generated": 10 }), "{folder}");
        assert_eq!(answer["pieces"], pieces, "{folder}");
    }
}

#[test]
fn cut_recordings_keep_their_text_and_say_so() {
    for expected in ANSWERS {
        let mut cut = Recording::read(expected.folder, "chat");
        cut.body.truncate(cut.body.len() / 2);
        let output = Replay::sending(expected.folder, cut).run(&[]);
        let shown = text(&output.stdout);
        let whole = [expected.thinking, expected.text].concat();
        assert!(
            !shown.trim().is_empty() && whole.trim_start().starts_with(shown.trim()),
            "{}: {shown}",
            expected.folder
        );
        let (code, message) = failure(&output);
        assert_eq!(code, Some(5), "{}", expected.folder);
        assert!(
            message.contains("it ended before its answer did. Try again."),
            "{}: {message}",
            expected.folder
        );
    }
}

#[test]
fn recorded_errors_are_quoted_with_what_to_do() {
    for (folder, recording, expected) in [
        ("vllm-ngram", "too-long", "(parameter=input_tokens, value=513)\"). Change the request."),
        (
            "sglang",
            "too-long",
            "status 400 (\"The input (870 tokens) is longer than the model's context length (512 tokens).\"). Change the request.",
        ),
        (
            "llama-server-draft",
            "too-long",
            "(\"request (870 tokens) exceeds the available context size (512 tokens), try increasing it\"). Change the request.",
        ),
        ("llama-server-ngram", "wrong-key", "status 401 (\"Invalid API Key\"). Check the key."),
        (
            "vllm-metrics",
            "unknown-model",
            "status 404 (\"The model `absent` does not exist. Valid aliases: smollm2.\"). Choose another of its models.",
        ),
        ("mlx-lm", "unknown-model", "as environment variable.\"). Choose another of its models."),
        ("mlx-vlm", "unknown-model", "status 400 (\"Failed to load model: "),
        ("mlx-vlm", "completion", "status 404 (\"Not Found\"). Check the address"),
        ("transformers", "unknown-model", "status 500. Try again."),
        ("vllm-metrics", "wrong-key", "status 401 (\"Unauthorized\"). Check the key."),
        ("sglang", "wrong-key", "status 401 (\"Unauthorized\"). Check the key."),
    ] {
        let (code, message) = failure(&Replay::start(folder, recording).run(&[]));
        assert_eq!(code, Some(5), "{folder}/{recording}");
        assert!(message.contains(expected), "{folder}/{recording}: {message}");
        assert!(!message.contains("sk-"), "{message}");
    }
}

#[test]
fn text_before_a_recorded_failure_is_kept() {
    let output = Replay::start("vllm-ngram", "broken").run(&[]);
    assert_eq!(text(&output.stdout).trim(), "\"🙂, Grüße, Gr");
    let (code, message) = failure(&output);
    assert_eq!(code, Some(5));
    let expected =
        "\"EngineCore encountered an issue. See stack trace (above) for the root cause.\". Try again.";
    assert!(message.contains(expected), "{message}");
}
