//! Models that requests can name: the one that the server started with, and installed ones. Each has the draft model
//! that suits it best, and a share of the memory for caches.
//!
//! Headers of model files are read here. Weights are read by the engine, when a request has its turn.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use hunch_core::method::Method;
use hunch_core::propose::MethodOptions;
use hunch_core::sample::SamplingParams;
use hunch_error::{Error, Result, megabytes};
use hunch_library::fit::default_context;
use hunch_library::types::{DraftOffer, DraftOffers, Fit, FitVerdict, ModelEntry, PairVerdict};
use hunch_library::{Places, machine};
use hunch_model::device::Compute;
use hunch_model::split;
use parking_lot::Mutex;

use super::errors::{Failure, FailureKind};
use crate::generate::{CacheLimits, GenerationPlan, LoadPlan, Models, PromptEncoder};
use crate::services::load;
use crate::services::pair::PairJudge;

/// Most names in an error message.
const MAX_LISTED: usize = 40;

/// Installed models that a server loads when a request names them.
pub struct InstalledModels {
    /// Folders of models.
    pub places: Places,
    /// Files of the models that requests may name. The started one is always among them. `None` allows all.
    pub only: Option<Vec<PathBuf>>,
    /// Method of answers, where a model can run it. Others answer by [`Method::Auto`].
    pub method: Method,
    /// Sampling of answers of other models than the started one, where the request has no settings of its own.
    pub sampling: SamplingParams,
    /// Draft models.
    pub drafts: DraftChoice,
    /// Longest conversation, in tokens. Models made for less keep their own limit.
    pub context: Option<usize>,
    /// `true` to load models that are not expected to fit into memory.
    pub ignore_memory_check: bool,
}

/// Draft models of the models that requests name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DraftChoice {
    /// Draft models by the name of the target in lower case. `None` is no draft.
    pub named: HashMap<String, Option<PathBuf>>,
    /// `true` to leave out the draft of all other models. Else each has the installed one with the highest speedup,
    /// measured or predicted, if there is one above 1 and both fit into memory.
    pub no_others: bool,
}

impl InstalledModels {
    /// Checks that requests can name all models of `only`: those outside the searched folders have no name.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] for the first that has none.
    pub fn check(&self) -> Result<()> {
        let Some(only) = self.only.as_deref().filter(|only| !only.is_empty()) else { return Ok(()) };
        let models = hunch_library::scan(&self.places).models;
        let listed: Vec<PathBuf> = models.iter().map(|entry| first_file(Path::new(&entry.path))).collect();
        match only.iter().find(|path| !listed.contains(&first_file(path))) {
            Some(path) => Err(Error::invalid(format!(
                "--models names {}, which is in no folder that Hunch searches. Add its folder with `hunch models folders add`.",
                path.display()
            ))),
            None => Ok(()),
        }
    }

    /// Returns the usable models, with their files. Reads headers that changed since the last time. `first` is the file
    /// of the started model, which is always among them if a folder has it.
    fn entries(&self, first: &Path) -> Vec<(PathBuf, ModelEntry)> {
        let only: Option<Vec<PathBuf>> =
            self.only.as_ref().map(|only| only.iter().map(|path| first_file(path)).collect());
        let is_allowed =
            |file: &PathBuf| file == first || only.as_ref().is_none_or(|only| only.contains(file));
        let usable =
            hunch_library::scan(&self.places).models.into_iter().filter(|entry| entry.problem.is_none());
        let mut entries: Vec<_> = usable.map(|entry| (first_file(Path::new(&entry.path)), entry)).collect();
        entries.retain(|(file, _)| is_allowed(file));
        // The first of several models with the same name is that of Hunch's own folder.
        entries.dedup_by(|(_, later), (_, first)| later.name == first.name);
        entries
    }
}

/// Owner of the models that a server answers with, if the server does not load models itself.
pub trait ModelHost: Send + Sync {
    /// Returns the models in memory now.
    ///
    /// # Errors
    /// [`Error::NoModel`] if there are none.
    fn models(&self) -> Result<HostedModels>;
}

/// Models of a [`ModelHost`].
pub struct HostedModels {
    /// Name for clients.
    pub name: String,
    /// Encoder of prompts for the target.
    pub encoder: Arc<PromptEncoder>,
    /// Context length, in tokens.
    pub context: usize,
    /// Plan by which they were loaded.
    pub plan: LoadPlan,
}

/// A model that answers requests.
pub(super) struct ServedModel {
    /// Name for clients.
    pub(super) name: String,
    pub(super) encoder: Arc<PromptEncoder>,
    /// Context length, in tokens.
    pub(super) context: usize,
    plan: LoadPlan,
    /// `true` if the server started with it. Its settings are those of the command line.
    pub(super) is_first: bool,
}

/// State of a model file: path, bytes, modification time. No bytes and no time if it is gone.
type FileState = (PathBuf, u64, Option<SystemTime>);

/// A model that a request named.
#[derive(Clone)]
struct OpenedModel {
    /// Files of the target and its draft, as they were when it was opened.
    files: Vec<FileState>,
    model: Arc<ServedModel>,
}

impl OpenedModel {
    /// Returns whether the files are as they were.
    fn is_current(&self) -> bool {
        self.files.iter().all(|file| *file == file_state(&file.0))
    }
}

/// Source of the models of a server.
enum ServedSource {
    /// The server loads models. It started with this one.
    Own(Arc<ServedModel>),
    /// The host loads models. The last ones that it had are kept.
    Host(Arc<dyn ModelHost>, Mutex<Option<Arc<ServedModel>>>),
}

/// Models of a server.
pub(super) struct ServedModels {
    source: ServedSource,
    /// File of the first model.
    first_file: PathBuf,
    installed: Option<InstalledModels>,
    compute: Compute,
    /// Models that requests named, by name in lower case.
    opened: Mutex<HashMap<String, OpenedModel>>,
}

/// Properties of a model in the list.
pub(super) struct ListedModel {
    pub(super) name: String,
    pub(super) context: usize,
}

impl ServedModels {
    /// Returns the sampling of other models than the started one.
    pub(super) fn others_sampling(&self) -> SamplingParams {
        self.installed.as_ref().map(|installed| installed.sampling.clone()).unwrap_or_default()
    }

    pub(super) fn new(
        name: String,
        models: &Models,
        installed: Option<InstalledModels>,
        compute: Compute,
    ) -> Self {
        let first = ServedModel {
            name,
            encoder: models.encoder().clone(),
            context: models.context(),
            plan: models.plan(),
            is_first: true,
        };
        let (first_file, source) = (first_file(&first.plan.target), ServedSource::Own(Arc::new(first)));
        Self { source, first_file, installed, compute, opened: Mutex::default() }
    }

    /// Creates the models of a server whose host loads them.
    pub(super) fn hosted(host: Arc<dyn ModelHost>, compute: Compute) -> Self {
        let source = ServedSource::Host(host, Mutex::default());
        Self { source, first_file: PathBuf::new(), installed: None, compute, opened: Mutex::default() }
    }

    /// Returns the first model, or the one that the host has loaded.
    ///
    /// # Errors
    /// If the host has loaded none.
    fn first(&self) -> Result<Arc<ServedModel>> {
        let (host, last) = match &self.source {
            ServedSource::Own(first) => return Ok(first.clone()),
            ServedSource::Host(host, last) => (host, last),
        };
        let HostedModels { name, encoder, context, plan } = host.models()?;
        let mut last = last.lock();
        let is_last = |last: &Arc<ServedModel>| {
            Arc::ptr_eq(&last.encoder, &encoder)
                && last.plan.draft == plan.draft
                && last.plan.head == plan.head
        };
        if let Some(same) = last.as_ref().filter(|last| is_last(last)) {
            return Ok(same.clone());
        }
        let model = ServedModel { name, encoder, context, plan, is_first: true };
        Ok(last.insert(Arc::new(model)).clone())
    }

    /// Returns a model that needs no file: the first one. `None` if the name is another's, or there is none.
    pub(super) fn first_if_named(&self, asked: Option<&str>) -> Option<Arc<ServedModel>> {
        let first = self.first().ok()?;
        asked.is_none_or(|asked| asked.eq_ignore_ascii_case(&first.name)).then_some(first)
    }

    /// Lists the models, the first one first. Reads files.
    pub(super) fn list(&self) -> Vec<ListedModel> {
        let Ok(first) = self.first() else { return Vec::new() };
        let ServedModel { name, context, .. } = &*first;
        let first = ListedModel { name: name.clone(), context: *context };
        let others = self.entries().into_iter().filter(|(file, entry)| self.is_other(file, entry, name));
        let longest = self.installed.as_ref().and_then(|installed| installed.context).unwrap_or(usize::MAX);
        let others = others.map(|(_, entry)| ListedModel {
            name: entry.name,
            context: longest.min(entry.context_length as usize),
        });
        std::iter::once(first).chain(others).collect()
    }

    /// Returns the installed models, with their files.
    fn entries(&self) -> Vec<(PathBuf, ModelEntry)> {
        self.installed.as_ref().map(|installed| installed.entries(&self.first_file)).unwrap_or_default()
    }

    /// Returns whether an installed model is another than the first one, and can be named.
    fn is_other(&self, file: &Path, entry: &ModelEntry, first: &str) -> bool {
        file != self.first_file && !entry.name.eq_ignore_ascii_case(first)
    }

    /// Finds a model by name. Reads files. The first model has the name of its file in a folder too.
    ///
    /// # Errors
    /// If there is none, with the names that there are, or its file cannot be used.
    pub(super) fn find(&self, asked: Option<&str>) -> Result<Arc<ServedModel>, Failure> {
        let first = self.first()?;
        let Some(asked) = asked.filter(|asked| !asked.eq_ignore_ascii_case(&first.name)) else {
            return Ok(first);
        };
        let key = asked.to_ascii_lowercase();
        let known = self.opened.lock().get(&key).cloned();
        if let Some(known) = known.filter(OpenedModel::is_current) {
            return Ok(known.model);
        }
        let entries = self.entries();
        let found = entries.iter().find(|(_, entry)| entry.name.eq_ignore_ascii_case(asked));
        let Some((file, entry)) = found else {
            let others = entries.iter().filter(|(file, entry)| self.is_other(file, entry, &first.name));
            let others = others.map(|(_, entry)| &entry.name);
            return Err(no_such_model(asked, std::iter::once(&first.name).chain(others)));
        };
        let target = file_state(Path::new(&entry.path));
        let is_first = *file == self.first_file;
        let model = if is_first { first } else { Arc::new(self.open(entry)?) };
        let draft = model.plan.draft.iter().filter(|_| !is_first).map(|draft| file_state(draft));
        let files = std::iter::once(target).chain(draft).collect();
        self.opened.lock().insert(key, OpenedModel { files, model: model.clone() });
        Ok(model)
    }

    fn open(&self, entry: &ModelEntry) -> Result<ServedModel> {
        let places = self.installed.as_ref().map(|installed| installed.places.clone()).unwrap_or_default();
        let context = self.installed.as_ref().and_then(|installed| installed.context);
        let plan = load::plan(&places, PathBuf::from(&entry.path), self.draft_of(entry));
        let plan = LoadPlan { context, ..plan };
        let (encoder, context) = PromptEncoder::open(&plan)?;
        Ok(ServedModel {
            name: entry.name.clone(),
            encoder: Arc::new(encoder),
            context,
            plan,
            is_first: false,
        })
    }

    /// Returns the draft model of a target.
    fn draft_of(&self, target: &ModelEntry) -> Option<PathBuf> {
        let installed = self.installed.as_ref()?;
        let DraftChoice { named, no_others } = &installed.drafts;
        if let Some(draft) = named.get(&target.name.to_ascii_lowercase()) {
            // Without its file, the target answers alone.
            return draft.clone().filter(|draft| draft.exists());
        }
        if *no_others {
            return None;
        }
        let models = hunch_library::scan(&installed.places).models;
        self.judge(machine::held_by_models(&self.compute), |judge| {
            let offers = judge.query(&models, |pairs| pairs.offers(Path::new(&target.path), &[], None));
            // A target without offers answers alone.
            best_draft(&offers.ok()?)
        })
    }

    /// Calls `ask` with the machine, of whose memory loaded models hold `held` bytes.
    fn judge<T>(&self, held: u64, ask: impl FnOnce(&PairJudge<'_>) -> T) -> T {
        ask(&PairJudge {
            compute: &self.compute,
            machine: machine::memory(held, &self.compute),
            folder: self.installed.as_ref().and_then(|installed| installed.places.data.as_deref()),
            copies: None,
            saved_costs: &|_| None,
        })
    }

    /// Returns the limits of the caches of loaded models, before an answer of `max_tokens` tokens at most to a prompt of
    /// `prompt` tokens.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the caches of the prompt do not fit next to the models.
    pub(super) fn cache_limits(
        &self,
        models: &Models,
        conversations: usize,
        (prompt, max_tokens): (usize, usize),
    ) -> Result<CacheLimits> {
        let held = machine::held_by_models(&self.compute);
        let usable = machine::memory(held, &self.compute).usable;
        // Weights of all models and heads, and what passes have needed.
        let without_caches = held.saturating_sub(models.caches().bytes);
        let (needed, left) = (models.predicted_cache(prompt), usable.saturating_sub(without_caches));
        let unchecked = self.installed.as_ref().is_some_and(|all| all.ignore_memory_check);
        if !unchecked && !fits(needed, left, usable) {
            return Err(Error::OutOfMemory(format!(
                "the prompt of {prompt} tokens needs {} for its KV cache, and {} are left. Shorten it",
                megabytes(needed),
                megabytes(left)
            )));
        }
        let answer = models.predicted_cache(prompt.saturating_add(max_tokens).min(models.context()));
        Ok(CacheLimits { conversations, others: room_for_others(usable, without_caches, answer) })
    }

    /// Predicts the memory of a model. Loaded models hold `held` bytes.
    fn fit(&self, model: &ServedModel, held: u64) -> Result<Fit> {
        let spec = hunch_library::inspect(&model.plan.target)?.spec;
        let context = default_context(&spec).min(model.context) as u32;
        let plan = model.plan.without_missing_drafters();
        self.judge(held, |judge| judge.fit(&plan, Some(context), Vec::new))
    }

    /// Returns the plan that loads a model.
    pub(super) fn plan(&self, model: &ServedModel) -> LoadPlan {
        model.plan.clone()
    }

    /// Returns whether loaded models must be unloaded before a model is loaded.
    ///
    /// # Errors
    /// If the model does not fit into memory even then, or the host loads models.
    pub(super) fn has_to_make_room(&self, model: &ServedModel, loaded: bool) -> Result<bool> {
        if let ServedSource::Host(..) = self.source {
            return Err(Error::NoModel);
        }
        let held = if loaded { machine::held_by_models(&self.compute) } else { 0 };
        let fit = self.fit(model, held)?;
        let checked = !model.is_first && self.installed.as_ref().is_some_and(|all| !all.ignore_memory_check);
        if checked {
            load::check_memory(&fit, "")?;
        }
        Ok(loaded && load::has_to_make_room(&fit, held))
    }

    /// Sets the method of an answer, once its model is loaded.
    ///
    /// # Errors
    /// If the file was replaced by another model since its header was read.
    pub(super) fn complete(
        &self,
        model: &ServedModel,
        loaded: &Models,
        plan: &mut GenerationPlan,
    ) -> Result<()> {
        let vocabulary = |encoder: &PromptEncoder| encoder.tokenizer().vocab_size();
        let is_same =
            loaded.context() == model.context && vocabulary(loaded.encoder()) == vocabulary(&model.encoder);
        if !is_same {
            // The header of the first model is read at the start only.
            let remedy = if model.is_first { "Restart the server." } else { "Send the request again." };
            let message = format!("The file of {} was replaced by another model. {remedy}", model.name);
            return Err(Error::invalid(message));
        }
        if model.is_first && !loaded.usable_methods().contains(&plan.method) {
            // The file of its drafter is gone.
            plan.method = Method::Auto;
        }
        if !model.is_first {
            let named = self.installed.as_ref().map(|installed| installed.method);
            let usable = named.filter(|method| loaded.usable_methods().contains(method));
            plan.method = usable.unwrap_or(Method::Auto);
            // The other options are for the layers of the first model.
            let draft_window = plan.options.draft_window.filter(|window| window.tokens() <= loaded.context());
            plan.options = MethodOptions { draft_window, ..MethodOptions::default() };
        }
        Ok(())
    }
}

/// Returns whether caches of `needed` bytes fit into what is left of the usable memory.
fn fits(needed: u64, left: u64, usable: u64) -> bool {
    // The system may not say how much memory it has.
    usable == 0 || needed <= left
}

/// Returns the bytes for the caches of all conversations but one: what the models and that conversation leave of the
/// usable memory, less a tenth.
fn room_for_others(usable: u64, models: u64, conversation: u64) -> u64 {
    match usable {
        // The system does not say how much memory it has.
        0 => u64::MAX,
        usable => (usable - usable / 10).saturating_sub(models).saturating_sub(conversation),
    }
}

/// Returns the draft with the highest speedup over plain decoding, if one is above 1 and fits.
fn best_draft(offers: &DraftOffers) -> Option<PathBuf> {
    let usable = offers
        .offers
        .iter()
        .filter(|offer| matches!(offer.verdict, PairVerdict::Suits { .. }) && offer.fit == FitVerdict::Fits);
    let speedup = |offer: &DraftOffer| match (&offer.measured, &offer.predicted) {
        (Some(measured), _) => measured.speedup,
        (None, Some(predicted)) => predicted.speedup,
        (None, None) => 0.0,
    };
    let best = usable.max_by(|a, b| speedup(a).total_cmp(&speedup(b))).filter(|best| speedup(best) > 1.0);
    best?.path.as_ref().map(PathBuf::from)
}

/// Returns the first file of a model, without links.
fn first_file(path: &Path) -> PathBuf {
    let first = split::files(path).into_iter().next().unwrap_or_else(|| path.to_owned());
    first.canonicalize().unwrap_or(first)
}

fn file_state(path: &Path) -> FileState {
    let file = std::fs::metadata(path).ok();
    let modified = file.as_ref().and_then(|file| file.modified().ok());
    (path.to_owned(), file.map_or(0, |file| file.len()), modified)
}

/// Returns the failure of a request for an unknown model.
fn no_such_model<'a>(asked: &str, names: impl Iterator<Item = &'a String>) -> Failure {
    let mut names: Vec<&str> = names.map(String::as_str).collect();
    let rest = names.len().saturating_sub(MAX_LISTED);
    names.truncate(MAX_LISTED);
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    let message = format!("There is no model `{asked}`. Choose one of these: {}{more}.", names.join(", "));
    Failure { param: Some("model".into()), ..Failure::new(FailureKind::ModelNotFound, message) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_beyond_the_memory_that_is_left_are_refused() {
        assert!(fits(100, 100, 1000) && !fits(101, 100, 1000));
        assert!(fits(101, 0, 0), "unknown memory refuses nothing");
    }

    #[test]
    fn caches_get_the_memory_that_models_and_an_answer_leave() {
        assert_eq!(room_for_others(1000, 300, 100), 500);
        // A longer conversation leaves less.
        assert_eq!(room_for_others(1000, 300, 400), 200);
        assert_eq!(room_for_others(1000, 300, 700), 0);
        assert_eq!(room_for_others(0, 300, 700), u64::MAX);
    }
}
