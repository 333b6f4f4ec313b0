//! HTTP clients: proxy, TLS and time limits, the same for the Hub and for other servers. Sends no requests.

use std::error::Error as _;
use std::net::IpAddr;
use std::time::Duration;

use reqwest::header::HeaderValue;
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Proxy, Url};

use hunch_error::{Refusal, Result};

/// Proxy for requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ProxyChoice {
    /// From `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY` or the system's settings.
    #[default]
    System,
    /// Direct connections.
    None,
    /// The proxy at this address.
    Through(String),
}

/// Limit of connecting.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Returns the builder of a client that follows no redirects and repeats no requests.
///
/// # Errors
/// If the address of the proxy is invalid.
pub fn client_builder(proxy: &ProxyChoice) -> Result<ClientBuilder> {
    // Fails if a provider is already installed, which serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = Client::builder()
        .user_agent(concat!("hunch/", env!("CARGO_PKG_VERSION")))
        .redirect(Policy::none())
        .retry(reqwest::retry::never())
        .connect_timeout(CONNECT_TIMEOUT);
    let invalid =
        |error: reqwest::Error| Refusal::BadProxy { detail: innermost_reason(&error.without_url()) };
    Ok(match proxy {
        ProxyChoice::System => builder,
        ProxyChoice::None => builder.no_proxy(),
        ProxyChoice::Through(address) => builder.proxy(Proxy::all(address).map_err(invalid)?),
    })
}

/// Builds a client.
///
/// # Errors
/// If TLS cannot be set up.
pub fn build(builder: ClientBuilder) -> Result<Client> {
    builder.build().map_err(|error| Refusal::NoTls { detail: innermost_reason(&error.without_url()) }.into())
}

/// Returns whether an address is of this machine.
pub fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Returns whether nobody else can read a request in transit: it is encrypted, or stays on this machine.
pub fn is_private(url: &Url) -> bool {
    url.scheme() == "https" || is_loopback(url)
}

/// Secret that a request is authorised with. Its `Debug` output hides the text.
#[derive(Clone, PartialEq, Eq)]
pub struct BearerSecret(String);

impl std::fmt::Debug for BearerSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BearerSecret(hidden)")
    }
}

impl BearerSecret {
    /// Parses a secret, ignoring surrounding whitespace. `None` unless it is one word of plain characters.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let is_word = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_word.then(|| Self(text.to_owned()))
    }

    /// Returns the value of the `Authorization` header.
    pub fn header(&self) -> HeaderValue {
        let mut value =
            HeaderValue::from_str(&format!("Bearer {}", self.0)).expect("a secret is plain characters");
        value.set_sensitive(true);
        value
    }

    /// Returns the text, for the keychain.
    #[cfg(target_os = "macos")]
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    /// Replaces the secret in a text.
    pub fn redact(&self, text: &str, replacement: &str) -> String {
        text.replace(&self.0, replacement)
    }
}

/// Describes a failed connection: the certificate that is not trusted, or the innermost reason.
pub fn describe_failure(error: &reqwest::Error) -> String {
    if let Some(untrusted) = certificate_error(error) {
        return format!(
            "its certificate is not trusted ({untrusted}), so nothing was sent. If your network inspects TLS \
             connections, add the network's certificate to those that this system trusts"
        );
    }
    let what = if error.is_connect() { "no connection" } else { "the connection was lost" };
    format!("{what} ({})", innermost_reason(error))
}

/// Returns the innermost cause, such as "Connection refused".
pub(crate) fn innermost_reason(error: &reqwest::Error) -> String {
    let mut source = error.source();
    let mut text = error.to_string();
    while let Some(inner) = source {
        text = inner.to_string();
        source = inner.source();
    }
    text
}

/// Returns the certificate error that prevented a connection, if there is one.
pub(crate) fn certificate_error(error: &reqwest::Error) -> Option<&rustls::Error> {
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(tls @ rustls::Error::InvalidCertificate(_)) = tls_error(inner) {
            return Some(tls);
        }
        source = inner.source();
    }
    None
}

/// Returns the TLS error inside an IO error. IO errors do not expose it as their source.
fn tls_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    if let Some(tls) = error.downcast_ref() {
        return Some(tls);
    }
    tls_error(error.downcast_ref::<std::io::Error>()?.get_ref()?)
}

/// Shortens a message of a server for quoting: without control characters, at most 300 characters and an ellipsis.
pub fn quotable(text: &str) -> String {
    /// Limit of a quoted message, in characters. vLLM's refusal of a long prompt has 263.
    const MAX_QUOTED_CHARS: usize = 300;
    let mut plain = text.chars().filter(|c| !c.is_control());
    let begun: String = plain.by_ref().take(MAX_QUOTED_CHARS).collect();
    let end = if plain.next().is_some() { "…" } else { "" };
    format!("{}{end}", begun.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_cut_with_an_ellipsis() {
        assert_eq!(quotable(" no\u{1b} model\n"), "no model");
        assert_eq!(quotable(&"ü".repeat(300)), "ü".repeat(300));
        assert_eq!(quotable(&"ü".repeat(301)), format!("{}…", "ü".repeat(300)));
    }
}
