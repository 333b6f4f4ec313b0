//! The commands the window may call: each one line that adapts [`hunch::app::App`]. No logic here.
//! All of them run off the main thread, which belongs to the window.

use hunch::api::{
    AppInfo, GenerateRequest, GenerationSnapshot, LoadRequest, LoadedModels, ModelEntry, StreamMessage,
};
use hunch::error::Error;
use hunch::event::ErrorInfo;
use tauri::State;
use tauri::ipc::Channel;

use crate::channel_sink::channel_sink;
use crate::engine::{Engine, info};

type Answer<T> = Result<T, ErrorInfo>;

/// What the window asks once at the start.
#[tauri::command]
pub(crate) async fn app_info(engine: State<'_, Engine>) -> Answer<AppInfo> {
    blocking(&engine, |engine| engine.info()).await
}

/// The models on this machine.
#[tauri::command]
pub(crate) async fn list_models(engine: State<'_, Engine>) -> Answer<Vec<ModelEntry>> {
    blocking(&engine, |engine| engine.app()?.list_models().map_err(info)).await
}

/// Loads a target and, if asked, a draft model.
#[tauri::command]
pub(crate) async fn load_models(engine: State<'_, Engine>, request: LoadRequest) -> Answer<LoadedModels> {
    blocking(&engine, |engine| engine.app()?.load_models(request).map_err(info)).await
}

/// Starts an answer whose events go to `channel`, and gives back its number.
#[tauri::command]
pub(crate) async fn generate(
    engine: State<'_, Engine>,
    request: GenerateRequest,
    channel: Channel<StreamMessage>,
) -> Answer<u32> {
    blocking(&engine, |engine| engine.generate(request, channel_sink(channel))).await
}

/// Stops an answer.
#[tauri::command]
pub(crate) async fn stop_generation(engine: State<'_, Engine>, generation_id: u32) -> Answer<()> {
    blocking(&engine, move |engine| engine.app()?.stop_generation(generation_id).map_err(info)).await
}

/// Everything an answer has said so far.
#[tauri::command]
pub(crate) async fn generation_snapshot(
    engine: State<'_, Engine>,
    generation_id: u32,
) -> Answer<GenerationSnapshot> {
    blocking(&engine, move |engine| engine.app()?.generation_snapshot(generation_id).map_err(info)).await
}

/// Runs work that may read files or compute for seconds on a thread made for waiting.
async fn blocking<T: Send + 'static>(
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
            let adapter = format!("pub(crate) async fn {name}(");
            assert!(include_str!("commands.rs").contains(&adapter), "{name}");
        }
    }
}
