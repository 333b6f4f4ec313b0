//! Training of a head from the window: one run at a time, on the engine's thread, so that it excludes answers and
//! measurements. The folder of the data holds the state, so a run continues after a pause, a restart or a kill.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::App;
use super::measure::{MeasurementSink, snapshot};
use super::stream::{EventLog, LogWriter};
use crate::api::{MeasurementMessage, TrainEvent, TrainOutcome, TrainOutlook, TrainRequest};
use crate::services::load::check_memory;
use crate::services::train::{self as service, Speeds, TrainNeeds, Trained};
use crate::store::CurveOf;
use crate::train::record::TrainRun;
use crate::train::shards::collected;
use crate::train::target::layers;
use crate::train::{Budget, Interrupt, Recipe, TrainPlan, TrainProgress, TrainWatch, TrainingTarget};
use hunch_error::{Error, ErrorInfo, Refusal, Result, RunningWork};
use hunch_library::fit::Footprint;
use hunch_library::types::LoadRequest;
use hunch_library::{HEADS_FOLDER, Inspection};
use hunch_model::weights::WeightFile;

/// Seed of the window's runs. The command line continues them.
const SEED: u64 = 1;
/// Fewest and most tokens to train on.
const TOKENS: std::ops::RangeInclusive<u32> = 1_000..=10_000_000;
/// Time between two progress events.
const EVERY: Duration = Duration::from_millis(500);
/// Longest context of the target while it writes.
const CONTEXT: usize = 2_048;

/// The current or last run.
#[derive(Default)]
pub(super) enum Training {
    /// None yet.
    #[default]
    Idle,
    /// At work. `finish` is set to finish early.
    Running { log: Arc<EventLog<TrainEvent>>, finish: Arc<AtomicBool> },
    /// Finished, paused or failed. The log ends with which of them.
    Ended { log: Arc<EventLog<TrainEvent>> },
}

impl Training {
    fn log(&self) -> Option<&Arc<EventLog<TrainEvent>>> {
        match self {
            Self::Idle => None,
            Self::Running { log, .. } | Self::Ended { log } => Some(log),
        }
    }

    /// Asks a running run to finish early.
    fn finish(&self, id: u32) {
        if let Self::Running { log, finish } = self
            && log.id() == id
        {
            finish.store(true, Ordering::Relaxed);
        }
    }

    /// Ends a running run.
    fn end(&mut self, id: u32) {
        if let Self::Running { log, .. } = self
            && log.id() == id
        {
            *self = Self::Ended { log: log.clone() };
        }
    }
}

impl App {
    /// Predicts the time, disk and memory of training a head, and returns the state of an earlier run. Reads files.
    ///
    /// # Errors
    /// When the model is missing or unusable, or this user has no data folder.
    pub fn training_outlook(&self, request: &TrainRequest) -> Result<TrainOutlook> {
        let Outlook { needs, place, .. } = self.outlook(request)?;
        let (rows, _) = collected(&place.folder).unwrap_or_default();
        Ok(TrainOutlook {
            disk_bytes: needs.disk.saturating_sub(needs.held),
            disk_free: hunch_library::download::free_space(&place.folder),
            collect_seconds: needs.collecting,
            fit_seconds: needs.fitting,
            measured: needs.measured,
            collected: rows as u64,
            run: TrainRun::read(&place.folder, request.kind),
            unfinished: TrainRun::unfinished(&place.folder),
        })
    }

    /// Starts or continues training a head, and returns the number of the run. The loaded models are unloaded first,
    /// because the target is read once more to train.
    ///
    /// # Errors
    /// [`Error::Busy`] while something else runs. [`Refusal::ModelTooLarge`], [`Refusal::TrainingTooLarge`] or
    /// [`Refusal::NoDiskForTraining`] if memory or disk are too small. [`Error::InvalidRequest`] if the target can have no
    /// such head. Nothing has changed then. Later errors are events.
    pub fn train_drafter(&self, request: &TrainRequest, sink: MeasurementSink<TrainEvent>) -> Result<u32> {
        let outlook = self.outlook(request)?;
        self.check_training(request, &outlook)?;
        let Outlook { needs, place, .. } = outlook;
        self.shared.engine.check_free()?;
        if self.shared.models.ready().is_ok() {
            self.unload_models()?;
        }
        let (id, log, writer) = self.open_log(sink)?;
        let finish = Arc::new(AtomicBool::new(false));
        let run = TrainRun::read(&place.folder, request.kind).unwrap_or_default();
        let mut reporter = Reporter {
            run: TrainRun { kind: request.kind, tokens: request.tokens, ..run },
            folder: place.folder.clone(),
            writer: writer.clone(),
            fitting: needs.fitting,
            last: None,
            stepped: None,
            finish: finish.clone(),
        };
        let (compute, shared) = (self.shared.compute.clone(), Arc::downgrade(&self.shared));
        let plan = TrainPlan {
            budget: Budget::Tokens(request.tokens as usize),
            seed: SEED,
            // The disk was checked. The data may not grow beyond the prediction by more than the last answers.
            disk: needs.disk + needs.disk / 4,
            recipe: Recipe::of(request.kind),
        };
        // Before the engine starts, because the run may end at once.
        let before = std::mem::replace(&mut *self.shared.training.lock(), Training::Running { log, finish });
        let occupied = self.shared.engine.occupy(
            id,
            RunningWork::Training,
            move |stopped| {
                let target = TrainingTarget::open(&place.target, &compute)?;
                let mut watch = ReporterWatch { reporter: &mut reporter, stopped };
                let trained = service::train(
                    &target,
                    service::TrainFolders { run: &place.folder, heads: &place.heads },
                    &plan,
                    None,
                    &mut watch,
                );
                reporter.end(trained)
            },
            move |ended| {
                if let Some(shared) = shared.upgrade() {
                    shared.training.lock().end(id);
                }
                writer.put(ended.unwrap_or_else(|e| TrainEvent::Failed { error: ErrorInfo::from(&e) }))
            },
        );
        if let Err(error) = occupied {
            *self.shared.training.lock() = before;
            return Err(error);
        }
        Ok(id)
    }

    /// Stops a run early and keeps the best head so far. Has no effect on one that has ended. To pause it, stop it like
    /// a measurement.
    pub fn finish_training(&self, id: u32) {
        self.shared.training.lock().finish(id);
    }

    /// Returns the events of the last run, from number `from` to the newest.
    ///
    /// # Errors
    /// [`Refusal::NoLongerKept`] when `id` is not the last one.
    pub fn training_snapshot(&self, id: u32, from: u32) -> Result<MeasurementMessage<TrainEvent>> {
        snapshot(self.shared.training.lock().log().cloned(), id, from)
    }

    /// Deletes the data of a run. Heads that are in use stay.
    ///
    /// # Errors
    /// [`Error::Busy`] while something runs, and when the folder cannot be removed.
    pub fn discard_training(&self, target: &str) -> Result<()> {
        self.shared.engine.check_free()?;
        service::discard(&self.place(target)?.folder)
    }

    /// Returns the files of a target's training.
    fn place(&self, target: &str) -> Result<TrainPlace> {
        let target = self.find_model(target)?;
        let data = self.shared.places.data.as_deref().ok_or(Refusal::NoDataFolder)?;
        let folder = hunch_library::training_folder_in(data, &target, SEED)?;
        Ok(TrainPlace { folder, heads: data.join(HEADS_FOLDER), target })
    }

    /// Reads the target's header, and predicts what its training takes.
    fn outlook(&self, request: &TrainRequest) -> Result<Outlook> {
        let place = self.place(&request.target)?;
        let Inspection { entry, spec, .. } =
            hunch_library::inspect_listed(&place.target, &self.shared.places)?;
        let recipe = Recipe::of(request.kind);
        let compute = &self.shared.compute;
        let file = WeightFile::open(&place.target)?;
        let read_by_a_pass = Footprint::on_device(file.gguf(), compute)?.read_by_a_pass;
        let curve = self.store().known_costs(&CurveOf::on(compute, (&spec.name, read_by_a_pass), None));
        let pass_ms = curve.and_then(|curve| {
            let point = |point: &&hunch_core::pass_cost::CostPoint| point.rows as usize == recipe.parallel;
            curve.target.points.iter().find(point).map(|point| point.ms)
        });
        let run = TrainRun::read(&place.folder, request.kind);
        let step = run.filter(|run| run.step > 0 && run.fit_seconds > 0.0);
        let speeds = Speeds {
            decoding: entry.tokens_per_second,
            pass_ms,
            step: step.map(|run| run.fit_seconds / f64::from(run.step)),
            threads: compute.threads().count(),
        };
        let needs = service::needs(&spec, &recipe, u64::from(request.tokens), &place.folder, speeds);
        let sizes = (layers(spec.n_layer).len(), spec.n_embd);
        Ok(Outlook { needs, place, context: spec.context_length.min(CONTEXT) as u32, sizes })
    }

    fn check_training(&self, request: &TrainRequest, outlook: &Outlook) -> Result<()> {
        let Outlook { needs, place, context, sizes } = outlook;
        let (taps, width) = *sizes;
        request.kind.check(taps, width)?;
        if !TOKENS.contains(&request.tokens) {
            return Err(Error::invalid(format!(
                "Training takes {} to {} tokens.",
                TOKENS.start(),
                TOKENS.end()
            )));
        }
        let target = request.target.clone();
        let fit = self.fit(&LoadRequest { target, draft: None, head: None, context: Some(*context) })?;
        check_memory(&fit, ", and nothing was changed")?;
        if fit.total + needs.memory > fit.machine.usable {
            return Err(Refusal::TrainingTooLarge { needed: needs.memory }.into());
        }
        let free = hunch_library::download::free_space(&place.folder);
        let missing = needs.disk.saturating_sub(needs.held);
        match free {
            Some(free) if missing > free => Err(Refusal::NoDiskForTraining { needed: missing, free }.into()),
            _ => Ok(()),
        }
    }
}

/// Needs and place of a training.
struct Outlook {
    needs: TrainNeeds,
    place: TrainPlace,
    /// Context of the target while it writes.
    context: u32,
    /// Layers that are collected, and the target's width.
    sizes: (usize, usize),
}

/// Files of a training.
struct TrainPlace {
    target: PathBuf,
    /// Data and checkpoints.
    folder: PathBuf,
    /// Heads that decoding finds.
    heads: PathBuf,
}

/// Keeps the record of a run and sends its events.
struct Reporter {
    run: TrainRun,
    folder: PathBuf,
    writer: LogWriter<TrainEvent>,
    /// Predicted seconds of all gradient steps.
    fitting: f64,
    /// Time of the last event.
    last: Option<Instant>,
    /// Time of the last gradient step.
    stepped: Option<Instant>,
    finish: Arc<AtomicBool>,
}

impl Reporter {
    fn observe(&mut self, progress: TrainProgress) {
        let measured = self.run.observe(progress);
        let seconds_left = match progress {
            TrainProgress::Collecting { tokens, goal, per_second } => {
                let left = goal.unwrap_or(tokens).saturating_sub(tokens) as f64;
                (per_second > 0.0).then(|| left / per_second + self.fitting)
            }
            TrainProgress::Solving => Some(self.fitting),
            TrainProgress::Fitting { step, total, .. } => {
                let now = Instant::now();
                if let Some(before) = self.stepped.replace(now) {
                    self.run.fit_seconds += (now - before).as_secs_f64();
                } else if step == 1 {
                    self.run.fit_seconds = 0.0;
                }
                let each = self.run.fit_seconds / step as f64;
                (each > 0.0).then(|| each * (total - step) as f64)
            }
        };
        if measured || self.last.is_none_or(|at| at.elapsed() >= EVERY) {
            self.last = Some(Instant::now());
            self.writer.put(TrainEvent::Progress { run: self.run.clone(), seconds_left });
        }
        if measured {
            self.save();
        }
    }

    /// Returns the last event of a run that ended or was paused.
    fn end(&mut self, trained: Result<Trained>) -> Result<TrainEvent> {
        let outcome = match trained {
            Err(Error::Stopped) => None,
            Err(error) => {
                self.save();
                return Err(error);
            }
            Ok(Trained { report, in_use, installed, .. }) => {
                self.run.finished = true;
                let (start, trained) = (report.start.first, report.trained.first);
                let in_use = in_use.map(|used| used.first);
                Some(TrainOutcome { start, trained, in_use, installed })
            }
        };
        self.save();
        Ok(TrainEvent::Finished { run: self.run.clone(), outcome })
    }

    /// Writes the record. Without one a run still continues, only its curve is lost.
    fn save(&self) {
        if let Err(error) = write_in(&self.folder, &self.run) {
            tracing::warn!("The state of a training run was not saved: {error}");
        }
    }
}

fn write_in(folder: &Path, run: &TrainRun) -> Result<()> {
    if folder.is_dir() { run.write(folder) } else { Ok(()) }
}

/// Passes progress on, and the wish to pause or to finish back.
struct ReporterWatch<'a> {
    reporter: &'a mut Reporter,
    stopped: &'a dyn Fn() -> bool,
}

impl TrainWatch for ReporterWatch<'_> {
    fn progress(&mut self, progress: TrainProgress) {
        self.reporter.observe(progress);
    }

    fn interrupt(&self) -> Option<Interrupt> {
        let finish = self.reporter.finish.load(Ordering::Relaxed);
        (self.stopped)().then_some(Interrupt::Pause).or_else(|| finish.then_some(Interrupt::Finish))
    }
}
