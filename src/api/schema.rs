//! Writes `ui/src/lib/ipc/schema.gen.ts`: every wire type, and the list of commands.

use ts_rs::{Config, TS};

use hunch_core::chat::{ChatMessage, Role};

use super::*;
use crate::bench::compare::report::{
    CompareEvent, CompareRequest, ComparedAnswer, ComparedPrompt, ComparedPrompts, ComparisonEntry,
    ComparisonFormat, ComparisonMemory, ComparisonReport, ComparisonSetting, LaneReport, Loss,
    PositionReport, TimeSplit, TimedEvent, Verdict,
};
use crate::bench::{Difference, IdentityReport, MethodConfig};
use crate::event::{Alternative, DraftedEvent, RejectedEvent, RoundEvent, StopReason, TokenEvent};
use crate::lab::report::{
    AcceptanceBin, AcceptanceMap, CostEvent, LabMachine, LabPosition, LabRequest, LabRest, LabRound,
    LabRounds, LabRoundsRequest, LabRuleRow, LabSession, LabSource, LabToken, Landscape, WhatIf,
    WhatIfFigures, WhatIfRequest,
};
use hunch_core::depth::{DepthState, MaxDraft};
use hunch_core::pass_cost::{CostCurve, CostPoint, ModelCosts};
use hunch_core::rule::AcceptanceRule;
use hunch_core::stats::{GenerationStats, LiveFigures, RoundTiming};
use hunch_core::token::{DraftFate, TokenOrigin};
use hunch_error::ErrorCode;
use hunch_error::ErrorInfo;
use hunch_library::types::{
    Catalogue, CatalogueModel, CatalogueRole, Download, DownloadPhase, DownloadRequest, DraftOffer,
    DraftOffers, Fit, FitRequest, FitVerdict, HubFile, HubRepository, HubState, HubTokenProblem,
    HubTokenSource, Library, LibraryEvent, LoadProgress, LoadRequest, MachineMemory, MeasuredSpeedup,
    MemoryClass, ModelEntry, ModelFolder, ModelSource, PairVerdict, PredictedMemory, PredictedSpeedup,
    SmallerChoice, SpeedRole,
};

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
pub const COMMANDS: [Command; 66] = [
    Command { name: "app_info", args: "Record<string, never>", result: "AppInfo" },
    Command {
        name: "report_problem",
        args: "{ kind: string; message: string; stack: string }",
        result: "null",
    },
    Command { name: "show_log", args: "Record<string, never>", result: "null" },
    Command { name: "set_window_hidden", args: "{ hidden: boolean }", result: "null" },
    Command {
        name: "choose_file",
        args: "{ kind: OpenKind; title: string; filter: string }",
        result: "string | null",
    },
    Command { name: "choose_folder", args: "{ title: string }", result: "string | null" },
    Command {
        name: "choose_save_place",
        args: "{ kind: SaveKind; name: string }",
        result: "SavePlace | null",
    },
    Command { name: "library", args: "Record<string, never>", result: "Library" },
    Command { name: "add_model_folder", args: "{ path: string }", result: "Library" },
    Command { name: "remove_model_folder", args: "{ path: string }", result: "Library" },
    Command { name: "remove_model", args: "{ path: string }", result: "Library" },
    Command { name: "reveal_model", args: "{ path: string }", result: "null" },
    Command { name: "template_note", args: "{ path: string }", result: "string | null" },
    Command { name: "watch_library", args: "Record<string, never>", result: "Download[]" },
    Command { name: "load_models", args: "{ request: LoadRequest }", result: "LoadedModels" },
    Command { name: "cancel_loading", args: "Record<string, never>", result: "null" },
    Command { name: "unload_models", args: "Record<string, never>", result: "null" },
    Command { name: "fit", args: "{ request: FitRequest }", result: "Fit" },
    Command { name: "fit_verdicts", args: "{ targets: string[] }", result: "(FitVerdict | null)[]" },
    Command {
        name: "draft_offers",
        args: "{ target: string; context: number | null }",
        result: "DraftOffers",
    },
    Command { name: "measure_pair", args: "{ request: LoadRequest }", result: "number" },
    Command { name: "catalogue", args: "Record<string, never>", result: "Catalogue" },
    Command { name: "hub_repository", args: "{ repository: string }", result: "HubRepository" },
    Command { name: "hub_state", args: "Record<string, never>", result: "HubState" },
    Command { name: "set_hub_token", args: "{ token: string | null }", result: "HubState" },
    Command { name: "downloads", args: "Record<string, never>", result: "Download[]" },
    Command { name: "start_download", args: "{ request: DownloadRequest }", result: "Download" },
    Command { name: "pause_download", args: "{ id: string }", result: "null" },
    Command { name: "resume_download", args: "{ id: string }", result: "null" },
    Command { name: "remove_download", args: "{ id: string }", result: "null" },
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
        args: "{ id: number; format: ExportFormat; words: ExportWords; token: number }",
        result: "null",
    },
    Command { name: "save_answer", args: "{ text: string; token: number }", result: "null" },
    Command { name: "import_conversation", args: "{ path: string }", result: "number" },
    Command { name: "preferences", args: "Record<string, never>", result: "Record<string, unknown>" },
    Command { name: "set_preference", args: "{ key: string; value: unknown }", result: "null" },
    Command { name: "mend_store", args: "{ remedy: StoreRemedy }", result: "AppInfo" },
    Command { name: "stop_generation", args: "{ generationId: number }", result: "null" },
    Command {
        name: "generation_snapshot",
        args: "{ generationId: number; from: number }",
        result: "StreamMessage",
    },
    Command { name: "compare", args: "{ request: CompareRequest }", result: "number" },
    Command {
        name: "compare_snapshot",
        args: "{ id: number; from: number }",
        result: "MeasurementMessage<CompareEvent>",
    },
    Command { name: "measure_costs", args: "Record<string, never>", result: "number" },
    Command {
        name: "costs_snapshot",
        args: "{ id: number; from: number }",
        result: "MeasurementMessage<CostEvent>",
    },
    Command { name: "stop_measurement", args: "{ id: number }", result: "null" },
    Command { name: "list_comparisons", args: "Record<string, never>", result: "ComparisonEntry[]" },
    Command { name: "open_comparison", args: "{ id: number }", result: "ComparisonReport" },
    Command { name: "delete_comparison", args: "{ id: number }", result: "null" },
    Command {
        name: "export_comparison",
        args: "{ id: number; format: ComparisonFormat; token: number }",
        result: "null",
    },
    Command { name: "cost_curve", args: "Record<string, never>", result: "CostCurve | null" },
    Command { name: "lab_position", args: "{ request: LabRequest }", result: "LabPosition" },
    Command { name: "lab_rounds", args: "{ request: LabRoundsRequest }", result: "LabRounds" },
    Command {
        name: "lab_rules",
        args: "{ position: number; temperatures: number[] }",
        result: "LabRuleRow[]",
    },
    Command { name: "landscape", args: "{ machine: LabMachine }", result: "Landscape" },
    Command { name: "acceptance_map", args: "{ conversation: number | null }", result: "AcceptanceMap" },
    Command { name: "what_if", args: "{ request: WhatIfRequest }", result: "WhatIf" },
    Command { name: "lab_sessions", args: "Record<string, never>", result: "LabSession[]" },
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
        ModelSource,
        SpeedRole,
        ModelEntry,
        LoadedModels,
        LoadRequest,
        ModelFolder,
        MachineMemory,
        Library,
        FitRequest,
        PredictedMemory,
        FitVerdict,
        SmallerChoice,
        Fit,
        PairVerdict,
        PredictedSpeedup,
        MeasuredSpeedup,
        DraftOffer,
        DraftOffers,
        MemoryClass,
        CatalogueRole,
        CatalogueModel,
        Catalogue,
        HubFile,
        HubRepository,
        DownloadRequest,
        DownloadPhase,
        Download,
        HubTokenSource,
        HubTokenProblem,
        HubState,
        LoadProgress,
        LibraryEvent,
        ParameterRange,
        StoreProblem,
        StoreCopy,
        StoreRemedy,
        AppInfo,
        StopReason,
        Alternative,
        TokenEvent,
        RejectedEvent,
        DraftFate,
        DraftedEvent,
        RoundTiming,
        LiveFigures,
        DepthState,
        RoundEvent,
        GenerationStats,
        GenerationEvent,
        StreamMessage,
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
        ExportWords,
        OpenKind,
        SaveKind,
        SavePlace,
        MethodConfig,
        ComparedPrompts,
        CompareRequest,
        ComparedPrompt,
        ComparisonSetting,
        TimedEvent,
        CompareEvent,
        ComparisonReport,
        ComparedAnswer,
        ComparisonMemory,
        TimeSplit,
        PositionReport,
        LaneReport,
        Loss,
        Verdict,
        IdentityReport,
        Difference,
        ComparisonEntry,
        ComparisonFormat,
        MeasurementMessage<CompareEvent>,
        LabSource,
        LabRequest,
        LabToken,
        LabRest,
        LabPosition,
        LabRoundsRequest,
        LabRound,
        LabRounds,
        LabRuleRow,
        LabMachine,
        Landscape,
        LabSession,
        AcceptanceBin,
        AcceptanceMap,
        WhatIfRequest,
        WhatIfFigures,
        WhatIf,
        CostPoint,
        ModelCosts,
        CostCurve,
        CostEvent,
    );
    out.push_str(
        "\n/** Every command of the engine, by name. `answer` also takes a channel of\n * StreamMessage, `compare` one of MeasurementMessage<CompareEvent>, `measure_costs` one of\n * MeasurementMessage<CostEvent>. */\n",
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
