//! Commands that concern comparisons, pass costs and the lab.

use std::path::PathBuf;

use hunch::api::{MeasurementMessage, SuiteFile};
use hunch::bench::compare::report::{
    CompareEvent, CompareRequest, ComparedPrompts, ComparisonEntry, ComparisonFormat, ComparisonReport,
    LaneModels,
};
use hunch::bench::skip_search::SkipSearchEvent;
use hunch::lab::report::{
    AcceptanceMap, CostEvent, LabDraft, LabMachine, LabPosition, LabRequest, LabRounds, LabRoundsRequest,
    LabRuleRow, LabServing, LabServingRequest, LabSession, Landscape, WhatIf, WhatIfRequest,
};
use hunch_core::pass_cost::CostCurve;

use super::library::{check_head, check_models, named_in};
use super::{CommandResult, Shell, Sink};
use crate::desk;
use crate::hosted_app::info;

pub(super) fn read_suite(shell: &Shell, path: PathBuf) -> CommandResult<SuiteFile> {
    desk::check_chosen(&shell.handle, &path)?;
    shell.with_app(|app| app.read_suite(&path))
}

pub(super) fn compare(
    shell: &Shell,
    request: CompareRequest,
    sink: Sink<MeasurementMessage<CompareEvent>>,
) -> CommandResult<u32> {
    if let ComparedPrompts::File { path, .. } = &request.prompts {
        desk::check_chosen(&shell.handle, path)?;
    }
    for LaneModels { target, draft, head } in request.lanes.iter().filter_map(|lane| lane.models.as_ref()) {
        check_models(shell, named_in(target, draft.as_ref()))?;
        check_head(shell, head.as_deref())?;
    }
    shell.hosted.start_measurement(|app| app.compare(request, sink))
}

pub(super) fn compare_snapshot(
    shell: &Shell,
    id: u32,
    from: u32,
) -> CommandResult<MeasurementMessage<CompareEvent>> {
    shell.with_app(|app| app.compare_snapshot(id, from))
}

pub(super) fn measure_costs(shell: &Shell, sink: Sink<MeasurementMessage<CostEvent>>) -> CommandResult<u32> {
    shell.hosted.start_measurement(|app| app.measure_costs(sink))
}

pub(super) fn costs_snapshot(
    shell: &Shell,
    id: u32,
    from: u32,
) -> CommandResult<MeasurementMessage<CostEvent>> {
    shell.with_app(|app| app.costs_snapshot(id, from))
}

pub(super) fn search_skipped_layers(
    shell: &Shell,
    sink: Sink<MeasurementMessage<SkipSearchEvent>>,
) -> CommandResult<u32> {
    shell.hosted.start_measurement(|app| app.search_skipped_layers(sink))
}

pub(super) fn skip_search_snapshot(
    shell: &Shell,
    id: u32,
    from: u32,
) -> CommandResult<MeasurementMessage<SkipSearchEvent>> {
    shell.with_app(|app| app.skip_search_snapshot(id, from))
}

pub(super) fn stop_measurement(shell: &Shell, id: u32) -> CommandResult<()> {
    shell.with_app(|app| {
        app.stop_measurement(id);
        Ok(())
    })
}

pub(super) fn list_comparisons(shell: &Shell) -> CommandResult<Vec<ComparisonEntry>> {
    shell.with_app(|app| app.list_comparisons())
}

pub(super) fn open_comparison(shell: &Shell, id: i64) -> CommandResult<ComparisonReport> {
    shell.with_app(|app| app.open_comparison(id))
}

pub(super) fn delete_comparison(shell: &Shell, id: i64) -> CommandResult<()> {
    shell.with_app(|app| app.delete_comparison(id))
}

pub(super) fn export_comparison(
    shell: &Shell,
    id: i64,
    format: ComparisonFormat,
    token: u32,
) -> CommandResult<()> {
    let path = shell.chosen().redeem(token, format.into()).map_err(info)?;
    shell.with_app(|app| app.export_comparison(id, format, &path))
}

pub(super) fn cost_curve(shell: &Shell) -> CommandResult<Option<CostCurve>> {
    shell.with_app(|app| app.cost_curve())
}

pub(super) fn lab_position(shell: &Shell, request: LabRequest) -> CommandResult<LabPosition> {
    shell.with_app(|app| app.lab_position(request))
}

pub(super) fn lab_rounds(shell: &Shell, request: LabRoundsRequest) -> CommandResult<LabRounds> {
    shell.with_app(|app| app.lab_rounds(request))
}

pub(super) fn lab_rules(
    shell: &Shell,
    position: u32,
    temperatures: Vec<f64>,
) -> CommandResult<Vec<LabRuleRow>> {
    shell.with_app(|app| app.lab_rules(position, &temperatures))
}

pub(super) fn landscape(
    shell: &Shell,
    machine: LabMachine,
    batch: u32,
    draft: LabDraft,
) -> CommandResult<Landscape> {
    shell.with_app(|app| app.landscape(machine, batch, draft))
}

pub(super) fn lab_serving(shell: &Shell, request: LabServingRequest) -> CommandResult<LabServing> {
    shell.with_app(|app| app.lab_serving(request))
}

pub(super) fn acceptance_map(shell: &Shell, conversation: Option<i64>) -> CommandResult<AcceptanceMap> {
    shell.with_app(|app| app.acceptance_map(conversation))
}

pub(super) fn what_if(shell: &Shell, request: WhatIfRequest) -> CommandResult<WhatIf> {
    shell.with_app(|app| app.what_if(request))
}

pub(super) fn lab_sessions(shell: &Shell) -> CommandResult<Vec<LabSession>> {
    shell.with_app(|app| app.lab_sessions())
}
