//! Commands that concern answers and stored conversations.

use std::path::PathBuf;

use hunch::api::{
    AnswerRequest, Answering, AppInfo, Conversation, ConversationEntry, ExportFormat, ExportWords,
    ReadAttachment, SaveKind, SearchHit, StoreRemedy, StreamMessage, TextToken,
};
use hunch::event::GenerationEvent;

use super::{CommandResult, Shell, Sink};
use crate::desk;
use crate::hosted_app::info;

pub(super) fn text_tokens(shell: &Shell, text: String) -> CommandResult<Vec<TextToken>> {
    shell.with_app(|app| app.text_tokens(&text))
}

pub(super) fn read_attachment(shell: &Shell, path: PathBuf, count: bool) -> CommandResult<ReadAttachment> {
    desk::check_chosen(&shell.handle, &path)?;
    shell.with_app(|app| app.read_attachment(&path, count))
}

pub(super) fn attachment_tokens(shell: &Shell, text: String) -> CommandResult<usize> {
    shell.with_app(|app| app.attachment_tokens(&text))
}

pub(super) fn answer(
    shell: &Shell,
    request: AnswerRequest,
    sink: Sink<StreamMessage>,
) -> CommandResult<Answering> {
    shell.hosted.answer(request, sink)
}

pub(super) fn stop_generation(shell: &Shell, generation_id: u32) -> CommandResult<()> {
    shell.with_app(|app| {
        app.stop_generation(generation_id);
        Ok(())
    })
}

pub(super) fn generation_snapshot(
    shell: &Shell,
    generation_id: u32,
    from: u32,
) -> CommandResult<StreamMessage> {
    shell.with_app(|app| app.generation_snapshot(generation_id, from))
}

pub(super) fn list_conversations(shell: &Shell) -> CommandResult<Vec<ConversationEntry>> {
    shell.with_app(|app| app.list_conversations())
}

pub(super) fn open_conversation(shell: &Shell, id: i64) -> CommandResult<Conversation> {
    shell.with_app(|app| app.open_conversation(id))
}

pub(super) fn answer_events(shell: &Shell, message: i64) -> CommandResult<Vec<GenerationEvent>> {
    shell.with_app(|app| app.answer_events(message))
}

pub(super) fn rename_conversation(shell: &Shell, id: i64, title: String) -> CommandResult<()> {
    shell.with_app(|app| app.rename_conversation(id, &title))
}

pub(super) fn pin_conversation(shell: &Shell, id: i64, pinned: bool) -> CommandResult<()> {
    shell.with_app(|app| app.pin_conversation(id, pinned))
}

pub(super) fn delete_conversation(shell: &Shell, id: i64) -> CommandResult<()> {
    shell.with_app(|app| app.delete_conversation(id))
}

pub(super) fn restore_conversation(shell: &Shell, id: i64) -> CommandResult<()> {
    shell.with_app(|app| app.restore_conversation(id))
}

pub(super) fn set_system_prompt(shell: &Shell, id: Option<i64>, system: String) -> CommandResult<i64> {
    shell.with_app(|app| app.set_system_prompt(id, &system))
}

pub(super) fn choose_branch(shell: &Shell, leaf: i64) -> CommandResult<()> {
    shell.with_app(|app| app.choose_branch(leaf))
}

pub(super) fn search_conversations(shell: &Shell, query: String) -> CommandResult<Vec<SearchHit>> {
    shell.with_app(|app| app.search_conversations(&query))
}

pub(super) fn export_conversation(
    shell: &Shell,
    id: i64,
    format: ExportFormat,
    words: ExportWords,
    token: u32,
) -> CommandResult<()> {
    let path = shell.chosen().redeem(token, format.into()).map_err(info)?;
    shell.with_app(|app| app.export_conversation(id, format, &words, &path))
}

pub(super) fn save_answer(shell: &Shell, text: String, token: u32) -> CommandResult<()> {
    let path = shell.chosen().redeem(token, SaveKind::Markdown).map_err(info)?;
    shell.with_app(|app| app.save_answer(&text, &path))
}

pub(super) fn import_conversation(shell: &Shell, path: PathBuf) -> CommandResult<i64> {
    desk::check_chosen(&shell.handle, &path)?;
    shell.with_app(|app| app.import_conversation(&path))
}

pub(super) fn repair_store(shell: &Shell, remedy: StoreRemedy) -> CommandResult<AppInfo> {
    shell.with_app(|app| app.repair_store(&remedy))
}
