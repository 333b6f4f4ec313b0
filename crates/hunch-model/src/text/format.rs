//! Formats that an answer has to follow: any JSON object, JSON of a schema, or calls of tools. llguidance compiles them and computes
//! which tokens may follow; sampling applies that to p and q alike.
//!
//! No protocol of a server and no sampling here.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use hunch_core::error::{Error as CoreError, Result as CoreResult};
use hunch_core::sample::Constraint;
use hunch_core::token::{TokenId, shared_len};
use hunch_error::{Error, Result};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use super::Tokenizer;
use super::tool_grammar::RequiredCalls;

/// Format of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum AnswerFormat {
    /// A JSON object.
    JsonObject,
    /// JSON that a schema accepts.
    JsonSchema(Value),
    /// Calls of tools.
    Calls(RequiredCalls),
}

/// White space between two parts of JSON. Bounded, because a model could write white space without end.
const WHITE_SPACE: &str = r" |\n {0,32}";

impl AnswerFormat {
    /// Returns the JSON schema of the answer. `None` if the answer is no JSON.
    pub fn schema(&self) -> Option<Value> {
        match self {
            Self::JsonObject => Some(any_object()),
            Self::JsonSchema(schema) => Some(schema.clone()),
            Self::Calls(_) => None,
        }
    }
}

/// Returns the schema of any JSON object.
fn any_object() -> Value {
    json!({ "type": "object" })
}

/// Returns a schema with the white space of this module. Options of llguidance in the schema are replaced: they could
/// switch off parts of it.
fn with_white_space(schema: &Value) -> Value {
    // `true` allows any value.
    let mut schema = if *schema == true { json!({}) } else { schema.clone() };
    if let Some(fields) = schema.as_object_mut() {
        fields.insert("x-guidance".into(), json!({ "whitespace_pattern": WHITE_SPACE }));
    }
    schema
}

/// Compiles formats for the tokens of one model. Building it takes some milliseconds.
pub struct FormatCompiler {
    factory: ParserFactory,
    /// Tokens that end an answer.
    ends: Vec<TokenId>,
    /// Control tokens with their texts.
    controls: Vec<(String, TokenId)>,
}

impl FormatCompiler {
    /// Reads the tokens of a model.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if the model has no token that ends an answer.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self> {
        let ends: Vec<TokenId> = tokenizer.end_tokens().iter().copied().collect();
        let Some(&eos) = ends.first() else {
            return Err(Error::invalid(
                "This model has no token that ends an answer, so its answers cannot follow a format.",
            ));
        };
        let count = tokenizer.vocab_size() as TokenId;
        let words: Vec<Vec<u8>> = (0..count).map(|id| bytes_of(tokenizer, id)).collect();
        let trie = TokTrie::from(&TokRxInfo::new(count, eos), &words).with_eos_tokens(&ends);
        // Any tokenisation of the text is allowed: the model chooses.
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory =
            ParserFactory::new_simple(&env).map_err(|error| Error::Internal(error.to_string()))?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        let controls = (0..count).filter(|&id| tokenizer.is_special(id));
        let controls = controls.map(|id| (tokenizer.token_text(id).to_owned(), id)).collect();
        Ok(Self { factory, ends, controls })
    }

    /// Compiles a format for an answer that begins after `answer_start` tokens of text.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if a schema is invalid, too large, or uses what is not supported.
    pub fn compile(&self, format: &AnswerFormat, answer_start: usize) -> Result<Arc<dyn Constraint>> {
        let of_schema = |schema: &Value| TopLevelGrammar::from_json_schema(with_white_space(schema));
        let unusable = |what: &str, reason: &str| {
            Error::invalid(format!(
                "The JSON schema{what} cannot be used ({reason}). Change that part of it."
            ))
        };
        let matcher = match format {
            AnswerFormat::JsonObject => {
                self.matcher(of_schema(&any_object())).map_err(|reason| unusable("", &reason))?
            }
            AnswerFormat::JsonSchema(schema) => {
                self.matcher(of_schema(schema)).map_err(|reason| unusable("", &reason))?
            }
            AnswerFormat::Calls(calls) => {
                let grammar = calls.grammar(|marker| self.marker(marker), with_white_space);
                let grammar = grammar
                    .map_err(|reason| Error::invalid(format!("Calls cannot be required: {reason}.")))?;
                self.matcher(TopLevelGrammar::from_lark(grammar)).map_err(|reason| {
                    // The reason of a grammar of several tools does not say which one.
                    calls
                        .tools
                        .iter()
                        .find_map(|tool| {
                            let reason = self.matcher(of_schema(&tool.parameters)).err()?;
                            Some(unusable(&format!(" of the tool \"{}\"", tool.name), &reason))
                        })
                        .unwrap_or_else(|| {
                            unusable(if calls.otherwise.is_some() { "" } else { " of a tool" }, &reason)
                        })
                })?
            }
        };
        let state = Mutex::new(State { matcher, read: Vec::new(), ends: self.ends.clone() });
        Ok(Arc::new(Grammar { answer_start, state }))
    }

    /// Compiles a grammar, up to the first tokens that it allows.
    ///
    /// # Errors
    /// With the reason, in one line.
    fn matcher(&self, grammar: TopLevelGrammar) -> std::result::Result<Matcher, String> {
        let mut matcher = Matcher::new(self.factory.create_parser(grammar));
        let error = match matcher.get_error() {
            Some(error) => error,
            None => match matcher.compute_mask_or_eos() {
                Ok(_) => return Ok(matcher),
                Err(error) => error.to_string(),
            },
        };
        let line = error.lines().find(|line| !line.trim().is_empty()).unwrap_or("it is invalid");
        Err(line.trim().trim_end_matches('.').to_owned())
    }

    /// Returns a marker as an expression of a grammar: the control token with this text, or else the text.
    fn marker(&self, text: &str) -> String {
        let control = self.controls.iter().find(|(known, _)| known == text);
        control.map_or_else(|| Value::from(text).to_string(), |(_, id)| format!("<[{id}]>"))
    }
}

/// Returns the bytes of a token. Special tokens are never part of a text, so they get a mark that no text matches.
fn bytes_of(tokenizer: &Tokenizer, id: TokenId) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id);
    match tokenizer.is_special(id) {
        true => [&[TokTrie::SPECIAL_TOKEN_MARKER], &bytes[..]].concat(),
        false => bytes,
    }
}

/// A compiled format, at some point of an answer.
struct Grammar {
    answer_start: usize,
    state: Mutex<State>,
}

struct State {
    matcher: Matcher,
    /// Tokens of the answer that the matcher has read.
    read: Vec<TokenId>,
    /// Tokens that end an answer.
    ends: Vec<TokenId>,
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar").field("answer_start", &self.answer_start).finish_non_exhaustive()
    }
}

impl Constraint for Grammar {
    fn restrict(&self, context: &[TokenId], logits: &mut [f32]) -> CoreResult<()> {
        let answer = context
            .get(self.answer_start..)
            .ok_or_else(|| CoreError::Internal("the context is shorter than the prompt".into()))?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.allow(answer, logits).map_err(|error| {
            CoreError::invalid(format!("The answer cannot continue in the required format: {error}"))
        })
    }
}

impl State {
    fn allow(
        &mut self,
        answer: &[TokenId],
        logits: &mut [f32],
    ) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let shared = shared_len(&self.read, answer);
        self.matcher.rollback(self.read.len() - shared)?;
        self.read.truncate(shared);
        let consumed = self.matcher.try_consume_tokens(&answer[shared..])?;
        self.read.extend_from_slice(&answer[shared..shared + consumed]);
        if let Some(next) = answer.get(self.read.len()) {
            // The matcher reads no token after the last one of the format. A drafted end may be accepted there, and
            // what would follow it is drawn and thrown away. Any other token is a draft that breaks the format.
            let has_ended = self.ends.contains(next) && self.matcher.is_accepting()?;
            for (token, logit) in (0..).zip(logits) {
                if !has_ended || !self.ends.contains(&token) {
                    *logit = f32::NEG_INFINITY;
                }
            }
            return Ok(());
        }
        let allowed = self.matcher.compute_mask_or_eos()?;
        for (token, logit) in (0..).zip(logits) {
            // The output head may have more rows than there are tokens.
            if token as usize >= allowed.len() || !allowed.is_allowed(token) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }
}
