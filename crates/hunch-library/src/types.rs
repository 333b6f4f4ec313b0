//! Wire types of the model library, its downloads and the Hub.

mod catalogue;
mod downloads;
mod events;
mod fit;
mod hub;
mod models;
mod pairs;
mod stored;

pub use catalogue::{
    Catalogue, CatalogueCheck, CatalogueHead, CatalogueModel, CatalogueRole, CheckSource, MemoryClass,
};
pub use downloads::{
    Download, DownloadPhase, DownloadRequest, HubFile, HubRepository, HubState, HubTokenProblem,
    HubTokenSource,
};
pub use events::{LibraryEvent, LoadProgress};
pub use fit::{Fit, FitVerdict, MachineMemory, PredictedMemory, SmallerChoice};
pub use hub::{HubCard, HubFormat, HubResult, HubSearch, HubSearchPage, HubSort, HubSupport};
pub use models::{Library, LoadRequest, ModelEntry, ModelFolder, ModelSource, OwnDrafter, SpeedRole};
pub use pairs::{
    CostSource, DraftOffer, DraftOffers, HeadOffer, LowBitOffer, MeasuredSpeedup, PairVerdict,
    PredictedSpeedup,
};
pub use stored::{StoredData, StoredKind};
