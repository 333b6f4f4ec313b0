//! Streams of vLLM, SGLang, LM Studio and Ollama, as `hunch run --server` reads them: an answer with its reasoning and
//! figures, errors, and streams that are cut.
//!
//! They were written, not recorded, to have all of it in one stream. `recorded_servers` has recordings, which none can
//! be of LM Studio and Ollama. The sources:
//!
//! - vLLM 0.32 and SGLang 0.5.23, in the form of their recordings. SGLang's error is that of `serving_base.py`.
//! - LM Studio: the API changelog, <https://lmstudio.ai/docs/developer/api-changelog>: `reasoning_content` since 0.3.9,
//!   `stats` with drafts since 0.3.10, usage in streams since 0.3.18, `reasoning` of gpt-oss since 0.3.23.
//! - Ollama, main of 2026: `openai/openai.go` (`ChatCompletionChunk`, `Message.Reasoning`, `Error`) and
//!   `middleware/openai.go`.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::cli::{last_json, text};
use crate::remote::{Script, Scripted, failure};

/// A server with its stream and errors.
struct Server {
    /// `owned_by` of its models.
    owner: &'static str,
    /// Lines of a whole stream.
    stream: &'static [&'static str],
    /// Number of its first lines that end within the answer.
    cut: usize,
    /// Body of a refusal.
    refusal: &'static str,
    /// Line of an error within a stream.
    broken: &'static str,
    /// Speculation as `--json` shows it.
    speculation: fn() -> Value,
    /// Tokens per second that it reports.
    tok_s: Option<f64>,
}

const VLLM: Server = Server {
    owner: "vllm",
    stream: &[
        r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"first","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null}"#,
        r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"first","choices":[{"index":0,"delta":{"reasoning":"Rome is"},"logprobs":null,"finish_reason":null,"token_ids":null}]}"#,
        r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"first","choices":[{"index":0,"delta":{"reasoning":" old."},"logprobs":null,"finish_reason":null,"token_ids":null}]}"#,
        r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"first","choices":[{"index":0,"delta":{"content":"In Rome"},"logprobs":null,"finish_reason":null,"token_ids":null}]}"#,
        r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"first","choices":[{"index":0,"delta":{"content":"."},"logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":null}]}"#,
        r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"first","choices":[],"usage":{"prompt_tokens":11,"total_tokens":31,"completion_tokens":20,"prompt_tokens_details":null},"metrics":{"speculative_decoding":{"num_spec_steps":8,"num_draft_tokens":24,"num_accepted_draft_tokens":12}}}"#,
        "data: [DONE]",
    ],
    cut: 4,
    refusal: r#"{"error":{"message":"max_tokens must be at least 1, got 0.","type":"BadRequestError","param":"max_tokens","code":400}}"#,
    broken: r#"data: {"error":{"message":"EngineCore encountered an issue.","type":"InternalServerError","param":null,"code":500}}"#,
    speculation: || json!({ "drafted": 24, "accepted": 12, "passes": 8, "source": "vllm_response" }),
    tok_s: None,
};

const SGLANG: Server = Server {
    owner: "sglang",
    stream: &[
        r#"data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"first","choices":[{"index":0,"delta":{"reasoning_content":null,"role":"assistant","content":""},"logprobs":null,"finish_reason":null,"matched_stop":null}]}"#,
        r#"data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"first","choices":[{"index":0,"delta":{"reasoning_content":"Rome is old."},"logprobs":null,"finish_reason":null,"matched_stop":null}]}"#,
        r#"data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"first","choices":[{"index":0,"delta":{"reasoning_content":null,"content":"In Rome."},"logprobs":null,"finish_reason":null,"matched_stop":null}]}"#,
        r#"data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"first","choices":[{"index":0,"delta":{"reasoning_content":null},"logprobs":null,"finish_reason":"stop","matched_stop":2}]}"#,
        r#"data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"first","choices":[],"sglext":{"spec_tokens_details":{"spec_verify_ct":8,"spec_num_correct_drafts":12,"spec_num_proposed_drafts":24,"spec_accept_length":2.5,"spec_accept_rate":0.5}}}"#,
        r#"data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"first","choices":[],"usage":{"prompt_tokens":11,"total_tokens":31,"completion_tokens":20,"prompt_tokens_details":null,"reasoning_tokens":4,"completion_tokens_details":{"reasoning_tokens":4}}}"#,
        "data: [DONE]",
    ],
    cut: 3,
    refusal: r#"{"object":"error","message":"max_tokens must be at least 1, got 0.","type":"BadRequestError","param":null,"code":400}"#,
    broken: r#"data: {"error":{"object":"error","message":"EngineCore encountered an issue.","type":"InternalServerError","param":null,"code":500}}"#,
    speculation: || json!({ "drafted": 24, "accepted": 12, "passes": 8, "source": "sglang_response" }),
    tok_s: None,
};

const LM_STUDIO: Server = Server {
    owner: "organization_owner",
    stream: &[
        r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"first","system_fingerprint":"first","choices":[{"index":0,"delta":{"role":"assistant","reasoning_content":"Rome is"},"logprobs":null,"finish_reason":null}]}"#,
        r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"first","system_fingerprint":"first","choices":[{"index":0,"delta":{"reasoning":" old."},"logprobs":null,"finish_reason":null}]}"#,
        r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"first","system_fingerprint":"first","choices":[{"index":0,"delta":{"content":"In Rome."},"logprobs":null,"finish_reason":null}]}"#,
        r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"first","system_fingerprint":"first","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}"#,
        r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"first","system_fingerprint":"first","choices":[],"usage":{"prompt_tokens":11,"completion_tokens":20,"total_tokens":31},"stats":{"tokens_per_second":40.0,"draft_model":"second","total_draft_tokens_count":24,"accepted_draft_tokens_count":12,"rejected_draft_tokens_count":10,"ignored_draft_tokens_count":2}}"#,
        "data: [DONE]",
    ],
    cut: 3,
    refusal: r#"{"error":"max_tokens must be at least 1, got 0."}"#,
    broken: "event: error\ndata: {\"error\":{\"message\":\"EngineCore encountered an issue.\"}}",
    speculation: || json!({ "drafted": 24, "accepted": 12, "passes": null, "source": "lm_studio_response" }),
    tok_s: Some(40.0),
};

const OLLAMA: Server = Server {
    owner: "library",
    stream: &[
        r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"first","system_fingerprint":"fp_ollama","choices":[{"index":0,"delta":{"role":"assistant","content":"","reasoning":"Rome is old."},"finish_reason":null}]}"#,
        r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"first","system_fingerprint":"fp_ollama","choices":[{"index":0,"delta":{"role":"assistant","content":"In Rome."},"finish_reason":null}]}"#,
        r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"first","system_fingerprint":"fp_ollama","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":"stop"}]}"#,
        r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"first","system_fingerprint":"fp_ollama","choices":[],"usage":{"prompt_tokens":11,"completion_tokens":20,"total_tokens":31}}"#,
        "data: [DONE]",
    ],
    cut: 2,
    refusal: r#"{"error":{"message":"max_tokens must be at least 1, got 0.","type":"invalid_request_error","param":null,"code":null}}"#,
    // Written without `data:`, so it is no event.
    broken: r#"{"error":{"message":"EngineCore encountered an issue.","type":"api_error","param":null,"code":null}}"#,
    speculation: || Value::Null,
    tok_s: None,
};

const SERVERS: [Server; 4] = [VLLM, SGLANG, LM_STUDIO, OLLAMA];

fn events(lines: &[&str]) -> String {
    lines.iter().map(|line| format!("{line}\n\n")).collect()
}

fn serving(server: &Server, lines: &[&str]) -> Scripted {
    Scripted::start(Script::new(server.owner, events(lines)))
}

#[test]
fn a_stream_is_read_with_its_reasoning_and_figures() {
    for server in &SERVERS {
        let json = last_json(&serving(server, server.stream).run(&["--json"]));
        let owner = server.owner;
        let said = |thinking: bool| -> String {
            let pieces = json["pieces"].as_array().unwrap().iter();
            let pieces = pieces.filter(|piece| piece["thinking"] == thinking);
            pieces.map(|piece| piece["text"].as_str().unwrap()).collect()
        };
        assert_eq!((said(true), said(false)), ("Rome is old.".into(), "In Rome.".into()), "{owner}");
        let answer = &json["answer"];
        assert_eq!(answer["finish_reason"], "stop", "{owner}");
        assert_eq!(answer["usage"], json!({ "prompt": 11, "generated": 20 }), "{owner}");
        assert_eq!(answer["speculation"], (server.speculation)(), "{owner}");
        assert_eq!(answer["reported_tok_s"], json!(server.tok_s), "{owner}");
    }
}

#[test]
fn acceptance_that_lm_studio_counts_in_its_usage_is_read() {
    let end = r#"data: {"choices":[],"usage":{"prompt_tokens":66,"completion_tokens":300,"total_draft_tokens_count":492,"accepted_draft_tokens_count":176,"rejected_draft_tokens_count":316},"stats":{}}"#;
    let lines = [&LM_STUDIO.stream[..4], &[end]].concat();
    let out = text(&serving(&LM_STUDIO, &lines).run(&[]).stdout);
    assert!(out.contains("LM Studio reports: 176 of 492 drafted accepted (36%)"), "{out}");
}

#[test]
fn a_refusal_is_quoted_in_its_own_words() {
    for server in &SERVERS {
        let mut script = Script::new(server.owner, server.refusal.to_owned());
        (script.status, script.content_type) = (StatusCode::BAD_REQUEST, "application/json");
        let (_, message) = failure(&Scripted::start(script).run(&[]));
        let expected = "status 400 (\"max_tokens must be at least 1, got 0.\")";
        assert!(message.contains(expected), "{}: {message}", server.owner);
    }
}

#[test]
fn an_error_or_a_cut_within_a_stream_keeps_the_text_before_it() {
    for server in &SERVERS {
        let begun = &server.stream[..server.cut];
        for (lines, reason) in [
            (begun.to_vec(), "it ended before its answer did"),
            ([begun, &[server.broken]].concat(), "\"EngineCore encountered an issue.\""),
        ] {
            let is_event = server.broken.contains("data:") || lines.len() == begun.len();
            let reason = if is_event { reason } else { "it ended before its answer did" };
            let output = serving(server, &lines).run(&[]);
            assert!(text(&output.stdout).contains("In Rome"), "{}", server.owner);
            let (_, message) = failure(&output);
            assert!(message.contains(reason), "{}: {message}", server.owner);
        }
    }
}
