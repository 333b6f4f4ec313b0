//! Saves the speeds of models that ran, for the lists of the command line and the window.

use hunch::services::measure::SpeedRecorder;
use hunch_error::Error;
use hunch_library::Places;
use hunch_library::speed_log::{Rates, SpeedLog};

use super::ModelArgs;

/// Saves the speeds of the models on a device ("cpu" or "metal"). A failure is logged.
pub(super) fn remember(args: &ModelArgs, device: &str, rates: Rates) {
    if rates != Rates::default()
        && let Err(error) = try_remember(args, device, rates)
    {
        tracing::warn!("The measured speeds were not saved. {error}");
    }
}

fn try_remember(args: &ModelArgs, device: &str, rates: Rates) -> Result<(), Error> {
    let places = Places::of_this_user()?;
    let listed =
        |path: std::path::PathBuf| hunch_library::inspect_listed(&path, &places).map(|found| found.entry);
    let target = listed(args.target_path()?)?;
    let draft = args.draft_path()?.map(listed).transpose()?;
    SpeedRecorder { log: SpeedLog::open(device)?, target, draft }.record(rates);
    Ok(())
}
