//! The lab: positions in answers of the loaded models, and statistics over stored answers. The arithmetic is in
//! [`crate::lab`].

use std::collections::VecDeque;
use std::sync::Arc;

use super::App;
use crate::event::GenerationEvent;
use crate::generate::{Prompt, fresh_seed};
use crate::lab::acceptance::AcceptanceTally;
use crate::lab::landscape::{MachineCosts, check_draft, landscape};
use crate::lab::position::{Distributions, LogitPair, PositionInfo, toy, toy_info, toy_text};
use crate::lab::report::{
    AcceptanceMap, LabDraft, LabMachine, LabPosition, LabRequest, LabRounds, LabRoundsRequest, LabRuleRow,
    LabServing, LabServingRequest, LabSession, LabSource, Landscape, WhatIf, WhatIfRequest,
};
use crate::lab::rounds::{self, Rounds};
use crate::lab::serving::{SimulatedServer, Traffic};
use crate::lab::sessions::session_of;
use crate::lab::{rules, what_if};
use hunch_core::method::Method;
use hunch_core::sample::SamplingParams;
use hunch_core::token::TokenId;
use hunch_error::{Error, Refusal, Result};

/// Number of positions whose distributions are kept.
const KEPT: usize = 4;
/// Number of latest answers used for statistics.
const MOST_ANSWERS: usize = 500;
/// Number of rules whose rounds are kept for a position. The least recently run one is dropped.
const MOST_RULES: usize = 8;
/// Length of the text shown before a position, in characters.
const BEFORE: usize = 160;
/// Tokens of an answer of the simulated server.
const SERVED_TOKENS: u32 = 128;
/// Seed of the simulated server, so that equal requests have equal results.
const SERVED_SEED: u64 = 1;

/// Recently viewed positions.
#[derive(Default)]
pub(super) struct KeptPositions(VecDeque<KeptPosition>);

struct KeptPosition {
    id: u32,
    distributions: Arc<Distributions>,
    /// Results so far, by rule.
    rounds: Vec<Rounds>,
}

impl KeptPositions {
    fn find(&mut self, id: u32) -> Result<&mut KeptPosition> {
        self.0.iter_mut().find(|position| position.id == id).ok_or_else(|| Refusal::NoLongerKept.into())
    }
}

/// A position in a text that the models have not read yet.
struct UnreadPosition {
    prompt: Prompt,
    before: String,
    drawn: Option<TokenId>,
}

impl App {
    /// Returns the distributions of target and draft at a position. Runs both models, unless the position is synthetic.
    ///
    /// # Errors
    /// When no pair is loaded, the engine is busy, or there is no such position.
    pub fn lab_position(&self, request: LabRequest) -> Result<LabPosition> {
        let id = self.next_id();
        let reading = match &request.source {
            LabSource::Toy => {
                let distributions = Arc::new(Distributions::new(toy(), request.sampling)?);
                return Ok(self.keep(id, &distributions, toy_info(id), &toy_text));
            }
            LabSource::Answer { message, token } => self.reading_answer(*message, *token as usize)?,
            LabSource::Text { text } => {
                UnreadPosition { prompt: Prompt::Raw(text.clone()), before: ending(text), drawn: None }
            }
        };
        let ready = self.shared.models.ready()?;
        let loaded = &ready.details;
        let draft = loaded.draft.clone();
        if draft.is_none() && !loaded.methods.contains(&Method::Head) {
            return Err(Refusal::NoDraftToCompare.into());
        }
        let UnreadPosition { prompt, before, drawn } = reading;
        let (scores, drafter) = self.shared.engine.run_and_wait(id, move |models, stopped| {
            let context = models.prompt_ids(&prompt)?;
            let (target, draft) = models.scores_after(&context, stopped)?;
            // A head needs a token before the last one.
            let draft = draft.ok_or(Refusal::NoDraftToCompare)?;
            Ok((LogitPair { target, draft, context }, models.scored_drafter()))
        })?;
        let distributions = Arc::new(Distributions::new(scores, request.sampling)?);
        let info = PositionInfo {
            id,
            source: request.source,
            target: Some(loaded.target.clone()),
            draft,
            drafter,
            before,
            drawn,
        };
        let text_of = |token| String::from_utf8_lossy(&loaded.tokenizer.token_bytes(token)).into_owned();
        Ok(self.keep(id, &distributions, info, &text_of))
    }

    fn keep(
        &self,
        id: u32,
        distributions: &Arc<Distributions>,
        info: PositionInfo,
        text_of: &dyn Fn(TokenId) -> String,
    ) -> LabPosition {
        let mut positions = self.shared.positions.lock();
        positions.0.push_back(KeptPosition { id, distributions: distributions.clone(), rounds: Vec::new() });
        while positions.0.len() > KEPT {
            positions.0.pop_front();
        }
        drop(positions);
        distributions.position(info, text_of)
    }

    /// Finds the text of an answer up to one of its tokens.
    fn reading_answer(&self, message: i64, token: usize) -> Result<UnreadPosition> {
        let events = self.store().events(message)?;
        let tokens: Vec<_> = events.iter().flat_map(GenerationEvent::tokens).collect();
        if token > tokens.len() {
            return Err(Error::invalid(format!("The answer has no token {token}.")));
        }
        let prompt = self.prompt_of_answer(
            message,
            dropped(&events),
            tokens[..token].iter().map(|token| token.id).collect(),
        )?;
        let written: String = tokens[..token].iter().map(|token| token.text.as_str()).collect();
        let before = if written.is_empty() { String::new() } else { ending(&written) };
        Ok(UnreadPosition { prompt, before, drawn: tokens.get(token).map(|token| token.id) })
    }

    /// Runs more rounds at a position and returns all rounds under the rule.
    ///
    /// # Errors
    /// When the position is no longer kept, or a number is out of range.
    pub fn lab_rounds(&self, request: LabRoundsRequest) -> Result<LabRounds> {
        rounds::check(&request)?;
        // Taken out of the lock while they run, so that no other call waits.
        let (distributions, before) = {
            let mut positions = self.shared.positions.lock();
            let position = positions.find(request.position)?;
            let at = position.rounds.iter().position(|rounds| rounds.rule() == request.rule);
            (position.distributions.clone(), at.map(|at| position.rounds.remove(at)))
        };
        let mut rounds = match before.filter(|_| !request.restart) {
            Some(rounds) => rounds,
            None => Rounds::new(request.position, &distributions, request.rule, fresh_seed())?,
        };
        let report = rounds.run(request.rounds);
        if let Ok(position) = self.shared.positions.lock().find(request.position) {
            // The last of overlapping calls counts.
            position.rounds.retain(|other| other.rule() != request.rule);
            position.rounds.push(rounds);
            if position.rounds.len() > MOST_RULES {
                position.rounds.remove(0);
            }
        }
        report
    }

    /// Returns the acceptance of each rule at a position, by temperature.
    ///
    /// # Errors
    /// When the position is no longer kept, or a temperature is out of range.
    pub fn lab_rules(&self, position: u32, temperatures: &[f64]) -> Result<Vec<LabRuleRow>> {
        let distributions = self.shared.positions.lock().find(position)?.distributions.clone();
        rules::rows(&distributions, temperatures)
    }

    /// Predicts the speedup over alpha and K from measured or given costs, for `batch` conversations that share every
    /// pass.
    ///
    /// # Errors
    /// When the costs of the loaded models are not measured yet, or a number is out of range.
    pub fn landscape(&self, machine: LabMachine, batch: u32, draft: LabDraft) -> Result<Landscape> {
        landscape(&self.machine_costs(machine, draft)?, batch, draft)
    }

    fn machine_costs(&self, machine: LabMachine, draft: LabDraft) -> Result<MachineCosts> {
        match machine {
            LabMachine::MadeUp { draft_cost, row_cost } => {
                Ok(MachineCosts::assumed(draft_cost, row_cost)?.drafting(draft))
            }
            LabMachine::Measured { drafter } => {
                let curve = self.cost_curve()?.ok_or(Refusal::CostsNotMeasured)?;
                MachineCosts::measured(&curve, drafter, draft)
            }
        }
    }

    /// Simulates a server of measured or given costs, whose requests share passes, at several loads.
    ///
    /// # Errors
    /// When the costs of the loaded models are not measured yet, or a number is out of range.
    pub fn lab_serving(&self, request: LabServingRequest) -> Result<LabServing> {
        check_draft(request.draft)?;
        let costs = self.machine_costs(request.machine, request.draft)?;
        let (alpha, max_batch, tokens) = (request.alpha, request.max_batch, SERVED_TOKENS);
        let measured_rows = costs.measured_rows();
        let server = SimulatedServer { costs, traffic: Traffic { alpha, max_batch, tokens } };
        Ok(LabServing { tokens, measured_rows, loads: server.simulate(SERVED_SEED)? })
    }

    /// Places the latest answers with drafts in the landscape.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn lab_sessions(&self) -> Result<Vec<LabSession>> {
        let store = self.store();
        let mut sessions = Vec::new();
        for answer in store.answers(None, MOST_ANSWERS)? {
            // Answers with damaged records are skipped.
            let Some(figures) = store.events(answer.message).ok().and_then(|events| session_of(&events))
            else {
                continue;
            };
            sessions.push(LabSession {
                message: answer.message,
                conversation: answer.conversation,
                title: answer.title,
                figures,
            });
        }
        Ok(sessions)
    }

    /// Returns the acceptance over the latest answers of one conversation or of all.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn acceptance_map(&self, conversation: Option<i64>) -> Result<AcceptanceMap> {
        let store = self.store();
        let mut tally = AcceptanceTally::default();
        for answer in store.answers(conversation, MOST_ANSWERS)? {
            if let Ok(events) = store.events(answer.message) {
                tally.add(&events);
            }
        }
        Ok(tally.map())
    }

    /// Estimates the figures of an answer under other settings, from its stored events.
    ///
    /// # Errors
    /// When there is no such answer, or a number is out of range.
    pub fn what_if(&self, request: WhatIfRequest) -> Result<WhatIf> {
        let (_, message) = self.store().message(request.message)?;
        let settings = message.settings.map_or_else(SamplingParams::default, |settings| settings.sampling);
        what_if::what_if(&self.store().events(request.message)?, settings.temperature, &request)
    }
}

/// Returns the number of messages that the last generation of an answer dropped.
fn dropped(events: &[GenerationEvent]) -> usize {
    let dropped = events.iter().rev().find_map(|event| match event {
        GenerationEvent::Started { dropped_messages, .. } => Some(*dropped_messages as usize),
        _ => None,
    });
    dropped.unwrap_or(0)
}

/// Returns the end of a text.
fn ending(text: &str) -> String {
    let skipped = text.chars().count().saturating_sub(BEFORE);
    text.chars().skip(skipped).collect()
}
