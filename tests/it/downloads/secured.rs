//! A Hub behind TLS: trusted certificates, and what is sent without trust.

use hunch_error::ErrorCode;
use hunch_library::hub::HubConfig;

#[cfg(target_os = "linux")]
use super::{
    MIB, assert_done,
    program::{hunch, output_text},
};
use super::{REPOSITORY, TestDownloads, model, settings};
use crate::hub::TestHub;
use crate::hub::tls::{Fronts, HANDSHAKE};
#[cfg(target_os = "linux")]
use crate::hub::tunnels;

#[test]
fn untrusted_certificate_is_reported_and_nothing_sent() {
    let hub = TestHub::start();
    hub.add(REPOSITORY, "m.gguf", model(0, 70));
    let fronts = Fronts::of(&hub, &["127.0.0.1"]);
    let config =
        HubConfig { endpoint: format!("https://{}", fronts.home), ..hub.config_with_token("hf_secret") };
    let test = TestDownloads::with(config, settings());
    let listed = test.downloads.repository(REPOSITORY).unwrap_err();
    let (code, message) = test.fails("m.gguf");
    assert_eq!((code, &message), (listed.code(), &listed.to_string()));
    assert_eq!(code, ErrorCode::HubUnreachable);
    assert!(message.contains("certificate") && message.contains("not trusted"), "{message}");
    assert_eq!(hub.requests().len(), 0, "neither a request nor the token was sent");
    // One attempt each: retrying does not help. All of them use TLS.
    assert_eq!(fronts.first_bytes(), [HANDSHAKE; 2]);
}

#[test]
fn files_are_not_fetched_from_an_untrusted_storage_server() {
    let hub = TestHub::start();
    hub.add(REPOSITORY, "m.gguf", model(0, 71));
    let fronts = Fronts::of(&hub, &["127.0.0.1"]);
    // The Hub is plain HTTP, and the storage server has a self-signed certificate.
    hub.redirect_files_to(&format!("https://{}", fronts.storage));
    let (code, message) = TestDownloads::new(&hub).fails("m.gguf");
    assert_eq!(code, ErrorCode::HubUnreachable);
    assert!(message.contains("not trusted"), "{message}");
    assert!(hub.requests().iter().all(|request| !request.is_storage));
    assert_eq!(fronts.first_bytes(), [HANDSHAKE]);
}

#[cfg(target_os = "linux")]
#[test]
fn missing_system_certificates_are_reported() {
    let data = tempfile::tempdir().unwrap();
    let output = hunch(data.path(), "https://hub.invalid", &["models", "hub", REPOSITORY])
        .env("SSL_CERT_FILE", data.path().join("nowhere"))
        .env_remove("SSL_CERT_DIR")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", output_text(&output));
    assert!(output_text(&output).contains("SSL_CERT_FILE"), "{}", output_text(&output));
}

/// On other systems, trust comes from the system's store, which tests do not change.
#[cfg(target_os = "linux")]
#[test]
fn downloads_from_a_trusted_hub_through_a_proxy_tunnel() {
    let hub = TestHub::start();
    let content = model(2 * MIB, 72);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    // Names that only the proxy resolves.
    let (home, storage) = ("hub.invalid", "files.invalid");
    let fronts = Fronts::of(&hub, &[home, storage]);
    hub.redirect_files_to(&format!("https://{storage}"));
    let (proxy, log) = tunnels(&[(home, fronts.home), (storage, fronts.storage)]);
    let data = tempfile::tempdir().unwrap();
    let certificate = data.path().join("trusted.pem");
    std::fs::write(&certificate, &fronts.certificate).unwrap();
    let pull = || {
        let mut command =
            hunch(data.path(), &format!("https://{home}"), &["models", "pull", REPOSITORY, "--json"]);
        command
            .env("HTTPS_PROXY", format!("http://{proxy}"))
            .env("HF_TOKEN", "hf_secret")
            .env_remove("SSL_CERT_DIR");
        command
    };
    // The system's certificates do not include the test's.
    let refused = pull().env_remove("SSL_CERT_FILE").output().unwrap();
    assert_eq!(refused.status.code(), Some(5), "{}", output_text(&refused));
    assert!(output_text(&refused).contains("not trusted"), "{}", output_text(&refused));
    assert_eq!(hub.requests().len(), 0);
    let output = pull().env("SSL_CERT_FILE", &certificate).output().unwrap();
    assert!(output.status.success(), "{}", output_text(&output));
    assert_done(&serde_json::from_slice(&output.stdout).unwrap(), &content);
    // The proxy sees host names and no content.
    let log = log.lock().unwrap();
    assert!(log.iter().any(|request| request.starts_with("files.invalid:443")), "{log:?}");
    for request in log.iter() {
        assert!(
            request.starts_with("hub.invalid:443") || request.starts_with("files.invalid:443"),
            "{request}"
        );
        assert!(
            !request.to_lowercase().contains("authorization") && !request.contains("hf_secret"),
            "{request}"
        );
    }
    for request in hub.requests() {
        let (host, token) =
            if request.is_storage { (storage, None) } else { (home, Some("Bearer hf_secret")) };
        assert_eq!((request.host.as_str(), request.authorization.as_deref()), (host, token));
    }
    assert!(fronts.first_bytes().iter().all(|byte| *byte == HANDSHAKE));
}
