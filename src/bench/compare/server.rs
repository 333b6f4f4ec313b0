//! A server next to the lanes of a comparison. It answers the same prompts once the lanes have ended, so that a server on
//! this machine does not slow them.

use std::ops::ControlFlow;

use super::Listener;
use super::report::{
    CompareEvent, ComparedServer, ComparisonSetting, CutOffAnswer, ServerAnswer, ServerReport,
};
use crate::bench::turns::sampling_of_run;
use crate::event::ServerFigures;
use crate::remote::{RemoteServer, runtime, unless_cancelled};
use crate::server_answers::{RemoteModel, RemoteRequest, Speculation, sampling_fields};
use hunch_core::chat::{ChatMessage, Role};
use hunch_core::quantile::median;
use hunch_error::Result;

/// Lets a server answer every prompt of a comparison in every run, one after the other, until it is stopped.
///
/// An error ends its answers and is part of the report. So are the answers that were finished before, and the start of
/// the one that was not. The missing ones were given up if the listener is stopped and there is no error: then the start
/// of an answer is left out.
pub fn run(
    client: &RemoteServer,
    server: ComparedServer,
    setting: &ComparisonSetting,
    listener: &mut Listener<'_>,
) -> ServerReport {
    let mut report = ServerReport {
        server,
        kind: None,
        answers: Vec::new(),
        tok_s: None,
        first_ms: None,
        speculation: None,
        tokens_per_pass: None,
        error: None,
        cut_off: None,
    };
    let stopped = listener.stopped;
    let answered = runtime().and_then(|runtime| {
        let all = answer_all(client, setting, &mut report, &mut *listener.on_event);
        runtime.block_on(unless_cancelled(stopped, all)).unwrap_or(Ok(()))
    });
    if let Err(error) = answered {
        report.error = Some(Box::new((&error).into()));
    }
    report.cut_off = report.cut_off.filter(|begun| report.error.is_some() && !begun.text.is_empty());
    summarise(&mut report);
    report
}

async fn answer_all(
    client: &RemoteServer,
    setting: &ComparisonSetting,
    report: &mut ServerReport,
    on_event: &mut (dyn FnMut(CompareEvent) + Send),
) -> Result<()> {
    let model = client.model(Some(&report.server.model)).await?;
    report.kind = Some(model.kind);
    let total = setting.turns() as u32;
    for run in 0..setting.runs {
        for prompt in 0..setting.prompts.len() as u32 {
            on_event(CompareEvent::Server { done: report.answers.len() as u32, total });
            let cut_off = report.cut_off.insert(CutOffAnswer { prompt, run, text: String::new() });
            let figures = answer(client, &model, setting, cut_off).await?;
            let text = report.cut_off.take().map(|answer| answer.text).unwrap_or_default();
            report.answers.push(ServerAnswer { prompt, run, figures, text });
        }
    }
    Ok(())
}

async fn answer(
    client: &RemoteServer,
    model: &RemoteModel,
    setting: &ComparisonSetting,
    begun: &mut CutOffAnswer,
) -> Result<ServerFigures> {
    let asked = &setting.prompts[begun.prompt as usize];
    let system = Some(&asked.system).filter(|system| !system.trim().is_empty());
    let message = |role, content: &String| ChatMessage { role, content: content.clone() };
    let messages = system.map(|system| message(Role::System, system)).into_iter();
    let request = RemoteRequest {
        messages: messages.chain([message(Role::User, &asked.text)]).collect(),
        max_tokens: Some(setting.max_tokens as usize),
        sampling: sampling_fields(&sampling_of_run(&setting.sampling, begun.run as usize), model.kind),
        stop: setting.stop.clone(),
        ..RemoteRequest::default()
    };
    let answer = client
        .answer(model, &request, |piece, _| {
            if !piece.thinking {
                begun.text.push_str(&piece.text);
            }
            ControlFlow::Continue(())
        })
        .await?;
    Ok(ServerFigures::of(&answer))
}

/// Fills in the figures over all answers.
fn summarise(report: &mut ServerReport) {
    let figures: Vec<_> = report.answers.iter().map(|answer| &answer.figures).collect();
    let median_of = |of: fn(&ServerFigures) -> Option<f64>| {
        median(&figures.iter().filter_map(|figures| of(figures)).collect::<Vec<_>>())
    };
    report.tok_s = median_of(|figures| figures.measured_tok_s);
    report.first_ms = median_of(|figures| figures.first_ms);
    let all: Option<Vec<Speculation>> = figures.iter().map(|figures| figures.speculation).collect();
    report.speculation = all.and_then(|all| all.into_iter().reduce(Speculation::plus));
    // Both sums are over the same answers.
    let generated: Option<Vec<u64>> = figures.iter().map(|figures| Some(figures.usage?.generated)).collect();
    let generated = generated.map(|all| all.into_iter().fold(0, u64::saturating_add));
    report.tokens_per_pass =
        report.speculation.zip(generated).and_then(|(sum, generated)| sum.tokens_per_pass(generated));
}
