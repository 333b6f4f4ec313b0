//! Tokenisation, detokenisation, chat templates, stop strings, formats of answers, reasoning and calls of tools.
//!
//! Everything works on strings and the metadata of a model file. Weights, logits and sessions do not
//! belong here.

mod detokenize;
mod format;
mod harmony;
mod schema;
pub mod stop;
pub mod template;
mod thinking;
mod thought_channel;
pub mod tokenizer;
mod tool_calls;
mod tool_grammar;
mod tools;

pub use detokenize::Detokenizer;
pub use format::{AnswerFormat, FormatCompiler};
pub use harmony::without_reasoning;
pub use stop::{Released, StopFilter};
pub use template::{ChatTemplate, RenderedPrompt, TemplateOrigin, ThinkingSwitches};
pub use thinking::{AnswerText, THOUGHT_END, THOUGHT_OPENING, ThinkingBudget, ThoughtSplitter};
pub use tokenizer::{
    EncodeOptions, Tokenizer, Translation, Vocabulary, VocabularyVerdict, check_vocabularies,
};
pub use tool_calls::{ToolCallParser, ToolPart};
pub use tool_grammar::RequiredCalls;
pub use tools::{Tool, ToolCall, ToolChat, ToolForm, ToolMessage, without_signs};
