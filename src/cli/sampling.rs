//! Sampling: arguments of the commands that answer.

use anyhow::Result;
use clap::{Arg, Args, ValueEnum};
use hunch::server_answers::exact;
use hunch_core::sample::SamplingParams;
use hunch_core::token::TokenId;
use hunch_error::Error;
use serde_json::{Map, Value};

use super::ModelArgs;

/// Source of sampling settings that are not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SamplingSource {
    /// The usual settings
    Default,
    /// Settings that the target's file recommends, as `hunch models inspect` shows
    Recommended,
}

/// Source of the settings of commands that answer.
#[derive(Args, Clone)]
pub(crate) struct SamplingSourceArgs {
    /// Sampling settings that are not given: the usual ones, or those that the model recommends
    #[arg(long = "sampling", value_enum, default_value = "default")]
    pub(crate) source: SamplingSource,
}

impl SamplingSourceArgs {
    /// Returns the parameters, with what the target's file recommends if that was chosen.
    ///
    /// # Errors
    /// If the file cannot be read, or recommends nothing.
    pub(crate) fn params(&self, given: &SamplingArgs, models: &ModelArgs) -> Result<SamplingParams> {
        if self.source == SamplingSource::Default {
            return Ok(given.params());
        }
        let target = models.target_path()?;
        let recommended = hunch_library::inspect(&target)?.sampling;
        if recommended.is_empty() {
            return Err(Error::invalid(format!(
                "{} recommends no sampling. Leave out --sampling recommended, or set --temperature.",
                models.target
            ))
            .into());
        }
        Ok(given.over(recommended.over(SamplingParams::default())))
    }
}

/// Sampling. Defaults are those of a new conversation.
#[derive(Args, Clone)]
pub(crate) struct SamplingArgs {
    /// Sampling temperature; 0 always takes the most likely token [default: 0.7]
    #[arg(long, value_name = "T")]
    temperature: Option<f32>,
    /// Keep the K most likely tokens; 0 keeps all [default: 40]
    #[arg(long, value_name = "K")]
    top_k: Option<u32>,
    /// Keep the most likely tokens whose probabilities add up to P; 1 keeps all [default: 0.95]
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Keep tokens at least P times as likely as the most likely one; 0 keeps all [default: 0.05]
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,
    /// Make recent tokens less likely; 1 changes nothing [default: 1]
    #[arg(long, value_name = "R")]
    repeat_penalty: Option<f32>,
    /// Subtract R from the logits of recent tokens [default: 0]
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    presence_penalty: Option<f32>,
    /// Subtract R from the logits of recent tokens, per occurrence [default: 0]
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,
    /// Add BIAS to the logit of token ID; may be repeated
    #[arg(long, value_name = "ID=BIAS", value_parser = parse_bias)]
    logit_bias: Vec<(TokenId, f32)>,
    /// Make the answer reproducible; above temperature 0 with a fixed --max-draft or --rule coupled
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// Describes `--temperature` for commands that decode greedily unless a sampling option is given.
pub(crate) fn greedy_default(temperature: Arg) -> Arg {
    temperature.help(
        "Sampling temperature; 0 always takes the most likely token [default: 0; 0.7 with another sampling option]",
    )
}

fn parse_bias(text: &str) -> Result<(TokenId, f32), String> {
    let (id, bias) = text.split_once('=').ok_or("write it as ID=BIAS, such as 42=-1.5")?;
    let id = id.trim().parse().map_err(|_| format!("\"{id}\" is not a token number"))?;
    let bias = bias.trim().parse().map_err(|_| format!("\"{bias}\" is not a number"))?;
    Ok((id, bias))
}

impl SamplingArgs {
    /// Returns whether any option but the seed was given.
    fn is_given(&self) -> bool {
        let Self { temperature, top_k, top_p, min_p, logit_bias, seed: _, .. } = self;
        let penalties = [self.repeat_penalty, self.presence_penalty, self.frequency_penalty];
        let numbers = [temperature, top_p, min_p].into_iter().chain(&penalties);
        top_k.is_some() || !logit_bias.is_empty() || numbers.into_iter().any(Option::is_some)
    }

    /// Returns the parameters that were given, by their names in the protocol of servers.
    ///
    /// Defaults are left out: some servers refuse parameters that OpenAI does not have.
    pub(crate) fn given_fields(&self) -> Map<String, Value> {
        let numbers = [
            ("temperature", self.temperature),
            ("top_p", self.top_p),
            ("min_p", self.min_p),
            ("repeat_penalty", self.repeat_penalty),
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ];
        let mut fields: Map<_, _> =
            numbers.into_iter().filter_map(|(name, value)| Some((name.to_owned(), exact(value?)))).collect();
        fields.extend(self.top_k.map(|k| ("top_k".to_owned(), k.into())));
        fields.extend(self.seed.map(|seed| ("seed".to_owned(), seed.into())));
        if !self.logit_bias.is_empty() {
            let biases: Map<_, _> =
                self.logit_bias.iter().map(|(id, bias)| (id.to_string(), exact(*bias))).collect();
            fields.insert("logit_bias".to_owned(), biases.into());
        }
        fields
    }

    /// Returns the seed, if one was given.
    pub(crate) fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// Returns the parameters, or greedy sampling when no option but the seed was given.
    ///
    /// Greedy answers can be compared token for token.
    pub(crate) fn params_or_greedy(&self) -> SamplingParams {
        if self.is_given() {
            return self.params();
        }
        SamplingParams { seed: self.seed, ..SamplingParams::greedy() }
    }

    /// Returns the parameters.
    pub(crate) fn params(&self) -> SamplingParams {
        self.over(SamplingParams::default())
    }

    /// Returns the parameters that were given, and those of `default` for the others.
    fn over(&self, default: SamplingParams) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature.unwrap_or(default.temperature),
            top_k: self.top_k.unwrap_or(default.top_k),
            top_p: self.top_p.unwrap_or(default.top_p),
            min_p: self.min_p.unwrap_or(default.min_p),
            repeat_penalty: self.repeat_penalty.unwrap_or(default.repeat_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(default.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(default.frequency_penalty),
            logit_bias: self.logit_bias.iter().copied().collect(),
            seed: self.seed,
            ..default
        }
    }
}
