//! Grammars of answers that have to consist of calls, in llguidance's dialect of Lark.

use serde_json::{Map, Value, json};

use super::schema::{Parameters, collect_types};
use super::tools::{ARGUMENTS, Tool, ToolForm};

/// Expression of the name of an argument that the schema does not name.
const ANY_NAME: &str = "/[A-Za-z0-9_.-]{1,64}/";

/// Calls that an answer has to consist of.
#[derive(Clone, Debug, PartialEq)]
pub struct RequiredCalls {
    /// Form of the calls.
    pub form: ToolForm,
    /// Tools that may be called.
    pub tools: Vec<Tool>,
    /// `true` to allow more than one call.
    pub many: bool,
    /// Schema of an answer without calls. `None` if there has to be a call.
    pub otherwise: Option<Value>,
}

impl RequiredCalls {
    /// Returns the grammar. `marker` writes a marker as an expression, and `schema` the JSON of a schema.
    ///
    /// # Errors
    /// The reason, if the form of the calls cannot follow the schema of a tool.
    pub(super) fn grammar(
        &self,
        marker: impl Fn(&str) -> String,
        schema: impl Fn(&Value) -> Value,
    ) -> Result<String, String> {
        let open = self.form.opening().map(&marker).unwrap_or_default();
        let many = self.many;
        let call = match self.form {
            ToolForm::Hermes | ToolForm::QwenCoder => {
                format!("{open} \"\\n\" body \"\\n\" {}", marker("</tool_call>"))
            }
            ToolForm::Glm => format!("{open} body {}", marker("</tool_call>")),
            ToolForm::Phi => format!("{open} body {}", marker("<|/tool_call|>")),
            ToolForm::MistralArgs => format!("{open} body"),
            ToolForm::Harmony => format!("{} body", marker("<|channel|>")),
            ToolForm::Granite | ToolForm::Mistral | ToolForm::Llama => "body".to_owned(),
        };
        let calls = match self.form {
            ToolForm::Hermes | ToolForm::QwenCoder | ToolForm::Glm if many => {
                "call (\"\\n\" call)*".to_owned()
            }
            ToolForm::MistralArgs | ToolForm::Phi if many => "call+".to_owned(),
            ToolForm::Granite | ToolForm::Mistral => {
                let further = if many { "(\", \" call)*" } else { "" };
                format!("{open} \"[\" call {further} \"]\"")
            }
            _ => "call".to_owned(),
        };
        let otherwise = if self.otherwise.is_some() { " | otherwise" } else { "" };
        let bodies: Vec<String> = (0..self.tools.len()).map(|i| format!("body_{i}")).collect();
        let mut lines = vec![
            format!("start: calls{otherwise}"),
            format!("calls: {calls}"),
            format!("call: {call}"),
            format!("body: {}", bodies.join(" | ")),
        ];
        if let Some(other) = &self.otherwise {
            lines.push(format!("otherwise: %json {}", schema(other)));
        }
        for (i, tool) in self.tools.iter().enumerate() {
            if matches!(self.form, ToolForm::QwenCoder | ToolForm::Glm) {
                let tags = TagGrammar { form: self.form, i, marker: &marker, schema: &schema };
                tags.add(tool, &mut lines)?;
                continue;
            }
            let body = match self.form {
                ToolForm::MistralArgs => {
                    format!("{} {} arguments_{i}", literal(&tool.name), marker(ARGUMENTS))
                }
                ToolForm::Harmony => {
                    let head = literal(&format!("commentary to=functions.{} ", tool.name));
                    let (constrain, message) = (marker("<|constrain|>"), marker("<|message|>"));
                    format!("{head} {constrain} \"json\" {message} arguments_{i}")
                }
                _ => {
                    let key = if self.form == ToolForm::Llama { "parameters" } else { "arguments" };
                    let head = format!("{{\"name\": \"{}\", \"{key}\": ", tool.name);
                    format!("{} arguments_{i} \"}}\"", literal(&head))
                }
            };
            lines.push(format!("body_{i}: {body}"));
            lines.push(format!("arguments_{i}: %json {}", schema(&object_of(&tool.parameters))));
        }
        Ok(lines.join("\n"))
    }
}

/// Returns the schema of the arguments, which are an object even if the schema of the tool does not say so.
fn object_of(parameters: &Value) -> Value {
    let mut schema = parameters.clone();
    if let Some(fields) = schema.as_object_mut() {
        fields.insert("type".into(), "object".into());
    }
    schema
}

fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

/// Grammar of the calls of one tool whose arguments are tags. They have the order of the schema, and only the arguments
/// that it names.
struct TagGrammar<'a> {
    form: ToolForm,
    /// Number of the tool.
    i: usize,
    marker: &'a dyn Fn(&str) -> String,
    schema: &'a dyn Fn(&Value) -> Value,
}

impl TagGrammar<'_> {
    fn add(&self, tool: &Tool, lines: &mut Vec<String>) -> Result<(), String> {
        let i = self.i;
        let parameters = Parameters::new(&tool.parameters);
        let refused = |name: &str, reason: &str| {
            format!("{name} of {} has {reason}, which this form of calls cannot follow", tool.name)
        };
        let object = parameters.object().map_err(|reason| refused("the schema", reason))?;
        let required: Vec<&str> = object
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let mut body = match self.form {
            ToolForm::Glm => literal(&format!("{}\n", tool.name)),
            _ => literal(&format!("<function={}>\n", tool.name)),
        };
        let properties = object.get("properties").and_then(Value::as_object);
        for (k, (name, own)) in properties.into_iter().flatten().enumerate() {
            if name.contains(['<', '>', '\n']) || name.trim() != name || name.is_empty() {
                return Err(format!("the name \"{name}\" of a parameter of {} cannot be a tag", tool.name));
            }
            let (before, after) = self.tags(&literal(name), name);
            let value = self
                .value(own, tool, &after)
                .map_err(|reason| refused(&format!("the parameter \"{name}\""), reason))?;
            lines.push(format!("value_{i}_{k}{value}"));
            lines.push(format!("parameter_{i}_{k}: {before} value_{i}_{k} \"\\n\""));
            let optional = if required.contains(&name.as_str()) { "" } else { "?" };
            body.push_str(&format!(" parameter_{i}_{k}{optional}"));
        }
        // A schema that names no argument allows any, unless it says otherwise.
        let others = object.get("additionalProperties").unwrap_or(&Value::Null);
        if properties.is_none() && *others != Value::Bool(false) {
            let (before, after) = match self.form {
                ToolForm::Glm => self.tags(ANY_NAME, ""),
                _ => (format!("\"<parameter=\" {ANY_NAME} \">\\n\""), literal("\n</parameter>")),
            };
            let any = Value::Object(Map::new());
            let schema = if others.is_object() { others } else { &any };
            let value = self.value(schema, tool, &after).map_err(|reason| refused("an argument", reason))?;
            lines.push(format!("value_{i}{value}"));
            lines.push(format!("parameter_{i}: {before} value_{i} \"\\n\""));
            body.push_str(&format!(" parameter_{i}*"));
        }
        if self.form != ToolForm::Glm {
            body.push_str(" \"</function>\"");
        }
        lines.push(format!("body_{i}: {body}"));
        Ok(())
    }

    /// Returns the expressions before and after the value of an argument. `key` is the expression of its name.
    fn tags(&self, key: &str, name: &str) -> (String, String) {
        match self.form {
            ToolForm::Glm => {
                let [open, end, value, value_end] =
                    ["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"].map(self.marker);
                (format!("{open} {key} {end} \"\\n\" {value}"), value_end)
            }
            _ => (literal(&format!("<parameter={name}>\n")), literal("\n</parameter>")),
        }
    }

    /// Returns the rest of a rule for a value and what follows it.
    fn value(&self, schema: &Value, tool: &Tool, after: &str) -> Result<String, &'static str> {
        let parameters = Parameters::new(&tool.parameters);
        let (mut texts, mut json) = (Vec::new(), Vec::new());
        for alternative in parameters.alternatives(schema)? {
            let mut types = Vec::new();
            collect_types(&alternative, &mut types);
            let choices = match alternative.get("const") {
                Some(only) => vec![only],
                None => alternative["enum"].as_array().into_iter().flatten().collect(),
            };
            if !choices.is_empty() {
                let text = |choice: &Value| literal(choice.as_str().unwrap_or(&choice.to_string()));
                texts.extend(choices.into_iter().map(text));
            } else if types.is_empty() || types.contains(&"string") {
                // Any text, so the other alternatives are among them.
                return any_text(&alternative, after);
            } else {
                json.push(alternative.into_owned());
            }
        }
        let mut options = texts;
        if !json.is_empty() {
            let schema = if json.len() == 1 { json.remove(0) } else { json!({ "anyOf": json }) };
            let mut schema = (self.schema)(&schema);
            // A part of the schema refers to the definitions of the whole.
            for name in ["$defs", "definitions"] {
                if let (Some(fields), Some(definitions)) = (schema.as_object_mut(), tool.parameters.get(name))
                {
                    fields.insert(name.to_owned(), definitions.clone());
                }
            }
            options.push(format!("(%json {schema})"));
        }
        Ok(format!(": ({}) {after}", options.join(" | ")))
    }
}

/// Returns the rest of a rule for a text that is written as it is, and what follows it.
fn any_text(schema: &Value, after: &str) -> Result<String, &'static str> {
    if let Some(name) = ["pattern", "format"].into_iter().find(|name| schema.get(*name).is_some()) {
        return Err(if name == "pattern" { "a `pattern`" } else { "a `format`" });
    }
    let bound = |name: &str| schema[name].as_u64();
    let repeat = match (bound("minLength"), bound("maxLength")) {
        (None, None) => "*".to_owned(),
        (least, most) => {
            let most = most.map(|most| most.to_string()).unwrap_or_default();
            format!("{{{},{most}}}", least.unwrap_or(0))
        }
    };
    // A control token ends the text. Any other text ends at its first copy of what follows.
    Ok(match after.starts_with('"') {
        true => format!("[suffix={after}]: /(?s:.{repeat})/"),
        false => format!(": /(?s:.{repeat})/ {after}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grammar(form: ToolForm, parameters: Value) -> Result<String, String> {
        let tool = Tool { name: "weather".into(), description: None, parameters };
        let calls = RequiredCalls { form, tools: vec![tool], many: false, otherwise: None };
        calls.grammar(literal, Value::clone)
    }

    #[test]
    fn parts_of_a_schema_keep_its_definitions() {
        let days = json!({ "$ref": "#/$defs/days", "type": "integer" });
        let parameters =
            json!({ "properties": { "days": days }, "$defs": { "days": { "type": "integer" } } });
        let text = grammar(ToolForm::Glm, parameters).unwrap();
        assert!(text.contains(r##""$defs":{"days":{"type":"integer"}}"##), "{text}");
    }

    #[test]
    fn a_schema_that_lists_no_arguments_allows_any_unless_it_says_otherwise() {
        let open = grammar(ToolForm::Glm, json!({ "type": "object" })).unwrap();
        assert!(open.contains("parameter_0*") && open.contains(ANY_NAME), "{open}");
        let closed = grammar(ToolForm::Glm, json!({ "additionalProperties": false })).unwrap();
        assert!(!closed.contains("parameter_0"), "{closed}");
        // Arguments are an object even if the schema does not say so.
        let json = grammar(ToolForm::Hermes, json!({})).unwrap();
        assert!(json.contains(r#"arguments_0: %json {"type":"object"}"#), "{json}");
    }

    #[test]
    fn values_of_an_alternative_are_not_lost() {
        let city = json!({ "anyOf": [{ "$ref": "#/$defs/city" }, { "type": "null" }] });
        let parameters =
            json!({ "properties": { "city": city }, "$defs": { "city": { "enum": ["Rome", 1] } } });
        let text = grammar(ToolForm::Glm, parameters).unwrap();
        assert!(text.contains(r#"value_0_0: ("Rome" | "1" | (%json "#), "{text}");
    }

    #[test]
    fn schemas_that_tags_cannot_follow_are_refused() {
        let with = |name: &str, schema: Value| {
            grammar(ToolForm::QwenCoder, json!({ "properties": { name: schema } }))
        };
        assert!(with("city", json!({ "type": "string", "pattern": "^R" })).unwrap_err().contains("pattern"));
        assert!(with("a>b", json!({ "type": "string" })).unwrap_err().contains("a>b"));
        assert!(with("city", json!({ "type": "string", "maxLength": 9 })).unwrap().contains("{0,9}"));
    }
}
