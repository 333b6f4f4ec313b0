//! Collecting: the target writes prompts and answers, many at a time. The hidden states of every row are kept too if the
//! store has them.
//!
//! Unless prompts are given, they are the target's own: it continues its chat template where the user would write
//! (Magpie, Xu et al., arXiv 2406.08464). A third of the answers is greedy, the others use the sampling settings of a
//! new conversation. An answer depends on target, seed and number alone, not on the other sequences.

use std::collections::BTreeMap;
use std::time::Instant;

use half::f16;
use hunch_core::model::LanguageModel;
use hunch_core::sample::{Sampler, SamplingParams, argmax, draw, top_tokens, unit};
use hunch_core::token::{TokenId, shared_len};
use hunch_error::{Error, Refusal, Result};
use hunch_model::sequences::Sequences;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::prompts::hash;
use super::shards::{CollectedAnswer, LIKELY, ShardStore, is_held_out};
use super::{Interrupt, Recipe, TrainProgress, TrainWatch, TrainingTarget};

/// Answers to collect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Held-out answers of [`Recipe::held_out`] tokens.
    HeldOut,
    /// Answers of this many tokens to train on.
    Training(usize),
}

/// Result of collecting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Answer tokens of this call.
    pub tokens: usize,
    /// Set if it ended because the data reached their limit on disk.
    pub disk_limit: bool,
}

/// Unusable prompts in a row after which a model is given up.
const MOST_UNUSABLE: usize = 200;
/// One answer in this many is greedy.
const GREEDY_EVERY: u32 = 3;
/// One given prompt in this many is held out.
const GIVEN_HELD_OUT: usize = 10;

/// Collects answers until the goal, the deadline or the limit of the store is reached, and writes them to disk.
///
/// # Errors
/// If the target fails or the store cannot be written. Shards written before are intact. [`Error::Stopped`] after
/// [`Interrupt::Pause`]; complete answers are on disk then.
pub fn collect(
    target: &TrainingTarget,
    store: &mut ShardStore,
    recipe: &Recipe,
    goal: Goal,
    deadline: Option<Instant>,
    watch: &mut dyn TrainWatch,
) -> Result<Collected> {
    let (of, wanted): (fn(u32) -> bool, usize) = match goal {
        Goal::HeldOut => (is_held_out, recipe.held_out),
        Goal::Training(tokens) => (|job| !is_held_out(job), tokens),
    };
    let begun = Instant::now();
    let mut collected = Collected::default();
    if store.rows_in_order(of) >= wanted {
        return Ok(collected);
    }
    let done = store.done();
    let mut jobs = (0..).filter(|&job| of(job) && !done.contains(&job));
    let taps = store.taps().to_vec();
    let mut writer = BatchWriter::new(target, &taps, recipe, store.seed())?;
    let mut in_order = store.rows_in_order(of);
    let mut rows = BTreeMap::new();
    let mut last_seconds = 0.0;
    let mut unusable = 0;
    loop {
        let interrupt = watch.interrupt();
        if interrupt == Some(Interrupt::Pause) {
            store.add_seconds(begun.elapsed().as_secs_f64() - last_seconds);
            store.flush()?;
            return Err(Error::Stopped);
        }
        let late = interrupt == Some(Interrupt::Finish)
            || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        collected.disk_limit = store.is_full();
        // A time that is over still allows one answer, so that there is something to train on.
        if in_order >= wanted || (late && in_order > 0) || collected.disk_limit {
            break;
        }
        for (mut answer, prompt_ids) in writer.step(&mut jobs)? {
            if store.keeps_prompt(answer.job) {
                answer.prompt_ids = prompt_ids;
            }
            collected.tokens += answer.next.len();
            unusable = if answer.next.is_empty() { unusable + 1 } else { 0 };
            if unusable >= MOST_UNUSABLE {
                return Err(Refusal::NoUsablePrompts.into());
            }
            rows.insert(answer.job, answer.next.len());
            let seconds = begun.elapsed().as_secs_f64();
            store.add_seconds(seconds - last_seconds);
            last_seconds = seconds;
            store.push(answer)?;
            in_order = store.rows_in_order(of);
        }
        watch.progress(TrainProgress::Collecting {
            tokens: in_order.max(rows.values().sum()) + writer.unfinished(),
            goal: (wanted < usize::MAX).then_some(wanted),
            per_second: (collected.tokens + writer.unfinished()) as f64 / begun.elapsed().as_secs_f64(),
        });
    }
    store.add_seconds(begun.elapsed().as_secs_f64() - last_seconds);
    store.flush()?;
    Ok(collected)
}

/// Writes several answers at the same time.
struct BatchWriter<'a> {
    target: &'a TrainingTarget,
    /// Layers whose states are kept.
    taps: &'a [usize],
    recipe: &'a Recipe,
    seed: u64,
    /// Longest sequence, in tokens.
    context: usize,
    sequences: Sequences,
    states: Vec<Sequence>,
    /// Tokens before the user's text.
    user_turn: Vec<TokenId>,
    /// Text after the user's.
    turn_end: String,
    prompts: Sampler,
    greedy: Sampler,
    chat: Sampler,
}

/// A sequence that is being written.
#[derive(Default)]
struct Sequence {
    /// Tokens whose rows are in the cache.
    cached: Vec<TokenId>,
    work: Option<UnfinishedAnswer>,
}

struct UnfinishedAnswer {
    answer: CollectedAnswer,
    rng: ChaCha8Rng,
    /// Next token to run.
    feed: TokenId,
    /// Tokens of the prompt while it is being written.
    prompt: Option<Vec<TokenId>>,
    /// Tokens up to the start of the answer.
    prompt_ids: Vec<TokenId>,
}

impl<'a> BatchWriter<'a> {
    /// Starts without answers. States after the layers `taps` are kept.
    fn new(target: &'a TrainingTarget, taps: &'a [usize], recipe: &'a Recipe, seed: u64) -> Result<Self> {
        let (user_turn, turn_end) = target.user_turn()?;
        let count = recipe.parallel.max(1);
        Ok(Self {
            target,
            taps,
            recipe,
            seed,
            context: target.decoder.info().context_length,
            sequences: Sequences::of(&target.decoder, count),
            states: (0..count).map(|_| Sequence::default()).collect(),
            user_turn,
            turn_end,
            prompts: Sampler::new(SamplingParams { temperature: 1.0, ..SamplingParams::default() })?,
            greedy: Sampler::new(SamplingParams::greedy())?,
            chat: Sampler::new(SamplingParams::default())?,
        })
    }

    /// Returns the tokens of the answers that are being written.
    fn unfinished(&self) -> usize {
        self.states.iter().flat_map(|sequence| &sequence.work).map(|work| work.answer.next.len()).sum()
    }

    /// Writes one token in every sequence, and returns the answers that ended, with the tokens before each.
    fn step(&mut self, jobs: &mut impl Iterator<Item = u32>) -> Result<Vec<(CollectedAnswer, Vec<TokenId>)>> {
        for sequence in 0..self.states.len() {
            if self.states[sequence].work.is_none()
                && let Some(job) = jobs.next()
            {
                self.begin(sequence, job)?;
            }
        }
        let fed =
            |(sequence, state): (usize, &Sequence)| state.work.as_ref().map(|work| (sequence, work.feed));
        let rows: Vec<(usize, TokenId)> = self.states.iter().enumerate().filter_map(fed).collect();
        let output = self.sequences.step(&rows, self.taps)?;
        let mut ended = Vec::new();
        for (row, &(sequence, token)) in rows.iter().enumerate() {
            self.states[sequence].cached.push(token);
            let states: Vec<&[f32]> = output.taps.iter().map(|tap| tap.row(row)).collect();
            let continues =
                match self.states[sequence].work.as_ref().is_some_and(|work| work.prompt.is_some()) {
                    true => self.prompt_token(sequence, output.logits.row(row))?,
                    false => self.answer_token(sequence, output.logits.row(row), &states)?,
                };
            if !continues && let Some(work) = self.states[sequence].work.take() {
                ended.push((work.answer, work.prompt_ids));
            }
        }
        Ok(ended)
    }

    /// Starts the prompt of an answer.
    fn begin(&mut self, sequence: usize, job: u32) -> Result<()> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(u64::from(job));
        let answer =
            CollectedAnswer { job, greedy: job.is_multiple_of(GREEDY_EVERY), ..CollectedAnswer::default() };
        let given = self.recipe.prompts.clone();
        let Some(prompts) = given.as_deref().filter(|prompts| !prompts.is_empty()) else {
            let ids = self.user_turn.clone();
            let feed = self.refill(sequence, &ids)?;
            self.states[sequence].work = Some(UnfinishedAnswer {
                answer,
                rng,
                feed,
                prompt: Some(Vec::new()),
                prompt_ids: Vec::new(),
            });
            return Ok(());
        };
        let (text, ids) = self.given(prompts, job)?;
        let feed = self.refill(sequence, &ids)?;
        let answer = CollectedAnswer { prompt: hash(text), ..answer };
        self.states[sequence].work =
            Some(UnfinishedAnswer { answer, rng, feed, prompt: None, prompt_ids: ids });
        Ok(())
    }

    /// Returns the given prompt of a job. Every tenth prompt is only used for held-out answers, so that none is in
    /// both. A prompt that leaves no room for an answer is replaced by the next one.
    fn given<'p>(&self, prompts: &'p [String], job: u32) -> Result<(&'p str, Vec<TokenId>)> {
        let held_out = is_held_out(job);
        let of: Vec<&String> = (0..)
            .zip(prompts)
            .filter(|(i, _)| (i % GIVEN_HELD_OUT == 0) == held_out)
            .map(|(_, text)| text)
            .collect();
        if of.is_empty() {
            return Err(Error::invalid("One prompt is not enough to train on. Give at least two."));
        }
        for i in 0..of.len() {
            let text = of[(job as usize + i) % of.len()];
            let ids = self.target.prompt_ids(text)?;
            if ids.len() + self.recipe.answer_tokens <= self.context {
                return Ok((text, ids));
            }
        }
        Err(Error::invalid("All given prompts are too long for this model. Give shorter ones."))
    }

    /// Fills a sequence's cache with all of `ids` but the last, which is returned.
    fn refill(&mut self, sequence: usize, ids: &[TokenId]) -> Result<TokenId> {
        let cached = &mut self.states[sequence].cached;
        let shared = shared_len(cached, ids).min(ids.len() - 1);
        self.sequences.truncate(sequence, shared)?;
        cached.truncate(shared);
        self.sequences.prefill(sequence, &ids[shared..ids.len() - 1])?;
        self.states[sequence].cached.extend_from_slice(&ids[shared..ids.len() - 1]);
        Ok(ids[ids.len() - 1])
    }

    /// Draws a token of a prompt. Starts the answer once the prompt is complete. Returns false if it is unusable.
    fn prompt_token(&mut self, sequence: usize, logits: &[f32]) -> Result<bool> {
        let distribution = self.prompts.distribution(logits, &[])?;
        let Some(UnfinishedAnswer { rng, feed, prompt: Some(prompt), .. }) = &mut self.states[sequence].work
        else {
            return Ok(false);
        };
        let token = draw(&distribution, unit(rng));
        let ends = self.target.tokenizer.end_tokens().contains(&token);
        if !ends {
            prompt.push(token);
            *feed = token;
        }
        let text = self.target.tokenizer.decode(prompt, false);
        let (text, complete) = match text.split_once(&self.turn_end) {
            Some((before, _)) => (before, true),
            None => (&*text, ends || prompt.len() >= self.recipe.prompt_tokens),
        };
        if !complete {
            return Ok(true);
        }
        let text = text.trim().to_owned();
        if text.is_empty() {
            return Ok(false);
        }
        let ids = self.target.prompt_ids(&text)?;
        if ids.len() + self.recipe.answer_tokens > self.context {
            return Ok(false);
        }
        let first = self.refill(sequence, &ids)?;
        if let Some(work) = &mut self.states[sequence].work {
            work.answer.prompt = hash(&text);
            (work.feed, work.prompt, work.prompt_ids) = (first, None, ids);
        }
        Ok(true)
    }

    /// Draws a token of an answer and keeps the row's states. Returns whether the answer continues.
    fn answer_token(&mut self, sequence: usize, logits: &[f32], states: &[&[f32]]) -> Result<bool> {
        let Some(UnfinishedAnswer { answer, rng, feed, .. }) = &mut self.states[sequence].work else {
            return Ok(false);
        };
        for state in states {
            answer.states.extend(unit_rms(state).map(f16::from_f32));
        }
        let token = if answer.greedy {
            argmax(&self.greedy.distribution(logits, &[])?)
        } else {
            let distribution = self.chat.distribution(logits, &[])?;
            if is_held_out(answer.job) {
                let mut likely = top_tokens(&distribution, LIKELY);
                likely.resize(LIKELY, (0, 0.0));
                answer.likely.extend(likely);
            }
            draw(&distribution, unit(rng))
        };
        answer.next.push(token);
        *feed = token;
        let ends = self.target.tokenizer.end_tokens().contains(&token);
        Ok(!ends && answer.next.len() < self.recipe.answer_tokens)
    }
}

/// Divides a state by its root mean square.
pub(super) fn unit_rms(state: &[f32]) -> impl Iterator<Item = f32> {
    let square = state.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / state.len() as f64;
    let scale = (1.0 / (square + super::ops::EPS).sqrt()) as f32;
    state.iter().map(move |x| x * scale)
}
