//! Models that requests can name: the one that the server started with, and installed ones.
//!
//! Headers of model files are read here. Weights are read by the engine, when a request has its turn.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use hunch_core::method::Method;
use hunch_core::propose::MethodOptions;
use hunch_error::{Error, Result};
use hunch_library::fit::default_context;
use hunch_library::types::ModelEntry;
use hunch_library::{Places, machine};
use hunch_model::device::Compute;
use parking_lot::Mutex;

use super::errors::{Failure, FailureKind};
use crate::generate::{GenerationPlan, LoadPlan, Models, PromptEncoder};
use crate::services::load;
use crate::services::pair::PairJudge;

/// Most names in an error message.
const MAX_LISTED: usize = 40;

/// Installed models that a server loads when a request names them.
pub struct InstalledModels {
    /// Folders of models.
    pub places: Places,
    /// Names that requests may use. `None` allows all.
    pub only: Option<Vec<String>>,
    /// Method of answers, if a model can run it. `None` takes the recommended one of each model.
    pub method: Option<Method>,
    /// `true` to load models that are not expected to fit into memory.
    pub ignore_memory_check: bool,
}

impl InstalledModels {
    /// Returns the usable models. Reads headers that changed since the last time.
    fn entries(&self) -> Vec<ModelEntry> {
        let is_allowed = |name: &str| {
            self.only.as_ref().is_none_or(|only| only.iter().any(|one| one.eq_ignore_ascii_case(name)))
        };
        let scan = hunch_library::scan(&self.places);
        let mut entries = scan.models;
        entries.retain(|entry| entry.problem.is_none() && is_allowed(&entry.name));
        // Of models with the same name, the first is that of Hunch's own folder.
        entries.dedup_by(|later, first| later.name == first.name);
        entries
    }
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
    is_first: bool,
}

/// State of a model file: path, bytes, modification time.
type FileState = (PathBuf, u64, Option<SystemTime>);

/// Models of a server.
pub(super) struct ServedModels {
    pub(super) first: Arc<ServedModel>,
    installed: Option<InstalledModels>,
    compute: Compute,
    /// Models whose headers were read, by name.
    opened: Mutex<HashMap<String, (FileState, Arc<ServedModel>)>>,
}

/// Properties of a model in the list.
pub(super) struct ListedModel {
    pub(super) name: String,
    pub(super) context: usize,
}

impl ServedModels {
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
        Self { first: Arc::new(first), installed, compute, opened: Mutex::default() }
    }

    /// Returns a model that needs no file: the first one. `None` if the name is another's.
    pub(super) fn first_if_named(&self, asked: Option<&str>) -> Option<Arc<ServedModel>> {
        let is_first = asked.is_none_or(|asked| asked == self.first.name);
        is_first.then(|| self.first.clone())
    }

    /// Lists the models, the first one first. Reads files.
    pub(super) fn list(&self) -> Vec<ListedModel> {
        let ServedModel { name, context, .. } = &*self.first;
        let first = ListedModel { name: name.clone(), context: *context };
        let entries = self.installed.as_ref().map(InstalledModels::entries).unwrap_or_default();
        let others = entries.into_iter().filter(|entry| entry.name != *name);
        let others =
            others.map(|entry| ListedModel { name: entry.name, context: entry.context_length as usize });
        std::iter::once(first).chain(others).collect()
    }

    /// Finds a model by name. Reads files.
    ///
    /// # Errors
    /// If there is none, with the names that there are, or its file cannot be used.
    pub(super) fn find(&self, asked: &str) -> Result<Arc<ServedModel>, Failure> {
        if let Some(first) = self.first_if_named(Some(asked)) {
            return Ok(first);
        }
        let entries = self.installed.as_ref().map(InstalledModels::entries).unwrap_or_default();
        let found = entries.iter().find(|entry| entry.name.eq_ignore_ascii_case(asked));
        let Some(entry) = found else {
            let others = entries.iter().map(|entry| &entry.name).filter(|name| **name != self.first.name);
            return Err(no_such_model(asked, std::iter::once(&self.first.name).chain(others)));
        };
        let state = file_state(Path::new(&entry.path));
        if let Some((known, model)) = self.opened.lock().get(&entry.name)
            && *known == state
        {
            return Ok(model.clone());
        }
        let model = Arc::new(self.open(entry)?);
        self.opened.lock().insert(entry.name.clone(), (state, model.clone()));
        Ok(model)
    }

    fn open(&self, entry: &ModelEntry) -> Result<ServedModel> {
        let places = self.installed.as_ref().map(|installed| installed.places.clone()).unwrap_or_default();
        let plan = load::plan(&places, PathBuf::from(&entry.path), None);
        let (encoder, context) = PromptEncoder::open(&plan)?;
        Ok(ServedModel {
            name: entry.name.clone(),
            encoder: Arc::new(encoder),
            context,
            plan,
            is_first: false,
        })
    }

    /// Returns the plan that loads a model.
    pub(super) fn plan(&self, model: &ServedModel) -> LoadPlan {
        model.plan.clone()
    }

    /// Returns whether loaded models must be unloaded before a model is loaded.
    ///
    /// # Errors
    /// If the model does not fit into memory even then.
    pub(super) fn has_to_make_room(&self, model: &ServedModel, loaded: bool) -> Result<bool> {
        let LoadPlan { target, draft, head, .. } = &model.plan;
        let held = if loaded { machine::held_by_models(&self.compute) } else { 0 };
        let folder = self.installed.as_ref().and_then(|installed| installed.places.data.as_deref());
        let judge = PairJudge {
            compute: &self.compute,
            machine: machine::memory(held, &self.compute),
            folder,
            saved_costs: &|_| None,
        };
        let context = default_context(&hunch_library::inspect(target)?.spec).min(model.context) as u32;
        let fit = judge.fit(target, draft.as_deref(), head.as_deref(), Some(context), Vec::new)?;
        let checked = !model.is_first && self.installed.as_ref().is_some_and(|all| !all.ignore_memory_check);
        if checked {
            load::check_memory(&fit, ". Ask for a smaller model")?;
        }
        // The usable memory includes that of the loaded models.
        Ok(loaded && fit.total + held > fit.machine.usable)
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
            let message =
                format!("The file of {} was replaced by another model. Restart the server.", model.name);
            return Err(Error::invalid(message));
        }
        if !model.is_first {
            let named = self.installed.as_ref().and_then(|installed| installed.method);
            let named = named.filter(|method| loaded.usable_methods().contains(method));
            plan.method = named.unwrap_or_else(|| loaded.recommended_method());
            plan.options = MethodOptions::default();
        }
        Ok(())
    }
}

fn file_state(path: &Path) -> FileState {
    let file = std::fs::metadata(path).ok();
    let modified = file.as_ref().and_then(|file| file.modified().ok());
    (path.to_owned(), file.map_or(0, |file| file.len()), modified)
}

/// Returns the failure of a model that there is not.
fn no_such_model<'a>(asked: &str, names: impl Iterator<Item = &'a String>) -> Failure {
    let mut names: Vec<&str> = names.map(String::as_str).collect();
    let rest = names.len().saturating_sub(MAX_LISTED);
    names.truncate(MAX_LISTED);
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    let message = format!("There is no model `{asked}`. Choose one of these: {}{more}.", names.join(", "));
    Failure { param: Some("model".into()), ..Failure::new(FailureKind::ModelNotFound, message) }
}
