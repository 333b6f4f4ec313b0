//! The Hub token: its sources and its protection. It is read from the environment, the system's keychain or
//! the token file of Hugging Face's tools. Hunch writes it only to the keychain.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use directories::BaseDirs;
use parking_lot::{Mutex, MutexGuard};
use reqwest::header::HeaderValue;

use crate::http::BearerSecret;
use crate::types::{HubTokenProblem, HubTokenSource};
use hunch_error::{Error, Refusal, Result};

/// A token. Its `Debug` output hides the text.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(BearerSecret);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(hidden)")
    }
}

impl Token {
    /// Parses a token, ignoring surrounding whitespace.
    ///
    /// # Errors
    /// [`Refusal::NotAToken`] if it is malformed. The message does not quote it.
    pub fn new(text: &str) -> Result<Self> {
        BearerSecret::parse(text).map(Self).ok_or(Error::Refused(Refusal::NotAToken))
    }

    /// Returns the value of the `Authorization` header.
    pub(super) fn header(&self) -> HeaderValue {
        self.0.header()
    }

    /// Replaces the token in a text.
    pub(super) fn redact(&self, text: &str) -> String {
        self.0.redact(text, "(token)")
    }
}

/// Persistent storage of a token.
pub trait Vault: Send + Sync {
    /// Reads the stored token.
    ///
    /// # Errors
    /// The reason if it cannot be read.
    fn read(&self) -> Result<Option<Token>, String>;

    /// Replaces or deletes the stored token.
    ///
    /// # Errors
    /// The reason if it cannot be written.
    fn write(&self, token: Option<&Token>) -> Result<(), String>;
}

/// Sources of the token, in order of precedence.
#[derive(Clone, Default)]
pub struct TokenSources {
    /// Token in `HF_TOKEN`.
    pub environment: Option<Token>,
    /// Set if `HF_TOKEN` is malformed.
    pub environment_is_malformed: bool,
    /// The system's keychain, if there is one.
    pub vault: Option<Arc<dyn Vault>>,
    /// The token file of Hugging Face's tools, which is only read.
    pub file: Option<PathBuf>,
}

impl std::fmt::Debug for TokenSources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenSources")
            .field("environment", &self.environment)
            .field("environment_is_malformed", &self.environment_is_malformed)
            .field("vault", &self.vault.is_some())
            .field("file", &self.file)
            .finish()
    }
}

impl TokenSources {
    /// Returns the sources of this machine.
    pub fn of_this_machine() -> Self {
        let home = BaseDirs::new().map(|dirs| dirs.home_dir().to_owned());
        Self::from_variables(|name| std::env::var_os(name), home.as_deref(), keychain())
    }

    /// Returns the sources from environment variables. Empty ones count as unset.
    fn from_variables(
        variable: impl Fn(&str) -> Option<OsString>,
        home: Option<&Path>,
        vault: Option<Arc<dyn Vault>>,
    ) -> Self {
        let set = |name| variable(name).filter(|value| !value.is_empty());
        // Whitespace counts as unset.
        let value = set("HF_TOKEN").filter(|text| !text.to_string_lossy().trim().is_empty());
        let environment = value.as_ref().and_then(|text| Token::new(&text.to_string_lossy()).ok());
        let file = set("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| {
            let base = set("HF_HOME").map(PathBuf::from).or_else(|| {
                let cache = set("XDG_CACHE_HOME").map(PathBuf::from);
                Some(cache.or_else(|| Some(home?.join(".cache")))?.join("huggingface"))
            });
            Some(base?.join("token"))
        });
        Self { environment_is_malformed: value.is_some() && environment.is_none(), environment, vault, file }
    }
}

/// Resolves the current token.
pub(super) struct Tokens {
    sources: TokenSources,
    vault_state: Mutex<VaultState>,
}

/// Result of reading the vault. It is read once, because a keychain may prompt the user.
#[derive(Default)]
enum VaultState {
    #[default]
    Unread,
    Loaded(Option<Token>),
    /// Reading failed for this reason.
    Failed(String),
}

impl Tokens {
    pub(super) fn new(sources: TokenSources) -> Self {
        Self { sources, vault_state: Mutex::default() }
    }

    /// Returns the token and its source. May wait for the user to unlock the keychain.
    pub(super) fn current(&self) -> (Option<Token>, HubTokenSource) {
        if let Some(token) = &self.sources.environment {
            return (Some(token.clone()), HubTokenSource::Environment);
        }
        if let Some(token) = self.read_vault() {
            return (Some(token), HubTokenSource::Keychain);
        }
        // Read each time, because the user may log in with another program.
        let text = self.sources.file.as_ref().and_then(|path| std::fs::read_to_string(path).ok());
        match text.and_then(|text| Token::new(&text).ok()) {
            Some(token) => (Some(token), HubTokenSource::File),
            None => (None, HubTokenSource::Absent),
        }
    }

    /// Returns why configured tokens are not used, as found by [`Tokens::current`].
    pub(super) fn problems(&self) -> Vec<HubTokenProblem> {
        let environment = self.sources.environment_is_malformed.then_some(HubTokenProblem::Environment);
        let keychain = match &*self.vault_state() {
            VaultState::Failed(reason) => Some(HubTokenProblem::Keychain { reason: reason.clone() }),
            VaultState::Unread | VaultState::Loaded(_) => None,
        };
        environment.into_iter().chain(keychain).collect()
    }

    /// Lets the next request read a vault again that could not be read.
    pub(super) fn retry_vault(&self) {
        let mut state = self.vault_state();
        if matches!(*state, VaultState::Failed(_)) {
            *state = VaultState::Unread;
        }
    }

    fn vault_state(&self) -> MutexGuard<'_, VaultState> {
        self.vault_state.lock()
    }

    fn read_vault(&self) -> Option<Token> {
        let vault = self.sources.vault.as_ref()?;
        let mut state = self.vault_state();
        if matches!(*state, VaultState::Unread) {
            *state = vault.read().map_or_else(VaultState::Failed, VaultState::Loaded);
        }
        match &*state {
            VaultState::Loaded(token) => token.clone(),
            // Continue without a token: most models need none.
            VaultState::Failed(_) | VaultState::Unread => None,
        }
    }

    pub(super) fn can_store(&self) -> bool {
        self.sources.vault.is_some()
    }

    /// Stores a token in the vault, or deletes it.
    pub(super) fn store(&self, token: Option<&Token>) -> Result<()> {
        let Some(vault) = &self.sources.vault else {
            return Err(Refusal::NoKeychain.into());
        };
        let mut state = self.vault_state();
        vault.write(token).map_err(|reason| {
            let detail = token.map_or(reason.clone(), |token| token.redact(&reason));
            Error::from(Refusal::KeychainFailed { detail })
        })?;
        *state = VaultState::Loaded(token.cloned());
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
    //! The Hub's token in the login keychain.

    use super::{Token, Vault};
    use crate::keychain;

    /// Account of the token.
    const ACCOUNT: &str = "Hugging Face token";

    pub(super) struct Keychain;

    impl Vault for Keychain {
        fn read(&self) -> Result<Option<Token>, String> {
            let Some(keychain) = keychain::of_this_machine() else { return Ok(None) };
            Ok(keychain.read(ACCOUNT)?.map(Token))
        }

        fn write(&self, token: Option<&Token>) -> Result<(), String> {
            let keychain = keychain::of_this_machine().ok_or("there is no keychain")?;
            keychain.write(ACCOUNT, token.map(|token| &token.0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the sources for these variables and the home folder `/home`.
    fn of(variables: &[(&str, &str)]) -> TokenSources {
        let variable =
            |name: &str| variables.iter().find(|(set, _)| *set == name).map(|(_, value)| value.into());
        TokenSources::from_variables(variable, Some(Path::new("/home")), None)
    }

    #[test]
    fn reads_token_and_token_file_from_variables() {
        let token = |text: &str| Some(Token::new(text).unwrap());
        let file = |variables: &[(&str, &str)]| of(variables).file.unwrap();
        let nothing = of(&[]);
        assert_eq!((nothing.environment, nothing.environment_is_malformed), (None, false));
        assert_eq!(of(&[("HF_TOKEN", " hf_abc\n")]).environment, token("hf_abc"));
        for empty in ["", " ", "\n"] {
            let sources = of(&[("HF_TOKEN", empty)]);
            assert_eq!((sources.environment, sources.environment_is_malformed), (None, false), "{empty:?}");
        }
        for malformed in ["hf abc", "hf_äbc", "hf_abc\nhf_def", "hf_\u{7}"] {
            let sources = of(&[("HF_TOKEN", malformed)]);
            assert_eq!(
                (sources.environment, sources.environment_is_malformed),
                (None, true),
                "{malformed:?}"
            );
        }
        assert_eq!(file(&[]), Path::new("/home/.cache/huggingface/token"));
        assert_eq!(file(&[("XDG_CACHE_HOME", "/cache")]), Path::new("/cache/huggingface/token"));
        assert_eq!(file(&[("HF_HOME", "/hf"), ("XDG_CACHE_HOME", "/cache")]), Path::new("/hf/token"));
        assert_eq!(file(&[("HF_TOKEN_PATH", "/t"), ("HF_HOME", "/hf")]), Path::new("/t"));
        assert_eq!(file(&[("HF_TOKEN_PATH", ""), ("HF_HOME", "")]), file(&[]));
        assert_eq!(
            TokenSources::from_variables(|_| None, None, None).file,
            None,
            "a user without a home folder"
        );
    }

    #[cfg(unix)]
    #[test]
    fn non_utf8_variable_is_a_malformed_token() {
        use std::os::unix::ffi::OsStringExt;
        let variable = |name: &str| (name == "HF_TOKEN").then(|| OsString::from_vec(b"hf_\xff".to_vec()));
        let sources = TokenSources::from_variables(variable, None, None);
        assert_eq!((sources.environment, sources.environment_is_malformed), (None, true));
    }

    /// A vault that fails a number of times.
    struct FailingVault(Mutex<usize>);

    impl Vault for FailingVault {
        fn read(&self) -> Result<Option<Token>, String> {
            let mut left = self.0.lock();
            if *left == 0 {
                return Ok(Some(Token::new("kept").unwrap()));
            }
            *left -= 1;
            Err("access denied".into())
        }

        fn write(&self, _: Option<&Token>) -> Result<(), String> {
            Err("locked".into())
        }
    }

    #[test]
    fn failed_keychain_is_reported_and_retried_only_on_request() {
        let vault: Arc<FailingVault> = Arc::new(FailingVault(Mutex::new(2)));
        let sources = TokenSources { vault: Some(vault.clone()), ..TokenSources::default() };
        let tokens = Tokens::new(sources.clone());
        assert_eq!(tokens.problems(), [], "not read yet");
        let problem = HubTokenProblem::Keychain { reason: "access denied".into() };
        for _ in 0..3 {
            assert_eq!(tokens.current(), (None, HubTokenSource::Absent));
            assert_eq!(tokens.problems(), std::slice::from_ref(&problem));
        }
        assert_eq!(*vault.0.lock(), 1, "read only once");
        tokens.retry_vault();
        assert_eq!(tokens.current().0, None);
        tokens.retry_vault();
        assert_eq!(tokens.current(), (Some(Token::new("kept").unwrap()), HubTokenSource::Keychain));
        assert_eq!(tokens.problems(), []);
        // A successful read is final.
        tokens.retry_vault();
        *vault.0.lock() = 1;
        assert_eq!(tokens.current().1, HubTokenSource::Keychain);
        // A malformed variable does not hide the keychain, and is reported.
        *vault.0.lock() = 0;
        let tokens = Tokens::new(TokenSources { environment_is_malformed: true, ..sources });
        assert_eq!(tokens.current().1, HubTokenSource::Keychain);
        assert_eq!(tokens.problems(), [HubTokenProblem::Environment]);
        let error = tokens.store(Some(&Token::new("new").unwrap())).unwrap_err().to_string();
        assert!(error.contains("locked") && error.contains("Nothing was changed"), "{error}");
    }

    #[derive(Default)]
    struct MemoryVault(Mutex<Option<Token>>);

    impl Vault for MemoryVault {
        fn read(&self) -> Result<Option<Token>, String> {
            Ok(self.0.lock().clone())
        }

        fn write(&self, token: Option<&Token>) -> Result<(), String> {
            *self.0.lock() = token.cloned();
            Ok(())
        }
    }

    #[test]
    fn token_is_never_printed() {
        let token = Token::new(" hf_secret\n").unwrap();
        assert_eq!(format!("{token:?} {:?}", token.header()), "Token(hidden) Sensitive");
        let sources = TokenSources { environment: Some(token.clone()), ..TokenSources::default() };
        assert!(!format!("{sources:?}").contains("secret"));
        assert_eq!(token.redact("no: hf_secret!"), "no: (token)!");
        let error = Token::new("hf secret").unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }

    #[test]
    fn environment_precedes_keychain_precedes_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "of_file\n").unwrap();
        let mut sources = TokenSources {
            vault: Some(Arc::<MemoryVault>::default()),
            file: Some(file),
            ..TokenSources::default()
        };
        let from_file = Tokens::new(sources.clone());
        assert_eq!(from_file.current(), (Some(Token::new("of_file").unwrap()), HubTokenSource::File));
        from_file.store(Some(&Token::new("kept").unwrap())).unwrap();
        assert_eq!(from_file.current(), (Some(Token::new("kept").unwrap()), HubTokenSource::Keychain));
        sources.environment = Some(Token::new("set").unwrap());
        assert_eq!(Tokens::new(sources).current().1, HubTokenSource::Environment);
        from_file.store(None).unwrap();
        assert_eq!(from_file.current().1, HubTokenSource::File);
        assert!(Tokens::new(TokenSources::default()).store(None).is_err(), "there is no keychain");
    }
}
