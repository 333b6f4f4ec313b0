//! The commands of the model library: each one line that adapts [`hunch::app::App`], as
//! [`commands`](crate::commands) are. No logic here.

use hunch::api::{LoadedModels, MeasurementMessage};
use hunch::bench::compare::report::CompareEvent;
use hunch_library::types::LoadRequest;
use hunch_library::types::{
    Catalogue, Download, DownloadRequest, DraftOffers, Fit, FitRequest, FitVerdict, HubRepository, HubState,
    Library, LibraryEvent,
};
use tauri::ipc::Channel;
use tauri::{AppHandle, Runtime, State};

use crate::channel_sink::channel_sink;
use crate::commands::{Answer, blocking};
use crate::desk;
use crate::engine::{Engine, info};

/// The models on this machine, where was looked, and what the machine has.
#[tauri::command]
pub(crate) async fn library(engine: State<'_, Engine>) -> Answer<Library> {
    blocking(&engine, move |engine| engine.app()?.library().map_err(info)).await
}

/// Looks through another folder, which the person chose, from now on.
#[tauri::command]
pub(crate) async fn add_model_folder<R: Runtime>(
    app: AppHandle<R>,
    engine: State<'_, Engine>,
    path: String,
) -> Answer<Library> {
    desk::check_chosen(&app, path.as_ref())?;
    blocking(&engine, move |engine| engine.app()?.add_model_folder(&path).map_err(info)).await
}

/// Looks through a folder no more.
#[tauri::command]
pub(crate) async fn remove_model_folder(engine: State<'_, Engine>, path: String) -> Answer<Library> {
    blocking(&engine, move |engine| engine.app()?.remove_model_folder(&path).map_err(info)).await
}

/// Deletes a model from Hunch's own folder.
#[tauri::command]
pub(crate) async fn remove_model(engine: State<'_, Engine>, path: String) -> Answer<Library> {
    blocking(&engine, move |engine| engine.app()?.remove_model(&path).map_err(info)).await
}

/// Shows a model in the system's file manager.
#[tauri::command]
pub(crate) async fn reveal_model<R: Runtime>(
    app: AppHandle<R>,
    engine: State<'_, Engine>,
    path: String,
) -> Answer<()> {
    blocking(&engine, move |engine| {
        desk::check_models(&app, engine.app()?, [&*path])?;
        desk::reveal(&app, path.as_ref())
    })
    .await
}

/// Why the chat template of a model cannot be used as it is, if it cannot.
#[tauri::command]
pub(crate) async fn template_note<R: Runtime>(
    app: AppHandle<R>,
    engine: State<'_, Engine>,
    path: String,
) -> Answer<Option<String>> {
    blocking(&engine, move |engine| {
        desk::check_models(&app, engine.app()?, [&*path])?;
        engine.app()?.template_note(&path).map_err(info)
    })
    .await
}

/// Sends what happens to the library to `channel` from now on; gives the downloads as they are.
#[tauri::command]
pub(crate) async fn watch_library(
    engine: State<'_, Engine>,
    channel: Channel<LibraryEvent>,
) -> Answer<Vec<Download>> {
    blocking(&engine, move |engine| engine.app()?.watch_library(channel_sink(channel)).map_err(info)).await
}

/// Loads a target and, if asked, a draft model.
#[tauri::command]
pub(crate) async fn load_models<R: Runtime>(
    app: AppHandle<R>,
    engine: State<'_, Engine>,
    request: LoadRequest,
) -> Answer<LoadedModels> {
    blocking(&engine, move |engine| {
        desk::check_models(&app, engine.app()?, models_of(&request.target, request.draft.as_ref()))?;
        engine.app()?.load_models(request).map_err(info)
    })
    .await
}

/// Stops the loading that is under way.
#[tauri::command]
pub(crate) async fn cancel_loading(engine: State<'_, Engine>) -> Answer<()> {
    blocking(&engine, move |engine| engine.app().map(|app| app.cancel_loading())).await
}

/// Lets the models in memory go.
#[tauri::command]
pub(crate) async fn unload_models(engine: State<'_, Engine>) -> Answer<()> {
    blocking(&engine, move |engine| engine.app()?.unload_models().map_err(info)).await
}

/// Predicted memory of a target and maybe a draft.
#[tauri::command]
pub(crate) async fn fit<R: Runtime>(
    app: AppHandle<R>,
    engine: State<'_, Engine>,
    request: FitRequest,
) -> Answer<Fit> {
    blocking(&engine, move |engine| {
        desk::check_models(&app, engine.app()?, models_of(&request.target, request.draft.as_ref()))?;
        engine.app()?.fit(&request).map_err(info)
    })
    .await
}

/// Whether each of some targets fits by itself.
#[tauri::command]
pub(crate) async fn fit_verdicts<R: Runtime>(
    app: AppHandle<R>,
    engine: State<'_, Engine>,
    targets: Vec<String>,
) -> Answer<Vec<Option<FitVerdict>>> {
    blocking(&engine, move |engine| {
        desk::check_models(&app, engine.app()?, targets.iter().map(String::as_str))?;
        Ok(engine.app()?.fit_verdicts(&targets))
    })
    .await
}

/// What can draft for a target.
#[tauri::command]
pub(crate) async fn draft_offers<R: Runtime>(
    app: AppHandle<R>,
    engine: State<'_, Engine>,
    target: String,
    context: Option<u32>,
) -> Answer<DraftOffers> {
    blocking(&engine, move |engine| {
        desk::check_models(&app, engine.app()?, [&*target])?;
        engine.app()?.draft_offers(&target, context).map_err(info)
    })
    .await
}

/// Loads a pair and starts a short comparison whose events go to `channel`.
#[tauri::command]
pub(crate) async fn measure_pair<R: Runtime>(
    app: AppHandle<R>,
    engine: State<'_, Engine>,
    request: LoadRequest,
    channel: Channel<MeasurementMessage<CompareEvent>>,
) -> Answer<u32> {
    blocking(&engine, move |engine| {
        desk::check_models(&app, engine.app()?, models_of(&request.target, request.draft.as_ref()))?;
        engine.measuring(|app| app.measure_pair(request, channel_sink(channel)))
    })
    .await
}

/// The models that are recommended.
#[tauri::command]
pub(crate) async fn catalogue(engine: State<'_, Engine>) -> Answer<Catalogue> {
    blocking(&engine, move |engine| Ok(engine.app()?.catalogue())).await
}

/// The models of a repository on the hub.
#[tauri::command]
pub(crate) async fn hub_repository(engine: State<'_, Engine>, repository: String) -> Answer<HubRepository> {
    blocking(&engine, move |engine| engine.app()?.hub_repository(&repository).map_err(info)).await
}

/// The hub as this machine sees it.
#[tauri::command]
pub(crate) async fn hub_state(engine: State<'_, Engine>) -> Answer<HubState> {
    blocking(&engine, move |engine| engine.app()?.hub_state().map_err(info)).await
}

/// Keeps a token in the system's keychain, or forgets it.
#[tauri::command]
pub(crate) async fn set_hub_token(engine: State<'_, Engine>, token: Option<String>) -> Answer<HubState> {
    blocking(&engine, move |engine| engine.app()?.set_hub_token(token.as_deref()).map_err(info)).await
}

/// The downloads.
#[tauri::command]
pub(crate) async fn downloads(engine: State<'_, Engine>) -> Answer<Vec<Download>> {
    blocking(&engine, move |engine| engine.app()?.downloads().map_err(info)).await
}

/// Starts a download.
#[tauri::command]
pub(crate) async fn start_download(engine: State<'_, Engine>, request: DownloadRequest) -> Answer<Download> {
    blocking(&engine, move |engine| engine.app()?.start_download(&request).map_err(info)).await
}

/// Stops a download for now.
#[tauri::command]
pub(crate) async fn pause_download(engine: State<'_, Engine>, id: String) -> Answer<()> {
    blocking(&engine, move |engine| engine.app()?.pause_download(&id).map_err(info)).await
}

/// Goes on with a download.
#[tauri::command]
pub(crate) async fn resume_download(engine: State<'_, Engine>, id: String) -> Answer<()> {
    blocking(&engine, move |engine| engine.app()?.resume_download(&id).map_err(info)).await
}

/// Takes a download away, with what is here of it.
#[tauri::command]
pub(crate) async fn remove_download(engine: State<'_, Engine>, id: String) -> Answer<()> {
    blocking(&engine, move |engine| engine.app()?.remove_download(&id).map_err(info)).await
}

/// The models that a request names.
fn models_of<'a>(target: &'a str, draft: Option<&'a String>) -> impl Iterator<Item = &'a str> {
    [Some(target), draft.map(String::as_str)].into_iter().flatten()
}
