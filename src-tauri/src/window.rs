//! Opens the window described in `tauri.conf.json` and restricts it to the app's own pages.

use tauri::webview::NewWindowResponse;
use tauri::{App, Runtime, Url, WebviewWindowBuilder};

/// Opens the window. It can neither leave the app's pages nor open another window.
///
/// # Errors
/// If the system cannot open a window.
pub(crate) fn open<R: Runtime>(app: &App<R>) -> tauri::Result<()> {
    let config = app.config().app.windows.first().ok_or(tauri::Error::WindowNotFound)?;
    WebviewWindowBuilder::from_config(app, config)?
        .on_navigation(is_own_page)
        .on_new_window(|_, _| NewWindowResponse::Deny)
        .build()
        .map(drop)
}

/// Returns true if an address is a page of the app. The scheme depends on the system.
fn is_own_page(url: &Url) -> bool {
    let (scheme, host) = if cfg!(windows) { ("http", "tauri.localhost") } else { ("tauri", "localhost") };
    url.scheme() == scheme
        && url.host_str() == Some(host)
        && url.port().is_none()
        && url.username().is_empty()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[cfg(not(windows))]
    #[test]
    fn navigates_to_own_pages_only() {
        let is_own = |url| is_own_page(&Url::parse(url).unwrap());
        assert!(is_own("tauri://localhost") && is_own("tauri://localhost/index.html#chat"));
        for other in [
            "https://example.org/",
            "http://tauri.localhost/",
            "http://localhost/",
            "tauri://localhost.example.org/",
            "tauri://example.org/",
            "tauri://localhost:8080/",
            "tauri://x@localhost/",
            "about:blank",
            "data:text/html,x",
            "file:///etc/passwd",
            "javascript:alert(1)",
        ] {
            assert!(!is_own(other), "{other}");
        }
    }

    #[test]
    fn policy_restricts_directives_without_a_fallback() {
        let config: Value = serde_json::from_str(include_str!("../tauri.conf.json")).unwrap();
        let policy = &config["app"]["security"]["csp"];
        for directive in
            ["default-src", "base-uri", "form-action", "frame-ancestors", "object-src", "worker-src"]
        {
            assert_eq!(policy[directive], "'none'", "{directive}");
        }
        // This module opens the window, with its restrictions.
        assert_eq!(config["app"]["windows"][0]["create"], false);
    }
}
