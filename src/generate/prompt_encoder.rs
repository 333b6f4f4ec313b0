//! From prompts to tokens: chat template, tokeniser, and what to leave out of a long conversation.

use std::sync::{Arc, OnceLock};

use super::Prompt;
use hunch_core::chat::{ChatMessage, Thinking};
use hunch_core::sample::Constraint;
use hunch_core::token::TokenId;
use hunch_error::{Error, Refusal, Result};
use hunch_model::text::{
    AnswerFormat, ChatTemplate, EncodeOptions, FormatCompiler, ThinkingSwitches, Tokenizer, ToolChat,
    ToolForm,
};

/// Turns prompts into tokens of one target. Immutable, and shared by all conversations with it.
pub struct PromptEncoder {
    tokenizer: Arc<Tokenizer>,
    template: ChatTemplate,
    /// Maximum tokens of a conversation.
    context: usize,
    /// Built when the first answer asks for a format.
    formats: OnceLock<FormatCompiler>,
    /// Read when they are first asked for.
    switches: OnceLock<ThinkingSwitches>,
    /// Found when a request first switches thinking off.
    always_thinks: OnceLock<bool>,
    /// Read when a request first has tools.
    tools: OnceLock<Result<ToolMarkers, String>>,
}

/// Markers of calls of tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolMarkers {
    /// Form of a call.
    pub form: ToolForm,
    /// Special tokens among the markers, whose text belongs to the answer.
    pub tokens: Vec<TokenId>,
}

/// Returns a value that is kept once it was read.
///
/// # Errors
/// The errors of `read`, which is tried again by the next call.
fn known<T, E>(cell: &OnceLock<T>, read: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
    match cell.get() {
        Some(known) => Ok(known),
        None => {
            let value = read()?;
            Ok(cell.get_or_init(|| value))
        }
    }
}

impl PromptEncoder {
    /// Creates the encoder of a target with this tokeniser and context.
    pub(super) fn new(tokenizer: Arc<Tokenizer>, context: usize) -> Self {
        let template = ChatTemplate::from_tokenizer(&tokenizer);
        Self {
            tokenizer,
            template,
            context,
            formats: OnceLock::new(),
            switches: OnceLock::new(),
            always_thinks: OnceLock::new(),
            tools: OnceLock::new(),
        }
    }

    /// Returns the tokeniser.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Compiles a format for an answer that begins after `answer_start` tokens.
    ///
    /// # Errors
    /// The errors of [`FormatCompiler`].
    pub fn constraint(&self, format: &AnswerFormat, answer_start: usize) -> Result<Arc<dyn Constraint>> {
        known(&self.formats, || FormatCompiler::new(&self.tokenizer))?.compile(format, answer_start)
    }

    /// Tokenises a prompt. `thinking` sets the template's switch for reasoning. Also returns a note for the user about the chat template. Once `stopped`
    /// returns true, a slow template is abandoned.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if the prompt is empty, [`Error::ContextOverflow`] if it is too long.
    pub fn ids_and_note(
        &self,
        prompt: &Prompt,
        thinking: Option<Thinking>,
        stopped: &dyn Fn() -> bool,
    ) -> Result<(Vec<TokenId>, Option<String>)> {
        let (ids, note) = match prompt {
            Prompt::Raw(text) => {
                (self.tokenizer.encode(text, EncodeOptions { parse_special: true, add_bos: true })?, None)
            }
            Prompt::Chat(messages) => self.chat_ids(messages, thinking, stopped)?,
            Prompt::Continued(messages, answer) => {
                let (mut ids, note) = self.chat_ids(messages, thinking, stopped)?;
                ids.extend_from_slice(answer);
                (ids, note)
            }
        };
        self.check_length(&ids)?;
        Ok((ids, note))
    }

    fn check_length(&self, ids: &[TokenId]) -> Result<()> {
        if ids.is_empty() {
            return Err(Refusal::EmptyPrompt.into());
        }
        if ids.len() >= self.context {
            return Err(Error::ContextOverflow { prompt: ids.len(), context: self.context });
        }
        Ok(())
    }

    /// Tokenises a prompt, leaving out the oldest messages of a long conversation.
    ///
    /// Leaves room for an answer of `max_tokens`, or of a quarter of the context if that is less.
    /// System messages and the last question always stay. Turns are removed several at a time, so that
    /// the next question reuses most of this one's cache rows. Once `stopped` returns true, a slow chat
    /// template is abandoned.
    ///
    /// # Errors
    /// The errors of [`ids_and_note`](Self::ids_and_note) if the last question alone is too long.
    pub fn fitting_ids(
        &self,
        prompt: &Prompt,
        (max_tokens, thinking): (usize, Option<Thinking>),
        stopped: &dyn Fn() -> bool,
    ) -> Result<FittingPrompt> {
        let context = self.context;
        let reserve = max_tokens.min(context / 4);
        let max_cuts = prompt.max_cuts();
        // Remove single turns of a short conversation, several at a time of a long one.
        let at_once = 1 << (max_cuts / 8).max(1).ilog2();
        let attempt = |step: usize| -> Result<Option<FittingPrompt>> {
            let (shorter, dropped) = prompt.without_oldest((step * at_once).min(max_cuts));
            match self.ids_and_note(&shorter, thinking, stopped) {
                Ok((ids, note)) => Ok((ids.len() + reserve <= context).then_some(FittingPrompt {
                    ids,
                    dropped,
                    template_note: note,
                })),
                Err(Error::ContextOverflow { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        if let Some(fitting) = attempt(0)? {
            return Ok(fitting);
        }
        // Bisect for the fewest steps that suffice: more than `low`, at most `high`.
        let (mut low, mut high) = (0, max_cuts.div_ceil(at_once));
        let mut found = None;
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match attempt(middle)? {
                Some(fitting) => (high, found) = (middle, Some(fitting)),
                None => low = middle,
            }
        }
        if let Some(found) = found {
            return Ok(found);
        }
        // Only the last question is left; report its error.
        let (shortest, dropped) = prompt.without_oldest(max_cuts);
        let (ids, template_note) = self.ids_and_note(&shortest, thinking, stopped)?;
        Ok(FittingPrompt { ids, dropped, template_note })
    }

    /// Returns a note for the user about the target's chat template, known before any prompt.
    pub fn template_note(&self) -> Option<String> {
        self.template.trial()
    }

    /// Reads what [`thinking_switches`](Self::thinking_switches), [`always_thinks`](Self::always_thinks) and
    /// [`tools`](Self::tools) return, which may run the template. Later calls of them wait for nothing.
    pub fn probe_template(&self) {
        self.thinking_switches();
        self.always_thinks();
        // A template without tools is no error here.
        let _ = self.tools();
    }

    /// Returns whether [`probe_template`](Self::probe_template) has nothing left to read.
    pub fn is_probed(&self) -> bool {
        self.switches.get().is_some() && self.always_thinks.get().is_some() && self.tools.get().is_some()
    }

    /// Returns the switches for reasoning that the target's chat template reads. None if it cannot be run now.
    pub fn thinking_switches(&self) -> ThinkingSwitches {
        known(&self.switches, || self.template.thinking_switches().ok_or(())).copied().unwrap_or_default()
    }

    /// Returns whether the target thinks before every answer, as far as its chat template shows it. See
    /// [`ChatTemplate::always_thinks`].
    pub fn always_thinks(&self) -> bool {
        known(&self.always_thinks, || self.template.always_thinks().ok_or(())).copied().unwrap_or_default()
    }

    /// Returns how the model marks calls of tools.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if its chat template has no tools, a form of calls that is not supported, or cannot be run
    /// now.
    pub fn tools(&self) -> Result<&ToolMarkers> {
        let markers = |form: ToolForm| {
            let is_marker = |&id: &TokenId| {
                self.tokenizer.is_special(id) && form.markers().contains(&self.tokenizer.token_text(id))
            };
            let tokens = (0..self.tokenizer.vocab_size() as TokenId).filter(is_marker).collect();
            ToolMarkers { form, tokens }
        };
        let read = || self.template.tool_form().map(|form| form.map(markers));
        let not_now =
            || Error::invalid("The chat template of this model could not be run. Try again in a minute.");
        match known(&self.tools, || read().ok_or_else(not_now))? {
            Ok(markers) => Ok(markers),
            Err(reason) => Err(Error::invalid(reason.clone())),
        }
    }

    /// Tokenises a conversation with tools, followed by the tokens that its last answer starts with. Otherwise as
    /// [`ids_and_note`](Self::ids_and_note).
    ///
    /// # Errors
    /// The errors of [`tools`](Self::tools) and [`ids_and_note`](Self::ids_and_note), and if the template refuses the
    /// conversation.
    pub fn tool_ids(
        &self,
        chat: &ToolChat,
        begun: &[TokenId],
        thinking: Option<Thinking>,
        stopped: &dyn Fn() -> bool,
    ) -> Result<(Vec<TokenId>, Option<String>)> {
        self.tools()?;
        if chat.messages.iter().all(|message| message.content().trim().is_empty()) {
            return Err(Refusal::EmptyPrompt.into());
        }
        let (mut ids, note) = self.template.tool_ids(&self.tokenizer, chat, thinking, stopped)?;
        ids.extend_from_slice(begun);
        self.check_length(&ids)?;
        Ok((ids, note))
    }

    /// Tokenises a conversation up to the start of the next answer.
    fn chat_ids(
        &self,
        messages: &[ChatMessage],
        thinking: Option<Thinking>,
        stopped: &dyn Fn() -> bool,
    ) -> Result<(Vec<TokenId>, Option<String>)> {
        if messages.iter().all(|message| message.content.trim().is_empty()) {
            return Err(Refusal::EmptyPrompt.into());
        }
        self.template.ids(&self.tokenizer, messages, thinking, stopped)
    }
}

/// A tokenised prompt that leaves room for an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FittingPrompt {
    /// Tokens.
    pub ids: Vec<TokenId>,
    /// Number of messages left out.
    pub dropped: usize,
    /// Note for the user about the chat template.
    pub template_note: Option<String>,
}
