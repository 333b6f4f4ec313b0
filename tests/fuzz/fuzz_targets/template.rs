//! Fuzz target: renders arbitrary chat templates in a child process, like the application.
//!
//! This process must survive and always get a prompt.

#![no_main]

use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use hunch_fuzz::{seeds, template};
use hunch_model::gguf::Gguf;
use hunch_model::text::template::child;
use hunch_model::text::{ChatTemplate, TemplateOrigin, Tokenizer};
use libfuzzer_sys::fuzz_target;

/// Timeout for two tries of two renderings each of at most 2 s, plus starting children on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Base limit of the output in bytes.
const BASE_OUTPUT: usize = 1 << 20;
/// Additional output as a multiple of the conversation.
const OUTPUT_FACTOR: usize = 16;

fuzz_target!(
    init: {
        child::offer();
        seeds::write(seeds::templates);
    },
    |bytes: &[u8]| render(bytes)
);

fn tokenizer() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| {
        let gguf = Gguf::parse(Path::new("model.gguf"), &seeds::vocabularies()[0]).expect("a valid header");
        Tokenizer::from_gguf(&gguf).expect("a valid vocabulary")
    })
}

fn render(bytes: &[u8]) {
    let (source, messages) = template::read(bytes);
    let started = Instant::now();
    let mut template = ChatTemplate::from_source(Some(&source), "<s>", "<|im_end|>");
    template.set_time(1_735_689_599);
    let prompt = template.render(&messages, true, None, &|| false).expect("there is always a prompt");
    let contents: usize = messages.iter().map(|message| message.content.len()).sum();
    assert!(prompt.text.len() <= BASE_OUTPUT + OUTPUT_FACTOR * contents, "{} bytes", prompt.text.len());
    if prompt.origin != TemplateOrigin::Model {
        assert!(
            source.trim().is_empty() || prompt.note.is_some(),
            "a built-in template is used without a note"
        );
    }
    let again = template.render(&messages, true, None, &|| false).expect("there is always a prompt");
    if (prompt.origin, again.origin) == (TemplateOrigin::Model, TemplateOrigin::Model) {
        assert_eq!(prompt.text, again.text, "the same conversation has the same text");
    }
    let (ids, _) =
        template.ids(tokenizer(), &messages, None, &|| false).expect("every prompt can be encoded");
    assert!(ids.iter().all(|&id| (id as usize) < tokenizer().vocab_size()));
    assert!(started.elapsed() < TIMEOUT, "{:?}", started.elapsed());
}
