//! Tests of conversations with tools, with templates structured like those of common models.

use hunch_core::chat::Role;
use serde_json::json;

use super::*;
use crate::text::Tool;

const QWEN: &str = "{%- if tools %}\n    {{- '<|im_start|>system\\n' }}\n    {{- \"# Tools\\n<tools>\" }}\n    {%- for tool in tools %}\n        {{- \"\\n\" }}\n        {{- tool | tojson }}\n    {%- endfor %}\n    {{- \"\\n</tools>\\nCall as <tool_call>\\n{\\\"name\\\": <name>, \\\"arguments\\\": <object>}\\n</tool_call><|im_end|>\\n\" }}\n{%- endif %}\n{%- for message in messages %}\n    {%- if message.role == \"user\" or (message.role == \"assistant\" and not message.tool_calls) %}\n        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n    {%- elif message.role == \"assistant\" %}\n        {{- '<|im_start|>' + message.role }}\n        {%- if message.content %}\n            {{- '\\n' + message.content }}\n        {%- endif %}\n        {%- for tool_call in message.tool_calls %}\n            {%- if tool_call.function is defined %}\n                {%- set tool_call = tool_call.function %}\n            {%- endif %}\n            {{- '\\n<tool_call>\\n{\"name\": \"' }}\n            {{- tool_call.name }}\n            {{- '\", \"arguments\": ' }}\n            {{- tool_call.arguments | tojson }}\n            {{- '}\\n</tool_call>' }}\n        {%- endfor %}\n        {{- '<|im_end|>\\n' }}\n    {%- elif message.role == \"tool\" %}\n        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != \"tool\") %}\n            {{- '<|im_start|>user' }}\n        {%- endif %}\n        {{- '\\n<tool_response>\\n' }}\n        {{- message.content }}\n        {{- '\\n</tool_response>' }}\n        {%- if loop.last or (messages[loop.index0 + 1].role != \"tool\") %}\n            {{- '<|im_end|>\\n' }}\n        {%- endif %}\n    {%- endif %}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n";

const LLAMA: &str = "{{- bos_token }}\n{%- if not tools is defined %}\n    {%- set tools = none %}\n{%- endif %}\n{%- for message in messages %}\n    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}\n        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}\n        {%- if tools is not none and loop.first %}\n            {{- 'Respond in the format {\"name\": function name, \"parameters\": dictionary}.\\n\\n' }}\n            {%- for t in tools %}\n                {{- t | tojson(indent=4) }}\n                {{- \"\\n\\n\" }}\n            {%- endfor %}\n        {%- endif %}\n        {{- message['content'] | trim + '<|eot_id|>' }}\n    {%- elif 'tool_calls' in message %}\n        {%- if not message.tool_calls|length == 1 %}\n            {{- raise_exception(\"This model only supports single tool-calls at once!\") }}\n        {%- endif %}\n        {%- set tool_call = message.tool_calls[0].function %}\n        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}\n        {{- '{\"name\": \"' + tool_call.name + '\", ' }}\n        {{- '\"parameters\": ' }}\n        {{- tool_call.arguments | tojson }}\n        {{- \"}<|eot_id|>\" }}\n    {%- else %}\n        {{- \"<|start_header_id|>ipython<|end_header_id|>\\n\\n\" }}\n        {%- if message.content is mapping %}\n            {{- message.content | tojson }}\n        {%- else %}\n            {{- message.content }}\n        {%- endif %}\n        {{- \"<|eot_id|>\" }}\n    {%- endif %}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n{%- endif %}\n";

const LLAMA4: &str = "{{- bos_token }}\n{%- if custom_tools is defined %}\n    {%- set tools = custom_tools %}\n{%- endif %}\n{%- if not tools is defined %}\n    {%- set tools = none %}\n{%- endif %}\n{%- if tools is not none %}\n    {%- set first = messages[0]['content']|trim %}\n    {%- set messages = messages[1:] %}\n    {{- '<|header_start|>user<|header_end|>\n\n' -}}\n    {{- 'Respond in the format {\"name\": function name, \"parameters\": dictionary}.\n\n' }}\n    {%- for t in tools %}\n        {{- t | tojson(indent=4) }}\n        {{- \"\n\n\" }}\n    {%- endfor %}\n    {{- first + \"<|eot|>\" }}\n{%- endif %}\n{%- for message in messages %}\n    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}\n        {{- '<|header_start|>' + message['role'] + '<|header_end|>\n\n' }}\n        {%- if message['content'] is string %}\n            {{- message['content'] }}\n        {%- else %}\n            {%- for content in message['content'] %}\n                {{- content['text'] }}\n            {%- endfor %}\n        {%- endif %}\n        {{- \"<|eot|>\" }}\n    {%- elif 'tool_calls' in message and message.tool_calls|length > 0 %}\n        {{- '<|header_start|>assistant<|header_end|>\n\n' -}}\n        {{- '<|python_start|>' + message['content'] + '<|python_end|>' }}\n        {%- for tool_call in message.tool_calls %}\n            {{- '{\"name\": \"' + tool_call.function.name + '\", ' }}\n            {{- '\"parameters\": ' }}\n            {{- tool_call.function.arguments | tojson }}\n            {{- \"}\" }}\n        {%- endfor %}\n        {{- \"<|eot|>\" }}\n    {%- elif message.role == \"tool\" or message.role == \"ipython\" %}\n        {{- \"<|header_start|>ipython<|header_end|>\n\n\" }}\n        {%- if message.content is mapping or message.content is iterable %}\n            {{- message.content | tojson }}\n        {%- else %}\n            {{- message.content }}\n        {%- endif %}\n        {{- \"<|eot|>\" }}\n    {%- endif %}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|header_start|>assistant<|header_end|>\n\n' }}\n{%- endif %}\n";

const MISTRAL: &str = "{{- bos_token }}\n{%- for message in messages %}\n    {%- if message[\"role\"] == \"user\" %}\n        {%- if tools is not none and loop.first %}\n            {{- \"[AVAILABLE_TOOLS] [\" }}\n            {%- for tool in tools %}\n                {%- set tool = tool.function %}\n                {{- '{\"type\": \"function\", \"function\": {' }}\n                {%- for key, val in tool.items() if key != \"return\" %}\n                    {%- if val is string %}\n                        {{- '\"' + key + '\": \"' + val + '\"' }}\n                    {%- else %}\n                        {{- '\"' + key + '\": ' + val|tojson }}\n                    {%- endif %}\n                    {%- if not loop.last %}\n                        {{- \", \" }}\n                    {%- endif %}\n                {%- endfor %}\n                {{- \"}}\" }}\n            {%- endfor %}\n            {{- \"][/AVAILABLE_TOOLS]\" }}\n        {%- endif %}\n        {{- \"[INST] \" + message[\"content\"] + \"[/INST]\" }}\n    {%- elif message.tool_calls is defined and message.tool_calls is not none %}\n        {{- \"[TOOL_CALLS] [\" }}\n        {%- for tool_call in message.tool_calls %}\n            {%- set out = tool_call.function|tojson %}\n            {{- out[:-1] }}\n            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}\n                {{- raise_exception(\"Tool call IDs should be alphanumeric strings with length 9!\") }}\n            {%- endif %}\n            {{- ', \"id\": \"' + tool_call.id + '\"}' }}\n            {%- if not loop.last %}\n                {{- \", \" }}\n            {%- else %}\n                {{- \"]\" + eos_token }}\n            {%- endif %}\n        {%- endfor %}\n    {%- elif message[\"role\"] == \"assistant\" %}\n        {{- \" \" + message[\"content\"] + eos_token }}\n    {%- elif message[\"role\"] == \"tool\" %}\n        {{- '[TOOL_RESULTS] {\"content\": ' + message.content|string + \", \" }}\n        {{- '\"call_id\": \"' + message.tool_call_id + '\"}[/TOOL_RESULTS]' }}\n    {%- endif %}\n{%- endfor %}\n";

const PHI: &str = "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] }}\
    {% if message['role'] == 'system' and message['tools'] %}{{ '<|tool|>' + message['tools'] + '<|/tool|>' }}{% endif %}\
    {{ '<|end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}";

fn weather() -> Tool {
    Tool {
        name: "weather".into(),
        description: Some("The weather".into()),
        parameters: json!({ "type": "object", "properties": { "city": { "type": "string" } } }),
    }
}

fn messages() -> Vec<ToolMessage> {
    let arguments = json!({ "city": "Köln" }).as_object().cloned().unwrap_or_default();
    let text = |role, content: &str| ToolMessage::Text(ChatMessage { role, content: content.into() });
    vec![
        text(Role::User, "Hi"),
        ToolMessage::Calls {
            content: String::new(),
            calls: vec![ToolCall { name: "weather".into(), arguments }],
        },
        ToolMessage::Result { call: 0, content: "sun".into() },
        text(Role::Assistant, "It is sunny."),
    ]
}

fn rendered(source: &str) -> String {
    let template = ChatTemplate::from_source(Some(source), "<s>", "</s>");
    let rendered = template.render_model(&messages(), &[weather().for_template()], true, None, &|| false);
    rendered.unwrap().0
}

const TOOL: &str = r#"{"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}"#;

#[test]
fn qwen_lists_tools_and_writes_calls_between_markers() {
    let expected = format!(
        "<|im_start|>system\n# Tools\n<tools>\n{TOOL}\n</tools>\nCall as <tool_call>\n{{\"name\": <name>, \"arguments\": \
         <object>}}\n</tool_call><|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<tool_call>\n\
         {{\"name\": \"weather\", \"arguments\": {{\"city\": \"Köln\"}}}}\n</tool_call><|im_end|>\n<|im_start|>user\n\
         <tool_response>\nsun\n</tool_response><|im_end|>\n<|im_start|>assistant\nIt is sunny.<|im_end|>\n\
         <|im_start|>assistant\n"
    );
    assert_eq!(rendered(QWEN), expected);
}

#[test]
fn phi_gets_the_tools_in_the_system_message() {
    let text = rendered(PHI);
    // However the template reads the field.
    assert_eq!(rendered(&PHI.replace("message['tools']", "message.tools")), text);
    let system = "<|system|>You are a helpful assistant with some tools.<|tool|>[{\"name\":\"weather\",";
    assert!(text.starts_with(system), "{text}");
    let call = "<|assistant|><|tool_call|>{\"name\":\"weather\",\"arguments\":{\"city\":\"Köln\"}}<|/tool_call|><|end|>";
    assert!(text.contains(call), "{text}");
    assert!(text.contains("<|tool_response|>sun<|end|>") && text.ends_with("<|assistant|>"), "{text}");
}

#[test]
fn llama_finds_calls_by_the_field_of_a_message() {
    let text = rendered(LLAMA);
    let call = "assistant<|end_header_id|>\n\n{\"name\": \"weather\", \"parameters\": {\"city\": \"Köln\"}}<|eot_id|>";
    assert!(text.contains(call), "{text}");
    assert!(text.contains("ipython<|end_header_id|>\n\nsun<|eot_id|>"), "{text}");
    assert!(text.contains("    \"type\": \"function\""), "{text}");
}

#[test]
fn llama_4_gets_the_tools_in_the_first_message() {
    let text = rendered(LLAMA4);
    assert!(text.starts_with("<s><|header_start|>user<|header_end|>\n\nRespond in"), "{text}");
    assert!(text.contains("    \"type\": \"function\"") && text.contains("\n\nHi<|eot|>"), "{text}");
    let call =
        "<|python_start|><|python_end|>{\"name\": \"weather\", \"parameters\": {\"city\": \"Köln\"}}<|eot|>";
    assert!(text.contains(call), "{text}");
    assert!(text.contains("ipython<|header_end|>\n\n\"sun\"<|eot|>"), "{text}");
    assert!(text.ends_with("It is sunny.<|eot|><|header_start|>assistant<|header_end|>\n\n"), "{text}");
}

#[test]
fn mistral_gets_identifiers_of_nine_digits() {
    let expected = "<s>[AVAILABLE_TOOLS] [{\"type\": \"function\", \"function\": {\"name\": \"weather\", \
                    \"description\": \"The weather\", \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": \
                    {\"type\": \"string\"}}}}}][/AVAILABLE_TOOLS][INST] Hi[/INST][TOOL_CALLS] [{\"name\": \"weather\", \
                    \"arguments\": {\"city\": \"Köln\"}, \"id\": \"000000000\"}]</s>[TOOL_RESULTS] {\"content\": sun, \
                    \"call_id\": \"000000000\"}[/TOOL_RESULTS] It is sunny.</s>";
    assert_eq!(rendered(MISTRAL), expected);
}

#[test]
fn form_of_calls_follows_from_the_template() {
    let form = |source: &str| {
        let form = ChatTemplate::from_source(Some(source), "", "").tool_form();
        form.unwrap()
    };
    assert_eq!(form(QWEN), Ok(ToolForm::Hermes));
    assert_eq!(form(LLAMA), Ok(ToolForm::Llama));
    assert_eq!(form(LLAMA4), Ok(ToolForm::Llama));
    assert_eq!(form(MISTRAL), Ok(ToolForm::Mistral));
    assert_eq!(form("{{ tools }}[TOOL_CALLS]name[ARGS]"), Ok(ToolForm::MistralArgs));
    assert_eq!(form("{{ tools }}<|tool_call|>"), Ok(ToolForm::Granite));
    assert_eq!(form("{{ tools }}<|tool_call|>{}<|/tool_call|>"), Ok(ToolForm::Phi));
    assert_eq!(form(PHI), Ok(ToolForm::Phi));
    // Another template may read tools from a message too.
    assert_eq!(form("{{ tools }}{{ message['tools'] }}<tool_call>"), Ok(ToolForm::Hermes));
    assert!(form("{{ message['tools'] }}").unwrap_err().contains("no tools"));
    assert_eq!(form("{{ tools }}<tool_call><function=f><parameter=p>"), Ok(ToolForm::QwenCoder));
    assert_eq!(form("{{ tools }}<tool_call>f<arg_key>"), Ok(ToolForm::Glm));
    assert_eq!(form("{{ tools }}<|channel|>commentary to=functions.f"), Ok(ToolForm::Harmony));
    assert!(form("{{ tools }}<tool_call><function=name>").unwrap_err().contains("form of calls"));
    assert!(form("{{ messages }}<tool_call>").unwrap_err().contains("no tools"));
    assert!(ChatTemplate::from_source(None, "", "").tool_form().unwrap().is_err());
}
