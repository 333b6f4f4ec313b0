//! Thinking over HTTP: what templates can do, and thoughts as blocks of their own.

use hunch::serve::ServerConfig;
use serde_json::{Value, json};

use crate::serve::{Running, config, serve_model};
use crate::support::http::post;
use hunch_testing::tiny::{END_OF_TURN, Tiny};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";

/// A template with a switch, which opens the thought itself.
const SWITCH: &str = "{% for message in messages %}{{ message.content }}\n{% endfor %}\
    {% if enable_thinking is defined and not enable_thinking %}no{% else %}<think>\n{% endif %}";

/// A template whose model always thinks.
const LEVELS: &str = "{% for message in messages %}{{ message.content }}\n{% endfor %}{{ reasoning_effort | default('medium') }}";

/// A template without a switch, which opens the thought itself.
const ALWAYS: &str = "{% for message in messages %}{{ message.content }}\n{% endfor %}<think>\n";

/// A template with a switch and with tools.
const TOOLS: &str = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}\
    {% for message in messages %}{{ message.content }}\n{% endfor %}\
    {% if enable_thinking %}<think>\n{% endif %}{# <tool_call> #}";

fn with(template: &'static str) -> Running {
    let tiny = Tiny { context: 1024, template: Some(template), ..Tiny::default() };
    serve_model(&tiny, ServerConfig { ..config() })
}

fn message(fields: &Value) -> Value {
    let mut body = json!({
        "model": "tiny", "max_tokens": 24, "messages": [{ "role": "user", "content": "abc abc" }],
        "logit_bias": { END_OF_TURN.to_string(): -100 },
    });
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn merged(mut fields: Value, more: &Value) -> Value {
    fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    fields
}

fn tokens(server: &Running, fields: &Value) -> u64 {
    let answer = post(server.address, MESSAGES, &message(fields)).json();
    answer["usage"]["input_tokens"].as_u64().unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn thoughts_are_blocks_once_they_are_asked_for() {
    let server = with(SWITCH);
    let plain = post(server.address, MESSAGES, &message(&json!({}))).json();
    assert_eq!(plain["content"][0]["type"], "text");
    // The template opened the thought, whose end would otherwise stand alone in the text.
    assert!(plain["content"][0]["text"].as_str().unwrap().starts_with("<think>\n"), "{plain}");
    let adaptive = json!({ "thinking": { "type": "adaptive" } });
    let whole = post(server.address, MESSAGES, &message(&adaptive)).json();
    // The noise of a tiny model never ends its thought.
    let blocks = whole["content"].as_array().unwrap();
    assert!(blocks.iter().any(|block| block["type"] == "thinking" && block["signature"] == ""), "{whole}");
    let thought = blocks[0]["thinking"].as_str().unwrap();
    let mut streaming = message(&adaptive);
    streaming["stream"] = json!(true);
    let events = post(server.address, MESSAGES, &streaming).events();
    let events: Vec<Value> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let streamed: String = events.iter().filter_map(|event| event["delta"]["thinking"].as_str()).collect();
    assert_eq!(streamed, thought);
    let kinds: Vec<&str> = events.iter().filter_map(|event| event["delta"]["type"].as_str()).collect();
    assert_eq!(kinds.last(), Some(&"signature_delta"), "{kinds:?}");

    // A thought that comes back is left out of the prompt.
    let back = |content: Value| {
        let messages = json!([
            { "role": "user", "content": "abc" }, { "role": "assistant", "content": content },
            { "role": "user", "content": "abc" },
        ]);
        tokens(&server, &json!({ "messages": messages }))
    };
    let text = json!({ "type": "text", "text": "So" });
    let thought = json!({ "type": "thinking", "thinking": "Hm", "signature": "" });
    assert_eq!(back(json!([thought, text])), back(json!([text])));
}

#[test]
fn thoughts_are_apart_from_the_content_in_chats() {
    let server = with(SWITCH);
    let asked = |more: Value| {
        let fields = merged(json!({ "hunch": true, "logprobs": true, "temperature": 0 }), &more);
        post(server.address, CHAT, &message(&fields))
    };
    let whole = asked(json!({})).json();
    let (answer, message) = (&whole["choices"][0], &whole["choices"][0]["message"]);
    // The noise of a tiny model never ends its thought.
    let thought = message["reasoning_content"].as_str().unwrap_or_else(|| panic!("{whole}"));
    assert_eq!((&message["content"], thought.is_empty()), (&json!(""), false));
    // The field has the whole text, and the log probabilities all tokens.
    let texts = whole["hunch"]["texts"].as_array().unwrap();
    let texts: String = texts.iter().map(|text| text.as_str().unwrap()).collect();
    assert_eq!(texts.trim(), thought.trim());
    assert_eq!(answer["logprobs"]["content"].as_array().unwrap().len(), 24);
    let events = asked(json!({ "stream": true })).events();
    let (end, chunks) = events.split_last().unwrap();
    assert_eq!(end, "[DONE]");
    let chunks: Vec<Value> = chunks.iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect();
    let of = |name: &str| -> String {
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][name].as_str()).collect()
    };
    assert_eq!((of("reasoning_content"), of("content")), (thought.to_owned(), String::new()));
    let logprobs = chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array());
    assert_eq!(logprobs.map(Vec::len).sum::<usize>(), 24);
    let streamed = chunks.iter().filter_map(|chunk| chunk["hunch"]["texts"].as_array()).flatten();
    assert_eq!(streamed.map(|text| text.as_str().unwrap()).collect::<String>(), texts);
    // Without thinking, all of it is content.
    let off = asked(json!({ "reasoning_effort": "none" })).json();
    let message = &off["choices"][0]["message"];
    assert!(message.get("reasoning_content").is_none() && message["content"] != "", "{off}");
}

/// A format leaves no room for a thought, so a thought that the template opens is closed before the answer.
#[test]
fn an_answer_in_a_format_never_begins_within_a_thought() {
    let format = json!({ "response_format": { "type": "json_object" } });
    for template in [SWITCH, ALWAYS] {
        let server = with(template);
        let prompt = |fields: &Value| {
            let answer = post(server.address, CHAT, &message(fields)).json();
            let prompt = answer["usage"]["prompt_tokens"].as_u64().unwrap_or_else(|| panic!("{answer}"));
            (prompt, answer)
        };
        let (free, _) = prompt(&json!({}));
        let (formatted, answer) = prompt(&format);
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(text.starts_with('{'), "{answer}");
        match template {
            // The template has a switch, which is off: "no" in place of "<think>" and a line break.
            SWITCH => assert_eq!(free - formatted, 6),
            // "</think>" and a blank line.
            _ => assert_eq!(formatted - free, 10),
        }
    }
}

#[test]
fn requests_set_the_switch_and_the_level_of_the_template() {
    let server = with(SWITCH);
    let off = tokens(&server, &json!({ "thinking": { "type": "disabled" } }));
    assert!(tokens(&server, &json!({ "thinking": { "type": "adaptive" } })) > off);
    let server = with(LEVELS);
    let level = |effort: &str| {
        let fields = json!({ "thinking": { "type": "adaptive" }, "output_config": { "effort": effort } });
        tokens(&server, &fields)
    };
    // The level is part of the prompt, a token for each letter.
    assert_eq!(level("medium") - level("low"), 3);
    assert_eq!(level("high") - level("low"), 1);
}

#[test]
fn an_answer_begun_in_a_thought_continues_the_thought() {
    let server = with(SWITCH);
    for (begun, first) in [("Let me", "thinking"), ("Let me see.</think>\n\nIt is", "text")] {
        let fields = json!({ "thinking": { "type": "adaptive" }, "messages": [
            { "role": "user", "content": "abc abc" }, { "role": "assistant", "content": begun },
        ] });
        let answer = post(server.address, MESSAGES, &message(&fields)).json();
        assert_eq!(answer["content"][0]["type"], first, "{begun}: {answer}");
    }
}

#[test]
fn refuses_thinking_beyond_the_model() {
    let (switch, levels, always) = (with(SWITCH), with(LEVELS), with(ALWAYS));
    let tools = with(TOOLS);
    let format = json!({ "type": "json_schema", "schema": { "type": "object" } });
    let call = json!({
        "tools": [{ "name": "time", "input_schema": { "type": "object" } }], "tool_choice": { "type": "any" },
    });
    let enabled = |budget: usize| json!({ "thinking": { "type": "enabled", "budget_tokens": budget } });
    assert_eq!(post(switch.address, CHAT, &message(&json!({ "reasoning_effort": "none" }))).status, 200);
    for (server, path, fields, word) in [
        (&switch, MESSAGES, enabled(24), "below `max_tokens`"),
        (&switch, MESSAGES, enabled(0), "above 0"),
        // The tiny vocabulary has no token that ends a thought.
        (&switch, MESSAGES, enabled(8), "adaptive"),
        (&switch, MESSAGES, json!({ "thinking": { "type": "enabled" } }), "budget_tokens"),
        // A format leaves no room for a thought, and neither does a call that is required.
        (&switch, MESSAGES, merged(enabled(8), &json!({ "output_config": { "format": format } })), "format"),
        (&tools, MESSAGES, merged(enabled(8), &call), "required"),
        (&switch, MESSAGES, json!({ "output_config": { "effort": "none" } }), "low, medium or high"),
        (&levels, MESSAGES, json!({ "thinking": { "type": "disabled" } }), "always thinks"),
        (&levels, CHAT, json!({ "reasoning_effort": "none" }), "always thinks"),
        (&always, CHAT, json!({ "reasoning_effort": "none" }), "always thinks"),
        (&always, CHAT, json!({ "chat_template_kwargs": { "enable_thinking": false } }), "always thinks"),
        (&always, MESSAGES, json!({ "thinking": { "type": "disabled" } }), "always thinks"),
        (&levels, CHAT, json!({ "reasoning_effort": "much" }), "low, medium or high"),
    ] {
        let response = post(server.address, path, &message(&fields));
        assert_eq!(response.status, 400, "{fields}");
        let text = response.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(text.contains(word) && text.ends_with('.'), "{text}");
    }
}
