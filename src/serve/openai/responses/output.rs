//! Items of a response: thoughts, messages and calls. They are made from tokens as these arrive, with their events.

use hunch_model::text::{ThoughtSplitter, ToolCallParser};
use serde_json::{Value, json};

use super::super::super::AnsweringServer;
use super::super::response::log_probabilities;
use super::pieces::{Piece, PieceReader, broken_as_text};
use crate::event::TokenEvent;

const COMPLETED: &str = "completed";
const INCOMPLETE: &str = "incomplete";

/// Type of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ItemKind {
    Thought,
    Message,
    Call { id: String, name: String },
}

/// An item that is being written.
struct OpenItem {
    kind: ItemKind,
    id: String,
    /// Text of a thought or a message, or the arguments of a call.
    text: String,
    logprobs: Vec<Value>,
}

impl OpenItem {
    /// Returns the part that a thought or a message consists of.
    fn part(&self) -> Value {
        match self.kind {
            ItemKind::Thought => json!({ "type": "reasoning_text", "text": self.text }),
            _ => json!({
                "type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs,
            }),
        }
    }

    fn item(&self, status: &str, content: &[Value]) -> Value {
        let id = &self.id;
        match &self.kind {
            ItemKind::Thought => json!({
                "id": id, "type": "reasoning", "summary": [], "content": content, "status": status,
            }),
            ItemKind::Message => json!({
                "id": id, "type": "message", "status": status, "role": "assistant", "content": content,
            }),
            ItemKind::Call { id: call, name } => json!({
                "id": id, "type": "function_call", "status": status, "call_id": call, "name": name,
                "arguments": self.text,
            }),
        }
    }
}

/// Items of a response so far.
pub(super) struct OutputItems {
    server: AnsweringServer,
    reader: PieceReader,
    /// Number of alternatives for each token, if log probabilities are asked for.
    logprobs: Option<usize>,
    /// Items that have ended.
    items: Vec<Value>,
    open: Option<OpenItem>,
}

impl OutputItems {
    pub(super) fn new(
        server: AnsweringServer,
        parser: Option<ToolCallParser>,
        logprobs: Option<usize>,
    ) -> Self {
        let reader = PieceReader::new(parser, logprobs.is_some());
        Self { server, reader, logprobs, items: Vec::new(), open: None }
    }

    /// Begins the output of an answer, whose thoughts `thoughts` splits.
    pub(super) fn begin(&mut self, thoughts: ThoughtSplitter) {
        self.reader.thoughts = thoughts;
    }

    /// Returns the items that have ended.
    pub(super) fn items(&self) -> &[Value] {
        &self.items
    }

    /// Returns the number of tokens of thoughts so far.
    pub(super) fn reasoning_tokens(&self) -> usize {
        self.reader.reasoning_tokens
    }

    /// Reads tokens and returns their events.
    pub(super) fn push(&mut self, tokens: &[TokenEvent]) -> Vec<Value> {
        let pieces = self.reader.read(tokens, false);
        self.write(pieces)
    }

    /// Reads the last tokens and returns their events. `is_cut` is `true` if the answer reached its limit.
    ///
    /// A call that is broken has begun as an item, and stays one that is incomplete.
    pub(super) fn end(&mut self, tokens: &[TokenEvent], is_cut: bool) -> Vec<Value> {
        let pieces = self.reader.read(tokens, true);
        let mut events = self.write(pieces);
        self.end_items(is_cut, &mut events);
        events
    }

    /// Reads all tokens of an answer. A call that is broken is text. `is_cut` as in [`Self::end`].
    pub(super) fn read_whole(&mut self, tokens: &[TokenEvent], is_cut: bool) {
        let pieces = broken_as_text(self.reader.read(tokens, true));
        let mut events = self.write(pieces);
        self.end_items(is_cut, &mut events);
    }

    /// Writes pieces into items and returns the events.
    fn write(&mut self, pieces: Vec<Piece>) -> Vec<Value> {
        let mut events = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Thought(text) => {
                    self.begin_item(ItemKind::Thought, &mut events);
                    self.delta("response.reasoning_text.delta", &text, None, &mut events);
                }
                Piece::Text(text, tokens) => {
                    self.begin_item(ItemKind::Message, &mut events);
                    let tokenizer = self.server.model.encoder.tokenizer();
                    let count = self.logprobs.unwrap_or(0);
                    let logprobs = log_probabilities(tokenizer, &tokens, count);
                    self.delta("response.output_text.delta", &text, Some(logprobs), &mut events);
                }
                Piece::Begin(name) => {
                    let id = self.server.item_id("call");
                    self.begin_item(ItemKind::Call { id, name }, &mut events);
                }
                Piece::Arguments(text) => {
                    self.delta("response.function_call_arguments.delta", &text, None, &mut events);
                }
                Piece::End { broken } => {
                    self.end_item(if broken.is_some() { INCOMPLETE } else { COMPLETED }, &mut events);
                }
            }
        }
        events
    }

    /// Begins an item and ends the one before. An open item of this type continues.
    fn begin_item(&mut self, kind: ItemKind, events: &mut Vec<Value>) {
        if self.open.as_ref().is_some_and(|open| open.kind == kind) {
            return;
        }
        self.end_item(COMPLETED, events);
        let prefix = match kind {
            ItemKind::Thought => "rs",
            ItemKind::Message => "msg",
            ItemKind::Call { .. } => "fc",
        };
        let id = self.server.item_id(prefix);
        let open = OpenItem { kind, id, text: String::new(), logprobs: Vec::new() };
        let item = open.item("in_progress", &[]);
        let output_index = self.items.len();
        events.push(json!({
            "type": "response.output_item.added", "output_index": output_index, "item": item,
        }));
        if !matches!(open.kind, ItemKind::Call { .. }) {
            events.push(json!({
                "type": "response.content_part.added", "item_id": open.id, "output_index": output_index,
                "content_index": 0, "part": open.part(),
            }));
        }
        self.open = Some(open);
    }

    /// Adds text to the open item.
    fn delta(&mut self, event: &str, text: &str, logprobs: Option<Vec<Value>>, events: &mut Vec<Value>) {
        let Some(open) = &mut self.open else { return };
        open.text.push_str(text);
        let mut event = json!({
            "type": event, "item_id": open.id, "output_index": self.items.len(), "delta": text,
        });
        if !matches!(open.kind, ItemKind::Call { .. }) {
            event["content_index"] = json!(0);
        }
        if let Some(logprobs) = logprobs {
            event["logprobs"] = json!(logprobs);
            open.logprobs.extend(logprobs);
        }
        events.push(event);
    }

    fn end_item(&mut self, status: &str, events: &mut Vec<Value>) {
        let Some(open) = self.open.take() else { return };
        let (id, output_index) = (&open.id, self.items.len());
        let mut content = vec![open.part()];
        match &open.kind {
            ItemKind::Thought => events.push(json!({
                "type": "response.reasoning_text.done", "item_id": id, "output_index": output_index,
                "content_index": 0, "text": open.text,
            })),
            ItemKind::Message => events.push(json!({
                "type": "response.output_text.done", "item_id": id, "output_index": output_index,
                "content_index": 0, "text": open.text, "logprobs": open.logprobs,
            })),
            ItemKind::Call { name, .. } => {
                content.clear();
                events.push(json!({
                    "type": "response.function_call_arguments.done", "item_id": id,
                    "output_index": output_index, "name": name, "arguments": open.text,
                }));
            }
        }
        events.extend(content.iter().map(|part| {
            json!({
                "type": "response.content_part.done", "item_id": id, "output_index": output_index,
                "content_index": 0, "part": part,
            })
        }));
        let item = open.item(status, &content);
        events.push(json!({
            "type": "response.output_item.done", "output_index": output_index, "item": item,
        }));
        self.items.push(item);
    }

    /// Ends the output. A complete answer has a message or a call, even if it has no text.
    fn end_items(&mut self, is_cut: bool, events: &mut Vec<Value>) {
        self.end_item(if is_cut { INCOMPLETE } else { COMPLETED }, events);
        if !is_cut && self.items.iter().all(|item| item["type"] == "reasoning") {
            self.begin_item(ItemKind::Message, events);
            self.end_item(COMPLETED, events);
        }
    }
}
