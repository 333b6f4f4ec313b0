//! A hub behind TLS: whom it is believed, and what goes over the wire when it is not.

use hunch_error::ErrorCode;
use hunch_library::hub::HubConfig;

use super::{Desk, REPOSITORY, model, settings};
#[cfg(target_os = "linux")]
use super::{
    MIB, is,
    program::{hunch, told},
};
use crate::hub::TestHub;
use crate::hub::tls::{Fronts, HANDSHAKE};
#[cfg(target_os = "linux")]
use crate::hub::tunnels;

#[test]
fn a_certificate_that_nobody_vouches_for_is_told_and_nothing_is_sent() {
    let hub = TestHub::start();
    hub.add(REPOSITORY, "m.gguf", model(0, 70));
    let fronts = Fronts::of(&hub, &["127.0.0.1"]);
    let config =
        HubConfig { endpoint: format!("https://{}", fronts.home), ..hub.config_with_token("hf_secret") };
    let desk = Desk::with(config, settings());
    let listed = desk.downloads.repository(REPOSITORY).unwrap_err();
    let (code, message) = desk.fails("m.gguf");
    assert_eq!((code, &message), (listed.code(), &listed.to_string()));
    assert_eq!(code, ErrorCode::HubUnreachable);
    assert!(message.contains("certificate") && message.contains("not trusted"), "{message}");
    assert_eq!(hub.asked().len(), 0, "neither a request nor the token");
    // Once each: trying again makes nobody trust it. And never without TLS.
    assert_eq!(fronts.first_bytes(), [HANDSHAKE; 2]);
}

#[test]
fn files_are_not_fetched_from_where_the_connection_is_not_secured() {
    let hub = TestHub::start();
    hub.add(REPOSITORY, "m.gguf", model(0, 71));
    let fronts = Fronts::of(&hub, &["127.0.0.1"]);
    // The hub is plain, and the place of its files shows a certificate of its own.
    hub.send_for_files_to(&format!("https://{}", fronts.away));
    let (code, message) = Desk::new(&hub).fails("m.gguf");
    assert_eq!(code, ErrorCode::HubUnreachable);
    assert!(message.contains("not trusted"), "{message}");
    assert!(hub.asked().iter().all(|asked| !asked.away));
    assert_eq!(fronts.first_bytes(), [HANDSHAKE]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_system_without_certificates_is_told_what_to_check() {
    let data = tempfile::tempdir().unwrap();
    let output = hunch(data.path(), "https://hub.invalid", &["models", "hub", REPOSITORY])
        .env("SSL_CERT_FILE", data.path().join("nowhere"))
        .env_remove("SSL_CERT_DIR")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", told(&output));
    assert!(told(&output).contains("SSL_CERT_FILE"), "{}", told(&output));
}

/// Elsewhere the system's own store says what is trusted, which no test changes.
#[cfg(target_os = "linux")]
#[test]
fn a_hub_whose_certificate_is_trusted_is_fetched_from_through_a_tunnel_of_the_proxy() {
    let hub = TestHub::start();
    let content = model(2 * MIB, 72);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    // No machine has these names: only the proxy knows.
    let (home, away) = ("hub.invalid", "files.invalid");
    let fronts = Fronts::of(&hub, &[home, away]);
    hub.send_for_files_to(&format!("https://{away}"));
    let (proxy, asked) = tunnels(&[(home, fronts.home), (away, fronts.away)]);
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
    // With the system's certificates it is not trusted.
    let refused = pull().env_remove("SSL_CERT_FILE").output().unwrap();
    assert_eq!(refused.status.code(), Some(5), "{}", told(&refused));
    assert!(told(&refused).contains("not trusted"), "{}", told(&refused));
    assert_eq!(hub.asked().len(), 0);
    let output = pull().env("SSL_CERT_FILE", &certificate).output().unwrap();
    assert!(output.status.success(), "{}", told(&output));
    is(&serde_json::from_slice(&output.stdout).unwrap(), &content);
    // The proxy sees names, and nothing of what is said.
    let asked = asked.lock().unwrap();
    assert!(asked.iter().any(|asked| asked.starts_with("files.invalid:443")), "{asked:?}");
    for asked in asked.iter() {
        assert!(asked.starts_with("hub.invalid:443") || asked.starts_with("files.invalid:443"), "{asked}");
        assert!(!asked.to_lowercase().contains("authorization") && !asked.contains("hf_secret"), "{asked}");
    }
    for asked in hub.asked() {
        let (host, token) = if asked.away { (away, None) } else { (home, Some("Bearer hf_secret")) };
        assert_eq!((asked.host.as_str(), asked.authorization.as_deref()), (host, token));
    }
    assert!(fronts.first_bytes().iter().all(|byte| *byte == HANDSHAKE));
}
