//! Addresses and keys of servers.

use hunch_error::{Error, Refusal, Result};
use hunch_library::http::{self, BearerSecret};
use reqwest::Url;
use reqwest::header::HeaderValue;

/// Address of a server's API, such as `http://127.0.0.1:8080/v1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress(Url);

impl ServerAddress {
    /// Parses an address. Without a path, `/v1` is added, where OpenAI's protocol usually lives. Without a scheme it is
    /// `http`.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if it is no http or https address, or contains a password.
    pub fn parse(text: &str) -> Result<Self> {
        // Not quoted, because it may contain a password or a key.
        let invalid = |why: &str| {
            Error::invalid(format!(
                "This is not the address of a server: {why}. Write it as http://127.0.0.1:8080."
            ))
        };
        let text = text.trim();
        let with_scheme = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let mut url = Url::parse(&with_scheme).map_err(|error| invalid(&error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(invalid("its scheme is neither http nor https"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            // The message must not quote it.
            return Err(Error::invalid(
                "The address contains a password. Remove it. Give a key in the window's library, or with HUNCH_SERVER_KEY on the command line.",
            ));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(invalid("it has a query or a fragment"));
        }
        let path = url.path().trim_end_matches('/').to_owned();
        url.set_path(if path.is_empty() { "/v1" } else { &path });
        Ok(Self(url))
    }

    /// Returns the address of an endpoint of the API.
    pub(super) fn endpoint(&self, name: &str) -> Url {
        let mut url = self.0.clone();
        url.path_segments_mut().expect("the scheme is http").extend(name.split('/'));
        url
    }

    /// Returns the address of the server's Prometheus metrics, next to the API.
    pub(super) fn metrics(&self) -> Url {
        let mut url = self.0.clone();
        url.set_path(&format!("{}/metrics", self.0.path().trim_end_matches("/v1")));
        url
    }

    /// Returns whether the server runs on this machine.
    pub fn is_here(&self) -> bool {
        http::is_loopback(&self.0)
    }

    /// Returns whether nobody else can read what is sent: it is encrypted, or stays on this machine.
    pub fn is_private(&self) -> bool {
        http::is_private(&self.0)
    }

    /// Checks that a key may be sent to the server.
    ///
    /// # Errors
    /// [`Refusal::UnencryptedKey`] unless the address [is private](Self::is_private).
    pub fn check_private(&self) -> Result<()> {
        if self.is_private() {
            return Ok(());
        }
        Err(Refusal::UnencryptedKey { address: self.to_string() }.into())
    }
}

impl std::fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.as_str())
    }
}

/// Key of a server. Its `Debug` output hides the text.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerKey(BearerSecret);

impl std::fmt::Debug for ServerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServerKey(hidden)")
    }
}

impl ServerKey {
    /// Parses a key, ignoring surrounding whitespace.
    ///
    /// # Errors
    /// [`Refusal::NotAServerKey`] if it is empty or not one word of ASCII. The message does not quote it.
    pub fn parse(text: &str) -> Result<Self> {
        BearerSecret::parse(text).map(Self).ok_or_else(|| Refusal::NotAServerKey.into())
    }

    /// Returns a key from the keychain.
    pub fn of_secret(secret: BearerSecret) -> Self {
        Self(secret)
    }

    /// Returns the secret, for the keychain.
    pub fn secret(&self) -> &BearerSecret {
        &self.0
    }

    /// Returns the value of the `Authorization` header.
    pub(super) fn header(&self) -> HeaderValue {
        self.0.header()
    }

    /// Replaces the key in a text.
    pub fn redact(&self, text: &str) -> String {
        self.0.redact(text, "(key)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_get_a_scheme_and_a_path() {
        for (text, endpoint, metrics) in [
            ("127.0.0.1:8080", "http://127.0.0.1:8080/v1/models", "http://127.0.0.1:8080/metrics"),
            (" http://host/v1/ ", "http://host/v1/models", "http://host/metrics"),
            ("https://host/api/v1", "https://host/api/v1/models", "https://host/api/metrics"),
            (
                "https://host/v1beta/openai/",
                "https://host/v1beta/openai/models",
                "https://host/v1beta/openai/metrics",
            ),
        ] {
            let address = ServerAddress::parse(text).unwrap();
            assert_eq!(address.endpoint("models").as_str(), endpoint);
            assert_eq!(address.metrics().as_str(), metrics);
        }
    }

    #[test]
    fn invalid_addresses_are_refused_without_quoting_a_password() {
        for text in ["", "ftp://host", "http://", "http://host:99999"] {
            assert!(ServerAddress::parse(text).is_err(), "{text}");
        }
        for text in [
            "http://me:secret@host",
            "http://me:secret@host:99999",
            "ftp://me:secret@host",
            "http://host?key=secret",
        ] {
            let message = ServerAddress::parse(text).unwrap_err().to_string();
            assert!(!message.contains("secret"), "{message}");
        }
    }

    #[test]
    fn keys_are_hidden() {
        let key = ServerKey::parse(" sk-1 ").unwrap();
        assert_eq!(format!("{key:?}"), "ServerKey(hidden)");
        assert_eq!(key.redact("the key sk-1 is wrong"), "the key (key) is wrong");
        assert!(ServerKey::parse("two words").is_err() && ServerKey::parse(" ").is_err());
    }
}
