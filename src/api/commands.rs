//! The list of commands that the window may call.
//!
//! [`with_commands!`](crate::with_commands) hands the list to a macro of the caller. Three places read it:
//! [`schema`](super::schema) writes the TypeScript signatures, the shell registers a handler for each command,
//! and the shell's build script allows each one. The build script includes this file, so it holds nothing else.

/// Calls the macro named `$callback` with the list of commands.
///
/// A row is `name(argument: Type, ...) -> Result;`. A command that sends messages over a channel names their
/// type after `=>`. The types are those of [`api::types`](crate::api::types). Every command can also reject
/// with an [`ErrorInfo`](crate::api::types::ErrorInfo).
#[macro_export]
macro_rules! with_commands {
    ($callback:ident) => {
        $callback! {
            /// Describes the app: version, device, loaded models, problems with the store.
            app_info() -> AppInfo;
            /// Logs an error that the page caught.
            report_problem(kind: String, message: String, stack: String) -> ();
            /// Shows the log in the system's file manager.
            show_log() -> ();
            /// Records whether the window is hidden.
            set_window_hidden(hidden: bool) -> ();
            /// Opens a dialog to choose a file; null when it is dismissed.
            choose_file(kind: OpenKind, title: String, filter: String) -> Option<String>;
            /// Opens a dialog to choose a folder; null when it is dismissed.
            choose_folder(title: String) -> Option<String>;
            /// Opens a dialog to choose text files to attach; empty when it is dismissed.
            choose_attachments(title: String) -> Vec<String>;
            /// Opens a dialog to choose a file to write; null when it is dismissed.
            choose_save_place(kind: SaveKind, name: String) -> Option<SavePlace>;
            /// Returns all preferences.
            preferences() -> BTreeMap<String, PreferenceValue>;
            /// Stores a preference.
            set_preference(key: String, value: PreferenceValue) -> ();
            /// Returns what is known of a newer version. Asks no server.
            update_state() -> UpdateState;
            /// Looks for a newer version of the app.
            check_for_update() -> UpdateState;
            /// Downloads the newer version and checks its signature.
            download_update() -> UpdateState => UpdateProgress;
            /// Installs the downloaded version and restarts the app.
            install_update() -> ();

            /// Lists the installed models, the folders searched and the memory of the machine.
            library() -> Library;
            /// Adds a folder that the user chose to the library.
            add_model_folder(path: String) -> Library;
            /// Removes a folder from the library. Its files stay.
            remove_model_folder(path: String) -> Library;
            /// Deletes a model file from Hunch's own folder.
            remove_model(path: String) -> Library;
            /// Returns which of the files that are dragged over the window, or were dropped, are model folders.
            dropped_models(paths: Vec<String>) -> Vec<String>;
            /// Deletes the low-bit copy of a target.
            remove_low_bit_copy(target: String) -> ();
            /// Lists the data that Hunch made for models.
            stored_data() -> Vec<StoredData>;
            /// Deletes such data by its id. Returns the rest.
            remove_stored_data(id: String) -> Vec<StoredData>;
            /// Shows a model in the system's file manager.
            reveal_model(path: String) -> ();
            /// Returns why the model's chat template cannot be used as it is; null if it can.
            template_note(path: String) -> Option<String>;
            /// Sends library events from now on. Returns the current downloads.
            watch_library() -> Vec<Download> => LibraryEvent;
            /// Loads a target model and, if requested, a draft model.
            load_models(request: LoadRequest) -> LoadedModels;
            /// Cancels loading.
            cancel_loading() -> ();
            /// Unloads the models.
            unload_models() -> ();
            /// Returns the sources of the texts that drafts are copied from: `my-conversations`, and paths.
            chosen_texts() -> Vec<String>;
            /// Chooses the texts that drafts are copied from: `my-conversations`, and paths of files and folders. Returns
            /// the loaded models; null if there are none.
            choose_texts(sources: Vec<String>) -> Option<LoadedModels>;
            /// Predicts the memory that a target and an optional draft model need.
            fit(request: LoadRequest) -> Fit;
            /// Predicts for each target whether it fits into memory; null when that is unknown.
            fit_verdicts(targets: Vec<String>) -> Vec<Option<FitVerdict>>;
            /// Lists the draft models that can be paired with a target.
            draft_offers(target: String, context: Option<u32>) -> DraftOffers;
            /// Loads a pair and compares it with plain decoding. Returns the number of the measurement.
            measure_pair(request: LoadRequest) -> u32 => MeasurementMessage<CompareEvent>;
            /// Predicts the time and disk of training a drafter for a model. Returns the state of an earlier run too.
            training_outlook(request: TrainRequest) -> TrainOutlook;
            /// Trains a drafter, or continues. `stop_measurement` pauses it. Returns the number of the run.
            train_drafter(request: TrainRequest) -> u32 => MeasurementMessage<TrainEvent>;
            /// Returns the events of the last training run from number `from` on.
            training_snapshot(id: u32, from: u32) -> MeasurementMessage<TrainEvent>;
            /// Ends a training run early and keeps the best drafter so far.
            finish_training(id: u32) -> ();
            /// Deletes the training data of a model. Drafters stay.
            discard_training(target: String) -> ();
            /// Returns the catalogue of recommended models.
            catalogue() -> Catalogue;
            /// Searches the Hub for repositories by name.
            search_hub(search: HubSearch) -> HubSearchPage;
            /// Returns the model card of a repository on the Hub.
            hub_card(repository: String) -> HubCard;
            /// Lists the models in a repository on the Hub.
            hub_repository(repository: String) -> HubRepository;
            /// Returns the access token's state and the Hub's address.
            hub_state() -> HubState;
            /// Stores a Hub token in the system's keychain, or deletes it.
            set_hub_token(token: Option<String>) -> HubState;
            /// Lists the downloads.
            downloads() -> Vec<Download>;
            /// Starts a download.
            start_download(request: DownloadRequest) -> Download;
            /// Pauses a download.
            pause_download(id: String) -> ();
            /// Resumes a download.
            resume_download(id: String) -> ();
            /// Removes a download and the bytes received so far.
            remove_download(id: String) -> ();

            /// Lists the servers that can answer, without a request to them.
            servers() -> ServerList;
            /// Adds a server, or replaces its key if one is given.
            add_server(address: String, key: Option<String>) -> ServerEntry;
            /// Removes a server and its key.
            remove_server(address: String) -> ();
            /// Asks a server for its models.
            check_server(address: String) -> ServerCheck;
            /// Returns the state of the server for other programs.
            own_server() -> OwnServer;
            /// Starts or ends the server for other programs.
            set_own_server(on: bool) -> OwnServer;

            /// Tokenises a text with the loaded target. Control tokens are recognised.
            text_tokens(text: String) -> Vec<TextToken>;
            /// Reads a text file that the user chose, to attach it to a question.
            read_attachment(path: PathBuf, count: bool) -> ReadAttachment;
            /// Counts the tokens of an attached text with the loaded target. Control tokens count as text.
            attachment_tokens(text: String) -> usize;
            /// Starts an answer in a conversation.
            answer(request: AnswerRequest) -> Answering => StreamMessage;
            /// Stops an answer.
            stop_generation(generation_id: u32) -> ();
            /// Returns the events of an answer from number `from` on.
            generation_snapshot(generation_id: u32, from: u32) -> StreamMessage;
            /// Lists the conversations: pinned ones first, then by last change.
            list_conversations() -> Vec<ConversationEntry>;
            /// Returns a conversation with all its branches.
            open_conversation(id: i64) -> Conversation;
            /// Returns the events of a stored answer.
            answer_events(message: i64) -> Vec<GenerationEvent>;
            /// Sets the title of a conversation.
            rename_conversation(id: i64, title: String) -> ();
            /// Pins a conversation to the top of the list, or unpins it.
            pin_conversation(id: i64, pinned: bool) -> ();
            /// Marks a conversation as deleted. The next start removes it.
            delete_conversation(id: i64) -> ();
            /// Restores a conversation that was deleted since the start.
            restore_conversation(id: i64) -> ();
            /// Sets the system prompt of a conversation, or of a new one. Returns its number.
            set_system_prompt(id: Option<i64>, system: String) -> i64;
            /// Selects the branch that ends at a message.
            choose_branch(leaf: i64) -> ();
            /// Searches titles and messages.
            search_conversations(query: String) -> Vec<SearchHit>;
            /// Writes a conversation to the file behind a token.
            export_conversation(id: i64, format: ExportFormat, words: ExportWords, token: u32) -> ();
            /// Writes the text of an answer to the file behind a token.
            save_answer(text: String, token: u32) -> ();
            /// Imports a conversation from a file that the user chose. Returns its number.
            import_conversation(path: PathBuf) -> i64;
            /// Applies a remedy to a problem with the store.
            repair_store(remedy: StoreRemedy) -> AppInfo;

            /// Reads a file of prompts that the user chose, and counts them.
            read_suite(path: PathBuf) -> SuiteFile;
            /// Starts a comparison. Returns the number of the measurement.
            compare(request: CompareRequest) -> u32 => MeasurementMessage<CompareEvent>;
            /// Returns the events of the last comparison from number `from` on.
            compare_snapshot(id: u32, from: u32) -> MeasurementMessage<CompareEvent>;
            /// Starts measuring the cost of target and draft passes. Returns the number of the measurement.
            measure_costs() -> u32 => MeasurementMessage<CostEvent>;
            /// Returns the events of the last cost measurement from number `from` on.
            costs_snapshot(id: u32, from: u32) -> MeasurementMessage<CostEvent>;
            /// Searches for the layers that the target skips in the method layer-skip. Returns the number of the search.
            search_skipped_layers() -> u32 => MeasurementMessage<SkipSearchEvent>;
            /// Returns the events of the last search for skipped layers from number `from` on.
            skip_search_snapshot(id: u32, from: u32) -> MeasurementMessage<SkipSearchEvent>;
            /// Stops a measurement.
            stop_measurement(id: u32) -> ();
            /// Lists the stored comparisons, newest first.
            list_comparisons() -> Vec<ComparisonEntry>;
            /// Returns a stored comparison.
            open_comparison(id: i64) -> ComparisonReport;
            /// Deletes a stored comparison.
            delete_comparison(id: i64) -> ();
            /// Writes a comparison to the file behind a token.
            export_comparison(id: i64, format: ComparisonFormat, token: u32) -> ();

            /// Returns the last cost curve of the loaded models; null before the first measurement.
            cost_curve() -> Option<CostCurve>;
            /// Returns the distributions of target and draft at one position.
            lab_position(request: LabRequest) -> LabPosition;
            /// Simulates more rounds at a position.
            lab_rounds(request: LabRoundsRequest) -> LabRounds;
            /// Evaluates every acceptance rule at a position, at several temperatures.
            lab_rules(position: u32, temperatures: Vec<f64>) -> Vec<LabRuleRow>;
            /// Predicts the speedup by acceptance rate and draft length.
            landscape(machine: LabMachine, batch: u32, draft: LabDraft) -> Landscape;
            /// Simulates a server whose requests share passes, at several loads.
            lab_serving(request: LabServingRequest) -> LabServing;
            /// Returns the acceptance rates of one conversation, or of all.
            acceptance_map(conversation: Option<i64>) -> AcceptanceMap;
            /// Predicts the speed of an answer under other settings.
            what_if(request: WhatIfRequest) -> WhatIf;
            /// Lists past answers as points of the landscape.
            lab_sessions() -> Vec<LabSession>;
        }
    };
}
