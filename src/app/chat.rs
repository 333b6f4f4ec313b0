//! Conversations. Questions are stored when asked, and every event of an answer while it is generated.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::App;
use super::answerer::{Answerer, LoadedAnswerer};
use super::server_answer::ServerAnswerer;
use crate::api::{
    AnswerRequest, AnswerSettings, AnsweredBy, Answering, Asking, Conversation, ConversationEntry,
    ExportFormat, ExportWords, SearchHit, StoredMessage, StreamMessage, TextToken, check_attachments,
    with_attachments,
};
use crate::clock::now;
use crate::event::{GenerationEvent, RoundEvent, TokenEvent};
use crate::generate::Prompt;
use crate::store::{ConversationState, Store};
use hunch_core::chat::{ChatMessage, Role};
use hunch_core::token::{TokenId, TokenOrigin};
use hunch_error::{Error, Refusal, Result};
use hunch_model::atomic_file;
use hunch_model::input_file;
use hunch_model::text::{Detokenizer, EncodeOptions, Tokenizer};

/// Timeout for the previous answer to be written.
const SETTLES_WITHIN: Duration = Duration::from_secs(10);

/// Maximum size of an imported file, in bytes. An export with a million tokens is smaller.
const MOST_IMPORTED: u64 = 2 << 30;

/// Prepared request for an answer.
struct PreparedAnswer {
    conversation: i64,
    question: i64,
    prompt: Prompt,
    prefix: Vec<GenerationEvent>,
}

/// Records written for a question, to be removed if the answer cannot start.
#[derive(Default)]
struct QuestionWrites {
    /// The conversation created for it.
    created: Option<i64>,
    /// State of an existing conversation before the question.
    before: Option<ConversationState>,
    /// The first message added.
    message: Option<i64>,
}

impl QuestionWrites {
    /// Removes all of them.
    fn undo(self, store: &Store) -> Result<()> {
        match (self.created, self.message.zip(self.before)) {
            (Some(conversation), _) => Ok(store.remove_conversation(conversation)?),
            (None, Some((message, before))) => Ok(store.undo_message(message, &before)?),
            (None, None) => Ok(()),
        }
    }
}

impl App {
    /// Lists the conversations, pinned ones first, then by last use.
    ///
    /// # Errors
    /// [`Error::Store`] when the file cannot be read or written. The same holds for the methods below.
    pub fn list_conversations(&self) -> Result<Vec<ConversationEntry>> {
        self.noted(self.store().conversations())
    }

    /// Returns a conversation with all its branches.
    ///
    /// # Errors
    /// When there is no such conversation.
    pub fn open_conversation(&self, id: i64) -> Result<Conversation> {
        self.noted(self.store().conversation(id))
    }

    /// Returns the events of an answer in their original order.
    ///
    /// # Errors
    /// When there is no such message.
    pub fn answer_events(&self, message: i64) -> Result<Vec<GenerationEvent>> {
        self.noted(self.store().events(message))
    }

    /// Renames a conversation.
    ///
    /// # Errors
    /// When there is no such conversation.
    pub fn rename_conversation(&self, id: i64, title: &str) -> Result<()> {
        self.noted(self.store().rename_conversation(id, title))
    }

    /// Pins a conversation to the top of the list, or unpins it.
    ///
    /// # Errors
    /// When there is no such conversation.
    pub fn pin_conversation(&self, id: i64, pinned: bool) -> Result<()> {
        self.noted(self.store().pin_conversation(id, pinned))
    }

    /// Deletes a conversation. It can be restored until the next start.
    ///
    /// # Errors
    /// When there is no such conversation.
    pub fn delete_conversation(&self, id: i64) -> Result<()> {
        self.noted(self.store().delete_conversation(id, now()))
    }

    /// Restores a deleted conversation.
    ///
    /// # Errors
    /// When there is no such conversation.
    pub fn restore_conversation(&self, id: i64) -> Result<()> {
        self.noted(self.store().restore_conversation(id))
    }

    /// Sets the system prompt of a conversation and returns its id. Without an `id`, creates a conversation.
    ///
    /// # Errors
    /// When there is no such conversation.
    pub fn set_system_prompt(&self, id: Option<i64>, system: &str) -> Result<i64> {
        self.check_kept()?;
        let store = self.store();
        let id = id.map_or_else(|| store.create_conversation(now()), Ok)?;
        store.set_system_prompt(id, system)?;
        Ok(id)
    }

    /// Selects the branch that ends at `leaf`.
    ///
    /// # Errors
    /// When there is no such message.
    pub fn choose_branch(&self, leaf: i64) -> Result<()> {
        self.noted(self.store().set_leaf(leaf))
    }

    /// Returns the preferences by key.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn preferences(&self) -> Result<BTreeMap<String, serde_json::Value>> {
        self.noted(self.store().preferences())
    }

    /// Searches titles and messages.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn search_conversations(&self, query: &str) -> Result<Vec<SearchHit>> {
        self.noted(self.store().search(query))
    }

    /// Exports a conversation to a file. `words` are the headings of the Markdown format.
    ///
    /// # Errors
    /// When there is no such conversation, the file cannot be written, or JSON is too large to be imported again. An
    /// older file is unchanged then.
    pub fn export_conversation(
        &self,
        id: i64,
        format: ExportFormat,
        words: &ExportWords,
        path: &Path,
    ) -> Result<()> {
        let text = self.noted(match format {
            ExportFormat::Markdown => self.store().export_markdown(id, words),
            ExportFormat::Json => self.store().export_json(id),
        })?;
        if format == ExportFormat::Json {
            check_importable(text.len() as u64)?;
        }
        atomic_file::write(path, &text)
    }

    /// Writes the text of an answer to a file. For answers that cannot be stored.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save_answer(&self, text: &str, path: &Path) -> Result<()> {
        atomic_file::write(path, text)
    }

    /// Imports a conversation that was exported as JSON and returns its id.
    ///
    /// # Errors
    /// [`Error::Refused`] when the file is not such an export. Nothing is added then.
    pub fn import_conversation(&self, path: &Path) -> Result<i64> {
        self.check_kept()?;
        self.noted(self.store().import_json(open_import(path)?))
    }

    /// Starts an answer in a conversation. The question and the events of the answer are stored. `sink` receives the
    /// events once a frame.
    ///
    /// # Errors
    /// When the request is invalid, no model is loaded, or another answer is being generated. The question is removed
    /// from the store then and stays in the composer.
    pub fn answer(
        &self,
        request: AnswerRequest,
        sink: Box<dyn FnMut(StreamMessage) + Send>,
    ) -> Result<Answering> {
        self.check_kept()?;
        let answerer = self.answerer(&request.by)?;
        let settings = answerer.sign(request.settings);
        answerer.check(&settings)?;
        self.shared.engine.check_free()?;
        // The previous answer may still be written.
        self.shared.writers.settle(SETTLES_WITHIN);
        let first_words = match &request.asking {
            Asking::Question { parent: None, text, .. } => Some(text.clone()),
            _ => None,
        };
        let mut writes = QuestionWrites::default();
        let begun = self
            .store_question(request.conversation, request.asking, &*answerer, &mut writes)
            .and_then(|prepared| self.begin(prepared, &*answerer, &settings, sink, &mut writes));
        match (&begun, first_words) {
            // A question that cannot be removed stays in the list. The reason for the refusal matters more.
            (Err(_), _) => {
                self.shared.writers.settle(SETTLES_WITHIN);
                drop(writes.undo(&self.store()));
            }
            // A missing title must not cost the answer.
            (Ok(begun), Some(words)) => drop(self.store().title_conversation(begun.conversation, &words)),
            (Ok(_), None) => {}
        }
        self.noted(begun)
    }

    /// Returns the one who answers a request.
    ///
    /// # Errors
    /// [`Error::NoModel`](hunch_error::Error::NoModel) if no model is loaded. [`Refusal::NoSuchServer`] for a server
    /// that is not in the list.
    fn answerer(&self, by: &AnsweredBy) -> Result<Box<dyn Answerer + '_>> {
        Ok(match by {
            AnsweredBy::Loaded => Box::new(self.loaded_answerer()?),
            AnsweredBy::Server { address, model } => {
                Box::new(ServerAnswerer::new(&self.shared.engine, self.server(address)?, address, model))
            }
        })
    }

    fn loaded_answerer(&self) -> Result<LoadedAnswerer> {
        Ok(LoadedAnswerer { app: self.clone(), models: self.shared.models.ready()? })
    }

    fn begin(
        &self,
        prepared: PreparedAnswer,
        answerer: &dyn Answerer,
        settings: &AnswerSettings,
        sink: Box<dyn FnMut(StreamMessage) + Send>,
        writes: &mut QuestionWrites,
    ) -> Result<Answering> {
        let PreparedAnswer { conversation, question, prompt, prefix } = prepared;
        let store = self.store();
        let answer = store.begin_answer(conversation, question, settings, now())?;
        writes.message.get_or_insert(answer);
        store.append_events(answer, &prefix)?;
        let generation_id = self.start_generation(answerer, prompt, settings, sink, answer, prefix.len())?;
        Ok(Answering { conversation, question, answer, generation_id, prefix })
    }

    /// Tokenises a text with the loaded target. Control tokens such as `<|im_end|>` are recognised.
    ///
    /// # Errors
    /// When no model is loaded, or the tokeniser fails.
    pub fn text_tokens(&self, text: &str) -> Result<Vec<TextToken>> {
        let tokenizer = &self.shared.models.ready()?.details.tokenizer;
        let ids = tokenizer.encode(text, EncodeOptions { parse_special: true, add_bos: false })?;
        let text_of = |id| String::from_utf8_lossy(&tokenizer.token_bytes(id)).into_owned();
        Ok(ids.into_iter().map(|id| TextToken { id, text: text_of(id) }).collect())
    }

    /// Stores the question, if it is new, and collects the prompt.
    fn store_question(
        &self,
        conversation: Option<i64>,
        asking: Asking,
        answerer: &dyn Answerer,
        writes: &mut QuestionWrites,
    ) -> Result<PreparedAnswer> {
        let store = self.store();
        match asking {
            Asking::Question { parent, text, attachments } => {
                if text.trim().is_empty() {
                    return Err(Refusal::EmptyPrompt.into());
                }
                check_attachments(&attachments)?;
                let conversation = if let Some(id) = conversation {
                    writes.before = Some(store.conversation_state(id)?);
                    id
                } else {
                    *writes.created.insert(store.create_conversation(now())?)
                };
                let question =
                    store.add_question_with_files(conversation, parent, &text, &attachments, now())?;
                writes.message = Some(question);
                self.prepare(conversation, question, Vec::new())
            }
            Asking::Again { question } => {
                let (conversation, message) = store.message(question)?;
                if message.role != Role::User {
                    return Err(Error::invalid("Only a question can be answered again."));
                }
                writes.before = Some(store.conversation_state(conversation)?);
                self.prepare(conversation, question, Vec::new())
            }
            Asking::Continue { answer, tokens, then } => {
                let (conversation, message) = store.message(answer)?;
                let question = message.parent.filter(|_| message.role == Role::Assistant);
                let question = question.ok_or_else(|| Error::invalid("Only an answer can be continued."))?;
                let tokenizer = answerer.tokenizer_of(&message)?;
                writes.before = Some(store.conversation_state(conversation)?);
                let kept = tokens.map_or(usize::MAX, |tokens| tokens as usize);
                let events = store.events(answer)?;
                let chosen = then.map(|token| chosen_token(&events, kept, token, &tokenizer)).transpose()?;
                let mut prefix = first_tokens(events, kept);
                if let Some(chosen) = chosen {
                    let round = rounds(&prefix);
                    let token = TokenEvent { round, ..chosen };
                    prefix.push(GenerationEvent::Round(RoundEvent::of_tokens(round, vec![token])));
                }
                self.prepare(conversation, question, prefix)
            }
        }
    }

    /// Rebuilds the prompt of an answer, without the `dropped` messages after the system prompt, followed by the given
    /// tokens of the answer.
    pub(super) fn prompt_of_answer(
        &self,
        answer: i64,
        dropped: usize,
        tokens: Vec<TokenId>,
    ) -> Result<Prompt> {
        let (conversation, message) = self.store().message(answer)?;
        let question = message.parent.filter(|_| message.role == Role::Assistant);
        let question = question.ok_or_else(|| Error::invalid("Choose a token of an answer."))?;
        self.loaded_answerer()?.tokenizer_of(&message)?;
        let mut messages = self.messages(conversation, question)?;
        let first =
            messages.iter().position(|message| message.role != Role::System).unwrap_or(messages.len());
        messages.drain(first..(first + dropped).min(messages.len()));
        Ok(if tokens.is_empty() { Prompt::Chat(messages) } else { Prompt::Continued(messages, tokens) })
    }

    /// Prepares an answer to `question` that begins with `prefix`.
    fn prepare(
        &self,
        conversation: i64,
        question: i64,
        prefix: Vec<GenerationEvent>,
    ) -> Result<PreparedAnswer> {
        let messages = self.messages(conversation, question)?;
        let answer: Vec<TokenId> = tokens(&prefix).map(|token| token.id).collect();
        let prompt =
            if answer.is_empty() { Prompt::Chat(messages) } else { Prompt::Continued(messages, answer) };
        Ok(PreparedAnswer { conversation, question, prompt, prefix })
    }

    /// Returns the messages up to a question, system prompt first.
    fn messages(&self, conversation: i64, question: i64) -> Result<Vec<ChatMessage>> {
        let whole = self.store().conversation(conversation)?;
        let system = Some(&whole.system).filter(|system| !system.trim().is_empty());
        let system = system.map(|content| ChatMessage { role: Role::System, content: content.clone() });
        let to_chat = |message: &&StoredMessage| ChatMessage {
            role: message.role,
            content: with_attachments(&message.content, &message.attachments),
        };
        let path = whole.path_to(Some(question));
        Ok(system.into_iter().chain(path.iter().map(to_chat)).collect())
    }
}

/// Opens a regular file of at most [`MOST_IMPORTED`] bytes.
fn open_import(path: &Path) -> Result<impl Read> {
    if input_file::regular(path)?.len() > MOST_IMPORTED {
        return Err(Refusal::ImportTooLarge { path: path.into(), most: MOST_IMPORTED }.into());
    }
    let io = |source| Error::Io { action: "read", path: path.into(), source };
    Ok(std::fs::File::open(path).map_err(io)?.take(MOST_IMPORTED))
}

/// Refuses an export that [`open_import`] would refuse.
fn check_importable(bytes: u64) -> Result<()> {
    if bytes > MOST_IMPORTED {
        return Err(Refusal::ExportTooLarge { most: MOST_IMPORTED }.into());
    }
    Ok(())
}

/// Makes the token that replaces token `at` of an answer. It must be one of the alternatives stored for that position.
fn chosen_token(
    events: &[GenerationEvent],
    at: usize,
    id: TokenId,
    tokenizer: &Arc<Tokenizer>,
) -> Result<TokenEvent> {
    // An answer that was continued has rounds of several generations.
    let mut generations = events.chunk_by(|_, next| !matches!(next, GenerationEvent::Started { .. }));
    let mut left = at;
    let found = generations.find_map(|generation| {
        let place = tokens(generation).nth(left);
        left -= if place.is_none() { tokens(generation).count() } else { 0 };
        place.map(|place| (place, generation))
    });
    let (place, generation) =
        found.ok_or_else(|| Error::invalid(format!("The answer has no token {at}.")))?;
    let rejected = || {
        let rounds = generation.iter().filter_map(|event| match event {
            GenerationEvent::Round(round) if round.round == place.round => Some(&round.rejected),
            _ => None,
        });
        rounds.flatten().any(|draft| draft.id == id && draft.position == place.position)
    };
    if !place.top.iter().chain(&place.guesses).any(|alternative| alternative.0 == id) && !rejected() {
        return Err(Refusal::NotAnAlternative.into());
    }
    if tokenizer.end_tokens().contains(&id) {
        return Err(Refusal::EndToken.into());
    }
    // Its text depends on the position: the token may complete a character, or begin one.
    let mut detokenizer = Detokenizer::new(tokenizer.clone());
    tokens(events).take(at).for_each(|token| drop(detokenizer.push(token.id)));
    Ok(TokenEvent {
        id,
        text: detokenizer.push(id),
        origin: TokenOrigin::Chosen,
        p: 1.0,
        q: None,
        u: None,
        threshold: None,
        confidence: place.top.iter().find(|alternative| alternative.0 == id).map_or(0.0, |known| known.2),
        position: 0,
        ..place.clone()
    })
}

fn tokens(events: &[GenerationEvent]) -> impl Iterator<Item = &TokenEvent> {
    events.iter().flat_map(GenerationEvent::tokens)
}

/// Returns the number of the next round.
fn rounds(events: &[GenerationEvent]) -> u32 {
    let last = |event: &GenerationEvent| match event {
        // An imported file may contain any number.
        GenerationEvent::Round(round) => Some(round.round.saturating_add(1)),
        _ => None,
    };
    events.iter().filter_map(last).max().unwrap_or(0)
}

/// Returns the events of an answer up to its first `kept` tokens, without its end.
fn first_tokens(events: Vec<GenerationEvent>, kept: usize) -> Vec<GenerationEvent> {
    let mut left = kept;
    let mut first = Vec::new();
    for event in events {
        match event {
            GenerationEvent::Round(mut round) => {
                if left == 0 {
                    break;
                }
                round.tokens.truncate(left);
                left -= round.tokens.len();
                first.push(GenerationEvent::Round(round));
            }
            // Tokens held back until the end belong to the last event. They become a round.
            GenerationEvent::Finished { tokens, .. } if left > 0 && !tokens.is_empty() => {
                let round = rounds(&first);
                first.push(GenerationEvent::Round(RoundEvent::of_tokens(
                    round,
                    tokens.into_iter().take(left).collect(),
                )));
            }
            GenerationEvent::Started { .. } => first.push(event),
            _ => {}
        }
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_nothing_that_cannot_be_imported() {
        assert!(check_importable(MOST_IMPORTED).is_ok());
        let refused = check_importable(MOST_IMPORTED + 1).unwrap_err().to_string();
        assert!(refused.contains("2 GiB") && refused.contains("Markdown"), "{refused}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chat.json");
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(MOST_IMPORTED).unwrap();
        assert!(open_import(&path).is_ok());
        file.set_len(MOST_IMPORTED + 1).unwrap();
        assert!(open_import(&path).is_err());
    }
}
