//! HTTP client of the Hub. Redirects are followed here, so that the token goes only to the Hub's own
//! origin, over TLS or on loopback. The checksum in a redirect's headers is kept.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap, LINK, LOCATION, RANGE, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, Url};

use super::token::{Token, Tokens};
use super::{HubConfig, names};
use crate::http::{self, CONNECT_TIMEOUT};
use crate::types::{HubState, HubTokenProblem, HubTokenSource};
use hunch_error::{Error, Refusal, Result};

/// Limit of redirects per request.
const MAX_REDIRECTS: usize = 10;
/// Limit of a response read as a whole, in bytes.
const MAX_RESPONSE_BYTES: usize = 32 << 20;
/// Wait that a busy Hub asks for if it names none, in seconds. The Hub's limits are for 5 minutes.
const USUAL_WAIT_SECONDS: u64 = 300;
/// Longest wait requested by the Hub that is respected.
const MAX_REQUESTED_WAIT: Duration = Duration::from_secs(600);

/// Client of one Hub.
pub(crate) struct Hub {
    http: Client,
    endpoint: Url,
    tokens: Arc<Tokens>,
    /// Time without data after which a connection counts as lost.
    stall_timeout: Duration,
}

/// When to retry after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// Retry, not before the wait requested by the Hub.
    After(Option<Duration>),
    /// List the repository again.
    Relist,
    /// Do not retry.
    Never,
}

/// A failed request.
#[derive(Debug)]
pub(crate) struct RequestFailure {
    pub(crate) error: Error,
    pub(crate) retry: Retry,
}

impl RequestFailure {
    pub(crate) fn permanent(error: Error) -> Self {
        Self { error, retry: Retry::Never }
    }
}

/// Body of a response.
pub(super) struct Body {
    pub(super) bytes: Vec<u8>,
    /// Set if there was more.
    pub(super) cut: bool,
    /// The header `Link`, which names the next page.
    pub(super) link: Option<String>,
}

/// A response without its body.
pub(crate) struct HubResponse {
    pub(crate) response: Response,
    /// ETag of the content: a SHA-256 for large files.
    pub(crate) etag: Option<String>,
}

impl Hub {
    pub(crate) fn new(config: HubConfig, stall_timeout: Duration) -> Result<Self> {
        let endpoint = config.url()?;
        let http = http::build(http::client_builder(&config.proxy)?)?;
        Ok(Self { http, endpoint, tokens: Arc::new(Tokens::new(config.tokens)), stall_timeout })
    }

    /// Returns the connection's state. May wait for the user to unlock the keychain.
    pub(crate) fn state(&self) -> HubState {
        let (_, token) = self.tokens.current();
        let mut problems = self.tokens.problems();
        if token != HubTokenSource::Absent && !http::is_private(&self.endpoint) {
            problems.push(HubTokenProblem::Unencrypted);
        }
        HubState { endpoint: self.address(), token, can_keep_token: self.tokens.can_store(), problems }
    }

    /// Lets the next request try a keychain again that could not be read.
    pub(crate) fn retry_keychain(&self) {
        self.tokens.retry_vault();
    }

    /// Normalises a repository name or address to "owner/name".
    pub(crate) fn repository(&self, text: &str) -> Result<String> {
        names::repository_at(text, self.endpoint.as_str())
    }

    /// Returns the part after the colon of a repository name.
    pub(crate) fn selector(&self, text: &str) -> Result<Option<String>> {
        names::selector_at(text, self.endpoint.as_str())
    }

    pub(crate) fn set_token(&self, token: Option<&Token>) -> Result<()> {
        self.tokens.store(token)
    }

    /// Builds an address of the Hub from path segments, each escaped.
    pub(super) fn url<'a>(&self, parts: impl IntoIterator<Item = &'a str>) -> Url {
        let mut url = self.endpoint.clone();
        url.path_segments_mut().expect("the scheme is http").pop_if_empty().extend(parts);
        url
    }

    /// Fetches a small response as a whole.
    pub(super) async fn read(&self, url: Url, of: &str) -> Result<Vec<u8>, RequestFailure> {
        self.read_whole(url, of, MAX_RESPONSE_BYTES).await.map(|body| body.bytes)
    }

    /// Fetches a response as a whole, at most `limit` bytes.
    pub(super) async fn read_whole(&self, url: Url, of: &str, limit: usize) -> Result<Body, RequestFailure> {
        let body = self.read_start(url, of, limit).await?;
        match body.cut {
            false => Ok(body),
            true => Err(RequestFailure::permanent(self.unreachable("its response is too long"))),
        }
    }

    /// Fetches the first `limit` bytes of a response.
    pub(super) async fn read_start(&self, url: Url, of: &str, limit: usize) -> Result<Body, RequestFailure> {
        let mut response = self.get(url, None, of).await?.response;
        let link = header(response.headers(), LINK.as_str());
        let mut bytes = Vec::new();
        while let Some(chunk) = self.chunk(&mut response).await? {
            bytes.extend_from_slice(chunk.as_ref());
            if bytes.len() > limit {
                bytes.truncate(limit);
                return Ok(Body { bytes, cut: true, link });
            }
        }
        Ok(Body { bytes, cut: false, link })
    }

    /// Requests a file from byte `from` on. Status 416 is returned as a response, because only the caller
    /// can judge it.
    pub(crate) async fn file(
        &self,
        repository: &str,
        revision: &str,
        path: &str,
        from: u64,
    ) -> Result<HubResponse, RequestFailure> {
        let parts = repository.split('/').chain(["resolve", revision]).chain(path.split('/'));
        self.get(self.url(parts), (from > 0).then_some(from), repository).await
    }

    /// Returns the next bytes of a body.
    pub(crate) async fn chunk(
        &self,
        response: &mut Response,
    ) -> Result<Option<impl AsRef<[u8]>>, RequestFailure> {
        match tokio::time::timeout(self.stall_timeout, response.chunk()).await {
            Ok(Ok(chunk)) => Ok(chunk),
            Ok(Err(error)) => Err(self.connection_error(&error.without_url())),
            Err(_) => Err(self.transient("the connection stalled", None)),
        }
    }

    async fn get(
        &self,
        url: Url,
        from: Option<u64>,
        repository: &str,
    ) -> Result<HubResponse, RequestFailure> {
        let (mut url, mut etag) = (url, None);
        for _ in 0..MAX_REDIRECTS {
            let is_hub = same_origin(&url, &self.endpoint);
            let token = if is_hub && http::is_private(&url) { self.token().await } else { None };
            let response = self.send(url.clone(), from, token.as_ref()).await?;
            let headers = response.headers();
            etag = etag.or_else(|| header(headers, "x-linked-etag")).map(|etag| unquoted_etag(&etag));
            let status = response.status();
            if let Some(next) = header(headers, LOCATION.as_str()).filter(|_| status.is_redirection()) {
                url = self.redirected(&url, &next)?;
            } else if status.is_success() || status == StatusCode::RANGE_NOT_SATISFIABLE {
                let etag =
                    etag.or_else(|| header(response.headers(), "etag").map(|etag| unquoted_etag(&etag)));
                return Ok(HubResponse { response, etag });
            } else if is_hub {
                return Err(self.hub_error(&response, repository, token.as_ref()));
            } else {
                return Err(self.storage_error(&response));
            }
        }
        Err(RequestFailure::permanent(self.unreachable("it redirects in a loop")))
    }

    async fn send(
        &self,
        url: Url,
        from: Option<u64>,
        token: Option<&Token>,
    ) -> Result<Response, RequestFailure> {
        let mut request = self.http.get(url);
        if let Some(from) = from {
            request = request.header(RANGE, format!("bytes={from}-"));
        }
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, token.header());
        }
        match tokio::time::timeout(self.stall_timeout + CONNECT_TIMEOUT, request.send()).await {
            Ok(Ok(response)) => Ok(response),
            // Redirect addresses contain signatures, which must not appear in messages.
            Ok(Err(error)) => Err(self.connection_error(&error.without_url())),
            Err(_) => Err(self.transient("it does not respond", None)),
        }
    }

    /// Reads the token, so that requests after it do not wait for the user to unlock the keychain.
    pub(crate) async fn unlock(&self) {
        let _ = self.token().await;
    }

    /// Reads the token on a blocking thread, because a keychain may wait for the user.
    async fn token(&self) -> Option<Token> {
        let tokens = Arc::clone(&self.tokens);
        tokio::task::spawn_blocking(move || tokens.current().0).await.ok().flatten()
    }

    fn redirected(&self, from: &Url, to: &str) -> Result<Url, RequestFailure> {
        let refused = |why: &str| RequestFailure::permanent(self.unreachable(why));
        let next = from.join(to).map_err(|_| refused("it redirects to an invalid address"))?;
        match (from.scheme(), next.scheme()) {
            ("https", "https") | ("http", "http" | "https") => Ok(next),
            _ => Err(refused("it redirects from an encrypted to an unencrypted connection")),
        }
    }

    /// Converts an error status of the Hub itself.
    fn hub_error(&self, response: &Response, repository: &str, token: Option<&Token>) -> RequestFailure {
        let (status, headers) = (response.status(), response.headers());
        if let Some(failure) = self.overload(status, headers) {
            return failure;
        }
        let code = header(headers, "x-error-code").unwrap_or_default();
        let quoted = header(headers, "x-error-message").map(|text| quoted(&text, token)).unwrap_or_default();
        let page = format!("{}/{repository}", self.address());
        let answer = || format!("status {}{quoted}", status.as_u16());
        let error = match (status.as_u16(), code.as_str()) {
            (401 | 403, "GatedRepo") if token.is_none() => {
                Refusal::TermsNeedToken { repository: repository.into(), page }.into()
            }
            (401 | 403, "GatedRepo") => {
                Refusal::TermsNotAccepted { repository: repository.into(), page }.into()
            }
            (404, "EntryNotFound" | "RevisionNotFound") => {
                Refusal::NoSuchHubFile { repository: repository.into() }.into()
            }
            (401 | 403, "RepoNotFound") | (404, _) => no_such(repository),
            (401, _) if token.is_none() => no_such(repository),
            (401, _) => Refusal::TokenRejected { detail: answer() }.into(),
            (403, _) => Refusal::NoHubAccess { repository: repository.into(), detail: answer() }.into(),
            _ => self.unreachable(&format!("it responded with status {}{quoted}", status.as_u16())),
        };
        // A missing file may have been replaced in a newer commit.
        let retry =
            if code == "EntryNotFound" || code == "RevisionNotFound" { Retry::Relist } else { Retry::Never };
        RequestFailure { error, retry }
    }

    /// Converts an error status of the storage server. Its addresses expire, and the Hub issues new ones.
    fn storage_error(&self, response: &Response) -> RequestFailure {
        let status = response.status();
        self.overload(status, response.headers()).unwrap_or_else(|| {
            self.transient(&format!("its file storage responded with status {}", status.as_u16()), None)
        })
    }

    /// Returns a retryable failure for overload and server errors.
    fn overload(&self, status: StatusCode, headers: &HeaderMap) -> Option<RequestFailure> {
        let error = match status.as_u16() {
            429 => Refusal::HubBusy {
                endpoint: self.address(),
                seconds: requested_seconds(headers).unwrap_or(USUAL_WAIT_SECONDS),
            }
            .into(),
            code @ (408 | 500..) => self.unreachable(&format!("it responded with status {code}")),
            _ => return None,
        };
        Some(RequestFailure { error, retry: Retry::After(requested_wait(headers)) })
    }

    /// Converts a connection error.
    fn connection_error(&self, error: &reqwest::Error) -> RequestFailure {
        let why = http::describe_failure(error);
        if http::certificate_error(error).is_some() {
            return RequestFailure::permanent(self.unreachable(&why));
        }
        self.transient(&why, None)
    }

    pub(crate) fn transient(&self, why: &str, wait: Option<Duration>) -> RequestFailure {
        RequestFailure { error: self.unreachable(why), retry: Retry::After(wait) }
    }

    fn unreachable(&self, why: &str) -> Error {
        Error::HubUnreachable { endpoint: self.address(), reason: why.to_owned() }
    }

    /// Returns the Hub's address as it is shown.
    pub(crate) fn address(&self) -> String {
        self.endpoint.as_str().trim_end_matches('/').to_owned()
    }
}

fn no_such(repository: &str) -> Error {
    Refusal::NoSuchRepository { repository: repository.into() }.into()
}

fn same_origin(a: &Url, b: &Url) -> bool {
    (a.scheme(), a.host_str(), a.port_or_known_default())
        == (b.scheme(), b.host_str(), b.port_or_known_default())
}

fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// Removes the quotes and weak marker of an ETag.
fn unquoted_etag(etag: &str) -> String {
    etag.trim().trim_start_matches("W/").trim_matches('"').to_owned()
}

/// Quotes a server message: shortened, without control characters or token.
fn quoted(text: &str, token: Option<&Token>) -> String {
    let hidden = token.map_or_else(|| text.to_owned(), |token| token.redact(text));
    format!(" (\"{}\")", http::quotable(&hidden))
}

/// Returns the requested wait as far as it is respected.
fn requested_wait(headers: &HeaderMap) -> Option<Duration> {
    requested_seconds(headers).map(|seconds| Duration::from_secs(seconds).min(MAX_REQUESTED_WAIT))
}

/// Returns the requested wait in seconds: `Retry-After: 30` or the Hub's `RateLimit: "api";r=0;t=30`.
fn requested_seconds(headers: &HeaderMap) -> Option<u64> {
    let plain = header(headers, RETRY_AFTER.as_str());
    let limit = || {
        let text = header(headers, "ratelimit")?;
        text.split(';').find_map(|part| part.trim().strip_prefix("t=").map(str::to_owned))
    };
    plain.or_else(limit)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_wait_from_both_headers() {
        let mut headers = HeaderMap::new();
        assert_eq!(requested_wait(&headers), None);
        headers.insert("ratelimit", "\"api\";r=0;t=55".parse().unwrap());
        assert_eq!(requested_wait(&headers), Some(Duration::from_secs(55)));
        headers.insert(RETRY_AFTER, "3".parse().unwrap());
        assert_eq!(requested_wait(&headers), Some(Duration::from_secs(3)));
        headers.insert(RETRY_AFTER, "999999999".parse().unwrap());
        assert_eq!(requested_wait(&headers), Some(MAX_REQUESTED_WAIT));
    }

    #[test]
    fn same_origin_compares_scheme_host_and_port() {
        let url = |text| Url::parse(text).unwrap();
        let hub = url("https://hub.example");
        assert!(same_origin(&hub, &url("https://hub.example:443/a?b")));
        for other in [
            "http://hub.example",
            "https://hub.example:444",
            "https://cdn.hub.example",
            "https://hub.example.org",
        ] {
            assert!(!same_origin(&hub, &url(other)), "{other}");
        }
    }

    #[test]
    fn only_tls_and_loopback_are_private() {
        let private = |text| http::is_private(&Url::parse(text).unwrap());
        for url in ["https://hub.example", "http://localhost:8080", "http://127.0.0.1:1", "http://[::1]"] {
            assert!(private(url), "{url}");
        }
        for url in ["http://hub.example", "http://localhost.example", "http://192.168.0.2", "http://[::2]"] {
            assert!(!private(url), "{url}");
        }
    }

    #[test]
    fn quoted_message_is_short_plain_and_without_token() {
        let token = Token::new("hf_secret").unwrap();
        let text = quoted(&format!("bad\u{7} hf_secret {}", "x".repeat(500)), Some(&token));
        assert!(text.starts_with(" (\"bad (token) xxx") && text.chars().count() < 310, "{text}");
        assert_eq!(unquoted_etag("W/\"abc\""), "abc");
    }
}
