//! Text files attached to questions: read, stored, seen by the model, exported and imported.

use std::sync::mpsc;

use hunch::api::{
    AnswerRequest, Answering, Asking, Attachment, ExportFormat, ExportWords, MAX_FILES, StreamMessage,
};
use hunch::app::App;
use hunch::event::GenerationEvent;
use hunch_core::method::Method;
use hunch_error::{Error, ErrorCode};

use crate::support::app::app_with_models;
use crate::support::requests::endless_request;

fn start(folder: &tempfile::TempDir) -> App {
    app_with_models(folder.path(), false)
}

fn notes() -> Attachment {
    Attachment { name: "notes.md".into(), text: "# Sky\n\n```\nblue\n```\n".into() }
}

/// Asks for four tokens, waits for the end, and returns the answer with the length of its prompt.
fn ask(app: &App, conversation: Option<i64>, asking: Asking) -> (Answering, u32) {
    let (sender, receiver) = mpsc::channel::<StreamMessage>();
    let request = AnswerRequest { conversation, asking, ..endless_request(Method::Plain, 4) };
    let begun = app.answer(request, Box::new(move |message| drop(sender.send(message)))).unwrap();
    let events: Vec<GenerationEvent> = receiver.iter().flat_map(|message| message.events).collect();
    let prompt = events.iter().find_map(|event| match event {
        GenerationEvent::Started { prompt_tokens, .. } => Some(*prompt_tokens),
        _ => None,
    });
    (begun, prompt.expect("the answer starts"))
}

fn question(text: &str, attachments: Vec<Attachment>) -> Asking {
    Asking::Question { parent: None, text: text.into(), attachments }
}

#[test]
fn model_reads_attached_file_and_it_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let app = start(&folder);
    let (bare, short) = ask(&app, None, question("Why?", Vec::new()));
    let (begun, long) = ask(&app, None, question("Why?", vec![notes()]));
    // The tokens of the tiny model are bytes.
    let fenced = "File: notes.md\n\n````md\n# Sky\n\n```\nblue\n```\n````\n\n".len() as u32;
    assert_eq!(long - short, fenced);
    let titles = app.list_conversations().unwrap().into_iter().map(|entry| entry.title);
    assert_eq!(titles.collect::<Vec<_>>(), ["Why?", "Why?"], "the file is not part of the title");
    // Answered again, the question still has its file.
    let again = Asking::Again { question: begun.question };
    assert_eq!(ask(&app, Some(begun.conversation), again).1, long);
    app.shutdown();
    drop(app);

    let app = start(&folder);
    let stored = app.open_conversation(begun.conversation).unwrap().messages;
    assert_eq!((stored[0].content.as_str(), &stored[0].attachments), ("Why?", &vec![notes()]));
    assert!(stored[1..].iter().all(|answer| answer.attachments.is_empty()));
    assert!(app.open_conversation(bare.conversation).unwrap().messages[0].attachments.is_empty());
}

#[test]
fn exports_contain_attached_files() {
    let folder = tempfile::tempdir().unwrap();
    let app = start(&folder);
    let (begun, _) = ask(&app, None, question("Why?", vec![notes()]));
    let words = ExportWords { untitled: "-".into(), question: "You".into(), answer: "A".into() };
    let path = folder.path().join("out");
    app.export_conversation(begun.conversation, ExportFormat::Markdown, &words, &path).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("## You\n\nFile: notes.md\n\n````md\n# Sky\n"), "{text}");
    app.export_conversation(begun.conversation, ExportFormat::Json, &words, &path).unwrap();
    let copy = app.import_conversation(&path).unwrap();
    let copied = app.open_conversation(copy).unwrap().messages;
    assert_eq!(copied[0].attachments, [notes()]);
    let (_, first) = ask(&app, Some(begun.conversation), Asking::Again { question: begun.question });
    assert_eq!(ask(&app, Some(copy), Asking::Again { question: copied[0].id }).1, first);
}

#[test]
fn counts_tokens_of_a_file_and_refuses_one_beyond_the_context() {
    let folder = tempfile::tempdir().unwrap();
    let app = start(&folder);
    let path = folder.path().join("log.txt");
    std::fs::write(&path, "a".repeat(200)).unwrap();
    let read = app.read_attachment(&path, true).unwrap();
    assert_eq!((read.attachment.name.as_str(), read.tokens), ("log.txt", Some(200)));
    // The tiny model's context has 512 tokens.
    std::fs::write(&path, "a".repeat(512)).unwrap();
    let refused = app.read_attachment(&path, true).unwrap_err();
    assert!(matches!(refused, Error::FileOverContext { tokens: 512, context: 512, .. }), "{refused}");
    // A server that answers has another context.
    let uncounted = app.read_attachment(&path, false).unwrap();
    assert_eq!((uncounted.attachment.text.len(), uncounted.tokens), (512, None));
    assert_eq!(app.attachment_tokens(&"a".repeat(512)).unwrap(), 512);
    // A file cannot end a turn, so its control tokens are text.
    std::fs::write(&path, "<|im_end|>").unwrap();
    assert_eq!(app.read_attachment(&path, true).unwrap().tokens, Some(10));
    assert_eq!(app.attachment_tokens("<|im_end|>").unwrap(), 10);
    std::fs::write(&path, "a".repeat(512)).unwrap();
    app.unload_models().unwrap();
    let read = app.read_attachment(&path, true).unwrap();
    assert_eq!((read.attachment.text.len(), read.tokens), (512, None));
    assert_eq!(app.attachment_tokens("a").unwrap_err().code(), ErrorCode::NoModel);
}

#[test]
fn question_with_too_many_files_is_refused_and_not_stored() {
    let folder = tempfile::tempdir().unwrap();
    let app = start(&folder);
    let asking = question("Why?", vec![notes(); MAX_FILES + 1]);
    let request = AnswerRequest { asking, ..endless_request(Method::Plain, 4) };
    let refused = app.answer(request, Box::new(|_| {})).unwrap_err();
    assert!(matches!(refused, Error::Refused(_)), "{refused}");
    assert!(app.list_conversations().unwrap().is_empty());
}
