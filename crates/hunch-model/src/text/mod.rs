//! Text: from strings to tokens and back, chat templates, stop strings. No model, no logits and no
//! session here; everything works from a model file's metadata and on plain strings.

pub mod detokenize;
pub mod stop;
pub mod template;
pub mod tokenizer;

pub use detokenize::{Detokenizer, Utf8Stream};
pub use stop::{Released, StopFilter};
pub use template::{ChatTemplate, RenderedPrompt, TemplateOrigin};
pub use tokenizer::{
    EncodeOptions, Literals, Tokenizer, Vocabulary, VocabularyMatch, VocabularyVerdict, compare_vocabularies,
};
