//! Loading and unloading of models, with progress and an idle timeout. [`crate::generate`] reads the files, on the
//! thread of [`crate::engine`].

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::Value;

use super::load_state::{ReadyModels, StopFlag};
use super::texts::{TEXTS, WithTexts};
use super::{App, AppParts};
use crate::api::{LoadedHead, LoadedModels};
use crate::bench::skip_sets::SearchedModel;
use crate::engine::LoadFailure;
use crate::generate::{LoadPlan, LoadStep, LoadWatch};
use crate::services::idle::unload_after;
use crate::services::load;
use crate::store::Store;
use hunch_error::{Error, Result, RunningWork};
use hunch_library::fit::default_context;
use hunch_library::types::{LibraryEvent, LoadProgress, LoadRequest, ModelEntry};
use hunch_library::{HeadEntry, Inspection, load_marker};
use hunch_model::low_bit;
use hunch_model::spec::ModelSpec;

/// Preference: minutes until idle models are unloaded. Absent or 0 means never.
const KEEP_WARM: &str = "keep_warm_minutes";

/// Time between two progress events.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

impl App {
    /// Loads a target and optionally a draft. If the target is loaded already, only the draft changes. Blocks until
    /// loading ends and sends progress events. Stops another load that is in progress. If it fails, the previous
    /// models are still loaded, though they may have been read again.
    ///
    /// # Errors
    /// When a file is missing, invalid or unsupported, or the pair shares too few tokens or does not fit in
    /// memory. Also while an answer is generated, and when it was stopped.
    pub fn load_models(&self, request: LoadRequest) -> Result<LoadedModels> {
        let (models, stop) = (&self.shared.models, StopFlag::default());
        models.begin_load(&stop);
        let _turn = models.wait_for_turn();
        let loaded = self.load_in_turn(&request, &stop);
        self.unmark_load();
        models.end_load(&stop);
        self.shared.idle_unloader.wake();
        loaded
    }

    fn load_in_turn(&self, request: &LoadRequest, stop: &StopFlag) -> Result<LoadedModels> {
        let found = self.find_requested(request)?;
        let inspected = |path: &Path| hunch_library::inspect_listed(path, &self.shared.places);
        let Inspection { entry: target_entry, spec, sampling, .. } = inspected(&found.target)?;
        let context = self.context_for(request, &target_entry, &spec);
        let make_room = self.has_to_make_room(&found, context)?;
        self.write_missing_copy(&found, stop)?;
        let draft_entry = found.draft.as_deref().map(inspected).transpose()?.map(|draft| draft.entry);
        let progress = Some(self.progress_callback(stop.clone(), false));
        let chosen_head = found.head.as_deref().and_then(hunch_library::head_at);
        let plan = LoadPlan { context: Some(context as usize), progress, ..found };
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        self.mark_load(&LoadRequest {
            target: target_entry.path.clone(),
            draft: draft_entry.as_ref().map(|draft| draft.path.clone()),
            ..request.clone()
        });
        let details = self.shared.engine.load(plan, make_room).map_err(|LoadFailure { error, empty }| {
            if empty && self.shared.models.clear() {
                self.announce(LibraryEvent::Unloaded);
            }
            error
        })?;
        let WithTexts { details, texts, problem: texts_problem } = self.use_chosen_texts(details, stop);
        let searched = SearchedModel { info: &spec.info(), read_by_a_pass: details.read_by_a_pass.0 };
        let loaded = LoadedModels {
            skipped_layers: self.skipped_layers(searched),
            target: target_entry,
            methods: details.methods.clone(),
            draft: draft_entry,
            head: chosen_head.map(|HeadEntry { name, path, head }| LoadedHead {
                name,
                path: path.display().to_string(),
                kind: head.kind,
            }),
            context: details.context as u32,
            device: self.shared.compute.name().into(),
            thinking: Some(details.thinking.clone()).filter(|choices| !choices.is_empty()),
            sampling: Some(sampling).filter(|sampling| !sampling.is_empty()),
            template_note: details.template_note.clone(),
            device_note: details.device_note.clone(),
            head_note: details.head_note.clone(),
            draft_placement: details.draft_placement.clone(),
            texts,
            texts_problem,
        };
        self.shared.models.set_ready(ReadyModels { loaded: loaded.clone(), details });
        self.remember_loaded(&loaded);
        Ok(loaded)
    }

    /// Writes the target's low-bit copy if it is the draft and missing.
    fn write_missing_copy(&self, plan: &LoadPlan, stop: &StopFlag) -> Result<()> {
        let Some(copy) = plan.draft.as_ref().filter(|draft| self.is_low_bit_copy(draft)) else {
            return Ok(());
        };
        if low_bit::is_written(copy) || self.low_bit_path(&plan.target)?.as_ref() != Some(copy) {
            return Ok(());
        }
        // Nothing is measured meanwhile, and no answer is in the way of the load at the end.
        let _hold = self.shared.engine.hold(self.next_id(), RunningWork::Loading)?;
        let watch = self.progress_callback(stop.clone(), true);
        let threads = self.shared.compute.threads().count();
        load::ensure_low_bit_copy(&plan.target, copy, threads, &mut |done, total| {
            watch(LoadStep { path: &plan.target, done: done as u64, total: total as u64 })
        })
    }

    /// Remembers models outside the library, so that they may be loaded again at the next start.
    fn remember_loaded(&self, loaded: &LoadedModels) {
        let entries = [Some(&loaded.target), loaded.draft.as_ref()];
        let paths = entries.into_iter().flatten().map(|entry| Path::new(&entry.path));
        let paths: Vec<&Path> = paths.filter(|path| !self.is_low_bit_copy(path)).collect();
        let listed = hunch_library::are_listed(&paths, &self.shared.places);
        let elsewhere: Vec<&Path> =
            paths.into_iter().zip(listed).filter(|(_, listed)| !listed).map(|(path, _)| path).collect();
        if let Err(error) = hunch_library::remember_loaded(&self.shared.places, &elsewhere) {
            tracing::warn!("A loaded model could not be remembered: {error}");
        }
    }

    /// Returns the requested context, else the one of the loaded target, else the default.
    fn context_for(&self, request: &LoadRequest, target: &ModelEntry, spec: &ModelSpec) -> u32 {
        let as_it_is = || {
            let models = self.shared.models.ready().ok()?;
            (models.loaded.target.path == target.path).then_some(models.loaded.context)
        };
        let context = request.context.or_else(as_it_is).unwrap_or_else(|| default_context(spec) as u32);
        context.min(target.context_length)
    }

    /// Returns whether the loaded models must be unloaded to make room.
    ///
    /// # Errors
    /// [`Refusal::ModelTooLarge`](hunch_error::Refusal::ModelTooLarge) when the new ones do not fit even then. Nothing has changed.
    fn has_to_make_room(&self, plan: &LoadPlan, context: u32) -> Result<bool> {
        let fit = self.fit_plan(plan, Some(context))?;
        load::check_memory(&fit, ", and what was in memory is still there")?;
        Ok(load::has_to_make_room(&fit, self.held_by_models()))
    }

    /// Marks models as being loaded, so that the next start knows if they ended the program.
    fn mark_load(&self, request: &LoadRequest) {
        let Some(folder) = &self.shared.side_folder else { return };
        if let Err(error) = load_marker::set(folder, request) {
            tracing::warn!("A crash while models load would not be noticed. {error}");
        }
    }

    /// Removes the mark of [`mark_load`](Self::mark_load).
    pub(super) fn unmark_load(&self) {
        if let Some(folder) = &self.shared.side_folder {
            load_marker::clear(folder);
        }
    }

    /// Stops the load in progress, even one that has not begun. The previous models stay loaded.
    pub fn cancel_loading(&self) {
        self.shared.models.stop_load();
    }

    /// Unloads the models.
    ///
    /// # Errors
    /// [`Error::Busy`] while they are in use, or others are being loaded.
    pub fn unload_models(&self) -> Result<()> {
        let _turn = self.shared.models.try_turn()?;
        self.shared.engine.unload()?;
        self.shared.models.clear();
        self.announce(LibraryEvent::Unloaded);
        Ok(())
    }

    /// Stores a preference and applies it at once.
    ///
    /// # Errors
    /// When it is too large, it has a command of its own, or the file cannot be written.
    pub fn set_preference(&self, key: &str, value: &Value) -> Result<()> {
        if key == TEXTS {
            return Err(Error::invalid("Texts to copy from are chosen with a command of their own."));
        }
        self.store().set_preference(key, value)?;
        if key == KEEP_WARM {
            self.shared.idle_unloader.keep_for(minutes(value));
        }
        Ok(())
    }

    /// Makes the callback that sends progress events of the library. `writes_copy` if a low-bit copy is written.
    fn progress_callback(&self, stop: StopFlag, writes_copy: bool) -> LoadWatch {
        let shared = Arc::downgrade(&self.shared);
        load_watch(stop, move |progress| {
            let Some(shared) = shared.upgrade() else { return ControlFlow::Break(()) };
            App { shared }
                .announce(LibraryEvent::Loading { progress: LoadProgress { writes_copy, ..progress } });
            ControlFlow::Continue(())
        })
    }

    /// Starts the thread that unloads idle models.
    pub(super) fn start_idle_unloader(&self) -> Result<()> {
        let shared = Arc::downgrade(&self.shared);
        self.shared.idle_unloader.start(move |keep| unload_if_idle(&shared, keep))
    }
}

/// Makes a callback that calls `announce` with the progress from time to time. Loading ends early if `announce` breaks,
/// or once `stop` is set.
pub(super) fn load_watch(
    stop: StopFlag,
    announce: impl Fn(LoadProgress) -> ControlFlow<()> + Send + Sync + 'static,
) -> LoadWatch {
    let last = Mutex::new(None::<Instant>);
    Arc::new(move |step| {
        if stop.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        let mut last = last.lock();
        if last.is_some_and(|at| at.elapsed() < PROGRESS_EVERY) {
            return ControlFlow::Continue(());
        }
        *last = Some(Instant::now());
        announce(LoadProgress {
            name: hunch_library::short_name(step.path),
            writes_copy: false,
            done_bytes: step.done,
            total_bytes: step.total,
        })
    })
}

impl Drop for AppParts {
    fn drop(&mut self) {
        self.idle_unloader.end();
    }
}

/// Returns the idle timeout the person has set.
pub(super) fn keep_warm(store: &Store) -> Option<Duration> {
    store.preferences().ok().and_then(|preferences| minutes(preferences.get(KEEP_WARM)?))
}

fn minutes(value: &Value) -> Option<Duration> {
    value
        .as_f64()
        .filter(|minutes| *minutes > 0.0 && *minutes < 1e6)
        .map(|m| Duration::from_secs_f64(m * 60.0))
}

/// Unloads the models if they have been idle for `keep`. Returns the time until the next check, or `None` if no models
/// are loaded.
fn unload_if_idle(shared: &Weak<AppParts>, keep: Duration) -> Option<Duration> {
    let app = App { shared: shared.upgrade()? };
    app.shared.models.ready().ok()?;
    unload_after(keep, app.shared.engine.idle_for(), || app.unload_models())
}
