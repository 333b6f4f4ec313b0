//! Finds calls of tools in the text of an answer, as it arrives.
//!
//! A call has to name an offered tool. All other text stays text, with its markers. A call that breaks off keeps the
//! markers before it. Nothing here fails or panics, whatever a model writes.

mod reader;
mod scanner;
mod tags;

use std::sync::Arc;

use super::thinking::{THOUGHT_CLOSING, THOUGHT_OPENING, ThoughtSplitter, before_marker};
use super::tools::{CALL_SIGN, Tool, ToolForm};
use reader::{CallProgress, CallReader};
use tags::TagReader;

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolPart {
    /// Text.
    Text(String),
    /// A call of a tool begins.
    Begin(String),
    /// Text of its arguments, a JSON object in the end.
    Arguments(String),
    /// The call ends.
    End {
        /// Text of the call as the model wrote it, if it ended early or its arguments are not a JSON object.
        broken: Option<String>,
    },
}

/// Finds the calls in an answer.
#[derive(Clone, Debug)]
pub struct ToolCallParser {
    form: ToolForm,
    tools: Arc<[Tool]>,
    /// Most intact calls. The rest of the answer is left out after them.
    max_calls: usize,
    /// Text that was not read yet.
    pending: String,
    /// White space that is left out if a call follows.
    space: String,
    state: ToolCallState,
    calls: usize,
    /// Calls that ended with a JSON object as arguments.
    intact: usize,
}

#[derive(Clone, Debug)]
enum ToolCallState {
    Start,
    Reasoning,
    Text,
    /// Before a call, with the text of the markers so far.
    Open {
        raw: String,
        series: Series,
    },
    Call(Box<AnyCallReader>, Series),
    /// After a call.
    After(Series),
    /// After the last call allowed.
    Done,
}

/// A series of calls after one marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Series {
    marked: bool,
    /// `true` inside of brackets.
    list: bool,
    /// `true` if a second brace may end the call.
    doubled: bool,
    /// `true` inside of a Markdown fence.
    fenced: bool,
}

/// Reader of a call of some form.
#[derive(Clone, Debug)]
enum AnyCallReader {
    Json(CallReader),
    Tags(TagReader),
}

impl AnyCallReader {
    fn push(&mut self, c: char, tools: &[Tool]) -> CallProgress {
        match self {
            Self::Json(reader) => reader.push(c, &|name| tools.iter().any(|tool| tool.name == name)),
            Self::Tags(reader) => reader.push(c, tools),
        }
    }

    fn take_begin(&mut self) -> Option<String> {
        match self {
            Self::Json(reader) => reader.take_begin(),
            Self::Tags(reader) => reader.take_begin(),
        }
    }

    fn has_begun(&self) -> bool {
        match self {
            Self::Json(reader) => reader.has_begun(),
            Self::Tags(reader) => reader.has_begun(),
        }
    }

    fn take_arguments(&mut self) -> String {
        match self {
            Self::Json(reader) => reader.take_arguments(),
            Self::Tags(reader) => reader.take_arguments(),
        }
    }

    fn is_doubled(&self) -> bool {
        matches!(self, Self::Json(reader) if reader.is_doubled())
    }

    fn is_valid(&self) -> bool {
        match self {
            Self::Json(reader) => reader.is_valid(),
            Self::Tags(reader) => reader.is_valid(),
        }
    }

    fn take_raw(&mut self) -> String {
        std::mem::take(match self {
            Self::Json(reader) => &mut reader.raw,
            Self::Tags(reader) => &mut reader.raw,
        })
    }
}

/// Marker of a Markdown fence. Small models put calls in one.
const FENCE: &str = "```";

impl ToolCallParser {
    /// Creates a parser of an answer. Calls of tools with other names are text.
    pub fn new(form: ToolForm, tools: &[Tool], max_calls: usize) -> Self {
        Self {
            form,
            tools: tools.into(),
            max_calls,
            pending: String::new(),
            space: String::new(),
            state: ToolCallState::Start,
            calls: 0,
            intact: 0,
        }
    }

    /// Reads an answer that continues a text, which `thoughts` has read. If it leaves a thought open, calls are text until
    /// the end of the thought.
    #[must_use]
    pub fn after(mut self, thoughts: &ThoughtSplitter) -> Self {
        if thoughts.is_thinking() {
            self.state = ToolCallState::Reasoning;
        }
        self
    }

    /// Reads text and returns the parts that are certain.
    pub fn push(&mut self, text: &str) -> Vec<ToolPart> {
        self.pending.push_str(text);
        let mut parts = AnswerParts::default();
        while self.step(&mut parts, false) {}
        parts.0
    }

    /// Returns the parts held back at the end of the answer.
    pub fn finish(&mut self) -> Vec<ToolPart> {
        let mut parts = AnswerParts::default();
        while self.step(&mut parts, true) {}
        if self.calls == 0 {
            parts.text(&std::mem::take(&mut self.space));
        }
        parts.0
    }

    /// Returns the number of calls so far, broken ones included.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Returns `true` after a call that is not broken.
    pub fn has_called(&self) -> bool {
        self.intact > 0
    }

    /// Returns `true` after the last call allowed. The rest of the answer is left out.
    pub fn is_done(&self) -> bool {
        matches!(self.state, ToolCallState::Done)
    }

    /// Reads a part of the pending text. Returns `false` if it has to wait for more, or for the end.
    fn step(&mut self, parts: &mut AnswerParts, last: bool) -> bool {
        match std::mem::replace(&mut self.state, ToolCallState::Text) {
            ToolCallState::Start => self.step_start(last),
            ToolCallState::Reasoning => self.step_reasoning(parts, last),
            ToolCallState::Text => self.step_text(parts, last),
            ToolCallState::Open { raw, series } => self.step_open(parts, raw, series, last),
            ToolCallState::Call(call, series) => self.step_call(parts, call, series, last),
            ToolCallState::After(series) => self.step_after(series, last),
            ToolCallState::Done => {
                self.state = ToolCallState::Done;
                self.pending.clear();
                false
            }
        }
    }

    fn wait(&mut self, state: ToolCallState) -> bool {
        self.state = state;
        false
    }

    fn step_start(&mut self, last: bool) -> bool {
        let begun = self.pending.trim_start();
        if !last && THOUGHT_OPENING.starts_with(begun) {
            return self.wait(ToolCallState::Start);
        }
        if begun.starts_with(THOUGHT_OPENING) {
            self.state = ToolCallState::Reasoning;
            return true;
        }
        let bare = |fenced| Series { marked: false, list: false, doubled: false, fenced };
        // Llama announces no call, and other models forget to.
        if begun.starts_with('{') {
            self.state = ToolCallState::Open { raw: String::new(), series: bare(false) };
        } else if let Some(body) = begun.strip_prefix(FENCE) {
            let object = body.strip_prefix("json").unwrap_or(body).trim_start();
            if object.starts_with('{') {
                let fence = self.pending.len() - object.len();
                self.state =
                    ToolCallState::Open { raw: self.pending.drain(..fence).collect(), series: bare(true) };
            } else if !last && (object.is_empty() || "json".starts_with(body)) {
                return self.wait(ToolCallState::Start);
            }
        } else if !last && FENCE.starts_with(begun) {
            return self.wait(ToolCallState::Start);
        }
        true
    }

    fn step_reasoning(&mut self, parts: &mut AnswerParts, last: bool) -> bool {
        let end = self.pending.find(THOUGHT_CLOSING).map(|at| at + THOUGHT_CLOSING.len());
        let until = end.unwrap_or_else(|| {
            if last { self.pending.len() } else { before_marker(&self.pending, THOUGHT_CLOSING) }
        });
        self.emit_text(parts, until);
        if end.is_some() || last { true } else { self.wait(ToolCallState::Reasoning) }
    }

    fn step_text(&mut self, parts: &mut AnswerParts, last: bool) -> bool {
        let Some(opening) = self.form.opening() else {
            self.emit_text(parts, self.pending.len());
            return false;
        };
        if let Some(at) = self.pending.find(opening) {
            self.emit_text(parts, at);
            self.pending.drain(..opening.len());
            let series = Series { marked: true, list: false, doubled: false, fenced: false };
            // The sign is no text of the model, so it must not come back if this is no call.
            self.state =
                ToolCallState::Open { raw: opening.trim_start_matches(CALL_SIGN).to_owned(), series };
            return true;
        }
        let until = if last { self.pending.len() } else { before_marker(&self.pending, opening) };
        self.emit_text(parts, until);
        false
    }

    fn step_open(
        &mut self,
        parts: &mut AnswerParts,
        mut raw: String,
        mut series: Series,
        last: bool,
    ) -> bool {
        let space = self.pending.len() - self.pending.trim_start().len();
        raw.extend(self.pending.drain(..space));
        let call = match self.pending.chars().next() {
            None if last => return self.give_up(parts, &raw),
            None => return self.wait(ToolCallState::Open { raw, series }),
            Some('[') if series.marked && !series.list => {
                series.list = true;
                raw.extend(self.pending.drain(..1));
                self.state = ToolCallState::Open { raw, series };
                return true;
            }
            Some('{') => AnyCallReader::Json(CallReader::of_object(raw, series.marked)),
            Some(_) if !series.marked => return self.give_up(parts, &raw),
            Some(_) => match self.form {
                ToolForm::MistralArgs | ToolForm::Harmony => AnyCallReader::Json(CallReader::of_name(raw)),
                ToolForm::QwenCoder => AnyCallReader::Tags(TagReader::new(raw, &tags::QWEN_CODER)),
                ToolForm::Glm => AnyCallReader::Tags(TagReader::new(raw, &tags::GLM)),
                _ => return self.give_up(parts, &raw),
            },
        };
        self.state = ToolCallState::Call(Box::new(call), series);
        true
    }

    fn step_call(
        &mut self,
        parts: &mut AnswerParts,
        mut call: Box<AnyCallReader>,
        series: Series,
        last: bool,
    ) -> bool {
        let (mut read, mut progress) = (0, CallProgress::More);
        for c in self.pending.chars() {
            read += c.len_utf8();
            progress = call.push(c, &self.tools);
            if progress != CallProgress::More {
                break;
            }
        }
        self.pending.drain(..read);
        if let Some(name) = call.take_begin() {
            self.space.clear();
            self.calls += 1;
            parts.0.push(ToolPart::Begin(name));
        }
        let arguments = call.take_arguments();
        if !arguments.is_empty() {
            parts.0.push(ToolPart::Arguments(arguments));
        }
        let ended = progress == CallProgress::Done;
        if progress == CallProgress::More && !last {
            return self.wait(ToolCallState::Call(call, series));
        }
        if !call.has_begun() {
            return self.give_up(parts, &call.take_raw());
        }
        let broken = !ended || !call.is_valid();
        self.intact += usize::from(!broken);
        parts.0.push(ToolPart::End { broken: broken.then(|| call.take_raw()) });
        self.state = match (self.intact >= self.max_calls, ended) {
            (true, _) => ToolCallState::Done,
            (false, true) => ToolCallState::After(Series { doubled: call.is_doubled(), ..series }),
            (false, false) => ToolCallState::Text,
        };
        true
    }

    fn step_after(&mut self, series: Series, last: bool) -> bool {
        let rest = self.pending.trim_start();
        let next = rest.trim_start_matches([',', ';']).trim_start();
        let closing = if series.fenced { FENCE } else { self.form.closing().unwrap_or_default() };
        let skipped = self.pending.len() - next.len();
        if series.doubled && rest.starts_with('}') {
            let brace = self.pending.len() - rest.len() + 1;
            self.pending.drain(..brace);
            self.state = ToolCallState::After(Series { doubled: false, ..series });
        } else if series.list && rest.starts_with(']') {
            let bracket = self.pending.len() - rest.len() + 1;
            self.pending.drain(..bracket);
            self.state = ToolCallState::After(Series { list: false, ..series });
        } else if next.is_empty() && last {
            self.pending.clear();
        } else if next.is_empty() || (!last && closing.len() > rest.len() && closing.starts_with(rest)) {
            return self.wait(ToolCallState::After(series));
        } else if !closing.is_empty() && rest.starts_with(closing) {
            let end = self.pending.len() - rest.len() + closing.len();
            self.pending.drain(..end);
        } else if next.starts_with('{') {
            self.state = ToolCallState::Open { raw: self.pending.drain(..skipped).collect(), series };
        }
        true
    }

    /// Continues with text after something that is not a call. The text after its marker is read again.
    fn give_up(&mut self, parts: &mut AnswerParts, raw: &str) -> bool {
        let marker = self.form.opening().filter(|marker| raw.starts_with(marker)).map_or(0, str::len);
        // Without a marker, the first character is no start of one.
        let marker = if marker == 0 { raw.chars().next().map_or(0, char::len_utf8) } else { marker };
        self.pending.insert_str(0, raw);
        self.emit_text(parts, marker);
        true
    }

    /// Moves the first bytes of the pending text to the answer.
    fn emit_text(&mut self, parts: &mut AnswerParts, bytes: usize) {
        self.space.extend(self.pending.drain(..bytes));
        let end = self.space.trim_end().len();
        let text: String = self.space.drain(..end).collect();
        parts.text(&text);
    }
}

/// Parts of an answer, without empty ones.
#[derive(Default)]
struct AnswerParts(Vec<ToolPart>);

impl AnswerParts {
    fn text(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(ToolPart::Text(before)) => before.push_str(text),
            _ => self.0.push(ToolPart::Text(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests;
