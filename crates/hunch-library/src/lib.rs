//! Models on this machine: discovery, inspection, memory fit, pairing and downloads. Reads headers, never
//! weights, and loads nothing. Folders of other programs are only read.

mod candidates;
pub mod catalogue;
mod data_folders;
pub mod download;
pub mod fit;
mod folders;
mod header_cache;
mod heads;
pub mod http;
pub mod hub;
mod inspect;
mod jan;
pub mod keychain;
mod listed;
pub mod load_marker;
mod locked_json;
pub mod machine;
mod names;
mod ollama;
pub mod pairs;
mod places;
mod quantisation;
mod remove;
mod resolve;
mod scan;
pub mod speed_log;
mod stored_data;
mod text_file;
pub mod types;
pub mod vocabularies;
mod walk;
pub mod watch;

pub use data_folders::{
    HEADS_FOLDER, SET_ASIDE_FOLDER, conversations_path, data_folder, default_model_path, heads_folder,
    is_low_bit_copy, low_bit_path, low_bit_path_in, models_folder, other_data_folder, skip_sets_folder_in,
    store_files, training_folder, training_folder_in,
};
pub use folders::{add_folder, added_folders, remember_loaded, remove_folder, was_loaded};
pub use heads::{HeadEntry, head_at, heads, resolve_head};
pub use inspect::{Inspection, inspect, template_note};
pub use listed::{are_known, are_listed, inspect_listed, is_model_folder};
pub use names::{DEFAULT_MODEL, short_name};
pub use places::Places;
pub use remove::{removable, remove};
pub use resolve::resolve;
pub use scan::{Scan, scan};
pub use stored_data::{remove_stored_data, stored_data};
