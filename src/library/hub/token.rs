//! The hub's token: where it comes from, where it is kept, and that nobody gets to see it. It is in
//! the environment, in the system's keychain or in the file of Hugging Face's programs; Hunch itself
//! writes it into the keychain only.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use directories::BaseDirs;
use reqwest::header::HeaderValue;

use crate::api::library::HubTokenSource;
use crate::error::{Error, Result};

/// A token. Printed, it says that it is one, and no more.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(hidden)")
    }
}

impl Token {
    /// A token from its text; space around it is nothing.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] when it cannot be one. The message does not repeat it.
    pub fn new(text: &str) -> Result<Self> {
        let text = text.trim();
        if text.is_empty() || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(Error::invalid(
                "That is not a token of the hub: it has to be one word of plain characters, as hf_…. Copy it again \
                 from your settings on the hub.",
            ));
        }
        Ok(Self(text.to_owned()))
    }

    /// What a request says to be let in.
    pub(super) fn header(&self) -> HeaderValue {
        let mut value =
            HeaderValue::from_str(&format!("Bearer {}", self.0)).expect("a token is plain characters");
        value.set_sensitive(true);
        value
    }

    /// A text in which the token, should it be there, is not to be read.
    pub(super) fn hide_in(&self, text: &str) -> String {
        text.replace(&self.0, "(token)")
    }
}

/// A place that keeps a token from one start to the next.
pub trait Vault: Send + Sync {
    /// What it keeps.
    ///
    /// # Errors
    /// Why it cannot be opened.
    fn read(&self) -> Result<Option<Token>, String>;

    /// Keeps this token and no other, or none.
    ///
    /// # Errors
    /// Why it cannot be written.
    fn write(&self, token: Option<&Token>) -> Result<(), String>;
}

/// Where to look for the token, in this order.
#[derive(Clone, Default)]
pub struct TokenPlaces {
    /// What `HF_TOKEN` says.
    pub environment: Option<Token>,
    /// The system's keychain, where there is one.
    pub vault: Option<Arc<dyn Vault>>,
    /// The file of Hugging Face's programs. Only ever read.
    pub file: Option<PathBuf>,
}

impl std::fmt::Debug for TokenPlaces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenPlaces")
            .field("environment", &self.environment)
            .field("vault", &self.vault.is_some())
            .field("file", &self.file)
            .finish()
    }
}

impl TokenPlaces {
    /// The places of this machine.
    pub fn of_this_machine() -> Self {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let environment = set("HF_TOKEN").and_then(|text| Token::new(&text.to_string_lossy()).ok());
        let file = set("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| {
            let home = set("HF_HOME").map(PathBuf::from).or_else(|| {
                let cache = set("XDG_CACHE_HOME").map(PathBuf::from);
                let cache = cache.or_else(|| BaseDirs::new().map(|dirs| dirs.home_dir().join(".cache")));
                Some(cache?.join("huggingface"))
            });
            Some(home?.join("token"))
        });
        Self { environment, vault: keychain(), file }
    }
}

/// The token of now.
pub(super) struct Tokens {
    places: TokenPlaces,
    /// What the vault said; it is asked once, since a keychain may ask the person.
    of_vault: Mutex<Option<Option<Token>>>,
}

impl Tokens {
    pub(super) fn new(places: TokenPlaces) -> Self {
        Self { places, of_vault: Mutex::new(None) }
    }

    /// The token, and where it is from. May wait for the person to open the keychain.
    pub(super) fn current(&self) -> (Option<Token>, HubTokenSource) {
        if let Some(token) = &self.places.environment {
            return (Some(token.clone()), HubTokenSource::Environment);
        }
        if let Some(token) = self.of_vault() {
            return (Some(token), HubTokenSource::Keychain);
        }
        // Read each time: the person may log in with another program meanwhile.
        let text = self.places.file.as_ref().and_then(|path| std::fs::read_to_string(path).ok());
        match text.and_then(|text| Token::new(&text).ok()) {
            Some(token) => (Some(token), HubTokenSource::File),
            None => (None, HubTokenSource::Absent),
        }
    }

    fn of_vault(&self) -> Option<Token> {
        let vault = self.places.vault.as_ref()?;
        let mut known = self.of_vault.lock().unwrap_or_else(PoisonError::into_inner);
        // A keychain that stays shut is as one without a token: most models need none.
        known.get_or_insert_with(|| vault.read().unwrap_or_default()).clone()
    }

    pub(super) fn can_keep(&self) -> bool {
        self.places.vault.is_some()
    }

    /// Keeps a token, or forgets the one that is kept.
    pub(super) fn keep(&self, token: Option<&Token>) -> Result<()> {
        let Some(vault) = &self.places.vault else {
            return Err(Error::invalid(
                "This system has no keychain that Hunch can keep a token in, and it keeps none anywhere else. Set \
                 HF_TOKEN, or log in with `hf auth login`.",
            ));
        };
        let mut known = self.of_vault.lock().unwrap_or_else(PoisonError::into_inner);
        vault.write(token).map_err(|reason| {
            let hidden = token.map_or(reason.clone(), |token| token.hide_in(&reason));
            Error::HubToken(format!(
                "The keychain could not be written: {hidden}. Nothing was changed; try again."
            ))
        })?;
        *known = Some(token.cloned());
        Ok(())
    }
}

#[cfg(not(target_os = "macos"))]
fn keychain() -> Option<Arc<dyn Vault>> {
    None
}

#[cfg(target_os = "macos")]
fn keychain() -> Option<Arc<dyn Vault>> {
    Some(Arc::new(mac::Keychain))
}

#[cfg(target_os = "macos")]
mod mac {
    //! The login keychain.

    use keyring_core::api::CredentialStoreApi;
    use keyring_core::{Entry, Error};

    use super::{Token, Vault};

    pub(super) struct Keychain;

    fn entry() -> Result<Entry, Error> {
        let store = apple_native_keyring_store::keychain::Store::new()?;
        store.build("Hunch", "Hugging Face token", None)
    }

    impl Vault for Keychain {
        fn read(&self) -> Result<Option<Token>, String> {
            match entry().and_then(|entry| entry.get_password()) {
                Ok(text) => Ok(Token::new(&text).ok()),
                Err(Error::NoEntry) => Ok(None),
                Err(error) => Err(error.to_string()),
            }
        }

        fn write(&self, token: Option<&Token>) -> Result<(), String> {
            let entry = entry().map_err(|error| error.to_string())?;
            let done = match token {
                Some(token) => entry.set_password(&token.0),
                None => entry.delete_credential(),
            };
            match done {
                Ok(()) | Err(Error::NoEntry) => Ok(()),
                Err(error) => Err(error.to_string()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Drawer(Mutex<Option<Token>>);

    impl Vault for Drawer {
        fn read(&self) -> Result<Option<Token>, String> {
            Ok(self.0.lock().unwrap().clone())
        }

        fn write(&self, token: Option<&Token>) -> Result<(), String> {
            *self.0.lock().unwrap() = token.cloned();
            Ok(())
        }
    }

    #[test]
    fn a_token_is_never_printed() {
        let token = Token::new(" hf_secret\n").unwrap();
        assert_eq!(format!("{token:?} {:?}", token.header()), "Token(hidden) Sensitive");
        let places = TokenPlaces { environment: Some(token.clone()), ..TokenPlaces::default() };
        assert!(!format!("{places:?}").contains("secret"));
        assert_eq!(token.hide_in("no: hf_secret!"), "no: (token)!");
        let error = Token::new("hf secret").unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }

    #[test]
    fn the_environment_comes_before_the_keychain_and_that_before_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "of_file\n").unwrap();
        let mut places =
            TokenPlaces { vault: Some(Arc::<Drawer>::default()), file: Some(file), environment: None };
        let of_file = Tokens::new(places.clone());
        assert_eq!(of_file.current(), (Some(Token("of_file".into())), HubTokenSource::File));
        of_file.keep(Some(&Token("kept".into()))).unwrap();
        assert_eq!(of_file.current(), (Some(Token("kept".into())), HubTokenSource::Keychain));
        places.environment = Some(Token("set".into()));
        assert_eq!(Tokens::new(places).current().1, HubTokenSource::Environment);
        of_file.keep(None).unwrap();
        assert_eq!(of_file.current().1, HubTokenSource::File);
        assert!(Tokens::new(TokenPlaces::default()).keep(None).is_err(), "there is no keychain");
    }
}
