//! Every type that the list of commands names, in one place for the macros that read the list.

pub use std::collections::BTreeMap;
pub use std::path::PathBuf;

pub use hunch_core::pass_cost::CostCurve;
pub use hunch_error::{ErrorInfo, RefusalReason};
pub use hunch_library::types::{
    Catalogue, Download, DownloadRequest, DraftOffers, Fit, FitVerdict, HubCard, HubRepository, HubSearch,
    HubSearchPage, HubState, Library, LibraryEvent, LoadRequest, StoredData,
};

pub use super::{
    AnswerRequest, Answering, AppInfo, Conversation, ConversationEntry, ExportFormat, ExportWords,
    LoadedModels, MeasurementMessage, OpenKind, OwnServer, PreferenceValue, ReadAttachment, SaveKind,
    SavePlace, SearchHit, ServerCheck, ServerEntry, ServerList, StoreRemedy, StreamMessage, SuiteFile,
    TextToken, TrainEvent, TrainOutlook, TrainRequest, UpdateProgress, UpdateState,
};
pub use crate::bench::compare::report::{
    CompareEvent, CompareRequest, ComparisonEntry, ComparisonFormat, ComparisonReport,
};
pub use crate::bench::skip_search::SkipSearchEvent;
pub use crate::event::GenerationEvent;
pub use crate::lab::report::{
    AcceptanceMap, CostEvent, LabDraft, LabMachine, LabPosition, LabRequest, LabRounds, LabRoundsRequest,
    LabRuleRow, LabServing, LabServingRequest, LabSession, Landscape, WhatIf, WhatIfRequest,
};
