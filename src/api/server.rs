//! Wire types of servers that answer in place of the loaded models.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use crate::server_answers::RemoteModel;

/// Place of a server's key. The key itself never reaches the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum KeyPlace {
    /// There is no key.
    #[default]
    Absent,
    /// In the system's keychain.
    Keychain,
    /// In memory, until the app ends.
    Memory,
}

/// A server in the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct ServerEntry {
    /// Address of its API, such as `http://127.0.0.1:8080/v1`.
    pub address: String,
    /// Place of its key.
    pub key: KeyPlace,
    /// True if a key can be sent to it: the connection is encrypted, or stays on this machine.
    pub takes_key: bool,
}

/// The servers that were added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct ServerList {
    /// The servers, in the order in which they were added.
    pub servers: Vec<ServerEntry>,
    /// True if keys are stored in the system's keychain. Otherwise they last until the app ends.
    pub keychain: bool,
}

/// The server for other programs, which answers with the loaded models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct OwnServer {
    /// Address of its API, such as `http://127.0.0.1:8033/v1`. `None` while it is off.
    pub url: Option<String>,
}

/// Response of a server that can be reached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct ServerCheck {
    /// Models that it offers.
    pub models: Vec<RemoteModel>,
    /// Time of the response, in milliseconds.
    pub ms: f64,
}
