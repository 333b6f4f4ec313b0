//! Commands that concern models: the library, loading, pairing, the catalogue, the Hub and downloads.

use hunch::api::{LoadedModels, MeasurementMessage, TrainEvent, TrainOutlook, TrainRequest};
use hunch::bench::compare::report::CompareEvent;
use hunch::services::texts::TextSource;
use hunch_library::types::{
    Catalogue, Download, DownloadRequest, DraftOffers, Fit, FitVerdict, HubCard, HubRepository, HubSearch,
    HubSearchPage, HubState, Library, LibraryEvent, LoadRequest, StoredData,
};

use super::{CommandResult, Shell, Sink};
use crate::desk;

pub(super) fn library(shell: &Shell) -> CommandResult<Library> {
    shell.with_app(|app| Ok(app.library()))
}

pub(super) fn add_model_folder(shell: &Shell, path: String) -> CommandResult<Library> {
    desk::check_chosen(&shell.handle, path.as_ref())?;
    shell.with_app(|app| app.add_model_folder(&path))
}

pub(super) fn remove_model_folder(shell: &Shell, path: String) -> CommandResult<Library> {
    shell.with_app(|app| app.remove_model_folder(&path))
}

pub(super) fn remove_model(shell: &Shell, path: String) -> CommandResult<Library> {
    shell.with_app(|app| app.remove_model(&path))
}

pub(super) fn remove_low_bit_copy(shell: &Shell, target: String) -> CommandResult<()> {
    check_models(shell, [target.as_str()])?;
    shell.with_app(|app| app.remove_low_bit_copy(&target))
}

pub(super) fn stored_data(shell: &Shell) -> CommandResult<Vec<StoredData>> {
    shell.with_app(|app| Ok(app.stored_data()))
}

pub(super) fn remove_stored_data(shell: &Shell, id: String) -> CommandResult<Vec<StoredData>> {
    shell.with_app(|app| app.remove_stored_data(&id))
}

pub(super) fn dropped_models(shell: &Shell, paths: Vec<String>) -> CommandResult<Vec<String>> {
    let is_folder = |path: &String| {
        desk::is_dragged(&shell.handle, path.as_ref()) && hunch_library::is_model_folder(path.as_ref())
    };
    Ok(paths.into_iter().filter(is_folder).collect())
}

pub(super) fn reveal_model(shell: &Shell, path: String) -> CommandResult<()> {
    check_models(shell, [&*path])?;
    desk::reveal(&shell.handle, path.as_ref())
}

pub(super) fn template_note(shell: &Shell, path: String) -> CommandResult<Option<String>> {
    check_models(shell, [&*path])?;
    shell.with_app(|app| app.template_note(&path))
}

pub(super) fn watch_library(shell: &Shell, sink: Sink<LibraryEvent>) -> CommandResult<Vec<Download>> {
    shell.with_app(|app| app.watch_library(sink))
}

pub(super) fn load_models(shell: &Shell, request: LoadRequest) -> CommandResult<LoadedModels> {
    check_models(shell, named_in(&request.target, request.draft.as_ref()))?;
    check_head(shell, request.head.as_deref())?;
    shell.with_app(|app| app.load_models(request))
}

pub(super) fn cancel_loading(shell: &Shell) -> CommandResult<()> {
    shell.app()?.cancel_loading();
    Ok(())
}

pub(super) fn unload_models(shell: &Shell) -> CommandResult<()> {
    shell.with_app(|app| app.unload_models())
}

pub(super) fn chosen_texts(shell: &Shell) -> CommandResult<Vec<String>> {
    shell.with_app(|app| app.chosen_texts())
}

pub(super) fn choose_texts(shell: &Shell, sources: Vec<String>) -> CommandResult<Option<LoadedModels>> {
    let chosen = shell.with_app(|app| app.chosen_texts())?;
    let new = sources.iter().filter(|source| !chosen.contains(source));
    for path in new.filter(|source| source.parse() != Ok(TextSource::MyConversations)) {
        desk::check_chosen(&shell.handle, path.as_ref())?;
    }
    shell.with_app(|app| app.choose_texts(&sources))
}

pub(super) fn fit(shell: &Shell, request: LoadRequest) -> CommandResult<Fit> {
    check_models(shell, named_in(&request.target, request.draft.as_ref()))?;
    check_head(shell, request.head.as_deref())?;
    shell.with_app(|app| app.fit(&request))
}

pub(super) fn fit_verdicts(shell: &Shell, targets: Vec<String>) -> CommandResult<Vec<Option<FitVerdict>>> {
    check_models(shell, targets.iter().map(String::as_str))?;
    Ok(shell.app()?.fit_verdicts(&targets))
}

pub(super) fn draft_offers(
    shell: &Shell,
    target: String,
    context: Option<u32>,
) -> CommandResult<DraftOffers> {
    check_models(shell, [&*target])?;
    shell.with_app(|app| app.draft_offers(&target, context))
}

pub(super) fn measure_pair(
    shell: &Shell,
    request: LoadRequest,
    sink: Sink<MeasurementMessage<CompareEvent>>,
) -> CommandResult<u32> {
    check_models(shell, named_in(&request.target, request.draft.as_ref()))?;
    check_head(shell, request.head.as_deref())?;
    shell.hosted.start_measurement(|app| app.measure_pair(request, sink))
}

pub(super) fn training_outlook(shell: &Shell, request: TrainRequest) -> CommandResult<TrainOutlook> {
    check_models(shell, [&*request.target])?;
    shell.with_app(|app| app.training_outlook(&request))
}

pub(super) fn train_drafter(
    shell: &Shell,
    request: TrainRequest,
    sink: Sink<MeasurementMessage<TrainEvent>>,
) -> CommandResult<u32> {
    check_models(shell, [&*request.target])?;
    shell.hosted.start_measurement(|app| app.train_drafter(&request, sink))
}

pub(super) fn training_snapshot(
    shell: &Shell,
    id: u32,
    from: u32,
) -> CommandResult<MeasurementMessage<TrainEvent>> {
    shell.with_app(|app| app.training_snapshot(id, from))
}

pub(super) fn finish_training(shell: &Shell, id: u32) -> CommandResult<()> {
    shell.with_app(|app| {
        app.finish_training(id);
        Ok(())
    })
}

pub(super) fn discard_training(shell: &Shell, target: String) -> CommandResult<()> {
    check_models(shell, [&*target])?;
    shell.with_app(|app| app.discard_training(&target))
}

pub(super) fn catalogue(shell: &Shell) -> CommandResult<Catalogue> {
    Ok(shell.app()?.catalogue())
}

pub(super) fn search_hub(shell: &Shell, search: HubSearch) -> CommandResult<HubSearchPage> {
    shell.with_app(|app| app.search_hub(&search))
}

pub(super) fn hub_card(shell: &Shell, repository: String) -> CommandResult<HubCard> {
    shell.with_app(|app| app.hub_card(&repository))
}

pub(super) fn hub_repository(shell: &Shell, repository: String) -> CommandResult<HubRepository> {
    shell.with_app(|app| app.hub_repository(&repository))
}

pub(super) fn hub_state(shell: &Shell) -> CommandResult<HubState> {
    shell.with_app(|app| app.hub_state())
}

pub(super) fn set_hub_token(shell: &Shell, token: Option<String>) -> CommandResult<HubState> {
    shell.with_app(|app| app.set_hub_token(token.as_deref()))
}

pub(super) fn downloads(shell: &Shell) -> CommandResult<Vec<Download>> {
    shell.with_app(|app| app.downloads())
}

pub(super) fn start_download(shell: &Shell, request: DownloadRequest) -> CommandResult<Download> {
    shell.with_app(|app| app.start_download(&request))
}

pub(super) fn pause_download(shell: &Shell, id: String) -> CommandResult<()> {
    shell.with_app(|app| app.pause_download(&id))
}

pub(super) fn resume_download(shell: &Shell, id: String) -> CommandResult<()> {
    shell.with_app(|app| app.resume_download(&id))
}

pub(super) fn remove_download(shell: &Shell, id: String) -> CommandResult<()> {
    shell.with_app(|app| app.remove_download(&id))
}

/// Checks that the page may name these models.
pub(super) fn check_models<'a>(shell: &Shell, names: impl IntoIterator<Item = &'a str>) -> CommandResult<()> {
    desk::check_models(&shell.handle, shell.app()?, names)
}

/// Checks that the page may name this head.
pub(super) fn check_head(shell: &Shell, name: Option<&str>) -> CommandResult<()> {
    name.map_or(Ok(()), |name| desk::check_head(&shell.handle, shell.app()?, name))
}

/// Returns the models that a request names.
pub(super) fn named_in<'a>(target: &'a str, draft: Option<&'a String>) -> impl Iterator<Item = &'a str> {
    [Some(target), draft.map(String::as_str)].into_iter().flatten()
}
