//! Drafting methods: their properties, all derived from the registry in [`propose`](crate::propose).

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::propose::{Needs, OptionName, Stage};

pub use crate::propose::Method;

impl Method {
    /// Returns all methods that a user can select, plain first.
    pub fn selectable() -> impl Iterator<Item = Self> {
        Self::REGISTERED.into_iter().filter(|method| !method.requires(Needs::Script))
    }

    /// Returns the methods usable with what is loaded in addition to the target, plain first.
    pub fn usable(loaded: &[Needs]) -> Vec<Self> {
        let usable = |method: &Self| method.needs().all(|needs| loaded.contains(&needs));
        Self::REGISTERED.into_iter().filter(usable).collect()
    }

    /// Returns what the method can use beyond the target, in the order of its stages.
    pub fn uses(self) -> impl Iterator<Item = Needs> {
        self.entry().stages.iter().map(Stage::needs).filter(|needs| *needs != Needs::Nothing)
    }

    /// Returns what the method needs beyond the target: all that it [uses](Self::uses), unless its stages are optional.
    pub fn needs(self) -> impl Iterator<Item = Needs> {
        self.uses().filter(move |_| !self.entry().optional_stages)
    }

    /// Returns the options that change its drafts.
    pub fn options(self) -> impl Iterator<Item = OptionName> {
        let reads = move |option: &OptionName| self.entry().stages.iter().any(|stage| stage.reads(*option));
        OptionName::ALL.into_iter().filter(reads)
    }

    /// Returns whether the method cannot draft without this.
    pub fn requires(self, needs: Needs) -> bool {
        self.needs().any(|own| own == needs)
    }

    /// Returns whether the method needs a second model.
    pub fn needs_draft(self) -> bool {
        self.requires(Needs::DraftModel)
    }

    /// Returns whether the method drafts with a second model, if one is loaded.
    pub fn uses_draft(self) -> bool {
        self.uses().any(|needs| needs == Needs::DraftModel)
    }

    /// Returns the method whose draft passes cost the same as those of its first model: same model, same rows per pass.
    ///
    /// `None` if no model drafts.
    pub fn drafter(self) -> Option<Self> {
        self.drafters().next()
    }

    /// Returns the [drafter](Self::drafter) of each of its models.
    pub fn drafters(self) -> impl Iterator<Item = Self> {
        self.model_stages().map(move |stage| match stage.needs() {
            Needs::DraftModel => Self::DraftModel,
            Needs::Head => Self::Head,
            _ => self,
        })
    }

    /// Returns the first stage whose model drafts, if one does.
    pub fn model_stage(self) -> Option<&'static Stage> {
        self.model_stages().next()
    }

    fn model_stages(self) -> impl Iterator<Item = &'static Stage> {
        self.entry().stages.iter().filter(|stage| stage.has_model())
    }

    /// Returns the usual number of auxiliary rows in its target passes.
    pub fn extra_rows(self) -> usize {
        let rows = |stage: &Stage| match stage {
            Stage::BuiltIn(proposer) => proposer.create().extra_rows(),
            _ => 0,
        };
        self.entry().stages.iter().map(rows).sum()
    }

    /// Returns a one-line description.
    pub fn summary(self) -> &'static str {
        self.entry().summary
    }

    /// Returns the name used on the command line and in JSON.
    pub fn name(self) -> &'static str {
        self.entry().name
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Method {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self> {
        Self::REGISTERED.into_iter().find(|method| method.name() == name).ok_or_else(|| {
            let names: Vec<&str> = Self::selectable().map(Self::name).collect();
            let names = names.join(", ");
            Error::invalid(format!("Unknown method \"{name}\". Choose one of {names}."))
        })
    }
}
