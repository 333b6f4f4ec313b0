//! The application without a host: everything the window does with the engine. It knows no Tauri; the shell adapts
//! each method to a command.

mod answer_writer;
mod answerer;
mod attachments;
mod chat;
mod downloads;
mod gpu_check;
mod lab;
mod lane_models;
mod load_state;
mod loading;
mod lock;
mod measure;
mod models;
mod own_server;
mod pairing;
mod records;
mod server_answer;
mod servers;
mod store_status;
mod stream;
mod texts;
mod training;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::api::{AnswerSettings, AppInfo, MAX_FILES, ParameterRange, StreamMessage};
use crate::bench::skip_sets::SearchedModel;
use crate::engine::{Engine, EngineHold};
use crate::generate::{GenerationPlan, MOST_STOP_STRINGS, Prompt};
use crate::services::idle::IdleUnloader;
use crate::services::load;
use crate::store::Store;
use answer_writer::{AnswerSink, AnswerWriter, AnswerWriters};
use answerer::Answerer;
use hunch_core::limits::MAX_DRAFT;
use hunch_core::method::Method;
use hunch_core::propose::{MethodOptions, Needs};
use hunch_core::sample::{LOGIT_BIAS_MAX, SamplingParams};
use hunch_error::{Error, Result, RunningWork};
use hunch_library::keychain::Keychain;
use hunch_library::types::LibraryEvent;
use hunch_library::{Places, load_marker};
use hunch_model::device::{Compute, DeviceChoice};
use lab::KeptPositions;
use load_state::ModelSlot;
use lock::RankedMutex;
pub use measure::MeasurementSink;
use measure::Measurements;
use models::LibraryState;
use own_server::OwnServerSlot;
use records::{GenerationRecord, GenerationRecords};
use servers::ServerKeys;
use store_status::StoreInUse;
use stream::EventLog;
use training::Training;

/// Timeout on quitting for the engine, downloads and unwritten answers.
const QUIT_WITHIN: Duration = Duration::from_secs(2);

/// Configuration of the application.
#[derive(Clone, Debug, Default)]
pub struct AppConfig {
    /// Only folder searched for models. If absent, the user's data folder and those of other programs are searched.
    pub models_folder: Option<PathBuf>,
    /// All places searched for models. Takes precedence over `models_folder`.
    pub places: Option<Places>,
    /// File of conversations. If absent, the one in the user's data folder.
    pub store: Option<PathBuf>,
    /// Number of CPU threads. If absent, chosen for this machine.
    pub threads: Option<usize>,
    /// Device to run on.
    pub device: DeviceChoice,
    /// Keychain for the keys of servers. If absent, they last until the application ends.
    pub keychain: Option<Arc<dyn Keychain>>,
}

/// The running application. Clones are cheap and share its state.
#[derive(Clone)]
pub struct App {
    shared: Arc<AppParts>,
}

struct AppParts {
    engine: Arc<Engine>,
    compute: Compute,
    places: Places,
    store: RankedMutex<StoreInUse>,
    /// File of the store. `None` when this user has no data folder.
    store_path: Option<PathBuf>,
    /// Folder of small files shared with the command line, next to the store.
    side_folder: Option<PathBuf>,
    models: ModelSlot,
    records: GenerationRecords,
    /// Recent measurements.
    measurements: RankedMutex<Measurements>,
    /// The current or last training run.
    training: RankedMutex<Training>,
    writers: Arc<AnswerWriters>,
    positions: RankedMutex<KeptPositions>,
    library: LibraryState,
    server_keys: ServerKeys,
    own_server: OwnServerSlot,
    next_id: Arc<AtomicU32>,
    idle_unloader: IdleUnloader,
    /// True while the self-test of the GPU runs in the background.
    testing_gpu: AtomicBool,
}

/// Callback for events of the library.
pub type LibraryListener = Box<dyn FnMut(LibraryEvent) + Send>;

impl App {
    /// Starts the engine. No model is loaded yet.
    ///
    /// # Errors
    /// When the device cannot be opened.
    pub fn start(config: AppConfig) -> Result<Self> {
        let compute = Compute::open(config.device, config.threads)?;
        Self::start_on(compute, config)
    }

    /// Starts the engine on an open device. A GPU without a record of its self-test is tested in the background.
    ///
    /// # Errors
    /// When the folders of this user are unknown, or a thread cannot be started.
    fn start_on(compute: Compute, config: AppConfig) -> Result<Self> {
        let places = match (config.places, config.models_folder) {
            (Some(places), _) => places,
            (None, Some(folder)) => Places::only(folder),
            (None, None) => Places::of_this_user()?,
        };
        let store_folder = config.store.as_deref().and_then(Path::parent).map(Path::to_path_buf);
        let side_folder = store_folder.or_else(|| hunch_library::data_folder().ok());
        if let Some(folder) = &side_folder {
            compute.keep_self_test_in(folder);
        }
        let store_path = store_status::store_path(config.store);
        let store = StoreInUse::open(store_path.as_deref())?;
        let keep_warm = loading::keep_warm(&store.store());
        let unfinished_load = side_folder.as_deref().and_then(load_marker::found);
        let app = Self {
            shared: Arc::new(AppParts {
                store: RankedMutex::state(store),
                store_path,
                side_folder,
                engine: Arc::new(Engine::start(compute.clone())?),
                compute,
                places,
                models: ModelSlot::new(unfinished_load),
                records: GenerationRecords::default(),
                measurements: RankedMutex::default(),
                training: RankedMutex::default(),
                writers: Arc::default(),
                positions: RankedMutex::default(),
                library: LibraryState::default(),
                server_keys: ServerKeys::new(config.keychain),
                own_server: OwnServerSlot::default(),
                next_id: Arc::new(AtomicU32::new(1)),
                idle_unloader: IdleUnloader::new(keep_warm),
                testing_gpu: AtomicBool::new(false),
            }),
        };
        app.test_gpu();
        app.start_idle_unloader()?;
        app.check_and_copy_store();
        Ok(app)
    }

    /// Replaces the listener for events of the library. It is called on the thread that causes the event, one event
    /// at a time. It must return quickly and must not change the library.
    pub fn set_library_listener(&self, listener: LibraryListener) {
        self.shared.library.set_listener(listener);
    }

    /// Passes an event to the listener.
    fn announce(&self, event: LibraryEvent) {
        self.shared.library.announce(event);
    }

    /// Returns what the window needs at its start.
    pub fn info(&self) -> AppInfo {
        let sampling = SamplingParams::ranges().iter().map(|range| (range.name, range.min, range.max));
        let others = [
            ("max_draft", 1.0, MAX_DRAFT as f64),
            ("max_tokens", 1.0, 1_048_576.0),
            ("logit_bias", -LOGIT_BIAS_MAX, LOGIT_BIAS_MAX),
            ("stop_strings", 0.0, MOST_STOP_STRINGS as f64),
            ("attached_files", 0.0, MAX_FILES as f64),
        ];
        AppInfo {
            version: crate::VERSION.into(),
            device: self.shared.compute.name().into(),
            gpu: self.gpu_check(),
            threads: self.shared.compute.threads().count() as u32,
            models_folder: self.shared.places.models.display().to_string(),
            loaded: self.shared.models.ready().ok().map(|models| models.loaded.clone()),
            unfinished_load: self.shared.models.failed(),
            store_problem: self.store_problem(),
            store_bytes: self.shared.store_path.as_deref().map(Store::bytes),
            methods: Method::usable(&[Needs::DraftModel, Needs::Head, Needs::Texts])
                .into_iter()
                .map(Into::into)
                .collect(),
            default_sampling: SamplingParams::default(),
            ranges: sampling
                .chain(others)
                .map(|(name, min, max)| ParameterRange { name: name.into(), min, max })
                .collect(),
        }
    }

    /// Checks that no answer or measurement runs, and that no models are being loaded.
    ///
    /// # Errors
    /// [`Error::Busy`] otherwise.
    pub fn check_idle(&self) -> Result<()> {
        self.shared.models.try_turn()?;
        self.shared.engine.check_free()
    }

    /// Refuses answers, measurements, training and loads with [`Error::Busy`] until the result is dropped, because an
    /// update is being installed.
    ///
    /// # Errors
    /// [`Error::Busy`] while one of them runs.
    pub fn hold_for_update(&self) -> Result<EngineHold> {
        // A load that begins later finds the engine busy.
        let _turn = self.shared.models.try_turn()?;
        self.shared.engine.hold(self.next_id(), RunningWork::Update)
    }

    /// Finds the file of a model by path or short name.
    ///
    /// # Errors
    /// [`Error::ModelNotFound`], and when several models have that name.
    pub fn find_model(&self, name: &str) -> Result<PathBuf> {
        hunch_library::resolve(name, &self.shared.places)
    }

    /// Returns the layers to skip that a search found for a target.
    fn skipped_layers(&self, target: SearchedModel<'_>) -> Option<Vec<usize>> {
        load::skipped_layers(self.shared.places.data.as_deref()?, target)
    }

    /// Completes options with the layers to skip that a search found for the target.
    fn method_options(&self, chosen: &MethodOptions) -> MethodOptions {
        let found =
            || self.shared.models.ready().ok().and_then(|models| models.loaded.skipped_layers.clone());
        MethodOptions { skipped_layers: chosen.skipped_layers.clone().or_else(found), ..chosen.clone() }
    }

    /// Turns settings into a plan for the engine.
    fn plan(&self, settings: &AnswerSettings) -> GenerationPlan {
        GenerationPlan {
            method: settings.method,
            max_draft: settings.max_draft,
            max_tokens: settings.max_tokens as usize,
            sampling: settings.sampling.clone(),
            rule: settings.rule,
            stop: settings.stop.clone(),
            options: self.method_options(&settings.options),
            thinking: settings.thinking,
        }
    }

    /// Returns an unused id for a generation or measurement.
    fn next_id(&self) -> u32 {
        self.shared.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Starts a generation and returns its id at once. Its events are stored in the message `answer`, after the
    /// `begun_with` events stored before. They are also sent to `sink`, once a frame, from another thread.
    fn start_generation(
        &self,
        answerer: &dyn Answerer,
        prompt: Prompt,
        settings: &AnswerSettings,
        mut sink: Box<dyn FnMut(StreamMessage) + Send>,
        answer: i64,
        begun_with: usize,
    ) -> Result<u32> {
        let id = self.next_id();
        let (log, writer) = EventLog::open(id);
        let store = self.store();
        let shared = Arc::downgrade(&self.shared);
        let on_refusal = Box::new(move |error: &Error| {
            if let Some(shared) = shared.upgrade() {
                (App { shared }).note_damage(error);
            }
        });
        let answer_writer = AnswerWriter::start(
            &self.shared.writers,
            store,
            answer,
            log.clone(),
            writer.clone(),
            on_refusal,
        )?;
        // The pump starts first, so that no answer runs without a reader. If the start is refused, the pump ends.
        let (method, rule) = (settings.method, settings.rule);
        // A speed under other options says nothing about the next answer.
        let usual = settings.options.read_by(method).is_default();
        let speeds = answerer.speeds().filter(|_| usual);
        let events = AnswerSink { answer_writer, speeds, method, rule, log: writer, begun: false };
        let sink = Box::new(move |seq, events| sink(StreamMessage { generation_id: id, seq, events }));
        let shared = Arc::downgrade(&self.shared);
        log.pump(sink, move || {
            if let Some(shared) = shared.upgrade() {
                shared.records.release(id, &(App { shared: shared.clone() }).store());
            }
        })?;
        self.shared.records.add(GenerationRecord::new(log, answer, begun_with));
        let queued = answerer.start(id, prompt, settings, events);
        match &queued {
            Err(_) => self.shared.records.remove(id),
            Ok(()) => self.shared.records.drop_oldest(),
        }
        queued.map(|()| id)
    }

    /// Stops an answer within one round. Has no effect on an answer that has ended.
    pub fn stop_generation(&self, generation_id: u32) {
        self.shared.engine.cancel(generation_id);
    }

    /// Returns the events of a recent generation, from number `from` to the newest.
    ///
    /// # Errors
    /// [`Refusal::NoLongerKept`](hunch_error::Refusal::NoLongerKept) when the generation is not among the recent ones.
    pub fn generation_snapshot(&self, generation_id: u32, from: u32) -> Result<StreamMessage> {
        let record = self.shared.records.find(generation_id)?;
        Ok(StreamMessage { generation_id, seq: from, events: record.events(&self.store(), from as usize)? })
    }

    /// Stops the engine and downloads and writes unwritten answers. Waits at most for [`QUIT_WITHIN`].
    pub fn shutdown(&self) {
        self.cancel_loading();
        self.end_own_server();
        self.shared.idle_unloader.end();
        let (engine, writers) = (self.clone(), self.shared.writers.clone());
        let (loading, downloads) = (self.clone(), self.clone());
        side_by_side([
            Box::new(move || {
                if loading.shared.models.is_loading() {
                    // Quitting while models load is not a crash.
                    loading.unmark_load();
                    // An unfinished low-bit copy is deleted.
                    drop(loading.shared.models.wait_for_turn());
                }
            }),
            Box::new(move || {
                // Waits for the lock here: opening the downloads holds it while it reads the disk.
                downloads.shared.library.close_downloads();
            }),
            Box::new(move || {
                // A hanging engine ends with the process.
                engine.shared.engine.shutdown(QUIT_WITHIN);
            }),
            Box::new(move || writers.close(QUIT_WITHIN)),
        ]);
    }
}

/// Runs each task on its own thread and waits for all, at most for [`QUIT_WITHIN`].
fn side_by_side<const N: usize>(works: [Box<dyn FnOnce() + Send>; N]) {
    let begun = Instant::now();
    let (done, ended) = channel::<()>();
    for work in works {
        let done = done.clone();
        let spawned = std::thread::Builder::new().name("hunch-quit".into()).spawn(move || {
            work();
            drop(done);
        });
        if let Err(error) = spawned {
            tracing::warn!("Some work was not finished on quitting: {error}");
        }
    }
    drop(done);
    // Nothing is ever sent. The channel closes when the last thread ends.
    let _ = ended.recv_timeout(QUIT_WITHIN.saturating_sub(begun.elapsed()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quitting_does_not_wait_for_downloads_that_hang_while_they_open() {
        let folder = tempfile::tempdir().unwrap();
        let app = App::start(AppConfig {
            models_folder: Some(folder.path().into()),
            store: Some(folder.path().join("conversations.db")),
            threads: Some(1),
            device: DeviceChoice::Cpu,
            ..AppConfig::default()
        })
        .unwrap();
        // As while the folder of downloads is read from a volume that is gone. Fails by waiting forever.
        let (opening, (begin, begun), (release, held)) = (app.clone(), channel(), channel::<()>());
        let opener = std::thread::spawn(move || {
            let _opening = opening.shared.library.lock_downloads();
            begin.send(()).unwrap();
            let _ = held.recv();
        });
        begun.recv().unwrap();
        app.shutdown();
        drop(release);
        opener.join().unwrap();
    }

    #[test]
    fn quitting_does_not_wait_for_work_that_hangs() {
        let (release, held) = channel::<()>();
        let (sender, done) = channel();
        side_by_side([
            Box::new(move || {
                let _ = held.recv();
            }),
            Box::new(move || sender.send(7).unwrap()),
        ]);
        assert_eq!(done.recv(), Ok(7));
        assert!(release.send(()).is_ok(), "the work still hangs");
    }
}
