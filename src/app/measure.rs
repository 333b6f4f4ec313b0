//! Measurements: comparisons, the cost curve, and the search for layers to skip. The engine runs them, the window receives
//! their events, and the store keeps the results.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::App;
use super::load_state::StopFlag;
use super::loading::load_watch;
use super::stream::{EventLog, LogWriter};
use crate::api::{MeasurementMessage, SuiteFile};
use crate::bench::compare::report::{
    CompareEvent, CompareRequest, ComparedPrompts, ComparisonEntry, ComparisonFormat, ComparisonReport,
};
use crate::bench::compare::{self, CompareOn, ComparisonResult, LaneSet, Listener, export};
use crate::bench::skip_search::{SearchStep, SearchWatch, SkipSearchEvent};
use crate::bench::{Suite, cost_curve};
use crate::engine::Loaded;
use crate::generate::LoadWatch;
use crate::lab::report::CostEvent;
use crate::services::{measure, skip_search};
use crate::store::CurveOf;
use hunch_core::method::Method;
use hunch_core::pass_cost::{CostCurve, DrafterCosts};
use hunch_error::ErrorInfo;
use hunch_error::{Error, Refusal, Result};
use hunch_library::speed_log::Rates;
use hunch_library::types::{LibraryEvent, MeasuredSpeedup};
use hunch_model::atomic_file;
use hunch_model::device::Compute;
use hunch_model::input_file;

/// Maximum length of a comparison's name, in characters of its prompt.
const TITLE_CHARS: usize = 80;

/// Events of the last measurement of each kind.
#[derive(Default)]
pub(super) struct Measurements {
    comparison: Option<Arc<EventLog<CompareEvent>>>,
    costs: Option<Arc<EventLog<CostEvent>>>,
    skip_search: Option<Arc<EventLog<SkipSearchEvent>>>,
}

/// Callback for the messages of a measurement, in order.
pub type MeasurementSink<E> = Box<dyn FnMut(MeasurementMessage<E>) + Send>;

impl App {
    /// Opens the log of a new measurement, whose events go to `sink`. Returns its number and the writer of events too.
    pub(super) fn open_log<E>(
        &self,
        mut sink: MeasurementSink<E>,
    ) -> Result<(u32, Arc<EventLog<E>>, LogWriter<E>)>
    where
        E: Clone + serde::Serialize + Send + 'static,
    {
        let id = self.next_id();
        let (log, writer) = EventLog::open(id);
        log.pump(Box::new(move |seq, events| sink(MeasurementMessage { id, seq, events })), || ())?;
        Ok((id, log, writer))
    }
}

pub(super) fn snapshot<E>(log: Option<Arc<EventLog<E>>>, id: u32, from: u32) -> Result<MeasurementMessage<E>>
where
    E: Clone + serde::Serialize + Send + 'static,
{
    let log = log.filter(|log| log.id() == id);
    let log = log.ok_or(Refusal::NoLongerKept)?;
    Ok(MeasurementMessage { id, seq: from, events: log.after(from as usize, usize::MAX) })
}

impl App {
    /// Reads a file of prompts for a comparison.
    ///
    /// # Errors
    /// When it is no regular file, cannot be read, or is not a suite.
    pub fn read_suite(&self, path: &Path) -> Result<SuiteFile> {
        input_file::regular(path)?;
        let Suite { name, prompts } = Suite::load(path)?;
        Ok(SuiteFile { path: path.display().to_string(), name, prompts: prompts.len() as u32 })
    }

    /// Starts a comparison and returns its id. The result is stored; `sink` receives the events.
    ///
    /// # Errors
    /// When no model is loaded, the engine is busy, or the server is not in the list. Also when models of a lane are
    /// missing or too large. Another invalid request is reported as an event.
    pub fn compare(&self, request: CompareRequest, sink: MeasurementSink<CompareEvent>) -> Result<u32> {
        if let ComparedPrompts::File { path, .. } = &request.prompts {
            input_file::regular(path)?;
        }
        let (sets, speeds) = (self.lane_sets(&request)?, self.speed_recorder());
        let client = request.server.as_ref().map(|server| self.server(&server.address)).transpose()?;
        let (id, log, writer) = self.open_log(sink)?;
        let last = writer.clone();
        let options = self.method_options(&request.options);
        let compute = self.shared.compute.clone();
        let title = title(&request.prompts);
        let store = self.store();
        let shared = Arc::downgrade(&self.shared);
        self.shared.engine.run_swapping(
            id,
            move |models, stop| {
                let sets = watched(sets, stop, &writer);
                let restoring = Some(restoring(&writer));
                let stopped = || stop.load(Ordering::Relaxed);
                let mut listener = Listener { on_event: &mut |event| writer.put(event), stopped: &stopped };
                let on = CompareOn { models, sets: &sets, options: &options, compute: &compute, restoring };
                let outcome = measure::compare(on, &request, &mut listener)?;
                let ComparisonResult { mut report, mut stopped, trouble } = outcome;
                let complete = !stopped && trouble.is_none();
                let asked = client.as_ref().zip(request.server.clone());
                if let (Some(report), Some((client, server)), true) = (&mut report, asked, complete) {
                    let answered = compare::server::run(client, server, &report.setting, &mut listener);
                    let missing = answered.answers.len() < report.setting.turns();
                    stopped |= missing && answered.error.is_none() && (listener.stopped)();
                    report.server = Some(Box::new(answered));
                }
                let trouble = trouble.as_ref().map(|error| Box::new(ErrorInfo::from(error)));
                let report = report.map(Box::new);
                // A comparison that cannot be stored is still shown.
                let kept = report
                    .as_ref()
                    .and_then(|report| store.add_comparison(&entry(report, title)?, report).ok());
                Ok(CompareEvent::Finished { report, kept, stopped, trouble })
            },
            move |ended, loaded| {
                // The loaded models were unloaded for others, and could not be loaded again.
                let app = shared.upgrade().filter(|_| !loaded);
                if let Some(app) = app.map(|shared| App { shared })
                    && app.shared.models.clear()
                {
                    app.announce(LibraryEvent::Unloaded);
                }
                let ended = ended.unwrap_or_else(|error| CompareEvent::Failed { error: (&error).into() });
                // Written after the end is sent, so that nobody waits for a file.
                let measured = MeasuredSpeeds::of(&ended);
                last.put(ended);
                if let Some((speeds, measured)) = speeds.zip(measured) {
                    speeds.record(measured.rates);
                    measured.pair.into_iter().for_each(|speedup| speeds.record_pair(speedup));
                }
            },
        )?;
        self.shared.measurements.lock().comparison = Some(log);
        Ok(id)
    }

    /// Returns the events of the last comparison, from number `from` to the newest.
    ///
    /// # Errors
    /// [`Refusal::NoLongerKept`] when `id` is not the last one.
    pub fn compare_snapshot(&self, id: u32, from: u32) -> Result<MeasurementMessage<CompareEvent>> {
        snapshot(self.shared.measurements.lock().comparison.clone(), id, from)
    }

    /// Starts measuring the cost of passes and returns the measurement's id. The curve is stored.
    ///
    /// # Errors
    /// When no model is loaded or the engine is busy.
    pub fn measure_costs(&self, sink: MeasurementSink<CostEvent>) -> Result<u32> {
        let loaded = self.shared.models.ready()?;
        let (id, log, writer) = self.open_log(sink)?;
        let last = writer.clone();
        let (compute, store) = (self.shared.compute.clone(), self.store());
        self.shared.engine.run(
            id,
            move |models, stopped| {
                let curve = cost_curve::measure(models, &compute, stopped, &mut |done, total| {
                    writer.put(CostEvent::Progress { done: done as u32, total: total as u32 });
                })?;
                if let Some(curve) = &curve {
                    store.set_cost_curve(&curve_of(&loaded.details, &compute), curve)?;
                }
                Ok(CostEvent::Finished { curve: curve.map(Box::new) })
            },
            move |ended| {
                last.put(ended.unwrap_or_else(|error| CostEvent::Failed { error: (&error).into() }));
            },
        )?;
        self.shared.measurements.lock().costs = Some(log);
        Ok(id)
    }

    /// Returns the events of the last measurement of costs, from number `from` to the newest.
    ///
    /// # Errors
    /// [`Refusal::NoLongerKept`] when `id` is not the last one.
    pub fn costs_snapshot(&self, id: u32, from: u32) -> Result<MeasurementMessage<CostEvent>> {
        snapshot(self.shared.measurements.lock().costs.clone(), id, from)
    }

    /// Returns the last cost curve of the loaded models on this device.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn cost_curve(&self) -> Result<Option<CostCurve>> {
        let Ok(loaded) = self.shared.models.ready() else { return Ok(None) };
        let details = &loaded.details;
        let curve = self.store().cost_curve(&curve_of(details, &self.shared.compute))?;
        // The head may have changed since, and a copy of the target may be unloaded.
        let head = details.plan.head.as_ref().map(|path| path.to_string_lossy().into_owned());
        let drafts = |costs: &DrafterCosts| {
            details.methods.iter().any(|method| method.name() == costs.drafter)
                && (costs.drafter != Method::Head.name() || costs.head == head)
        };
        Ok(curve.map(|mut curve| {
            curve.drafters.retain(drafts);
            curve
        }))
    }

    /// Starts a search for the layers that the target skips in the method layer-skip, and returns its number. The result
    /// is saved, and used from the next answer on.
    ///
    /// # Errors
    /// When no model is loaded, the engine is busy, or this user has no data folder.
    pub fn search_skipped_layers(&self, sink: MeasurementSink<SkipSearchEvent>) -> Result<u32> {
        let target = self.shared.models.ready()?.loaded.target.path.clone();
        let data = self.shared.places.data.clone().ok_or(Refusal::NoDataFolder)?;
        let suites = skip_search::SUITES.iter().map(|name| Suite::named_or_file(name));
        let suites = suites.collect::<Result<Vec<_>>>()?;
        let (id, log, writer) = self.open_log(sink)?;
        let last = writer.clone();
        let shared = Arc::downgrade(&self.shared);
        self.shared.engine.run(
            id,
            move |models, stopped| {
                let mut watch = SearchEvents { writer, stopped };
                let found = match skip_search::run(models, &suites, skip_search::PROMPTS, &mut watch) {
                    Err(Error::Stopped) => return Ok(None),
                    found => found?,
                };
                skip_search::save(&data, models, &found)?;
                Ok(Some(found))
            },
            move |found| {
                if let (Ok(Some(found)), Some(shared)) = (&found, shared.upgrade()) {
                    shared.models.set_skipped_layers(&target, found.best.skipped.clone());
                }
                last.put(match found {
                    Ok(found) => SkipSearchEvent::Finished { found: found.map(Box::new) },
                    Err(error) => SkipSearchEvent::Failed { error: (&error).into() },
                });
            },
        )?;
        self.shared.measurements.lock().skip_search = Some(log);
        Ok(id)
    }

    /// Returns the events of the last search for skipped layers, from number `from` to the newest.
    ///
    /// # Errors
    /// [`Refusal::NoLongerKept`] when `id` is not the last one.
    pub fn skip_search_snapshot(&self, id: u32, from: u32) -> Result<MeasurementMessage<SkipSearchEvent>> {
        snapshot(self.shared.measurements.lock().skip_search.clone(), id, from)
    }

    /// Stops a measurement within one pass. Has no effect on one that has ended.
    pub fn stop_measurement(&self, id: u32) {
        self.shared.engine.cancel(id);
    }

    /// Lists the comparisons, newest first.
    ///
    /// # Errors
    /// [`Error::Store`](hunch_error::Error::Store) when the file cannot be read or written. The same holds for the methods below.
    pub fn list_comparisons(&self) -> Result<Vec<ComparisonEntry>> {
        Ok(self.store().comparisons()?)
    }

    /// Returns a stored comparison.
    ///
    /// # Errors
    /// When there is no such comparison.
    pub fn open_comparison(&self, id: i64) -> Result<ComparisonReport> {
        Ok(self.store().comparison(id)?)
    }

    /// Removes a comparison.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn delete_comparison(&self, id: i64) -> Result<()> {
        Ok(self.store().delete_comparison(id)?)
    }

    /// Writes a comparison to a file.
    ///
    /// # Errors
    /// When there is no such comparison, or the file cannot be written. An older file is unchanged then.
    pub fn export_comparison(&self, id: i64, format: ComparisonFormat, path: &Path) -> Result<()> {
        let text = export::export(&self.store().comparison(id)?, format)?;
        atomic_file::write(path, &text)
    }
}

/// Sends the steps of a search as events.
struct SearchEvents<'a> {
    writer: LogWriter<SkipSearchEvent>,
    stopped: &'a dyn Fn() -> bool,
}

impl SearchWatch for SearchEvents<'_> {
    fn step(&mut self, step: SearchStep) {
        self.writer.put(step.into());
    }

    fn stopped(&self) -> bool {
        (self.stopped)()
    }
}

/// Speeds that a comparison measured.
struct MeasuredSpeeds {
    rates: Rates,
    /// Speedup of the pair, if the comparison was complete and used the draft.
    pair: Option<MeasuredSpeedup>,
}

impl MeasuredSpeeds {
    /// Returns the speeds of a comparison that was stored.
    fn of(ended: &CompareEvent) -> Option<Self> {
        let CompareEvent::Finished { report: Some(report), kept: Some(comparison), stopped, trouble } = ended
        else {
            return None;
        };
        let complete = !stopped && trouble.is_none();
        let pair = complete.then(|| measure::pair_speedup(report, *comparison)).flatten();
        Some(Self { rates: report.rates(), pair })
    }
}

/// Lets loads of a comparison send their progress, and end once it is stopped.
fn watched(sets: Vec<LaneSet>, stop: &StopFlag, writer: &LogWriter<CompareEvent>) -> Vec<LaneSet> {
    let watched = |mut set: LaneSet| {
        let writer = writer.clone();
        set.plan.progress = Some(load_watch(stop.clone(), move |progress| {
            writer.put(CompareEvent::Loading { progress });
            ControlFlow::Continue(())
        }));
        set
    };
    sets.into_iter().map(watched).collect()
}

/// Sends the progress of loading the models again. A stopped comparison loads them too.
fn restoring(writer: &LogWriter<CompareEvent>) -> LoadWatch {
    let writer = writer.clone();
    load_watch(StopFlag::default(), move |progress| {
        writer.put(CompareEvent::Restoring { progress });
        ControlFlow::Continue(())
    })
}

fn curve_of<'a>(loaded: &'a Loaded, compute: &Compute) -> CurveOf<'a> {
    let (of_target, of_draft) = loaded.read_by_a_pass;
    CurveOf::on(compute, (&loaded.target, of_target), loaded.draft.as_deref().zip(of_draft))
}

fn title(prompts: &ComparedPrompts) -> String {
    match prompts {
        ComparedPrompts::Text { text, .. } => export::shortened(text, TITLE_CHARS),
        ComparedPrompts::Suite { name, prompts } => of_suite(name, *prompts),
        ComparedPrompts::File { path, prompts } => of_suite(&Suite::name_of(path), *prompts),
    }
}

fn of_suite(name: &str, prompts: Option<u32>) -> String {
    prompts.map_or_else(|| name.to_owned(), |prompts| format!("{name}, {prompts}"))
}

/// Makes the entry of a comparison in the history.
fn entry(report: &ComparisonReport, title: String) -> Option<ComparisonEntry> {
    let best = report.best()?;
    Some(ComparisonEntry {
        id: 0,
        ended_ms: report.ended_ms,
        title,
        target: report.setting.target.clone(),
        draft: report.setting.draft.clone(),
        best: best.config.clone(),
        speedup: best.speedup,
    })
}
