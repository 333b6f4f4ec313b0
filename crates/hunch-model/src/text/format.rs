//! Formats that an answer has to follow: any JSON object, JSON of a schema, or calls of tools. llguidance compiles them and computes
//! which tokens may follow; sampling applies that to p and q alike.
//!
//! No protocol of a server and no sampling here.

use std::collections::HashMap;
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

/// Most bytes of a token that a format can allow. The trie of a vocabulary is at most as deep.
const MOST_TOKEN_BYTES: usize = 1024;
/// Most tokens of equal bytes that a format can allow. The time of the trie grows with the square of their number.
const MOST_COPIES: usize = 8;
/// Most bytes of all tokens: a bound of the nodes of the trie, which has at most 4 million.
const MOST_VOCABULARY_BYTES: usize = 4_000_000;

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
        let words = words(tokenizer)?;
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
        let start = matcher.deep_clone();
        let state = Mutex::new(MatcherState { matcher, start, read: Vec::new(), ends: self.ends.clone() });
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

/// Returns the bytes of all tokens, as the trie of the vocabulary can hold them. Tokens without bytes are never allowed.
///
/// # Errors
/// [`Error::InvalidRequest`] if the vocabulary is too large for formats.
fn words(tokenizer: &Tokenizer) -> Result<Vec<Vec<u8>>> {
    let mut copies: HashMap<Vec<u8>, usize> = HashMap::new();
    let mut total = 0;
    let mut words = Vec::with_capacity(tokenizer.vocab_size());
    for id in 0..tokenizer.vocab_size() as TokenId {
        let mut word = bytes_of(tokenizer, id);
        let known = copies.entry(word.clone()).or_default();
        *known += 1;
        if word.len() > MOST_TOKEN_BYTES || *known > MOST_COPIES {
            word.clear();
        }
        total += word.len();
        words.push(word);
    }
    if total > MOST_VOCABULARY_BYTES {
        return Err(Error::invalid(
            "The vocabulary of this model is too large for answers in a format. Ask for free text.",
        ));
    }
    Ok(words)
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
    state: Mutex<MatcherState>,
}

struct MatcherState {
    matcher: Matcher,
    /// The matcher at the start of the answer. One that failed stays failed.
    start: Matcher,
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
            // A draft may be what failed, and the answer can continue without it.
            state.matcher = state.start.deep_clone();
            state.read.clear();
            CoreError::invalid(format!("The answer cannot continue in the required format: {error}"))
        })
    }
}

impl MatcherState {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::{Array, Gguf, Value as Field};
    use serde_json::json;
    use std::path::Path;

    const END: TokenId = 0;

    /// Returns a tokeniser of a token that ends answers and these texts.
    fn tokenizer(texts: &[String]) -> Tokenizer {
        let empty = [&b"GGUF"[..], &3u32.to_le_bytes(), &[0; 16], &[0; 40]].concat();
        let mut gguf = Gguf::parse(Path::new("format.gguf"), &empty).unwrap();
        let mut put = |key: &str, value| drop(gguf.metadata.insert(format!("tokenizer.ggml.{key}"), value));
        let tokens: Vec<String> = std::iter::once("<end>".to_owned()).chain(texts.iter().cloned()).collect();
        put("model", Field::String("gpt2".into()));
        put("pre", Field::String("gpt-4o".into()));
        put(
            "token_type",
            Field::Array(Array::I32((0..tokens.len()).map(|i| if i == 0 { 3 } else { 1 }).collect())),
        );
        put("tokens", Field::Array(Array::String(tokens)));
        put("merges", Field::Array(Array::String(Vec::new())));
        put("eos_token_id", Field::U32(END));
        Tokenizer::from_gguf(&gguf).unwrap()
    }

    /// Returns the tokens that may follow an answer.
    fn allowed(constraint: &dyn Constraint, answer: &[TokenId], vocab: usize) -> CoreResult<Vec<TokenId>> {
        let mut logits = vec![0.0; vocab];
        constraint.restrict(answer, &mut logits)?;
        Ok((0..).zip(logits).filter(|(_, logit)| logit.is_finite()).map(|(id, _)| id).collect())
    }

    #[test]
    fn overlong_tokens_and_many_copies_of_a_text_are_never_allowed() {
        let texts = [vec!["{".to_owned(), "}".into(), "x".repeat(1100)], vec!["{}".to_owned(); 40]].concat();
        let compiler = FormatCompiler::new(&tokenizer(&texts)).unwrap();
        let format = compiler.compile(&AnswerFormat::JsonObject, 0).unwrap();
        let begins = allowed(&*format, &[], texts.len() + 1).unwrap();
        assert!(begins.starts_with(&[1, 4]) && !begins.contains(&3), "{begins:?}");
        assert_eq!(begins.len(), 1 + MOST_COPIES);
    }

    #[test]
    fn vocabularies_that_no_trie_can_hold_are_refused() {
        let texts: Vec<String> = (0..4200).map(|i| format!("{i:0>1000}")).collect();
        let Err(error) = FormatCompiler::new(&tokenizer(&texts)) else { panic!("it was accepted") };
        assert!(error.to_string().contains("too large"), "{error}");
    }

    #[test]
    fn an_answer_continues_after_a_draft_that_is_too_much_for_the_format() {
        let texts = ["\"", "a", "b"].map(str::to_owned);
        let mut compiler = FormatCompiler::new(&tokenizer(&texts)).unwrap();
        compiler.factory.limits_mut().max_lexer_states = 100;
        let schema = json!({ "type": "string", "maxLength": 500 });
        let format = compiler.compile(&AnswerFormat::JsonSchema(schema), 0).unwrap();
        let answer = [1, 2, 2];
        let after = allowed(&*format, &answer, 4).unwrap();
        assert_eq!(after, [1, 2, 3]);
        let draft = [&answer[..], &[2; 300]].concat();
        assert!(allowed(&*format, &draft, 4).is_err());
        assert_eq!(allowed(&*format, &answer, 4).unwrap(), after);
    }
}
