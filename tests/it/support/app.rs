//! Applications in a folder of their own, on tiny models.

use std::path::Path;

use hunch::app::{App, AppConfig};
use hunch_library::types::LoadRequest;
use hunch_model::device::DeviceChoice;

use hunch_testing::tiny::Tiny;

/// Configures an application with models and conversations in `folder`, on one CPU thread.
pub(crate) fn config(folder: &Path) -> AppConfig {
    AppConfig {
        models_folder: Some(folder.into()),
        store: Some(folder.join("conversations.db")),
        threads: Some(1),
        device: DeviceChoice::Cpu,
        ..AppConfig::default()
    }
}

/// Starts an application on the models in `folder`.
pub(crate) fn app(folder: &Path) -> App {
    App::start(config(folder)).unwrap()
}

/// Writes a target and a draft: the same weights with one layer fewer, so that drafts are sometimes right.
pub(crate) fn write_pair(folder: &Path) {
    Tiny::default().write(folder, "target");
    Tiny { layers: 1, ..Tiny::default() }.write(folder, "draft");
}

/// Starts an application with a loaded target, and a draft if `with_draft`.
pub(crate) fn app_with_models(folder: &Path, with_draft: bool) -> App {
    write_pair(folder);
    let app = app(folder);
    app.load_models(load_request("target", with_draft.then_some("draft"))).unwrap();
    app
}

/// Requests models at their default context.
pub(crate) fn load_request(target: &str, draft: Option<&str>) -> LoadRequest {
    LoadRequest { target: target.into(), draft: draft.map(Into::into), head: None, context: None }
}
