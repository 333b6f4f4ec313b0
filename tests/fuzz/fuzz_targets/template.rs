//! Renders any chat template in a child process, as the application does: whatever happens there, this process goes
//! on and there is a prompt.

#![no_main]

use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use hunch_fuzz::{seeds, template};
use hunch_model::gguf::Gguf;
use hunch_model::text::template::child;
use hunch_model::text::{ChatTemplate, TemplateOrigin, Tokenizer};
use libfuzzer_sys::fuzz_target;

/// Two tries of two renderings each, of 2 s at most, and time for children to begin on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes that a result may have, whatever the conversation is, and as a multiple of it.
const OUTPUT: usize = 1 << 20;
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
        let gguf = Gguf::parse(Path::new("model.gguf"), &seeds::vocabularies()[0]).expect("a sound header");
        Tokenizer::from_gguf(&gguf).expect("a sound vocabulary")
    })
}

fn render(bytes: &[u8]) {
    let (source, messages) = template::read(bytes);
    let begun = Instant::now();
    let mut template = ChatTemplate::from_source(Some(&source), "<s>", "<|im_end|>");
    template.set_time(1_735_689_599);
    let prompt = template.render(&messages, true, &|| false).expect("there is always a prompt");
    let contents: usize = messages.iter().map(|message| message.content.len()).sum();
    assert!(prompt.text.len() <= OUTPUT + OUTPUT_FACTOR * contents, "{} bytes", prompt.text.len());
    if prompt.origin != TemplateOrigin::Model {
        assert!(
            source.trim().is_empty() || prompt.note.is_some(),
            "nobody is told that a built-in template is used"
        );
    }
    let again = template.render(&messages, true, &|| false).expect("there is always a prompt");
    if (prompt.origin, again.origin) == (TemplateOrigin::Model, TemplateOrigin::Model) {
        assert_eq!(prompt.text, again.text, "the same conversation has the same text");
    }
    let (ids, _) = template.ids(tokenizer(), &messages, &|| false).expect("every prompt can be tokenised");
    assert!(ids.iter().all(|&id| (id as usize) < tokenizer().vocab_size()));
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
}
