//! The list of servers that can answer, and their keys. The list is stored with the conversations. Keys never are.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::App;
use super::lock::RankedMutex;
use crate::api::{KeyPlace, ServerCheck, ServerEntry, ServerList};
use crate::remote::{RemoteServer, ServerAddress, ServerKey, runtime};
use hunch_core::stats::millis;
use hunch_error::{Error, Refusal, Result};
use hunch_library::keychain::Keychain;

/// Name of the preference that holds the list.
pub(super) const SERVERS: &str = "servers";

/// A server as it is stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct StoredServer {
    address: String,
    /// True if the keychain has its key.
    #[serde(default)]
    key_in_keychain: bool,
}

/// Keys of servers by address. The keychain is asked once for each, because it may ask a person.
pub(super) struct ServerKeys {
    keychain: Option<Arc<dyn Keychain>>,
    held: RankedMutex<HashMap<String, ServerKey>>,
    /// Held while the stored list is read, changed and written.
    change: RankedMutex<()>,
}

impl ServerKeys {
    pub(super) fn new(keychain: Option<Arc<dyn Keychain>>) -> Self {
        Self { keychain, held: RankedMutex::default(), change: RankedMutex::turn(()) }
    }

    /// Returns the keychain, if it can store keys now.
    fn keychain(&self) -> Option<&Arc<dyn Keychain>> {
        self.keychain.as_ref().filter(|keychain| keychain.is_available())
    }

    fn place(&self, server: &StoredServer) -> KeyPlace {
        if server.key_in_keychain {
            return KeyPlace::Keychain;
        }
        if self.held.lock().contains_key(&server.address) { KeyPlace::Memory } else { KeyPlace::Absent }
    }

    /// Returns the key of a server.
    fn key(&self, server: &StoredServer) -> Result<Option<ServerKey>> {
        let held = self.held.lock().get(&server.address).cloned();
        if held.is_some() || !server.key_in_keychain {
            return Ok(held);
        }
        let keychain = self.keychain.as_ref().ok_or_else(|| failed("there is none"))?;
        let secret = keychain.read(&account(&server.address)).map_err(|reason| failed(&reason))?;
        let key = ServerKey::of_secret(secret.ok_or_else(|| failed("the key is not in it any more"))?);
        self.held.lock().insert(server.address.clone(), key.clone());
        Ok(Some(key))
    }

    /// Keeps a key. Returns true if it is in the keychain, false if it lasts until the application ends, because the
    /// keychain is absent or refuses it.
    fn keep(&self, address: &str, key: ServerKey) -> bool {
        let written = self.keychain().map(|keychain| keychain.write(&account(address), Some(key.secret())));
        self.held.lock().insert(address.to_owned(), key);
        matches!(written, Some(Ok(())))
    }

    /// Forgets the key of a server.
    fn forget(&self, server: &StoredServer) -> Result<()> {
        if let Some(keychain) = &self.keychain {
            let removed = keychain.write(&account(&server.address), None);
            // An earlier key may be there even if the last one is not, because the keychain refused it.
            removed.or_else(|reason| if server.key_in_keychain { Err(failed(&reason)) } else { Ok(()) })?;
        }
        self.held.lock().remove(&server.address);
        Ok(())
    }
}

/// Returns the name of a server's key in the keychain.
fn account(address: &str) -> String {
    format!("Key of {address}")
}

fn failed(reason: &str) -> Error {
    Refusal::ServerKeychainFailed { detail: reason.to_owned() }.into()
}

impl App {
    /// Lists the servers that were added, without a request to them.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn servers(&self) -> Result<ServerList> {
        let stored = self.stored_servers()?;
        let servers = stored.iter().filter_map(|server| self.server_entry(server)).collect();
        Ok(ServerList { servers, keychain: self.shared.server_keys.keychain().is_some() })
    }

    /// Adds a server, or replaces its key if one is given. Asks it nothing.
    ///
    /// # Errors
    /// For an invalid address or key, and for a key that others could read on its way. When the store cannot be written.
    pub fn add_server(&self, address: &str, key: Option<&str>) -> Result<ServerEntry> {
        let address = ServerAddress::parse(address)?;
        let key = key.filter(|key| !key.trim().is_empty()).map(ServerKey::parse).transpose()?;
        if key.is_some() {
            address.check_private()?;
        }
        let address = address.to_string();
        let _change = self.shared.server_keys.change.lock();
        let mut stored = self.stored_servers()?;
        let at = stored.iter().position(|server| server.address == address).unwrap_or_else(|| {
            stored.push(StoredServer { address: address.clone(), key_in_keychain: false });
            stored.len() - 1
        });
        if let Some(key) = key {
            stored[at].key_in_keychain = self.shared.server_keys.keep(&address, key);
        }
        self.store_servers(&stored)?;
        self.server_entry(&stored[at]).ok_or_else(|| no_such_server(&address))
    }

    /// Removes a server and its key. Answers of the server stay.
    ///
    /// # Errors
    /// When the key cannot be removed from the keychain, or the store cannot be written.
    pub fn remove_server(&self, address: &str) -> Result<()> {
        let _change = self.shared.server_keys.change.lock();
        let mut stored = self.stored_servers()?;
        let Some(at) = stored.iter().position(|server| server.address == address) else { return Ok(()) };
        let removed = stored.remove(at);
        // A key without a server is never sent. A server without its key would be refused.
        self.store_servers(&stored)?;
        self.shared.server_keys.forget(&removed)
    }

    /// Asks a server for its models. Waits for its response, 10 seconds at most.
    ///
    /// # Errors
    /// [`Error::Server`] if it cannot be reached or does not speak OpenAI's protocol.
    pub fn check_server(&self, address: &str) -> Result<ServerCheck> {
        let server = self.server(address)?;
        let runtime = runtime()?;
        let begun = Instant::now();
        let models = runtime.block_on(server.models())?;
        Ok(ServerCheck { models, ms: millis(begun.elapsed()) })
    }

    /// Returns the client of a server in the list.
    ///
    /// # Errors
    /// [`Refusal::NoSuchServer`] if it is not in the list. If the keychain does not give out its key.
    pub(super) fn server(&self, address: &str) -> Result<RemoteServer> {
        let stored = self.stored_servers()?;
        let server = stored.iter().find(|server| server.address == address);
        let server = server.ok_or_else(|| no_such_server(address))?;
        RemoteServer::new(ServerAddress::parse(&server.address)?, self.shared.server_keys.key(server)?)
    }

    fn server_entry(&self, server: &StoredServer) -> Option<ServerEntry> {
        // The file may have been edited.
        let address = ServerAddress::parse(&server.address).ok()?;
        Some(ServerEntry {
            address: server.address.clone(),
            key: self.shared.server_keys.place(server),
            takes_key: address.is_private(),
        })
    }

    fn stored_servers(&self) -> Result<Vec<StoredServer>> {
        let mut preferences = self.noted(self.store().preferences())?;
        let entries = match preferences.remove(SERVERS) {
            Some(Value::Array(entries)) => entries,
            _ => Vec::new(),
        };
        // The file may have been edited: a malformed entry does not hide the others.
        Ok(entries.into_iter().filter_map(|entry| serde_json::from_value(entry).ok()).collect())
    }

    fn store_servers(&self, servers: &[StoredServer]) -> Result<()> {
        let value = serde_json::to_value(servers).map_err(|error| Error::Internal(error.to_string()))?;
        self.noted(self.store().set_preference(SERVERS, &value))
    }
}

/// Joins two lists of servers, as they are stored. A server in both has a key if either entry has one.
pub(super) fn joined_servers(kept: &Value, added: &Value) -> Value {
    let entries = |list: &Value| list.as_array().cloned().unwrap_or_default();
    let mut joined = entries(kept);
    for server in entries(added) {
        match joined.iter_mut().find(|known| known["address"] == server["address"]) {
            Some(known) if server["key_in_keychain"] == true => *known = server,
            Some(_) => {}
            None => joined.push(server),
        }
    }
    Value::Array(joined)
}

fn no_such_server(address: &str) -> Error {
    Refusal::NoSuchServer { address: address.to_owned() }.into()
}
