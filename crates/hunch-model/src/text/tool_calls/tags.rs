//! Reading of one call whose arguments are tags, a character at a time: Qwen3-Coder and GLM. Their values are not JSON, so
//! the schema of the tool decides what a value is. Markers around calls do not belong here.

use serde_json::{Map, Value};

use super::reader::CallProgress;
use crate::text::schema::Parameters;
use crate::text::tools::{Tool, type_of};

/// Most bytes of a name or a tag.
const MAX_NAME: usize = 1 << 10;

/// Tags of a form.
#[derive(Debug)]
pub(super) struct Tags {
    /// Before the name of the tool, and after it. Without them the name ends with its line, or at the next tag.
    name: Option<(&'static str, char)>,
    /// Before the name of an argument.
    key: &'static str,
    /// After it.
    key_end: &'static str,
    /// Before the value. Empty if the value follows the name.
    value: &'static str,
    /// After the value.
    value_end: &'static str,
    /// After the last argument.
    end: &'static str,
}

/// `<function=NAME>`, then `<parameter=KEY>VALUE</parameter>` for each argument, then `</function>`: Qwen3-Coder.
pub(super) static QWEN_CODER: Tags = Tags {
    name: Some(("<function=", '>')),
    key: "<parameter=",
    key_end: ">",
    value: "",
    value_end: "</parameter>",
    end: "</function>",
};

/// `NAME`, then `<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>` for each argument, then `</tool_call>`: GLM.
pub(super) static GLM: Tags = Tags {
    name: None,
    key: "<arg_key>",
    key_end: "</arg_key>",
    value: "<arg_value>",
    value_end: "</arg_value>",
    end: "</tool_call>",
};

/// Reads a call that is written in tags.
#[derive(Clone, Debug)]
pub(super) struct TagReader {
    /// Text of the call so far, with the markers before it.
    pub(super) raw: String,
    tags: &'static Tags,
    at: TagPosition,
    /// The name, tag or value that is being read.
    text: String,
    name: Option<String>,
    key: String,
    keys: Vec<String>,
    /// Text of the arguments that was not taken yet.
    arguments: String,
    /// `true` if the object of arguments was opened.
    opened: bool,
    begun: bool,
    ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TagPosition {
    /// Before the name of the tool.
    BeforeName,
    Name,
    /// Before an argument, or the end.
    Between,
    Key,
    /// Before a value.
    BeforeValue,
    Value,
}

impl TagReader {
    /// Creates the reader of a call after the markers `raw`.
    pub(super) fn new(raw: String, tags: &'static Tags) -> Self {
        let at = if tags.name.is_some() { TagPosition::BeforeName } else { TagPosition::Name };
        Self {
            raw,
            tags,
            at,
            text: String::new(),
            name: None,
            key: String::new(),
            keys: Vec::new(),
            arguments: String::new(),
            opened: false,
            begun: false,
            ended: false,
        }
    }

    /// Reads a character. Nothing may follow the last one, or a failure.
    pub(super) fn push(&mut self, c: char, tools: &[Tool]) -> CallProgress {
        self.raw.push(c);
        match self.at {
            TagPosition::BeforeName | TagPosition::Between | TagPosition::BeforeValue
                if self.text.is_empty() && c.is_whitespace() =>
            {
                CallProgress::More
            }
            TagPosition::BeforeName => {
                let (open, _) = self.tags.name.unwrap_or(("", ' '));
                self.expect(c, open, TagPosition::Name)
            }
            TagPosition::Name => self.push_name(c, tools),
            TagPosition::Between => self.push_between(c),
            TagPosition::Key => self.push_key(c),
            TagPosition::BeforeValue => self.expect(c, self.tags.value, TagPosition::Value),
            TagPosition::Value => self.push_value(c, tools),
        }
    }

    /// Returns the name of the tool, once, when it is known.
    pub(super) fn take_begin(&mut self) -> Option<String> {
        if std::mem::replace(&mut self.begun, self.name.is_some()) { None } else { self.name.clone() }
    }

    /// Returns `true` after [`take_begin`](Self::take_begin) returned a name.
    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    /// Returns the text of the arguments that was not taken yet.
    pub(super) fn take_arguments(&mut self) -> String {
        std::mem::take(&mut self.arguments)
    }

    /// Returns `true` if the call has ended, so that its arguments are a JSON object.
    pub(super) fn is_valid(&self) -> bool {
        self.ended
    }

    /// Reads a character of a tag that has to follow.
    fn expect(&mut self, c: char, tag: &str, next: TagPosition) -> CallProgress {
        self.text.push(c);
        if self.text == tag {
            self.go_to(next);
        } else if !tag.starts_with(&self.text) {
            return CallProgress::Failed;
        }
        CallProgress::More
    }

    fn go_to(&mut self, next: TagPosition) {
        self.text.clear();
        // A value without a tag before it begins at once.
        self.at = if next == TagPosition::BeforeValue && self.tags.value.is_empty() {
            TagPosition::Value
        } else {
            next
        };
    }

    fn push_name(&mut self, c: char, tools: &[Tool]) -> CallProgress {
        let ends = match self.tags.name {
            Some((_, close)) => c == close,
            None => matches!(c, '\n' | '<') && !self.text.trim().is_empty(),
        };
        if !ends {
            self.text.push(c);
            return self.bounded();
        }
        let name = self.text.trim().to_owned();
        if !tools.iter().any(|tool| tool.name == name) {
            return CallProgress::Failed;
        }
        self.name = Some(name);
        self.go_to(TagPosition::Between);
        if c == '<' { self.push_between(c) } else { CallProgress::More }
    }

    fn push_between(&mut self, c: char) -> CallProgress {
        self.text.push(c);
        if self.text == self.tags.key {
            self.go_to(TagPosition::Key);
        } else if self.text == self.tags.end {
            self.arguments.push_str(if self.opened { "}" } else { "{}" });
            self.ended = true;
            return CallProgress::Done;
        } else if !self.tags.key.starts_with(&self.text) && !self.tags.end.starts_with(&self.text) {
            return CallProgress::Failed;
        }
        CallProgress::More
    }

    fn push_key(&mut self, c: char) -> CallProgress {
        self.text.push(c);
        let Some(key) = self.text.strip_suffix(self.tags.key_end) else { return self.bounded() };
        self.key = key.trim().to_owned();
        // The first one was sent already.
        if self.key.is_empty() || self.keys.contains(&self.key) {
            return CallProgress::Failed;
        }
        self.keys.push(self.key.clone());
        self.go_to(TagPosition::BeforeValue);
        CallProgress::More
    }

    fn push_value(&mut self, c: char, tools: &[Tool]) -> CallProgress {
        self.text.push(c);
        let Some(text) = self.text.strip_suffix(self.tags.value_end) else { return CallProgress::More };
        // Templates of Qwen3-Coder write a value on lines of its own, those of GLM without them.
        let text = if self.tags.value.is_empty() { within_lines(text) } else { text };
        let types = self.name.as_ref().and_then(|name| {
            let tool = tools.iter().find(|tool| tool.name == *name)?;
            let parameters = Parameters::new(&tool.parameters);
            Some(parameters.types(&parameters.of(&self.key)?))
        });
        let value = value_of(text, &types.unwrap_or_default());
        let entry = Map::from_iter([(std::mem::take(&mut self.key), value)]);
        let entry = Value::Object(entry).to_string();
        let opening = if std::mem::replace(&mut self.opened, true) { ", " } else { "{" };
        self.arguments.push_str(opening);
        self.arguments.push_str(&entry[1..entry.len() - 1]);
        self.go_to(TagPosition::Between);
        CallProgress::More
    }

    fn bounded(&self) -> CallProgress {
        if self.text.len() > MAX_NAME { CallProgress::Failed } else { CallProgress::More }
    }
}

/// Returns a text without the line break at either side.
fn within_lines(text: &str) -> &str {
    let text = text.strip_prefix('\n').unwrap_or(text);
    text.strip_suffix('\n').unwrap_or(text)
}

/// Returns the value that a text stands for. Models write strings as they are, and everything else as JSON or, as some
/// templates do, with the words of Python.
/// `types` are those that the schema allows, none if it says nothing.
fn value_of(text: &str, types: &[&str]) -> Value {
    let string = || Value::from(text);
    if types.iter().all(|known| *known == "string") {
        return string();
    }
    let trimmed = text.trim();
    let read = match trimmed {
        "True" => Ok(true.into()),
        "False" => Ok(false.into()),
        "None" => Ok(Value::Null),
        _ => serde_json::from_str(trimmed),
    };
    match read {
        Ok(Value::String(_)) | Err(_) => string(),
        Ok(value) if types.contains(&"string") && !types.contains(&type_of(&value)) => string(),
        Ok(value) => value,
    }
}
