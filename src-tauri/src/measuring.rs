//! The commands of comparisons and of the lab: each one line that adapts [`hunch::app::App`], as
//! [`commands`](crate::commands) are. No logic here.

use hunch::api::MeasurementMessage;
use hunch::bench::compare::report::{
    CompareEvent, CompareRequest, ComparisonEntry, ComparisonFormat, ComparisonReport,
};
use hunch::lab::report::{
    AcceptanceMap, CostEvent, LabMachine, LabPosition, LabRequest, LabRounds, LabRoundsRequest, LabRuleRow,
    LabSession, Landscape, WhatIf, WhatIfRequest,
};
use hunch_core::pass_cost::CostCurve;
use tauri::State;
use tauri::ipc::Channel;

use crate::channel_sink::channel_sink;
use crate::chosen::Chosen;
use crate::commands::{Answer, blocking};
use crate::engine::{Engine, info};

/// Starts a comparison whose events go to `channel`.
#[tauri::command]
pub(crate) async fn compare(
    engine: State<'_, Engine>,
    request: CompareRequest,
    channel: Channel<MeasurementMessage<CompareEvent>>,
) -> Answer<u32> {
    blocking(&engine, |engine| engine.measuring(|app| app.compare(request, channel_sink(channel)))).await
}

/// Returns the events of the last comparison from number `from` on.
#[tauri::command]
pub(crate) async fn compare_snapshot(
    engine: State<'_, Engine>,
    id: u32,
    from: u32,
) -> Answer<MeasurementMessage<CompareEvent>> {
    blocking(&engine, move |engine| engine.app()?.compare_snapshot(id, from).map_err(info)).await
}

/// Starts to measure what passes cost; its events go to `channel`.
#[tauri::command]
pub(crate) async fn measure_costs(
    engine: State<'_, Engine>,
    channel: Channel<MeasurementMessage<CostEvent>>,
) -> Answer<u32> {
    blocking(&engine, |engine| engine.measuring(|app| app.measure_costs(channel_sink(channel)))).await
}

/// Returns the events of the last measurement of costs from number `from` on.
#[tauri::command]
pub(crate) async fn costs_snapshot(
    engine: State<'_, Engine>,
    id: u32,
    from: u32,
) -> Answer<MeasurementMessage<CostEvent>> {
    blocking(&engine, move |engine| engine.app()?.costs_snapshot(id, from).map_err(info)).await
}

/// Stops a measurement.
#[tauri::command]
pub(crate) async fn stop_measurement(engine: State<'_, Engine>, id: u32) -> Answer<()> {
    blocking(&engine, move |engine| engine.app()?.stop_measurement(id).map_err(info)).await
}

/// The comparisons, newest first.
#[tauri::command]
pub(crate) async fn list_comparisons(engine: State<'_, Engine>) -> Answer<Vec<ComparisonEntry>> {
    blocking(&engine, |engine| engine.app()?.list_comparisons().map_err(info)).await
}

/// A comparison from the history.
#[tauri::command]
pub(crate) async fn open_comparison(engine: State<'_, Engine>, id: i64) -> Answer<ComparisonReport> {
    blocking(&engine, move |engine| engine.app()?.open_comparison(id).map_err(info)).await
}

/// Forgets a comparison.
#[tauri::command]
pub(crate) async fn delete_comparison(engine: State<'_, Engine>, id: i64) -> Answer<()> {
    blocking(&engine, move |engine| engine.app()?.delete_comparison(id).map_err(info)).await
}

/// Writes a comparison to the file a token stands for.
#[tauri::command]
pub(crate) async fn export_comparison(
    engine: State<'_, Engine>,
    chosen: State<'_, Chosen>,
    id: i64,
    format: ComparisonFormat,
    token: u32,
) -> Answer<()> {
    let path = chosen.redeem(token, format.into()).map_err(info)?;
    blocking(&engine, move |engine| engine.app()?.export_comparison(id, format, &path).map_err(info)).await
}

/// The last cost curve of the loaded models.
#[tauri::command]
pub(crate) async fn cost_curve(engine: State<'_, Engine>) -> Answer<Option<CostCurve>> {
    blocking(&engine, |engine| engine.app()?.cost_curve().map_err(info)).await
}

/// Both distributions at a position.
#[tauri::command]
pub(crate) async fn lab_position(engine: State<'_, Engine>, request: LabRequest) -> Answer<LabPosition> {
    blocking(&engine, |engine| engine.app()?.lab_position(request).map_err(info)).await
}

/// More rounds at a position.
#[tauri::command]
pub(crate) async fn lab_rounds(engine: State<'_, Engine>, request: LabRoundsRequest) -> Answer<LabRounds> {
    blocking(&engine, move |engine| engine.app()?.lab_rounds(request).map_err(info)).await
}

/// What the acceptance rules make of a position as the temperature moves.
#[tauri::command]
pub(crate) async fn lab_rules(
    engine: State<'_, Engine>,
    position: u32,
    temperatures: Vec<f64>,
) -> Answer<Vec<LabRuleRow>> {
    blocking(&engine, move |engine| engine.app()?.lab_rules(position, &temperatures).map_err(info)).await
}

/// Predicted speedup over alpha and K.
#[tauri::command]
pub(crate) async fn landscape(engine: State<'_, Engine>, machine: LabMachine) -> Answer<Landscape> {
    blocking(&engine, move |engine| engine.app()?.landscape(machine).map_err(info)).await
}

/// The person's answers as places in the landscape.
#[tauri::command]
pub(crate) async fn lab_sessions(engine: State<'_, Engine>) -> Answer<Vec<LabSession>> {
    blocking(&engine, |engine| engine.app()?.lab_sessions().map_err(info)).await
}

/// Acceptance over the answers of a conversation, or of all.
#[tauri::command]
pub(crate) async fn acceptance_map(
    engine: State<'_, Engine>,
    conversation: Option<i64>,
) -> Answer<AcceptanceMap> {
    blocking(&engine, move |engine| engine.app()?.acceptance_map(conversation).map_err(info)).await
}

/// What an answer would have been with other settings.
#[tauri::command]
pub(crate) async fn what_if(engine: State<'_, Engine>, request: WhatIfRequest) -> Answer<WhatIf> {
    blocking(&engine, move |engine| engine.app()?.what_if(request).map_err(info)).await
}
