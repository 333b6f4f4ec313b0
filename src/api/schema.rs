//! Writes `ui/src/lib/ipc/schema.gen.ts`: every wire type, and the list of commands.

use ts_rs::{Config, TS};

use super::*;
use crate::depth::{DepthState, MaxDraft};
use crate::error::ErrorCode;
use crate::event::{Alternative, ErrorInfo, RejectedEvent, RoundEvent, StopReason, TokenEvent};
use crate::rule::AcceptanceRule;
use crate::stats::{GenerationStats, LiveFigures, RoundTiming};
use crate::token::TokenOrigin;

/// One command: its name on the wire, its arguments and its result, as TypeScript.
pub struct Command {
    /// Name on the wire.
    pub name: &'static str,
    /// Type of the arguments.
    pub args: &'static str,
    /// Type of the result.
    pub result: &'static str,
}

/// Every command the window may call. The shell adapts each with one line.
pub const COMMANDS: [Command; 20] = [
    Command { name: "app_info", args: "Record<string, never>", result: "AppInfo" },
    Command { name: "list_models", args: "Record<string, never>", result: "ModelEntry[]" },
    Command { name: "load_models", args: "{ request: LoadRequest }", result: "LoadedModels" },
    Command { name: "answer", args: "{ request: AnswerRequest }", result: "Answering" },
    Command { name: "list_conversations", args: "Record<string, never>", result: "ConversationEntry[]" },
    Command { name: "open_conversation", args: "{ id: number }", result: "Conversation" },
    Command { name: "answer_events", args: "{ message: number }", result: "GenerationEvent[]" },
    Command { name: "rename_conversation", args: "{ id: number; title: string }", result: "null" },
    Command { name: "pin_conversation", args: "{ id: number; pinned: boolean }", result: "null" },
    Command { name: "delete_conversation", args: "{ id: number }", result: "null" },
    Command { name: "restore_conversation", args: "{ id: number }", result: "null" },
    Command { name: "set_system_prompt", args: "{ id: number | null; system: string }", result: "number" },
    Command { name: "choose_branch", args: "{ leaf: number }", result: "null" },
    Command { name: "search_conversations", args: "{ query: string }", result: "SearchHit[]" },
    Command {
        name: "export_conversation",
        args: "{ id: number; format: ExportFormat; path: string }",
        result: "null",
    },
    Command { name: "import_conversation", args: "{ path: string }", result: "number" },
    Command { name: "preferences", args: "Record<string, never>", result: "Record<string, unknown>" },
    Command { name: "set_preference", args: "{ key: string; value: unknown }", result: "null" },
    Command { name: "stop_generation", args: "{ generationId: number }", result: "null" },
    Command { name: "generation_snapshot", args: "{ generationId: number }", result: "GenerationSnapshot" },
];

/// The whole file.
pub fn typescript() -> String {
    let config = Config::default();
    let mut out =
        String::from("// Written from src/api by `hunch schema`; do not edit. A test keeps it current.\n");
    macro_rules! types {
        ($($name:ty),* $(,)?) => { $(
            out.push('\n');
            if let Some(docs) = <$name as TS>::docs() {
                out.push_str(docs.trim_end());
                out.push('\n');
            }
            out.push_str("export ");
            out.push_str(&<$name as TS>::decl(&config));
            out.push('\n');
        )* };
    }
    types!(
        TokenOrigin,
        Method,
        MaxDraft,
        AcceptanceRule,
        ErrorCode,
        ErrorInfo,
        SamplingParams,
        Role,
        ChatMessage,
        ModelEntry,
        LoadedModels,
        LoadRequest,
        ParameterRange,
        AppInfo,
        StopReason,
        Alternative,
        TokenEvent,
        RejectedEvent,
        RoundTiming,
        LiveFigures,
        DepthState,
        RoundEvent,
        GenerationStats,
        GenerationEvent,
        StreamMessage,
        GenerationSnapshot,
        ConversationEntry,
        MessageState,
        AnswerSettings,
        StoredMessage,
        Conversation,
        SearchHit,
        Asking,
        AnswerRequest,
        Answering,
        ExportFormat,
    );
    out.push_str(
        "\n/** Every command of the engine, by name. `answer` also takes a channel of StreamMessage. */\n",
    );
    out.push_str("export interface Commands {\n");
    for command in &COMMANDS {
        out.push_str(&format!(
            "  {}: {{ args: {}; result: {} }};\n",
            command.name, command.args, command.result
        ));
    }
    out.push_str("}\n");
    out
}
