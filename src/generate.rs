//! One generation, from a prompt to its events: models, text and the round loop brought together.
//! Synchronous; the engine runs it on its thread, the command line and the benchmarks on theirs.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::api::{ChatMessage, Role};
use crate::depth::{DepthController, MaxDraft};
use crate::error::{Error, Result};
use crate::event::{
    Alternative, EventSink, GenerationEvent, RejectedEvent, RoundEvent, StopReason, TokenEvent,
};
use crate::model::decoder::Decoder;
use crate::model::device::{Compute, peak_memory_bytes};
use crate::model::weights::WeightFile;
use crate::model::{LanguageModel, LayerPlan, ModelSpec, TokenBlocks};
use crate::propose::draft_model::DraftModel;
use crate::propose::layer_skip::{self, DraftLayers, LayerSkip};
use crate::propose::lookahead::Lookahead;
use crate::propose::ngram::Ngram;
use crate::propose::suffix::Suffix;
use crate::propose::synthetic::Synthetic;
use crate::propose::{Method, MethodOptions, Proposer};
use crate::rule::AcceptanceRule;
use crate::sample::{Sampler, SamplingParams};
use crate::session::{EndReason, Round, Session, SessionConfig};
use crate::stats::{GenerationStats, Stopwatch};
use crate::text::{
    ChatTemplate, Detokenizer, EncodeOptions, Released, StopFilter, Tokenizer, compare_vocabularies,
};
use crate::token::{EmittedToken, Likely, TokenId};

/// Seeds nobody chose: short enough to be read out and typed again, and exact in JavaScript.
const SEED_MASK: u64 = (1 << 32) - 1;

/// Characters of an alternative's text that are told: enough to know it by.
const ALTERNATIVE_CHARS: usize = 24;

/// Most proposers of a method.
const MOST_STAGES: usize = 2;

/// What to continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// A conversation, through the model's chat template.
    Chat(Vec<ChatMessage>),
    /// A conversation whose last answer has begun with these tokens.
    Continued(Vec<ChatMessage>, Vec<TokenId>),
    /// Text as it is.
    Raw(String),
}

impl Prompt {
    /// Tokens with which the answer begins already.
    pub fn begun(&self) -> usize {
        if let Self::Continued(_, answer) = self { answer.len() } else { 0 }
    }

    /// The same without its oldest messages, up to the question number `cut` (from 1) among those that may go;
    /// and how many messages that were. Instructions and the last question always stay.
    fn without_oldest(&self, cut: usize) -> (Self, usize) {
        let mut prompt = self.clone();
        let (Self::Chat(messages) | Self::Continued(messages, _)) = &mut prompt else { return (prompt, 0) };
        let end = cut.checked_sub(1).and_then(|cut| cuts(messages).get(cut).copied());
        let Some(end) = end else { return (prompt, 0) };
        let dropped = messages.drain(first_said(messages)..end).count();
        (prompt, dropped)
    }

    /// How many cuts there are.
    fn most_cuts(&self) -> usize {
        match self {
            Self::Chat(messages) | Self::Continued(messages, _) => cuts(messages).len(),
            Self::Raw(_) => 0,
        }
    }
}

/// The first message that is not instructions.
fn first_said(messages: &[ChatMessage]) -> usize {
    messages.iter().position(|message| message.role != Role::System).unwrap_or(messages.len())
}

/// Where the beginning of a conversation can end: before each question but those it begins with.
fn cuts(messages: &[ChatMessage]) -> Vec<usize> {
    let first = first_said(messages);
    let asked = |&at: &usize| at > first && messages[at].role == Role::User;
    (0..messages.len()).filter(asked).collect()
}

/// How to continue it.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationPlan {
    /// How to guess ahead.
    pub method: Method,
    /// Most tokens to draft a round; plain decoding ignores it.
    pub max_draft: MaxDraft,
    /// What the method is told besides.
    pub options: MethodOptions,
    /// Most tokens to generate, 1 or more.
    pub max_tokens: usize,
    /// How tokens are drawn.
    pub sampling: SamplingParams,
    /// Which drafted tokens stand.
    pub rule: AcceptanceRule,
    /// Texts that end the answer; not empty ones.
    pub stop: Vec<String>,
}

impl Default for GenerationPlan {
    /// Plain decoding of 512 tokens, as in a new conversation.
    fn default() -> Self {
        Self {
            method: Method::Plain,
            max_draft: MaxDraft::Auto,
            options: MethodOptions::default(),
            max_tokens: 512,
            sampling: SamplingParams::default(),
            rule: AcceptanceRule::Lossless,
            stop: Vec::new(),
        }
    }
}

impl GenerationPlan {
    /// Checks every value.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] naming the value and its range.
    pub fn validate(&self) -> Result<()> {
        self.max_draft.validate()?;
        self.rule.validate()?;
        if self.max_tokens == 0 {
            return Err(Error::invalid("max_tokens is 0; it must be 1 or more."));
        }
        if self.stop.iter().any(String::is_empty) {
            return Err(Error::invalid("A stop string is empty; give it at least one character."));
        }
        self.sampling.validate()
    }
}

/// What a generation needs from whoever runs it.
pub struct GenerationContext<'a> {
    /// Number of the generation, for its events.
    pub id: u32,
    /// Time since the request arrived.
    pub clock: &'a dyn Stopwatch,
    /// Tokens at the end of the prompt with which the answer begins already.
    pub begun: usize,
    /// Messages that were left out of the prompt.
    pub dropped: usize,
    /// Whether to stop; asked before every pass.
    pub cancelled: &'a dyn Fn() -> bool,
}

/// How a generation ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Why.
    pub stop: StopReason,
    /// Tokens that were held back until the end.
    pub held: Vec<TokenEvent>,
    /// All figures.
    pub stats: GenerationStats,
}

impl Finished {
    /// As the last event.
    pub fn into_event(self) -> GenerationEvent {
        GenerationEvent::Finished { stop: self.stop, tokens: self.held, stats: self.stats }
    }
}

/// A target, maybe a draft, and the text side of the target.
pub struct Models {
    target: Decoder,
    draft: Option<DraftModel>,
    tokenizer: Arc<Tokenizer>,
    template: ChatTemplate,
    device: &'static str,
    /// The tokens whose rows the target's cache holds.
    cached: Vec<TokenId>,
    /// What it knows of the conversation so far is kept from answer to answer.
    suffix: Suffix,
    lookahead: Lookahead,
    /// A copy of the target in fewer bits.
    low_bit: Option<DraftModel>,
    /// What a benchmark has rehearsed.
    synthetic: Option<Synthetic>,
    /// What was learned of how deep to draft, by method, for each of its proposers.
    depths: HashMap<Method, [DepthController; MOST_STAGES]>,
}

impl Models {
    /// Loads a target and, if given, a draft for it.
    ///
    /// # Errors
    /// When a file is unsound or unsupported, the vocabularies differ, or the draft is larger than
    /// the target.
    pub fn load(target: &Path, draft: Option<&Path>, compute: &Compute) -> Result<Self> {
        let target_file = WeightFile::open(target)?;
        let tokenizer = Arc::new(Tokenizer::from_gguf(target_file.gguf())?);
        let draft = draft.map(|path| load_draft(path, &target_file, &tokenizer, compute)).transpose()?;
        Ok(Self {
            target: Decoder::load(&target_file, compute)?,
            draft,
            template: template_of(&tokenizer),
            tokenizer,
            device: compute.name(),
            cached: Vec::new(),
            suffix: Suffix::default(),
            lookahead: Lookahead::default(),
            low_bit: None,
            synthetic: None,
            depths: HashMap::new(),
        })
    }

    /// Loads the target's copy in fewer bits, for the method `low-bit`.
    ///
    /// # Errors
    /// As [`Models::load`].
    pub fn load_low_bit(&mut self, copy: &Path, compute: &Compute) -> Result<()> {
        let file = WeightFile::open(copy)?;
        compare_vocabularies(&self.tokenizer, &Tokenizer::from_gguf(file.gguf())?)?;
        self.low_bit = Some(DraftModel::new(Box::new(Decoder::load(&file, compute)?))?);
        Ok(())
    }

    /// Gives the method `synthetic` the greedy answer to the next prompt, and the share of it that it gets
    /// right.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] when the share is not within 0 and 1.
    pub fn rehearse(&mut self, script: Vec<TokenId>, acceptance: f64) -> Result<()> {
        self.synthetic = Some(Synthetic::new(script, vec![acceptance])?);
        Ok(())
    }

    /// The target.
    pub fn target(&mut self) -> &mut dyn LanguageModel {
        self.cached.clear();
        &mut self.target
    }

    /// The draft model's name, if one is loaded.
    pub fn draft_name(&self) -> Option<String> {
        self.draft.as_ref().map(|draft| draft.model().spec().name.clone())
    }

    /// What drafts for a method ([`Method::drafter`]), for whoever measures it alone: the model, the layers
    /// of it that run, and the tokens it scores when it knows nothing of the conversation yet. Its cache is
    /// emptied, unless it is the target's. `None` when it is not loaded.
    ///
    /// # Errors
    /// When the device fails, when the layers do not exist, and what `use_it` gives.
    pub fn with_drafter<T>(
        &mut self,
        drafter: Method,
        options: &MethodOptions,
        use_it: impl FnOnce(&mut dyn LanguageModel, LayerPlan<'_>, Option<&TokenBlocks>) -> Result<T>,
    ) -> Result<Option<T>> {
        let model = match drafter {
            Method::EarlyExit | Method::LayerSkip => {
                let spec = self.target.spec();
                let (own, among) =
                    (own_layers(drafter, options, spec)?, LayerSkip::usual_tokens(spec.n_vocab));
                return use_it(self.target(), own.layers(), among.as_ref()).map(Some);
            }
            Method::LowBit => &mut self.low_bit,
            _ => &mut self.draft,
        };
        let Some(model) = model else { return Ok(None) };
        let among = model.usual_tokens();
        use_it(model.borrow_model()?, LayerPlan::All, among.as_ref()).map(Some)
    }

    /// The target's tokeniser.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The target's tokeniser, to keep.
    pub fn shared_tokenizer(&self) -> Arc<Tokenizer> {
        self.tokenizer.clone()
    }

    /// Empties the caches, so that the next generation starts cold.
    ///
    /// # Errors
    /// When the device fails.
    pub fn forget(&mut self) -> Result<()> {
        self.cached.clear();
        self.target.truncate(0)?;
        for draft in self.draft.iter_mut().chain(&mut self.low_bit) {
            draft.borrow_model()?;
        }
        Ok(())
    }

    /// The tokens of a prompt.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] for an empty prompt, [`Error::ContextOverflow`] for one too long.
    pub fn prompt_ids(&self, prompt: &Prompt) -> Result<Vec<TokenId>> {
        let ids = match prompt {
            Prompt::Raw(text) => {
                self.tokenizer.encode(text, EncodeOptions { parse_special: true, add_bos: true })?
            }
            Prompt::Chat(messages) => self.chat_ids(messages)?,
            Prompt::Continued(messages, answer) => {
                let mut ids = self.chat_ids(messages)?;
                ids.extend_from_slice(answer);
                ids
            }
        };
        let context = self.target.spec().context_length;
        if ids.is_empty() {
            return Err(Error::invalid("The prompt is empty; write something."));
        }
        if ids.len() >= context {
            return Err(Error::ContextOverflow { prompt: ids.len(), context });
        }
        Ok(ids)
    }

    /// The tokens of a prompt, of a long conversation without its oldest messages: so many that an answer of
    /// `max_tokens`, or a quarter of the context if that is less, has room. Gives the number of messages left
    /// out, too; instructions and the last question never are. Turns go several at a time, so that the next
    /// question finds most of this one's rows in the cache.
    ///
    /// # Errors
    /// As [`prompt_ids`](Self::prompt_ids), when the last question alone is too long.
    pub fn fitting_ids(&self, prompt: &Prompt, max_tokens: usize) -> Result<(Vec<TokenId>, usize)> {
        let context = self.target.spec().context_length;
        let room = max_tokens.min(context / 4);
        let most = prompt.most_cuts();
        // One turn of a few, several of many.
        let at_once = 1 << (most / 8).max(1).ilog2();
        let attempt = |step: usize| -> Result<(Option<Vec<TokenId>>, usize)> {
            let (shorter, dropped) = prompt.without_oldest((step * at_once).min(most));
            match self.prompt_ids(&shorter) {
                Ok(ids) => Ok(((ids.len() + room <= context).then_some(ids), dropped)),
                Err(Error::ContextOverflow { .. }) => Ok((None, dropped)),
                Err(error) => Err(error),
            }
        };
        if let (Some(ids), dropped) = attempt(0)? {
            return Ok((ids, dropped));
        }
        // The fewest steps that suffice: more than `low`, at most `high`.
        let (mut low, mut high) = (0, most.div_ceil(at_once));
        let mut found = None;
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match attempt(middle)? {
                (Some(ids), dropped) => (high, found) = (middle, Some((ids, dropped))),
                (None, _) => low = middle,
            }
        }
        if let Some(found) = found {
            return Ok(found);
        }
        // All but the last question: what is said of it is said of the whole.
        let (shortest, dropped) = prompt.without_oldest(most);
        Ok((self.prompt_ids(&shortest)?, dropped))
    }

    /// The tokens of a conversation, up to where its next answer begins.
    fn chat_ids(&self, messages: &[ChatMessage]) -> Result<Vec<TokenId>> {
        if messages.iter().all(|message| message.content.trim().is_empty()) {
            return Err(Error::invalid("The prompt is empty; write something."));
        }
        let text = self.template.render(messages, true)?.text;
        self.tokenizer.encode(&text, EncodeOptions { parse_special: true, add_bos: true })
    }
}

fn template_of(tokenizer: &Tokenizer) -> ChatTemplate {
    let text = |id: Option<TokenId>| id.map_or("", |id| tokenizer.token_text(id));
    let mut template =
        ChatTemplate::from_source(tokenizer.chat_template(), text(tokenizer.bos()), text(tokenizer.eos()));
    // Some templates tell the model the date. UTC: the standard library knows no time zone.
    if let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH) {
        template.set_time(i64::try_from(now.as_secs()).unwrap_or(0));
    }
    template
}

fn load_draft(
    path: &Path,
    target: &WeightFile,
    tokenizer: &Tokenizer,
    compute: &Compute,
) -> Result<DraftModel> {
    let file = WeightFile::open(path)?;
    compare_vocabularies(tokenizer, &Tokenizer::from_gguf(file.gguf())?)?;
    let weights = |file: &WeightFile| file.gguf().tensors.values().map(|t| t.range.len()).sum::<usize>();
    if weights(&file) > weights(target) {
        return Err(Error::invalid(
            "The draft is larger than the target, so it cannot save time. Swap the two, or choose a smaller draft.",
        ));
    }
    DraftModel::new(Box::new(Decoder::load(&file, compute)?))
}

/// Generates an answer to `prompt` and tells `sink` about every step but the last event, which is
/// the result.
///
/// # Errors
/// When the plan is invalid, its method needs a draft that is not loaded, or a model fails. What was
/// told before stays valid.
pub fn generate(
    models: &mut Models,
    prompt: &[TokenId],
    plan: &GenerationPlan,
    context: &GenerationContext<'_>,
    sink: &mut dyn EventSink,
) -> Result<Finished> {
    plan.validate()?;
    let sampler = Sampler::new(plan.sampling.clone())?;
    let Models {
        target,
        draft,
        tokenizer,
        device,
        cached,
        depths,
        suffix,
        lookahead,
        low_bit,
        synthetic,
        ..
    } = models;
    let draft_name = draft.as_ref().map(|d| d.model().spec().name.clone());
    let mut ngram = Ngram::default();
    if let Some(draft) = draft {
        draft.set_tree((plan.method == Method::DraftTree).then(|| plan.options.tree.clone()));
    }
    let mut layers = own_layers(plan.method, &plan.options, target.spec())?;
    // In the order they are asked.
    let stages: Vec<&mut dyn Proposer> = match (plan.method, draft) {
        (Method::Plain, _) => Vec::new(),
        (Method::Ngram, _) => vec![&mut ngram],
        (Method::Suffix, _) => vec![suffix],
        (Method::Lookahead, _) => vec![lookahead],
        (Method::EarlyExit | Method::LayerSkip, _) => vec![&mut layers],
        (Method::DraftModel | Method::DraftTree, Some(draft)) => vec![draft],
        (Method::Cascade, Some(draft)) => vec![suffix, draft],
        (Method::DraftModel | Method::DraftTree | Method::Cascade, None) => {
            return Err(Error::invalid(format!(
                "The method {} needs a draft model. Open one (--draft), or choose ngram or plain.",
                plan.method
            )));
        }
        (Method::LowBit, _) => match low_bit {
            Some(copy) => vec![copy],
            None => {
                return Err(Error::invalid(
                    "The method low-bit needs the target's copy in fewer bits, which is not loaded. The command \
                     line makes it: hunch run --method low-bit.",
                ));
            }
        },
        (Method::Synthetic, _) => match synthetic {
            Some(rehearsed) => vec![rehearsed],
            None => {
                return Err(Error::invalid(
                    "The method synthetic is for benchmarks: hunch bench --synthetic.",
                ));
            }
        },
    };
    let seed = plan.sampling.seed.unwrap_or_else(fresh_seed);
    let max_draft = if plan.method == Method::Plain { MaxDraft::Fixed(0) } else { plan.max_draft };
    sink.send(GenerationEvent::Started {
        generation_id: context.id,
        method: plan.method,
        target: target.spec().name.clone(),
        draft: draft_name.filter(|_| plan.method.needs_draft()),
        device: (*device).into(),
        prompt_tokens: prompt.len() as u32,
        dropped_messages: context.dropped as u32,
        context_length: target.spec().context_length as u32,
        max_draft,
        rule: plan.rule,
        seed,
    });

    let shared = cached.iter().zip(prompt).take_while(|(a, b)| a == b).count();
    let reuse = shared.min(prompt.len().saturating_sub(1));
    target.truncate(reuse)?;
    cached.clear();
    let config = SessionConfig {
        max_draft: max_draft.limit(),
        max_tokens: plan.max_tokens,
        end_tokens: tokenizer.end_tokens().iter().copied().collect(),
        seed,
        rule: plan.rule,
    };
    let mut session = Session::new(target, &sampler, context.clock, config)?;
    let controllers = depths.entry(plan.method).or_default();
    for (proposer, controller) in stages.into_iter().zip(controllers) {
        session.ask(proposer, (max_draft == MaxDraft::Auto).then_some(controller));
    }
    session.started_at(Duration::ZERO);
    session.interrupted_by(context.cancelled);
    let begun = &prompt[prompt.len() - context.begun.min(prompt.len())..];
    let mut text = TextStream::new(tokenizer.clone(), &plan.stop, begun)?;
    let ended = answer(&mut session, prompt, reuse, &mut text, context, sink);
    let stats = session.stats(device, peak_memory_bytes());
    *cached = session.cached().to_vec();
    ended.map(|stop| Finished { stop, held: text.finish(), stats })
}

/// What drafts with the target's own layers by a method.
fn own_layers(method: Method, options: &MethodOptions, spec: &ModelSpec) -> Result<LayerSkip> {
    let MethodOptions { exit_layer, skipped_layers, .. } = options;
    let layers = if method == Method::EarlyExit {
        exit_layer.map_or_else(|| DraftLayers::usual_exit(spec.n_layer), DraftLayers::Exit)
    } else {
        let skipped = skipped_layers.clone();
        skipped.map_or_else(|| DraftLayers::usual_skip(spec.n_layer), DraftLayers::Skip)
    };
    if !layer_skip::fits(&layers, spec.n_layer) {
        return Err(Error::invalid(format!(
            "{} has the layers 0 to {}; some of them must be left to draft with.",
            spec.name,
            spec.n_layer - 1
        )));
    }
    Ok(LayerSkip::new(layers, spec.n_vocab))
}

fn answer(
    session: &mut Session<'_>,
    prompt: &[TokenId],
    reuse: usize,
    text: &mut TextStream,
    context: &GenerationContext<'_>,
    sink: &mut dyn EventSink,
) -> Result<StopReason> {
    let progress = session.prefill(prompt, reuse, &mut |done, total| {
        sink.send(GenerationEvent::Prefill { done: done as u32, total: total as u32 });
        if (context.cancelled)() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if progress.is_break() {
        return Ok(StopReason::Cancelled);
    }
    let mut index = 0;
    loop {
        if (context.cancelled)() {
            return Ok(StopReason::Cancelled);
        }
        let round = session.round()?;
        let mut tokens = Vec::new();
        let mut stopped = false;
        for (i, token) in round.emitted.iter().enumerate() {
            let released = text.push(token);
            tokens.extend(released);
            if text.stopped() {
                session.withdraw(&round.emitted[i + 1..])?;
                stopped = true;
                break;
            }
        }
        sink.send(GenerationEvent::Round(RoundEvent {
            round: index,
            drafted: round.drafted as u32,
            tokens,
            rejected: rejected(&round, text),
            timing: round.timing,
            depth: round.depth.clone(),
            figures: session.figures(),
        }));
        index += 1;
        if stopped {
            return Ok(StopReason::StopString);
        }
        match round.ended {
            None => {}
            Some(EndReason::EndToken) => return Ok(StopReason::EndOfTurn),
            Some(EndReason::MaxTokens) => return Ok(StopReason::MaxTokens),
            Some(EndReason::ContextFull) => return Ok(StopReason::ContextFull),
        }
    }
}

fn rejected(round: &Round, text: &TextStream) -> Vec<RejectedEvent> {
    let event = |r: &crate::token::RejectedToken| RejectedEvent {
        id: r.id,
        text: text.text_of(r.id),
        p: r.p,
        q: r.q,
        u: r.u,
        position: r.position,
    };
    round.rejected.iter().map(event).collect()
}

fn fresh_seed() -> u64 {
    // The standard library seeds its hash maps from the system's randomness.
    RandomState::new().build_hasher().finish() & SEED_MASK
}

/// Tokens on their way to text: each gets the text it completes, and waits while that text may be
/// the start of a stop string.
struct TextStream {
    tokenizer: Arc<Tokenizer>,
    detokenizer: Detokenizer,
    stop: StopFilter,
    waiting: VecDeque<TokenEvent>,
}

impl TextStream {
    /// The text after the tokens `begun`, which may end inside a character.
    fn new(tokenizer: Arc<Tokenizer>, stop: &[String], begun: &[TokenId]) -> Result<Self> {
        let mut detokenizer = Detokenizer::new(tokenizer.clone());
        for &token in begun {
            detokenizer.push(token);
        }
        Ok(Self { detokenizer, tokenizer, stop: StopFilter::new(stop)?, waiting: VecDeque::new() })
    }

    /// Takes a token and gives the tokens whose text is settled, in order.
    fn push(&mut self, token: &EmittedToken) -> Vec<TokenEvent> {
        let text = self.detokenizer.push(token.id);
        self.waiting.push_back(TokenEvent {
            id: token.id,
            text: String::new(),
            origin: token.origin,
            p: token.p,
            q: token.q,
            u: token.u,
            threshold: token.threshold,
            confidence: token.confidence,
            entropy: Some(token.entropy),
            top: self.alternatives(&token.top),
            guesses: self.alternatives(&token.guesses),
            round: token.round,
            position: token.position,
        });
        // Tokens come out in the order they went in, so their numbers are of no use here.
        let released = self.stop.push(0, &text);
        self.settle(released)
    }

    fn settle(&mut self, released: Vec<Released>) -> Vec<TokenEvent> {
        let texts = released.into_iter().map(|r| r.text);
        texts.filter_map(|text| self.waiting.pop_front().map(|token| TokenEvent { text, ..token })).collect()
    }

    fn stopped(&self) -> bool {
        self.stop.stopped().is_some()
    }

    fn alternatives(&self, likely: &[Likely]) -> Vec<Alternative> {
        // Five decimals say enough, and keep a stream of hundreds of tokens a second small.
        let rounded = likely.iter().map(|&(id, p)| (id, (p * 1e5).round() / 1e5));
        let told = |(id, p)| Alternative(id, self.text_of(id).chars().take(ALTERNATIVE_CHARS).collect(), p);
        rounded.filter(|(_, p)| *p > 0.0).map(told).collect()
    }

    /// The text of a token on its own, as the inspector shows it.
    fn text_of(&self, id: TokenId) -> String {
        String::from_utf8_lossy(&self.tokenizer.token_bytes(id)).into_owned()
    }

    /// Gives the tokens that still wait: no stop string will come any more. An incomplete
    /// character at the very end belongs to the last of them.
    fn finish(&mut self) -> Vec<TokenEvent> {
        let rest = if self.stopped() { String::new() } else { self.detokenizer.finish() };
        let released = self.stop.finish();
        let mut tokens = self.settle(released);
        if let Some(last) = tokens.last_mut() {
            last.text.push_str(&rest);
        }
        tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(role: Role, content: &str) -> ChatMessage {
        ChatMessage { role, content: content.into() }
    }

    #[test]
    fn a_conversation_is_cut_before_a_question_and_keeps_instructions_and_the_last_one() {
        let (user, answer) = (|text| said(Role::User, text), |text| said(Role::Assistant, text));
        let all = vec![
            said(Role::System, "s"),
            // An imported conversation may begin with an answer.
            answer("before"),
            user("1"),
            answer("a"),
            user("2"),
            answer("b"),
            user("3"),
        ];
        let prompt = Prompt::Chat(all.clone());
        assert_eq!(prompt.most_cuts(), 3);
        let left = |cut| match prompt.without_oldest(cut) {
            (Prompt::Chat(messages), dropped) => {
                assert_eq!(messages.len() + dropped, all.len());
                messages.into_iter().map(|message| message.content).collect::<Vec<_>>().concat()
            }
            _ => panic!("it stays a conversation"),
        };
        assert_eq!([0, 1, 2, 3].map(left), ["sbefore1a2b3", "s1a2b3", "s2b3", "s3"]);
        let alone = Prompt::Chat(vec![user("1")]);
        assert_eq!((alone.most_cuts(), alone.without_oldest(1)), (0, (alone.clone(), 0)));
        let raw = Prompt::Raw("text".into());
        assert_eq!((raw.most_cuts(), raw.without_oldest(5)), (0, (raw.clone(), 0)));
    }
}
