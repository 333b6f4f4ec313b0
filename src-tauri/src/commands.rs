//! The commands the window may call: each one line that adapts [`hunch::app::App`]. No logic here.
//! All of them run off the main thread, which belongs to the window.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hunch::api::{
    AnswerRequest, Answering, AppInfo, Conversation, ConversationEntry, ExportFormat, ExportWords, OpenKind,
    SaveKind, SavePlace, SearchHit, StoreRemedy, StreamMessage,
};
use hunch::event::GenerationEvent;
use hunch_error::Error;
use hunch_error::ErrorInfo;
use serde_json::Value;
use tauri::ipc::Channel;
use tauri::{AppHandle, Runtime, State};

use crate::channel_sink::channel_sink;
use crate::chosen::Chosen;
use crate::desk;
use crate::engine::{Engine, info};

pub(crate) type Answer<T> = Result<T, ErrorInfo>;

/// What the window asks once at the start.
#[tauri::command]
pub(crate) async fn app_info(engine: State<'_, Engine>) -> Answer<AppInfo> {
    blocking(&engine, |engine| Ok(engine.app()?.info())).await
}

/// Logs what failed in the page.
#[tauri::command]
pub(crate) async fn report_problem(kind: String, message: String, stack: String) -> Answer<()> {
    hunch::log::page_problem(&kind, &message, &stack);
    Ok(())
}

/// Shows the log in the system's file manager.
#[tauri::command]
pub(crate) async fn show_log<R: Runtime>(app: AppHandle<R>) -> Answer<()> {
    desk::show_log(&app)
}

/// Tells whether anybody can see the window.
#[tauri::command]
pub(crate) async fn set_window_hidden(engine: State<'_, Engine>, hidden: bool) -> Answer<()> {
    blocking(&engine, move |engine| engine.app().map(|app| app.set_window_hidden(hidden))).await
}

/// Asks the person for a file.
#[tauri::command]
pub(crate) async fn choose_file<R: Runtime>(
    app: AppHandle<R>,
    engine: State<'_, Engine>,
    kind: OpenKind,
    title: String,
    filter: String,
) -> Answer<Option<String>> {
    blocking(&engine, move |_| desk::choose_file(&app, kind, &title, &filter)).await
}

/// Asks the person for a folder.
#[tauri::command]
pub(crate) async fn choose_folder<R: Runtime>(
    app: AppHandle<R>,
    engine: State<'_, Engine>,
    title: String,
) -> Answer<Option<String>> {
    blocking(&engine, move |_| desk::choose_folder(&app, &title)).await
}

/// Asks the person where to save a file.
#[tauri::command]
pub(crate) async fn choose_save_place<R: Runtime>(
    app: AppHandle<R>,
    engine: State<'_, Engine>,
    kind: SaveKind,
    name: String,
) -> Answer<Option<SavePlace>> {
    blocking(&engine, move |_| desk::choose_save_place(&app, kind, &name)).await
}

/// Starts an answer in a conversation whose events go to `channel`.
#[tauri::command]
pub(crate) async fn answer(
    engine: State<'_, Engine>,
    request: AnswerRequest,
    channel: Channel<StreamMessage>,
) -> Answer<Answering> {
    blocking(&engine, |engine| engine.answer(request, channel_sink(channel))).await
}

/// The conversations, pinned ones first, then the latest.
#[tauri::command]
pub(crate) async fn list_conversations(engine: State<'_, Engine>) -> Answer<Vec<ConversationEntry>> {
    blocking(&engine, |engine| engine.app()?.list_conversations().map_err(info)).await
}

/// A conversation with all of its branches.
#[tauri::command]
pub(crate) async fn open_conversation(engine: State<'_, Engine>, id: i64) -> Answer<Conversation> {
    blocking(&engine, move |engine| engine.app()?.open_conversation(id).map_err(info)).await
}

/// The events of an answer.
#[tauri::command]
pub(crate) async fn answer_events(engine: State<'_, Engine>, message: i64) -> Answer<Vec<GenerationEvent>> {
    blocking(&engine, move |engine| engine.app()?.answer_events(message).map_err(info)).await
}

/// Gives a conversation a title.
#[tauri::command]
pub(crate) async fn rename_conversation(engine: State<'_, Engine>, id: i64, title: String) -> Answer<()> {
    blocking(&engine, move |engine| engine.app()?.rename_conversation(id, &title).map_err(info)).await
}

/// Keeps a conversation on top, or not any more.
#[tauri::command]
pub(crate) async fn pin_conversation(engine: State<'_, Engine>, id: i64, pinned: bool) -> Answer<()> {
    blocking(&engine, move |engine| engine.app()?.pin_conversation(id, pinned).map_err(info)).await
}

/// Deletes a conversation until the next start.
#[tauri::command]
pub(crate) async fn delete_conversation(engine: State<'_, Engine>, id: i64) -> Answer<()> {
    blocking(&engine, move |engine| engine.app()?.delete_conversation(id).map_err(info)).await
}

/// Puts a deleted conversation back.
#[tauri::command]
pub(crate) async fn restore_conversation(engine: State<'_, Engine>, id: i64) -> Answer<()> {
    blocking(&engine, move |engine| engine.app()?.restore_conversation(id).map_err(info)).await
}

/// Sets the instructions of a conversation.
#[tauri::command]
pub(crate) async fn set_system_prompt(
    engine: State<'_, Engine>,
    id: Option<i64>,
    system: String,
) -> Answer<i64> {
    blocking(&engine, move |engine| engine.app()?.set_system_prompt(id, &system).map_err(info)).await
}

/// Makes a message the one at whose branch the reader is.
#[tauri::command]
pub(crate) async fn choose_branch(engine: State<'_, Engine>, leaf: i64) -> Answer<()> {
    blocking(&engine, move |engine| engine.app()?.choose_branch(leaf).map_err(info)).await
}

/// How the person likes the window.
#[tauri::command]
pub(crate) async fn preferences(engine: State<'_, Engine>) -> Answer<BTreeMap<String, Value>> {
    blocking(&engine, |engine| engine.app()?.preferences().map_err(info)).await
}

/// Keeps a preference.
#[tauri::command]
pub(crate) async fn set_preference(engine: State<'_, Engine>, key: String, value: Value) -> Answer<()> {
    blocking(&engine, move |engine| engine.app()?.set_preference(&key, &value).map_err(info)).await
}

/// Finds words in titles and messages.
#[tauri::command]
pub(crate) async fn search_conversations(engine: State<'_, Engine>, query: String) -> Answer<Vec<SearchHit>> {
    blocking(&engine, move |engine| engine.app()?.search_conversations(&query).map_err(info)).await
}

/// Writes a conversation to the file a token stands for.
#[tauri::command]
pub(crate) async fn export_conversation(
    engine: State<'_, Engine>,
    chosen: State<'_, Chosen>,
    id: i64,
    format: ExportFormat,
    words: ExportWords,
    token: u32,
) -> Answer<()> {
    let path = chosen.redeem(token, format.into()).map_err(info)?;
    blocking(&engine, move |engine| {
        engine.app()?.export_conversation(id, format, &words, &path).map_err(info)
    })
    .await
}

/// Writes the text of an answer to the file a token stands for.
#[tauri::command]
pub(crate) async fn save_answer(
    engine: State<'_, Engine>,
    chosen: State<'_, Chosen>,
    text: String,
    token: u32,
) -> Answer<()> {
    let path = chosen.redeem(token, SaveKind::Markdown).map_err(info)?;
    blocking(&engine, move |engine| engine.app()?.save_answer(&text, &path).map_err(info)).await
}

/// Adds a conversation from a file that the person chose.
#[tauri::command]
pub(crate) async fn import_conversation<R: Runtime>(
    app: AppHandle<R>,
    engine: State<'_, Engine>,
    path: PathBuf,
) -> Answer<i64> {
    desk::check_chosen(&app, &path)?;
    blocking(&engine, move |engine| engine.app()?.import_conversation(&path).map_err(info)).await
}

/// Does what the person chose about the file of conversations.
#[tauri::command]
pub(crate) async fn mend_store(engine: State<'_, Engine>, remedy: StoreRemedy) -> Answer<AppInfo> {
    blocking(&engine, move |engine| engine.app()?.mend_store(&remedy).map_err(info)).await
}

/// Stops an answer.
#[tauri::command]
pub(crate) async fn stop_generation(engine: State<'_, Engine>, generation_id: u32) -> Answer<()> {
    blocking(&engine, move |engine| engine.app()?.stop_generation(generation_id).map_err(info)).await
}

/// Returns the events of an answer from number `from` on.
#[tauri::command]
pub(crate) async fn generation_snapshot(
    engine: State<'_, Engine>,
    generation_id: u32,
    from: u32,
) -> Answer<StreamMessage> {
    blocking(&engine, move |engine| engine.app()?.generation_snapshot(generation_id, from).map_err(info))
        .await
}

/// Runs work that may read files or compute for seconds on a thread made for waiting.
pub(crate) async fn blocking<T: Send + 'static>(
    engine: &Engine,
    work: impl FnOnce(Engine) -> Answer<T> + Send + 'static,
) -> Answer<T> {
    let engine = engine.clone();
    tauri::async_runtime::spawn_blocking(move || work(engine))
        .await
        .unwrap_or_else(|error| Err(info(Error::Internal(error.to_string()))))
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_command_of_the_schema_exists_and_is_allowed_and_no_other() {
        let schema = include_str!("../../ui/src/lib/ipc/schema.gen.ts");
        let (_, list) =
            schema.split_once("export interface Commands {").expect("the schema lists the commands");
        let mut commands: Vec<_> = list
            .lines()
            .filter_map(|line| line.trim().split_once(": { args:"))
            .map(|(name, _)| name)
            .collect();
        let capability: serde_json::Value =
            serde_json::from_str(include_str!("../capabilities/main.json")).expect("it is JSON");
        let mut allowed: Vec<_> = capability["permissions"]
            .as_array()
            .expect("a list of permissions")
            .iter()
            .filter_map(|permission| permission.as_str()?.strip_prefix("allow-"))
            .map(|name| name.replace('-', "_"))
            .collect();
        commands.sort_unstable();
        allowed.sort_unstable();
        assert!(!commands.is_empty());
        assert_eq!(commands, allowed);
        for name in commands {
            let adapters = ["(", "<R"].map(|next| format!("pub(crate) async fn {name}{next}"));
            let shell =
                [include_str!("commands.rs"), include_str!("library.rs"), include_str!("measuring.rs")]
                    .concat();
            assert!(adapters.iter().any(|adapter| shell.contains(adapter)), "{name}");
        }
    }
}
