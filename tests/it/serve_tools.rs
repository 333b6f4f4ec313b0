//! Tools over HTTP: calls in answers of tiny models, whose form comes from the grammar alone.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use hunch::serve::ServerConfig;
use hunch_core::method::Method;
use hunch_core::rule::AcceptanceRule;
use serde_json::{Value, json};

use crate::serve::{Running, config, serve_model};
use crate::support::http::post;
use hunch_testing::tiny::{END_OF_TURN, Tiny};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";

/// A template of the form of Qwen.
const HERMES: &str = "{%- if tools %}<|im_start|>system\nTools:{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n\
    Write <tool_call>\n{\"name\": ..., \"arguments\": ...}\n</tool_call><|im_end|>\n{% endif %}\
    {%- for message in messages %}\
    {%- if message.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ message.content }}\n</tool_response><|im_end|>\n\
    {%- else %}<|im_start|>{{ message.role }}\n{{ message.content }}\
    {%- for call in message.tool_calls or [] %}\n<tool_call>\n{\"name\": \"{{ call.function.name }}\", \"arguments\": \
    {{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endif %}{% endfor %}\
    {%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A template of the form of Mistral, whose marker is a control token.
const MISTRAL: &str = "{%- if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}\
    {%- for message in messages %}[INST]{{ message.content }}[/INST]{% endfor %}{# [TOOL_CALLS] #}";

fn model(template: &'static str) -> Tiny {
    Tiny { context: 2048, template: Some(template), ..Tiny::default() }
}

fn with_tools(config: ServerConfig) -> Running {
    serve_model(&model(HERMES), config)
}

fn by(method: Method) -> Running {
    let mut config = config();
    (config.plan.method, config.plan.rule) = (method, AcceptanceRule::Coupled);
    with_tools(config)
}

fn place() -> Value {
    json!({
        "type": "object",
        "properties": {
            "city": { "$ref": "#/$defs/city" },
            "days": { "type": "integer", "minimum": 1, "maximum": 9 },
        },
        "required": ["city", "days"],
        "additionalProperties": false,
        "$defs": { "city": { "enum": ["Paris", "Rome", "Roma"] } },
    })
}

fn clock() -> Value {
    json!({
        "type": "object",
        "properties": { "utc": { "type": "boolean" } },
        "required": ["utc"],
        "additionalProperties": false,
    })
}

/// Returns a request of OpenAI's protocol with two tools, and further fields.
fn request(fields: &Value) -> Value {
    let tool = |name: &str, parameters: Value| json!({ "type": "function", "function": { "name": name, "description": "A tool.", "parameters": parameters } });
    let mut body = json!({
        "model": "tiny",
        "messages": [{ "role": "user", "content": "abc abc" }],
        "max_tokens": 300,
        "tools": [tool("weather", place()), tool("time", clock())],
    });
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// Returns a request of Anthropic's protocol with the same tools.
fn message(fields: &Value) -> Value {
    let mut body = json!({
        "model": "tiny",
        "messages": [{ "role": "user", "content": "abc abc" }],
        "max_tokens": 300,
        "tools": [
            { "name": "weather", "description": "A tool.", "input_schema": place() },
            { "name": "time", "description": "A tool.", "input_schema": clock() },
        ],
    });
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn named(name: &str) -> Value {
    json!({ "type": "function", "function": { "name": name } })
}

fn check_place(arguments: &Value) {
    assert!(["Paris", "Rome", "Roma"].contains(&arguments["city"].as_str().unwrap()), "{arguments}");
    assert!((1..=9).contains(&arguments["days"].as_u64().unwrap()), "{arguments}");
    assert_eq!(arguments.as_object().unwrap().len(), 2);
}

/// Joins the calls of a stream: name and arguments of each.
fn streamed_calls(events: &[String]) -> (Vec<(String, String)>, Option<String>) {
    let (mut calls, mut reason): (Vec<(String, String)>, _) = (Vec::new(), None);
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
    for event in &events[..events.len() - 1] {
        let chunk: Value = serde_json::from_str(event).unwrap();
        let choice = &chunk["choices"][0];
        for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap() as usize;
            let function = &call["function"];
            if index == calls.len() {
                assert!(call["id"].is_string() && call["type"] == "function", "{call}");
                calls.push((function["name"].as_str().unwrap().into(), String::new()));
            }
            calls[index].1 += function["arguments"].as_str().unwrap();
        }
        reason = choice["finish_reason"].as_str().map(str::to_owned).or(reason);
    }
    (calls, reason)
}

#[test]
fn named_calls_follow_the_schema_whatever_drafts() {
    let (server, plain) = (by(Method::Ngram), by(Method::Plain));
    let mut cities = BTreeSet::new();
    for seed in 0..8 {
        let mut body = request(&json!({
            "tool_choice": named("weather"), "seed": seed, "temperature": if seed == 0 { 0.0 } else { 1.5 },
        }));
        let answer = post(server.address, CHAT, &body).json();
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
        assert!(choice["message"]["content"].is_null(), "{answer}");
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert_eq!((calls.len(), &calls[0]["function"]["name"]), (1, &json!("weather")), "{answer}");
        let text = calls[0]["function"]["arguments"].as_str().unwrap();
        let arguments: Value = serde_json::from_str(text).unwrap();
        check_place(&arguments);
        cities.insert(arguments["city"].as_str().unwrap().to_owned());
        let same = post(plain.address, CHAT, &body).json();
        assert_eq!(same["choices"][0]["message"]["tool_calls"][0]["function"], calls[0]["function"]);
        body["stream"] = json!(true);
        let (streamed, reason) = streamed_calls(&post(server.address, CHAT, &body).events());
        assert_eq!(streamed, [("weather".to_owned(), text.to_owned())]);
        assert_eq!(reason.as_deref(), Some("tool_calls"));
    }
    assert!(cities.len() > 1, "{cities:?}");
}

#[test]
fn required_calls_choose_among_all_tools() {
    let server = with_tools(config());
    let mut names = BTreeSet::new();
    for seed in 0..12 {
        let body = request(&json!({
            "tool_choice": "required", "parallel_tool_calls": false, "seed": seed, "temperature": 1.5,
        }));
        let answer = post(server.address, CHAT, &body).json();
        let calls = answer["choices"][0]["message"]["tool_calls"].as_array().unwrap().clone();
        assert_eq!(calls.len(), 1, "{answer}");
        names.insert(calls[0]["function"]["name"].as_str().unwrap().to_owned());
    }
    assert_eq!(names.len(), 2, "{names:?}");
    // Without a limit, an answer that may not end has further calls until the tokens are used up.
    let many = request(&json!({
        "tool_choice": "required", "seed": 1, "temperature": 1.5, "max_tokens": 800,
        "logit_bias": { END_OF_TURN.to_string(): -100 },
    }));
    let answer = post(server.address, CHAT, &many).json();
    let calls = answer["choices"][0]["message"]["tool_calls"].as_array().map_or(0, Vec::len);
    assert!(calls > 1, "{answer}");
}

#[test]
fn the_only_call_allowed_ends_the_answer() {
    let server = by(Method::Plain);
    let mut body =
        request(&json!({ "tool_choice": "required", "parallel_tool_calls": false, "hunch": true }));
    for stream in [false, true] {
        body["stream"] = json!(stream);
        if stream {
            let (calls, reason) = streamed_calls(&post(server.address, CHAT, &body).events());
            assert_eq!((calls.len(), reason.as_deref()), (1, Some("tool_calls")));
            continue;
        }
        let answer = post(server.address, CHAT, &body).json();
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
        let texts = answer["hunch"]["texts"].as_array().unwrap();
        let text: String = texts.iter().filter_map(Value::as_str).collect();
        assert!(text.trim_end().ends_with("}"), "the model wrote on: {text}");
    }
}

#[test]
fn messages_have_calls_as_blocks() {
    let server = with_tools(config());
    let mut body = message(&json!({ "tool_choice": { "type": "tool", "name": "weather" } }));
    let answer = post(server.address, MESSAGES, &body).json();
    assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
    let content = answer["content"].as_array().unwrap();
    assert_eq!(
        (content.len(), &content[0]["type"], &content[0]["name"]),
        (1, &json!("tool_use"), &json!("weather"))
    );
    check_place(&content[0]["input"]);

    (body["stream"], body["hunch"]) = (json!(true), json!(true));
    let events = post(server.address, MESSAGES, &body).events();
    let events: Vec<Value> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[..2], ["message_start", "content_block_start"]);
    assert_eq!(kinds[kinds.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    assert_eq!(events[1]["content_block"]["name"], "weather");
    let text: String = events.iter().filter_map(|event| event["delta"]["partial_json"].as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), content[0]["input"]);
    let end = &events[events.len() - 2];
    assert_eq!(end["delta"]["stop_reason"], "tool_use");
    let origins = |event: &Value| event["hunch"]["origins"].as_array().map_or(0, Vec::len);
    assert_eq!(
        events.iter().map(origins).sum::<usize>() as u64,
        end["usage"]["output_tokens"].as_u64().unwrap()
    );

    let any = message(&json!({ "tool_choice": { "type": "any", "disable_parallel_tool_use": true } }));
    let answer = post(server.address, MESSAGES, &any).json();
    assert_eq!(answer["content"].as_array().unwrap().len(), 1, "{answer}");
}

/// A random model writes noise, which has no calls.
#[test]
fn answers_without_calls_are_text() {
    let server = with_tools(config());
    let body = request(&json!({ "hunch": true, "max_tokens": 40, "stream": false }));
    let answer = post(server.address, CHAT, &body).json();
    let texts: String =
        answer["hunch"]["texts"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(answer["choices"][0]["message"]["content"], texts, "{answer}");
    assert!(answer["choices"][0]["message"].get("tool_calls").is_none());
    let none = request(&json!({ "tool_choice": "none", "max_tokens": 4 }));
    let without = json!({ "messages": none["messages"], "max_tokens": 4 });
    let prompt = |body: &Value| post(server.address, CHAT, body).json()["usage"]["prompt_tokens"].clone();
    assert_eq!(prompt(&none), prompt(&without));
    assert!(answer["usage"]["prompt_tokens"].as_u64() > prompt(&none).as_u64());
}

#[test]
fn a_format_applies_to_answers_without_calls() {
    let server = with_tools(config());
    let schema = json!({ "type": "json_schema", "json_schema": { "schema": { "enum": [17, 23] } } });
    let mut kinds = BTreeSet::new();
    for seed in 0..60 {
        let body = request(&json!({
            "response_format": schema, "parallel_tool_calls": false, "seed": seed, "temperature": 1.5,
        }));
        let message = post(server.address, CHAT, &body).json()["choices"][0]["message"].clone();
        if let Some(text) = message["content"].as_str() {
            assert!(["17", "23"].contains(&text), "{message}");
        } else {
            assert_eq!(message["tool_calls"].as_array().unwrap().len(), 1, "{message}");
        }
        kinds.insert(message["content"].is_string());
        if kinds.len() == 2 {
            return;
        }
    }
    panic!("all answers are of one kind: {kinds:?}");
}

/// A conversation with two calls and their results, in both protocols.
fn conversations() -> (Value, Value) {
    let call = |id: &str, name: &str, arguments: &str| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
    let openai = json!([
        { "role": "user", "content": "abc" },
        { "role": "assistant", "content": null, "tool_calls": [
            call("a", "weather", "{\"city\":\"Rome\",\"days\":2}"), call("b", "time", ""),
        ] },
        { "role": "tool", "tool_call_id": "b", "content": "noon" },
        { "role": "tool", "tool_call_id": "a", "content": [{ "type": "text", "text": "sun" }] },
        { "role": "user", "content": "more" },
    ]);
    let anthropic = json!([
        { "role": "user", "content": "abc" },
        { "role": "assistant", "content": [
            { "type": "tool_use", "id": "a", "name": "weather", "input": { "city": "Rome", "days": 2 } },
            { "type": "tool_use", "id": "b", "name": "time", "input": {} },
        ] },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "b", "content": "noon" },
            { "type": "tool_result", "tool_use_id": "a", "content": [{ "type": "text", "text": "sun" }] },
            { "type": "text", "text": "more" },
        ] },
    ]);
    (openai, anthropic)
}

#[test]
fn results_of_calls_are_rendered_alike_by_both_protocols() {
    let server = with_tools(config());
    let (openai, anthropic) = conversations();
    let answer = post(server.address, CHAT, &request(&json!({ "messages": openai, "max_tokens": 4 }))).json();
    let prompt = answer["usage"]["prompt_tokens"].as_u64().unwrap();
    let answer =
        post(server.address, MESSAGES, &message(&json!({ "messages": anthropic, "max_tokens": 4 }))).json();
    assert_eq!(answer["usage"]["input_tokens"], prompt, "{answer}");
    let mut question = message(&json!({ "messages": anthropic }));
    question.as_object_mut().unwrap().remove("max_tokens");
    assert_eq!(post(server.address, "/v1/messages/count_tokens", &question).json()["input_tokens"], prompt);
    // A conversation with calls needs no tools any more.
    let body = json!({ "messages": openai, "max_tokens": 4 });
    let answer = post(server.address, CHAT, &body).json();
    assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() < prompt, "{answer}");
}

#[test]
fn markers_that_are_control_tokens_belong_to_the_call() {
    let server = serve_model(&Tiny { control: "[TOOL_CALLS]", ..model(MISTRAL) }, config());
    let body = request(&json!({ "tool_choice": named("weather"), "hunch": true }));
    let answer = post(server.address, CHAT, &body).json();
    let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
    check_place(&serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap());
    assert_eq!(answer["hunch"]["texts"][0], "[TOOL_CALLS]", "{answer}");
}

/// Templates that show the forms of Qwen3-Coder, GLM and Phi-4-mini.
#[test]
fn calls_of_further_forms_follow_the_schema() {
    const TOOLS: &str = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}\
        {% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant: ";
    let forms =
        ["<tool_call><function=f><parameter=p>", "<tool_call>f<arg_key>", "<|tool_call|><|/tool_call|>"];
    for form in forms {
        // A template lives as long as the program.
        let template: &'static str = format!("{TOOLS}{{# {form} #}}").leak();
        let server = serve_model(&model(template), config());
        for seed in 0..6 {
            let mut body = request(&json!({
                "tool_choice": named("weather"), "seed": seed, "temperature": 1.5, "max_tokens": 400,
            }));
            let answer = post(server.address, CHAT, &body).json();
            let choice = &answer["choices"][0];
            assert_eq!(choice["finish_reason"], "tool_calls", "{form} {answer}");
            let text = choice["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
            let arguments: Value = serde_json::from_str(text).unwrap();
            check_place(&arguments);
            body["stream"] = json!(true);
            let (streamed, _) = streamed_calls(&post(server.address, CHAT, &body).events());
            assert_eq!(streamed, [("weather".to_owned(), text.to_owned())], "{form}");
        }
    }
}

/// Forms with arguments in JSON and in tags, whose schemas do not list the arguments at their top.
#[test]
fn required_calls_follow_references_wherever_they_are() {
    const TOOLS: &str = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}\
        {% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant: ";
    let definitions = json!({
        "city": { "enum": ["Paris", "Rome", "Roma"] },
        "days": { "type": "integer", "minimum": 1, "maximum": 9 },
        "place": place(),
    });
    let properties = json!({
        "city": { "anyOf": [{ "$ref": "#/$defs/city" }] },
        "days": { "allOf": [{ "$ref": "#/$defs/days" }], "description": "Days" },
    });
    let schemas = [
        json!({ "type": "object", "properties": properties, "required": ["city", "days"],
            "additionalProperties": false, "$defs": definitions }),
        json!({ "$ref": "#/$defs/place", "$defs": definitions }),
        json!({ "allOf": [{ "$ref": "#/$defs/place" }], "$defs": definitions }),
    ];
    for form in ["<tool_call>", "<tool_call><function=f><parameter=p>", "<tool_call>f<arg_key>"] {
        // A template lives as long as the program.
        let template: &'static str = format!("{TOOLS}{{# {form} #}}").leak();
        let server = serve_model(&model(template), config());
        for schema in &schemas {
            let mut body = request(&json!({
                "tool_choice": named("weather"), "seed": 3, "temperature": 1.5, "max_tokens": 400,
            }));
            body["tools"][0]["function"]["parameters"] = schema.clone();
            let answer = post(server.address, CHAT, &body).json();
            let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
            let text = call["arguments"].as_str().unwrap_or_else(|| panic!("{form} {schema} {answer}"));
            check_place(&serde_json::from_str(text).unwrap());
        }
    }
}

/// Instructions within a conversation, many tools with long names, edits of the context, and null for unset fields.
#[test]
fn takes_what_coding_agents_send() {
    let server = with_tools(config());
    let (_, mut anthropic) = conversations();
    anthropic[2]["content"][0]["is_error"] = json!(null);
    let mut later = anthropic.as_array().unwrap().clone();
    later.push(json!({ "role": "system", "content": [{ "type": "text", "text": "Be brief." }] }));
    let tool =
        |i: usize| json!({ "name": format!("mcp__{i}__{}", "x".repeat(100)), "input_schema": clock() });
    let fields = json!({
        "messages": later,
        "max_tokens": 4,
        "tools": [tool(0), tool(1)],
        "tool_choice": { "type": "auto", "disable_parallel_tool_use": null },
        "context_management": { "edits": [
            { "type": "clear_thinking_20251015", "keep": "all" }, { "type": "clear_tool_uses_20250919" },
        ] },
    });
    let response = post(server.address, MESSAGES, &message(&fields));
    let status = response.status;
    assert_eq!(status, 200, "{}", response.json());
    let mut many = message(&json!({ "tools": (0..130).map(tool).collect::<Vec<_>>() }));
    many.as_object_mut().unwrap().remove("max_tokens");
    assert_eq!(post(server.address, "/v1/messages/count_tokens", &many).status, 200);
    let brief =
        |role: &str| json!([{ "role": "user", "content": "abc" }, { "role": role, "content": "Be brief." }]);
    let tokens = |role: &str| {
        let counted = json!({ "messages": brief(role), "tools": [], "context_management": { "edits": [] } });
        let mut body = message(&counted);
        body.as_object_mut().unwrap().remove("max_tokens");
        post(server.address, "/v1/messages/count_tokens", &body).json()["input_tokens"].as_u64().unwrap()
    };
    assert!(tokens("system") > tokens("user"), "the role is part of the prompt");
    let compact = json!({ "context_management": { "edits": [{ "type": "compact_20260112" }] } });
    let refused = refusal(server.address, MESSAGES, &message(&compact));
    assert!(refused.contains("context_management"), "{refused}");
    let usage = json!({ "stream": true, "max_tokens": 2, "stream_options": { "include_usage": null } });
    assert_eq!(post(server.address, CHAT, &request(&usage)).status, 200);
}

fn refusal(address: SocketAddr, path: &str, body: &Value) -> String {
    let response = post(address, path, body);
    assert_eq!(response.status, 400, "{body}");
    let error = response.json()["error"].clone();
    assert_eq!(error["type"], "invalid_request_error", "{error}");
    error["message"].as_str().unwrap().to_owned()
}

#[test]
fn refuses_invalid_tools_with_the_error_of_the_protocol() {
    let server = with_tools(config());
    let function = |function: Value| json!({ "tools": [{ "type": "function", "function": function }] });
    let nested = (0..90).fold(json!({}), |inner, _| json!({ "a": inner }));
    let (history, _) = conversations();
    let without_call = json!([history[0], history[2]]);
    for (fields, word) in [
        (json!({ "tools": [{ "type": "function" }] }), "function"),
        (json!({ "tools": [{ "type": "web_search" }] }), "web_search"),
        (json!({ "tools": "weather" }), "tools"),
        (function(json!({ "name": "two words" })), "two words"),
        (function(json!({ "name": "x", "parameters": [] })), "JSON schema"),
        (function(json!({ "name": "x", "parameters": nested })), "levels"),
        (function(json!({ "name": "x", "parameters": { "type": "string" } })), "object"),
        (json!({ "tools": vec![request(&json!({}))["tools"][0].clone(); 2] }), "weather"),
        (json!({ "tool_choice": "always" }), "always"),
        (json!({ "tool_choice": named("other") }), "other"),
        (json!({ "tools": [], "tool_choice": "required" }), "tools"),
        (json!({ "messages": without_call }), "ID"),
        (json!({ "messages": [{ "role": "tool", "content": "x" }] }), "tool_call_id"),
        (
            json!({ "messages": [{ "role": "user", "content": "x", "tool_calls": history[1]["tool_calls"] }] }),
            "assistant",
        ),
        (
            json!({ "messages": [{ "role": "assistant", "tool_calls": [
                { "id": "a", "type": "function", "function": { "name": "x", "arguments": "[" } }] }] }),
            "JSON object",
        ),
        (
            json!({ "messages": [{ "role": "assistant", "tool_calls": [
                { "id": "a", "type": "function", "function": { "name": "x<|im_end|>", "arguments": "{}" } }] }] }),
            "x<|im_end|>",
        ),
    ] {
        let refused = refusal(server.address, CHAT, &request(&fields));
        assert!(refused.contains(word) && refused.ends_with('.'), "{refused}");
    }
    let mut impossible = request(&json!({ "tool_choice": named("weather") }));
    impossible["tools"][0]["function"]["parameters"]["properties"]["city"] = json!({ "type": "colour" });
    let refused = refusal(server.address, CHAT, &impossible);
    assert!(refused.contains("\"weather\"") && refused.contains("colour"), "{refused}");
    assert!(refused.ends_with('.') && refused.lines().count() == 1, "{refused}");
    for (fields, word) in [
        (json!({ "tools": [{ "type": "bash_20250124", "name": "bash" }] }), "bash_20250124"),
        (json!({ "tools": [{ "name": "x" }] }), "input_schema"),
        (json!({ "tool_choice": { "type": "tool" } }), "name"),
        (json!({ "tool_choice": { "type": "always" } }), "always"),
        (json!({ "messages": [{ "role": "user", "content": [{ "type": "image" }] }] }), "image"),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "tool_use", "id": "a", "name": "x" }] }] }),
            "tool_use",
        ),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "z" }] }] }),
            "z",
        ),
        (
            json!({ "messages": [{ "role": "assistant", "content": [
                { "type": "tool_use", "id": "a", "name": "x<|im_end|>" }] }] }),
            "x<|im_end|>",
        ),
    ] {
        let text = refusal(server.address, MESSAGES, &message(&fields));
        assert!(text.contains(word) && text.ends_with('.'), "{text}");
    }
}

#[test]
fn refuses_tools_where_the_template_has_none_or_an_unknown_form() {
    let unknown = "{{ tools }}{% for message in messages %}{{ message.content }}{% endfor %}";
    let bare = "{% for message in messages %}{{ message.content }}{% endfor %}";
    for (template, word) in [(bare, "no tools"), (unknown, "form of calls")] {
        let server = serve_model(&model(template), config());
        let (openai, anthropic) = conversations();
        for text in [
            refusal(server.address, CHAT, &request(&json!({}))),
            refusal(server.address, MESSAGES, &message(&json!({}))),
            refusal(server.address, CHAT, &json!({ "messages": openai })),
            refusal(server.address, MESSAGES, &json!({ "messages": anthropic, "max_tokens": 4 })),
        ] {
            assert!(text.contains(word), "{text}");
        }
    }
}
