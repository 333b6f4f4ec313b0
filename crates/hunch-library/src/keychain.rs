//! The system's keychain: the login keychain of a Mac. Holds secrets that people enter, which Hunch stores nowhere else.

use std::fmt;
use std::sync::Arc;

use crate::http::BearerSecret;

/// Secrets by account.
pub trait Keychain: fmt::Debug + Send + Sync {
    /// Returns whether secrets can be stored, as far as that is known without asking a person.
    fn is_available(&self) -> bool;

    /// Reads a secret. May wait for a person to unlock the keychain.
    ///
    /// # Errors
    /// The reason if it cannot be read.
    fn read(&self, account: &str) -> Result<Option<BearerSecret>, String>;

    /// Replaces or deletes a secret.
    ///
    /// # Errors
    /// The reason if it cannot be written.
    fn write(&self, account: &str, secret: Option<&BearerSecret>) -> Result<(), String>;
}

/// Returns the keychain of this system. `None` on systems whose keychain Hunch does not know.
#[cfg(target_os = "macos")]
pub fn of_this_machine() -> Option<Arc<dyn Keychain>> {
    Some(Arc::new(mac::LoginKeychain))
}

/// Returns the keychain of this system. `None` on systems whose keychain Hunch does not know.
#[cfg(not(target_os = "macos"))]
pub fn of_this_machine() -> Option<Arc<dyn Keychain>> {
    None
}

#[cfg(target_os = "macos")]
mod mac {
    //! The login keychain, over `keyring-core`.

    use apple_native_keyring_store::keychain::Store;
    use keyring_core::api::CredentialStoreApi;
    use keyring_core::{Entry, Error};

    use super::Keychain;
    use crate::http::BearerSecret;

    /// Name under which people see the secrets.
    const SERVICE: &str = "Hunch";

    #[derive(Debug)]
    pub(super) struct LoginKeychain;

    fn entry(account: &str) -> Result<Entry, Error> {
        Store::new()?.build(SERVICE, account, None)
    }

    impl Keychain for LoginKeychain {
        fn is_available(&self) -> bool {
            Store::new().is_ok()
        }

        fn read(&self, account: &str) -> Result<Option<BearerSecret>, String> {
            match entry(account).and_then(|entry| entry.get_password()) {
                Ok(text) => match BearerSecret::parse(&text) {
                    Some(secret) => Ok(Some(secret)),
                    None => Err("it contains a malformed secret".into()),
                },
                Err(Error::NoEntry) => Ok(None),
                Err(error) => Err(error.to_string()),
            }
        }

        fn write(&self, account: &str, secret: Option<&BearerSecret>) -> Result<(), String> {
            let entry = entry(account).map_err(|error| error.to_string())?;
            let done = match secret {
                Some(secret) => entry.set_password(secret.expose()),
                None => entry.delete_credential(),
            };
            match done {
                Ok(()) | Err(Error::NoEntry) => Ok(()),
                Err(error) => Err(error.to_string()),
            }
        }
    }
}
