//! `/v1/responses` over HTTP: the same answers as the chats of OpenAI, in items and events.

use std::time::Duration;

use hunch::serve::{ConnectionLimits, ServerConfig};
use serde_json::{Map, Value, json};

use crate::serve::{CHAT, JSON, LONG, RUNNING, Running, chat, config, serve, serve_model, wait_for};
use crate::support::http::{self, post, read_response, send};
use hunch_testing::tiny::{END_OF_TURN, Tiny};

const RESPONSES: &str = "/v1/responses";

/// A template with tools in the form of Qwen.
const HERMES: &str = "{%- for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}\
    {%- for message in messages %}{{ message.role }}: {{ message.content }}\
    {%- for call in message.tool_calls or [] %}<tool_call>{{ call.function.name }} \
    {{ call.function.arguments | tojson }}</tool_call>{% endfor %}\n{% endfor %}assistant: {# <tool_call> #}";

/// A template with a switch for thinking, which opens the thought itself.
const SWITCH: &str = "{% for message in messages %}{{ message.content }}\n{% endfor %}\
    {% if enable_thinking is defined and not enable_thinking %}no{% else %}<think>\n{% endif %}";

fn with(template: &'static str) -> Running {
    serve_model(&Tiny { context: 2048, template: Some(template), ..Tiny::default() }, config())
}

fn merged(mut body: Value, fields: &Value) -> Value {
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

/// Returns a request whose answer does not end by itself, with further fields.
fn request(fields: &Value) -> Value {
    let body = json!({
        "model": "tiny", "input": "abc abc", "max_output_tokens": 24,
        "logit_bias": { END_OF_TURN.to_string(): -100 },
    });
    merged(body, fields)
}

fn asked(server: &Running, fields: &Value) -> Value {
    post(server.address, RESPONSES, &request(fields)).json()
}

/// Returns the events of a stream, and checks their names and numbers.
fn streamed(server: &Running, fields: &Value) -> Vec<Value> {
    let body = merged(request(fields), &json!({ "stream": true }));
    events(&post(server.address, RESPONSES, &body).text())
}

fn events(text: &str) -> Vec<Value> {
    let blocks = text.split("\n\n").filter(|block| !block.is_empty() && !block.starts_with(':'));
    let parsed = blocks.enumerate().map(|(number, block)| {
        let (name, data) = block.split_once('\n').unwrap_or_else(|| panic!("{block}"));
        let event: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), event["type"].as_str());
        assert_eq!(event["sequence_number"], number, "{event}");
        event
    });
    parsed.collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

/// Joins the deltas of events of a type.
fn joined(events: &[Value], kind: &str) -> String {
    let deltas = events.iter().filter(|event| event["type"] == kind);
    deltas.map(|event| event["delta"].as_str().unwrap()).collect()
}

/// Returns the texts of all messages, as the SDKs of OpenAI do.
fn output_text(response: &Value) -> String {
    let items = response["output"].as_array().unwrap_or_else(|| panic!("{response}"));
    let messages = items.iter().filter(|item| item["type"] == "message");
    messages.map(|item| item["content"][0]["text"].as_str().unwrap()).collect()
}

/// Removes the IDs and times, which differ between two answers.
fn without_ids(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(name, _)| {
                !["id", "call_id", "created_at", "usage", "hunch"].contains(&name.as_str())
            });
            Value::Object(kept.map(|(name, value)| (name.clone(), without_ids(value))).collect::<Map<_, _>>())
        }
        Value::Array(items) => items.iter().map(without_ids).collect(),
        other => other.clone(),
    }
}

#[test]
fn a_response_has_the_text_and_the_counts_of_a_chat() {
    let server = serve(512, config());
    let messages = json!([
        { "role": "system", "content": "Be brief." }, { "role": "user", "content": "abc" },
        { "role": "assistant", "content": "def" }, { "role": "developer", "content": "Go on." },
        { "role": "user", "content": "abc abc" },
    ]);
    let chat = post(server.address, CHAT, &chat("", 24, &json!({ "messages": messages }))).json();
    let text = chat["choices"][0]["message"]["content"].as_str().unwrap();
    let part = |kind: &str, text: &str| json!([{ "type": kind, "text": text }]);
    let fields = json!({
        "instructions": "Be brief.",
        "metadata": { "run": "7" },
        "input": [
            { "role": "user", "content": "abc" },
            { "type": "reasoning", "id": "rs_1", "summary": [], "content": part("reasoning_text", "Hm") },
            { "type": "message", "id": "msg_1", "role": "assistant", "content": part("output_text", "def") },
            { "type": "message", "role": "developer", "content": part("input_text", "Go on.") },
            { "role": "user", "content": part("text", "abc abc") },
        ],
    });
    let response = asked(&server, &fields);
    assert_eq!(output_text(&response), text, "{response}");
    assert_eq!((&response["object"], &response["model"]), (&json!("response"), &json!("tiny")));
    assert!(response["id"].as_str().unwrap().starts_with("resp_"), "{response}");
    for (name, value) in [
        ("instructions", json!("Be brief.")),
        ("metadata", json!({ "run": "7" })),
        ("tools", json!([])),
        ("tool_choice", json!("auto")),
        ("parallel_tool_calls", json!(true)),
        ("temperature", json!(0.0)),
        ("max_output_tokens", json!(24)),
        ("text", json!({ "format": { "type": "text" } })),
        ("store", json!(false)),
        ("previous_response_id", Value::Null),
        ("error", Value::Null),
    ] {
        assert_eq!(response[name], value, "{name}");
    }
    let (usage, of_chat) = (&response["usage"], &chat["usage"]);
    assert_eq!(usage["input_tokens"], of_chat["prompt_tokens"]);
    assert_eq!((&usage["output_tokens"], &usage["total_tokens"]), (&json!(24), &of_chat["total_tokens"]));
    assert_eq!(usage["output_tokens_details"]["reasoning_tokens"], 0);
    // The chat had the same prompt, whose last token is run again.
    let cached = usage["input_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert_eq!(cached + 1, usage["input_tokens"].as_u64().unwrap());
}

#[test]
fn a_stream_has_the_events_of_each_item_in_order() {
    let server = serve(512, config());
    let whole = asked(&server, &json!({}));
    let events = streamed(&server, &json!({}));
    let kinds = kinds(&events);
    assert_eq!(
        kinds[..4],
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added"
        ]
    );
    let end = kinds.len() - 4;
    assert!(end > 8, "one delta for each round: {kinds:?}");
    assert!(kinds[4..end].iter().all(|kind| *kind == "response.output_text.delta"), "{kinds:?}");
    assert_eq!(
        kinds[end..],
        [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.incomplete"
        ]
    );
    let (created, last) = (&events[0]["response"], &events[events.len() - 1]["response"]);
    assert_eq!((&created["status"], &created["output"]), (&json!("in_progress"), &json!([])));
    assert_eq!(created["id"], last["id"]);
    assert_eq!(without_ids(last), without_ids(&whole));
    let text = output_text(&whole);
    assert_eq!(joined(&events, "response.output_text.delta"), text);
    assert_eq!(events[end]["text"], text);
    let (added, done) = (&events[2]["item"], &events[end + 2]["item"]);
    assert_eq!((&added["status"], &added["content"]), (&json!("in_progress"), &json!([])));
    assert_eq!(done, &last["output"][0]);
    for event in &events[3..=end + 1] {
        assert_eq!(
            (&event["item_id"], &event["output_index"], &event["content_index"]),
            (&added["id"], &json!(0), &json!(0)),
            "{event}"
        );
    }
}

#[test]
fn an_answer_is_incomplete_only_at_its_limit() {
    let server = serve(512, config());
    let cut = asked(&server, &json!({ "max_output_tokens": 3 }));
    assert_eq!(
        (&cut["status"], &cut["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    assert_eq!(
        (&cut["output"][0]["status"], &cut["usage"]["output_tokens"]),
        (&json!("incomplete"), &json!(3))
    );
    // A stop string of the chat endpoint, and a bias that ends the answer at once.
    let whole = output_text(&asked(&server, &json!({})));
    let stop: String = whole.chars().skip(6).take(2).collect();
    let before = &whole[..whole.find(&stop).unwrap()];
    for (fields, text) in
        [(json!({ "stop": [stop] }), before), (json!({ "logit_bias": { END_OF_TURN.to_string(): 100 } }), "")]
    {
        let response = asked(&server, &fields);
        assert_eq!(
            (&response["status"], &response["incomplete_details"]),
            (&json!("completed"), &Value::Null)
        );
        assert_eq!(output_text(&response), text, "{response}");
        // Agents expect a message, even if it is empty.
        assert_eq!(response["output"][0]["status"], "completed", "{response}");
        let events = streamed(&server, &fields);
        let last = events.last().unwrap();
        assert_eq!(last["type"], "response.completed");
        assert_eq!(without_ids(&last["response"]), without_ids(&response));
    }
    // As in chats, a negative number is no limit. The noise of a tiny model fills the context.
    let full = asked(&serve(64, config()), &json!({ "max_output_tokens": -1 }));
    assert_eq!((&full["status"], &full["usage"]["total_tokens"]), (&json!("incomplete"), &json!(64)));
}

#[test]
fn origins_and_log_probabilities_come_on_request() {
    let server = serve(512, config());
    let fields = json!({
        "hunch": true, "top_logprobs": 2,
        "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
    });
    let whole = asked(&server, &fields);
    let of_chat = json!({ "logprobs": true, "top_logprobs": 2 });
    let chat = post(server.address, CHAT, &chat("abc abc", 24, &of_chat)).json();
    let logprobs = &whole["output"][0]["content"][0]["logprobs"];
    assert_eq!(logprobs, &chat["choices"][0]["logprobs"]["content"]);
    assert_eq!(logprobs.as_array().unwrap().len(), 24);
    let field = &whole["hunch"];
    assert_eq!((&field["stop"], &field["method"]), (&json!("max_tokens"), &json!("ngram")));
    let events = streamed(&server, &fields);
    let last = &events.last().unwrap()["response"]["hunch"];
    for name in ["texts", "origins"] {
        let parts = events.iter().filter_map(|event| event["hunch"][name].as_array());
        let sent: Vec<Value> = parts.flatten().cloned().collect();
        assert_eq!(json!(sent), field[name]);
        assert_eq!(last[name], field[name]);
    }
    assert!(last["stats"].is_object() && events.iter().any(|event| event["hunch"]["rounds"].is_u64()));
    let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    let sent: Vec<Value> = deltas.flat_map(|event| event["logprobs"].as_array().unwrap().clone()).collect();
    assert_eq!(&json!(sent), logprobs);
    let plain = asked(&server, &json!({}));
    assert!(plain.get("hunch").is_none());
    assert_eq!(plain["output"][0]["content"][0]["logprobs"], json!([]));
}

#[test]
fn thoughts_are_items_before_the_message() {
    let server = with(SWITCH);
    let whole = asked(&server, &json!({ "reasoning": { "summary": "auto" } }));
    // The noise of a tiny model never ends its thought.
    let item = &whole["output"][0];
    assert_eq!((&item["type"], &item["status"]), (&json!("reasoning"), &json!("incomplete")), "{whole}");
    assert_eq!((&item["summary"], whole["output"].as_array().unwrap().len()), (&json!([]), 1));
    let thought = item["content"][0]["text"].as_str().unwrap();
    let chat = post(server.address, CHAT, &chat("abc abc", 24, &json!({}))).json();
    assert_eq!(chat["choices"][0]["message"]["reasoning_content"], thought);
    assert_eq!(whole["usage"]["output_tokens_details"]["reasoning_tokens"], 24);
    let events = streamed(&server, &json!({}));
    assert_eq!(joined(&events, "response.reasoning_text.delta"), thought);
    assert_eq!(without_ids(&events.last().unwrap()["response"]["output"]), without_ids(&whole["output"]));
    let kinds = kinds(&events);
    assert_eq!(kinds[kinds.len() - 4], "response.reasoning_text.done");
    // Without thinking, all of it is the message.
    let off = asked(&server, &json!({ "reasoning": { "effort": "none" } }));
    assert_eq!((&off["output"][0]["type"], &off["reasoning"]["effort"]), (&json!("message"), &json!("none")));
    let of_chat = json!({ "reasoning_effort": "none" });
    let chat = post(server.address, CHAT, &crate::serve::chat("abc abc", 24, &of_chat)).json();
    assert_eq!(chat["choices"][0]["message"]["content"], output_text(&off));
    let switched = asked(&server, &json!({ "chat_template_kwargs": { "enable_thinking": false } }));
    assert_eq!(output_text(&switched), output_text(&off));
}

fn place() -> Value {
    json!({
        "type": "object",
        "properties": { "city": { "enum": ["Paris", "Rome", "Roma"] } },
        "required": ["city"],
        "additionalProperties": false,
    })
}

fn weather() -> Value {
    json!({ "type": "function", "name": "weather", "description": "A tool.", "parameters": place(), "strict": true })
}

#[test]
fn answers_follow_the_format_of_the_text() {
    let server = serve(512, config());
    let flat = json!({ "type": "json_schema", "name": "place", "strict": true, "schema": place() });
    let fields = json!({ "text": { "format": flat, "verbosity": "medium" }, "max_output_tokens": 200, "logit_bias": {} });
    let response = asked(&server, &fields);
    let written: Value = serde_json::from_str(&output_text(&response)).unwrap();
    assert!(["Paris", "Rome", "Roma"].contains(&written["city"].as_str().unwrap()), "{response}");
    assert_eq!((&response["status"], &response["text"]["format"]), (&json!("completed"), &flat));
    let nested = json!({ "type": "json_schema", "json_schema": { "name": "place", "schema": place() } });
    let of_chat = json!({ "response_format": nested, "logit_bias": {} });
    let chat = post(server.address, CHAT, &chat("abc abc", 200, &of_chat)).json();
    assert_eq!(chat["choices"][0]["message"]["content"], output_text(&response));
    let object = asked(&server, &json!({ "text": { "format": { "type": "json_object" } } }));
    assert!(output_text(&object).starts_with('{'), "{object}");
}

#[test]
fn calls_are_items_and_their_results_come_back_as_items() {
    let server = with(HERMES);
    let named = json!({ "type": "function", "name": "weather" });
    let fields = json!({
        "tools": [weather()], "tool_choice": named, "max_output_tokens": 300, "temperature": 1.5, "seed": 3,
        "logit_bias": {},
    });
    let whole = asked(&server, &fields);
    let call = &whole["output"][0];
    assert_eq!(
        (&whole["status"], whole["output"].as_array().unwrap().len()),
        (&json!("completed"), 1),
        "{whole}"
    );
    assert_eq!(
        (&call["type"], &call["name"], &call["status"]),
        (&json!("function_call"), &json!("weather"), &json!("completed"))
    );
    assert_eq!((&whole["tools"], &whole["tool_choice"]), (&json!([weather()]), &named));
    let arguments = call["arguments"].as_str().unwrap();
    let parsed: Value = serde_json::from_str(arguments).unwrap();
    assert!(["Paris", "Rome", "Roma"].contains(&parsed["city"].as_str().unwrap()), "{parsed}");
    let events = streamed(&server, &fields);
    assert_eq!(joined(&events, "response.function_call_arguments.delta"), arguments);
    assert_eq!(without_ids(&events.last().unwrap()["response"]["output"]), without_ids(&whole["output"]));
    let kinds = kinds(&events);
    assert_eq!((kinds[2], &events[2]["item"]["arguments"]), ("response.output_item.added", &json!("")));
    assert_eq!(
        kinds[kinds.len() - 3..],
        ["response.function_call_arguments.done", "response.output_item.done", "response.completed"]
    );

    // The same conversation as a chat has the same prompt and the same answer.
    let input = json!([
        { "role": "user", "content": "abc" },
        { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "So" }] },
        { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "on" }] },
        call,
        { "type": "function_call", "call_id": "b", "name": "weather", "arguments": "" },
        { "type": "function_call_output", "call_id": "b", "output": "rain" },
        { "type": "function_call_output", "call_id": call["call_id"],
          "output": [{ "type": "input_text", "text": "sun" }] },
    ]);
    let after = asked(&server, &json!({ "input": input, "tools": [weather()], "tool_choice": "none" }));
    let called = |id: &Value, arguments: &str| json!({ "id": id, "type": "function", "function": { "name": "weather", "arguments": arguments } });
    let messages = json!([
        { "role": "user", "content": "abc" },
        { "role": "assistant", "content": "So\n\non",
          "tool_calls": [called(&call["call_id"], arguments), called(&json!("b"), "{}")] },
        { "role": "tool", "tool_call_id": "b", "content": "rain" },
        { "role": "tool", "tool_call_id": call["call_id"], "content": "sun" },
    ]);
    let chat = post(server.address, CHAT, &chat("", 24, &json!({ "messages": messages }))).json();
    assert_eq!(after["usage"]["input_tokens"], chat["usage"]["prompt_tokens"], "{after}");
    assert_eq!(output_text(&after), chat["choices"][0]["message"]["content"].as_str().unwrap());
}

#[test]
fn a_call_that_is_cut_is_text_or_an_incomplete_item() {
    let server = with(HERMES);
    let fields = json!({
        "tools": [weather()], "tool_choice": "required", "parallel_tool_calls": false,
        "max_output_tokens": 52, "logit_bias": {}, "hunch": true,
    });
    let whole = asked(&server, &fields);
    assert_eq!(
        (&whole["status"], &whole["output"][0]["type"]),
        (&json!("incomplete"), &json!("message")),
        "{whole}"
    );
    let texts = whole["hunch"]["texts"].as_array().unwrap();
    assert_eq!(output_text(&whole), texts.iter().filter_map(Value::as_str).collect::<String>());
    let events = streamed(&server, &fields);
    let last = events.last().unwrap();
    let item = &last["response"]["output"][0];
    assert_eq!((&last["type"], &item["type"]), (&json!("response.incomplete"), &json!("function_call")));
    assert_eq!(item["status"], "incomplete");
    assert_eq!(item["arguments"], joined(&events, "response.function_call_arguments.delta"));
}

/// Values that ask for nothing are those of many clients, Codex among them.
#[test]
fn accepts_values_that_change_no_answer() {
    let server = with(HERMES);
    let harmless = json!({
        "instructions": "", "previous_response_id": null, "conversation": null, "background": false, "prompt": null,
        "truncation": "disabled", "store": true, "user": "me", "safety_identifier": "me",
        "prompt_cache_key": "key", "prompt_cache_retention": "24h", "service_tier": "auto", "max_tool_calls": 3,
        "client_metadata": { "a": "b" }, "stream_options": { "include_obfuscation": false },
        "reasoning": { "summary": "auto", "effort": null }, "text": {}, "top_logprobs": 0, "tools": [],
        "tool_choice": "auto", "parallel_tool_calls": false, "include": ["reasoning.encrypted_content"],
        "metadata": {},
    });
    let response = asked(&server, &harmless);
    assert_eq!(response["status"], "incomplete", "{response}");
    assert_eq!(response["store"], false);
    assert_eq!(output_text(&response), output_text(&asked(&server, &json!({}))));
}

#[test]
fn refuses_what_it_does_not_support_with_a_remedy() {
    let server = with(HERMES);
    let part = |kind: &str| json!({ "input": [{ "role": "user", "content": [{ "type": kind }] }] });
    let item = |item: Value| json!({ "input": [item] });
    let tool = |kind: &str| json!({ "tools": [{ "type": kind }] });
    let call = |arguments: &str| json!({ "type": "function_call", "call_id": "a", "name": "x", "arguments": arguments });
    let format = |format: Value| json!({ "text": { "format": format } });
    for (fields, param, word) in [
        (json!({ "previous_response_id": "resp_1" }), "previous_response_id", "whole conversation"),
        (json!({ "conversation": "conv_1" }), "conversation", "whole conversation"),
        (json!({ "background": true }), "background", "stream"),
        (json!({ "prompt": { "id": "pmpt_1" } }), "prompt", "instructions"),
        (json!({ "truncation": "auto" }), "truncation", "shorten"),
        (json!({ "include": ["file_search_call.results"] }), "include", "file_search_call"),
        (json!({ "top_logprobs": 2 }), "top_logprobs", "include"),
        (json!({ "top_logprobs": 9, "include": ["message.output_text.logprobs"] }), "top_logprobs", "0 to 5"),
        (json!({ "text": { "verbosity": "low" } }), "text.verbosity", "message"),
        (json!({ "reasoning": { "effort": "high" } }), "reasoning.effort", "switch"),
        (json!({ "reasoning": { "effort": "much" } }), "reasoning.effort", "low, medium or high"),
        (json!({ "reasoning": { "budget": 3 } }), "reasoning.budget", "budget"),
        (json!({ "reasoning": ["high"] }), "reasoning", "object"),
        (json!({ "max_output_tokens": 0 }), "max_output_tokens", "1 or more"),
        (json!({ "max_tokens": 3 }), "max_tokens", "not a parameter"),
        (json!({ "messages": [] }), "messages", "not a parameter"),
        (json!({ "temperature": 9 }), "temperature", "temperature"),
        (json!({ "metadata": [] }), "metadata", "object"),
        (tool("web_search"), "tools", "function"),
        (tool("file_search"), "tools", "function"),
        (tool("code_interpreter"), "tools", "function"),
        (tool("computer_use_preview"), "tools", "function"),
        (tool("mcp"), "tools", "function"),
        (tool("local_shell"), "tools", "function"),
        (tool("custom"), "tools", "function"),
        (tool("namespace"), "tools", "function"),
        (tool("function"), "tools", "name"),
        (json!({ "tools": [weather(), weather()] }), "tools", "weather"),
        (json!({ "tools": [["function", "x"]] }), "tools", "objects"),
        (json!({ "tool_choice": "required" }), "tool_choice", "tools"),
        (json!({ "tool_choice": { "type": "function", "name": "x" } }), "tool_choice", "\"x\""),
        (json!({ "tool_choice": { "type": "function" } }), "tool_choice", "name"),
        (json!({ "tool_choice": { "type": "web_search" } }), "tool_choice", "web_search"),
        (json!({ "tool_choice": "always" }), "tool_choice", "always"),
        (json!({ "input": [] }), "input", "at least one"),
        (json!({ "input": 3 }), "input", "array of items"),
        (json!({ "input": ["abc"] }), "input[0]", "object"),
        (part("input_image"), "input[0].content", "text only"),
        (part("input_file"), "input[0].content", "text only"),
        (part("input_audio"), "input[0].content", "text only"),
        (part("input_text"), "input[0].content", "no `text`"),
        (item(json!({ "role": "user" })), "input[0]", "content"),
        (item(json!({ "role": "user", "content": 3 })), "input[0].content", "string"),
        (item(json!({ "role": "tool", "content": "x" })), "input[0].role", "tool"),
        (item(json!({ "type": "item_reference", "id": "msg_1" })), "input[0].type", "Send the item"),
        (item(json!({ "type": "web_search_call", "id": "ws_1" })), "input[0].type", "web_search_call"),
        (item(json!({ "type": 3 })), "input[0].type", "3"),
        (item(json!({ "type": "function_call", "name": "x" })), "input[0]", "call_id"),
        (item(call("[")), "input[0].arguments", "JSON object"),
        (
            item(json!({ "type": "function_call_output", "call_id": "z", "output": "x" })),
            "input[0].call_id",
            "z",
        ),
        (
            json!({ "input": [call(""), { "type": "function_call_output", "call_id": "a", "output": {} }] }),
            "input[1].output",
            "string",
        ),
        (format(json!({ "type": "yaml" })), "text.format", "json_schema"),
        (format(json!({ "type": "json_schema", "name": "x" })), "text.format", "schema"),
        (format(json!({ "type": "json_schema", "schema": {}, "other": 1 })), "text.format", "other"),
        (format(json!({ "type": "json_schema", "schema": { "type": "colour" } })), "text.format", "colour"),
    ] {
        for stream in [false, true] {
            let body = merged(request(&fields), &json!({ "stream": stream }));
            let response = post(server.address, RESPONSES, &body);
            assert_eq!(response.status, 400, "{fields}");
            let error = response.json()["error"].clone();
            assert_eq!((&error["type"], &error["param"]), (&json!("invalid_request_error"), &json!(param)));
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(word) && message.ends_with('.'), "{message}");
            for rust in ["usize", "i64", "struct ", "enum", "tuple", "variant"] {
                assert!(!message.contains(rust), "{message}");
            }
        }
    }
    let missing = post(server.address, RESPONSES, &json!({ "model": "tiny" }));
    assert_eq!(missing.status, 400);
    assert!(missing.json()["error"]["message"].as_str().unwrap().contains("input"));
    let other = post(server.address, RESPONSES, &request(&json!({ "model": "other" })));
    assert_eq!((other.status, other.json()["error"]["code"].clone()), (404, json!("model_not_found")));
    let long = post(server.address, RESPONSES, &request(&json!({ "input": "abc ".repeat(900) })));
    assert_eq!((long.status, long.json()["error"]["code"].clone()), (400, json!("context_length_exceeded")));
    assert_eq!(send(server.address, "GET", RESPONSES, "", "").status, 405);
    // Nothing is stored, so nothing can be asked for later.
    assert_eq!(send(server.address, "GET", "/v1/responses/resp_1", "", "").status, 404);
    assert_eq!(send(server.address, "POST", RESPONSES, "", "{}").status, 415);
}

/// A stream begins after a while, even if its answer waits. A failure is an event then.
#[test]
fn a_failure_after_the_header_is_an_event_of_the_response() {
    let limits = ConnectionLimits { stream_begins: Duration::from_millis(50), ..config().limits };
    let mut server = serve(LONG, ServerConfig { limits, ..config() });
    let open = |fields: &Value| {
        let mut connection = http::connect(server.address);
        let body = merged(request(fields), &json!({ "stream": true })).to_string();
        http::write_request(&mut connection, "POST", RESPONSES, JSON, &body);
        read_response(connection)
    };
    let running = open(&json!({ "max_output_tokens": 60_000 }));
    wait_for(server.address, RUNNING, 1);
    let waiting = open(&json!({}));
    assert_eq!(waiting.status, 200);
    drop(server.stop.take());
    let events = events(&waiting.text());
    assert_eq!(kinds(&events), ["response.created", "response.failed"]);
    let response = &events[1]["response"];
    assert_eq!((&response["status"], &response["error"]["code"]), (&json!("failed"), &json!("server_error")));
    assert_eq!(response["id"], events[0]["response"]["id"]);
    assert!(response["error"]["message"].as_str().unwrap().ends_with('.'), "{response}");
    drop(running);
}
