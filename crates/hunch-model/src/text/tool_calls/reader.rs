//! Reading of one call, a character at a time. Markers and the text around calls do not belong here.

use serde_json::{Map, Value};

use super::scanner::{ValueScan, ValueScanner};

/// Most bytes of a name or a key.
const MAX_NAME: usize = 1 << 10;

/// State of a call after a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallProgress {
    /// The call continues.
    More,
    /// The character was the last one of the call.
    Done,
    /// The text is not a call.
    Failed,
}

/// Decides whether a name is that of a tool.
pub(super) type IsTool<'a> = &'a dyn Fn(&str) -> bool;

/// Reads `{"name": ..., "arguments": {...}}` in any order of the fields, or `name[ARGS]{...}`.
#[derive(Clone, Debug)]
pub(super) struct CallReader {
    /// Text of the call so far, with the markers before it.
    pub(super) raw: String,
    at: JsonPosition,
    /// The name, key or value that is being read, unless it is an object of arguments.
    text: String,
    value: ValueScanner,
    name: Option<String>,
    arguments: Option<String>,
    /// Bytes of the arguments that were taken.
    taken: usize,
    begun: bool,
    /// `true` if the object has two braces on each side.
    doubled: bool,
    /// `true` if a marker announced the call. Without one, a call needs arguments.
    marked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JsonPosition {
    /// In the name of a call without an object around it.
    BareName,
    /// In the arguments of a call without an object around it.
    BareArguments,
    /// Before the opening brace.
    Object,
    /// After it. Some models write two, as their templates do by mistake.
    SecondBrace,
    Key,
    InKey,
    Colon(Field),
    Value(Field),
    InValue(Field),
    Next,
}

/// A field of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Name,
    Arguments,
    Other,
}

impl Field {
    fn of_key(key: &str) -> Self {
        match key {
            "name" | "function" => Self::Name,
            "arguments" | "parameters" => Self::Arguments,
            _ => Self::Other,
        }
    }
}

impl CallReader {
    /// Creates the reader of an object.
    pub(super) fn of_object(raw: String, marked: bool) -> Self {
        Self::at(JsonPosition::Object, raw, marked)
    }

    /// Creates the reader of a name with arguments.
    pub(super) fn of_name(raw: String) -> Self {
        Self::at(JsonPosition::BareName, raw, true)
    }

    fn at(at: JsonPosition, raw: String, marked: bool) -> Self {
        Self {
            raw,
            at,
            text: String::new(),
            value: ValueScanner::default(),
            name: None,
            arguments: None,
            taken: 0,
            begun: false,
            doubled: false,
            marked,
        }
    }

    /// Reads a character. Nothing may follow the last one, or a failure.
    pub(super) fn push(&mut self, c: char, is_tool: IsTool) -> CallProgress {
        self.raw.push(c);
        match self.at {
            JsonPosition::BareName => self.push_bare_name(c, is_tool),
            JsonPosition::BareArguments => self.push_bare_arguments(c),
            JsonPosition::Object => self.go_to(JsonPosition::SecondBrace, c == '{'),
            JsonPosition::InKey => self.push_key(c),
            JsonPosition::InValue(field) => self.push_value(field, c, is_tool),
            _ if c.is_whitespace() => CallProgress::More,
            JsonPosition::SecondBrace if c == '{' => {
                self.doubled = true;
                self.go_to(JsonPosition::Key, true)
            }
            JsonPosition::SecondBrace | JsonPosition::Key | JsonPosition::Next if c == '}' => self.close(),
            JsonPosition::SecondBrace | JsonPosition::Key => {
                self.text.clear();
                self.go_to(JsonPosition::InKey, c == '"')
            }
            JsonPosition::Colon(field) => self.go_to(JsonPosition::Value(field), c == ':'),
            JsonPosition::Value(field) if self.has(field) => CallProgress::Failed,
            JsonPosition::Value(field) => {
                self.begin_value(field, c);
                self.push_value(field, c, is_tool)
            }
            JsonPosition::Next => self.go_to(JsonPosition::Key, c == ','),
        }
    }

    /// Returns the name of the tool, once, when the text is known to be a call.
    pub(super) fn take_begin(&mut self) -> Option<String> {
        if self.begun || self.arguments.is_none() {
            return None;
        }
        let name = self.name.clone()?;
        self.begun = true;
        Some(name)
    }

    /// Returns `true` after [`take_begin`](Self::take_begin) returned a name.
    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    /// Returns the text of the arguments that was not taken yet. Empty before the call has begun.
    pub(super) fn take_arguments(&mut self) -> String {
        let Some(arguments) = self.arguments.as_ref().filter(|_| self.begun) else { return String::new() };
        let fresh = arguments[self.taken..].to_owned();
        self.taken = arguments.len();
        fresh
    }

    /// Returns `true` if a second brace may follow the call.
    pub(super) fn is_doubled(&self) -> bool {
        self.doubled
    }

    /// Returns `true` if the arguments are a JSON object.
    pub(super) fn is_valid(&self) -> bool {
        self.arguments.as_deref().is_some_and(is_object)
    }

    /// Returns `true` if a field was read before. The part that was sent cannot be taken back.
    fn has(&self, field: Field) -> bool {
        match field {
            Field::Name => self.name.is_some(),
            Field::Arguments => self.arguments.is_some(),
            Field::Other => false,
        }
    }

    fn go_to(&mut self, next: JsonPosition, allowed: bool) -> CallProgress {
        self.at = next;
        if allowed { CallProgress::More } else { CallProgress::Failed }
    }

    fn close(&mut self) -> CallProgress {
        if self.arguments.is_none() && self.marked {
            self.arguments = Some("{}".into());
        }
        let complete = self.name.is_some() && self.arguments.is_some();
        if complete { CallProgress::Done } else { CallProgress::Failed }
    }

    fn push_bare_name(&mut self, c: char, is_tool: IsTool) -> CallProgress {
        if c != '{' {
            self.text.push(c);
            return if self.text.len() > MAX_NAME { CallProgress::Failed } else { CallProgress::More };
        }
        // Markers follow the name, and some versions have an identifier of the call between them.
        let name = self.text.split(['[', '<']).next().unwrap_or_default().trim().to_owned();
        if !is_tool(&name) {
            return CallProgress::Failed;
        }
        self.name = Some(name);
        self.begin_value(Field::Arguments, c);
        self.at = JsonPosition::BareArguments;
        self.push_bare_arguments(c)
    }

    fn push_bare_arguments(&mut self, c: char) -> CallProgress {
        match self.keep(Field::Arguments, c) {
            ValueScan::Inside => CallProgress::More,
            ValueScan::Last => CallProgress::Done,
            ValueScan::EndedBefore | ValueScan::Failed => CallProgress::Failed,
        }
    }

    fn push_key(&mut self, c: char) -> CallProgress {
        if c == '"' {
            let field = Field::of_key(&self.text);
            // Without a marker, an object with other fields is an answer, which must not wait for its end.
            let fits = self.marked || field != Field::Other || matches!(&self.text[..], "type" | "id");
            return self.go_to(JsonPosition::Colon(field), fits);
        }
        // Keys that matter have no escaped characters.
        self.text.push(c);
        if self.text.len() > MAX_NAME { CallProgress::Failed } else { CallProgress::More }
    }

    fn begin_value(&mut self, field: Field, first: char) {
        self.at = JsonPosition::InValue(field);
        self.value = ValueScanner::default();
        self.text.clear();
        if field == Field::Arguments {
            self.arguments = (first == '{').then(String::new);
            self.taken = 0;
        }
    }

    fn push_value(&mut self, field: Field, c: char, is_tool: IsTool) -> CallProgress {
        let scan = self.keep(field, c);
        match scan {
            ValueScan::Failed => return CallProgress::Failed,
            ValueScan::Inside => return CallProgress::More,
            ValueScan::Last | ValueScan::EndedBefore => self.at = JsonPosition::Next,
        }
        if !self.end_value(field, is_tool) {
            return CallProgress::Failed;
        }
        match (scan, c) {
            (ValueScan::EndedBefore, '}') => self.close(),
            (ValueScan::EndedBefore, ',') => self.go_to(JsonPosition::Key, true),
            _ => CallProgress::More,
        }
    }

    /// Reads a character of a value and keeps it if it matters.
    fn keep(&mut self, field: Field, c: char) -> ValueScan {
        let scan = self.value.push(c);
        if !matches!(scan, ValueScan::Inside | ValueScan::Last) {
            return scan;
        }
        match (field, &mut self.arguments) {
            (Field::Arguments, Some(arguments)) => arguments.push(c),
            (Field::Other, _) => {}
            _ => self.text.push(c),
        }
        let too_long = field == Field::Name && self.text.len() > MAX_NAME;
        if too_long { ValueScan::Failed } else { scan }
    }

    /// Ends a value. Returns `false` if the text is no call with it.
    fn end_value(&mut self, field: Field, is_tool: IsTool) -> bool {
        match (field, serde_json::from_str::<Value>(&self.text)) {
            (Field::Other, _) => true,
            (Field::Name, Ok(Value::String(name))) if is_tool(&name) => {
                self.name = Some(name);
                true
            }
            (Field::Arguments, _) if self.arguments.is_some() => true,
            (Field::Arguments, Ok(Value::Null)) => {
                self.arguments = Some("{}".into());
                true
            }
            // Some models write the object in a string.
            (Field::Arguments, Ok(Value::String(inner))) if is_object(&inner) => {
                self.arguments = Some(inner);
                true
            }
            _ => false,
        }
    }
}

fn is_object(text: &str) -> bool {
    serde_json::from_str::<Map<String, Value>>(text).is_ok()
}
