//! Searches of a test Hub, and model cards: what is asked, and what becomes of answers that are slow, hostile or no
//! answers at all.

use std::time::{Duration, Instant};

use hunch_error::{Error, ErrorCode, Result};
use hunch_library::download::DownloadSettings;
use hunch_library::types::{HubFormat, HubSearch, HubSearchPage, HubSort, HubSupport};

use super::{REPOSITORY, TestDownloads, settings};
use crate::hub::{Behaviour, TestHub};

fn search(query: &str) -> HubSearch {
    HubSearch { query: query.into(), sort: HubSort::Downloads, format: HubFormat::Gguf, cursor: None }
}

/// A result as the Hub reports it.
fn repository(id: &str, architecture: &str) -> serde_json::Value {
    serde_json::json!({
        "_id": "66f0", "id": id, "modelId": id, "downloads": 1200, "likes": 34, "gated": "manual", "private": false,
        "tags": ["gguf", "license:apache-2.0"], "lastModified": "2026-10-31T10:11:12.000Z",
        "gguf": {"total": 8_190_735_360_u64, "architecture": architecture, "context_length": 40960},
        "siblings": [{"rfilename": "m-Q4_K_M.gguf"}, {"rfilename": "m-Q8_0.gguf"}],
    })
}

fn fails<T: std::fmt::Debug>(result: Result<T>) -> (ErrorCode, String) {
    let error: Error = result.unwrap_err();
    (error.code(), error.to_string())
}

fn names(page: &HubSearchPage) -> Vec<&str> {
    page.results.iter().map(|found| found.repository.as_str()).collect()
}

#[test]
fn search_asks_for_models_by_name_and_follows_pages() {
    let hub = TestHub::start();
    let second = "<https://elsewhere.example/api/models?filter=gguf&cursor=eyJ%3D&limit=20>; rel=\"next\"";
    hub.set_search(|request| {
        if request.query.iter().any(|(name, _)| name == "cursor") {
            return (serde_json::json!([repository("a/second", "mamba2")]).to_string(), None);
        }
        (serde_json::json!([repository("a/first", "qwen3")]).to_string(), Some(second.into()))
    });
    let test = TestDownloads::with(hub.config_with_token("hf_abc"), settings());
    let page = test.downloads.search(&search("qwen3 & 8b")).unwrap();
    assert_eq!((names(&page), page.next.as_deref()), (vec!["a/first"], Some("eyJ=")));
    let found = &page.results[0];
    assert_eq!((found.downloads, found.likes, found.gated), (Some(1200), Some(34), true));
    assert_eq!(
        (found.licence.as_deref(), found.updated.as_deref()),
        (Some("apache-2.0"), Some("2026-10-31"))
    );
    assert_eq!((found.support, found.quantisations.len()), (HubSupport::Runs, 2));
    let next = HubSearch { cursor: page.next.clone(), ..search("qwen3 & 8b") };
    let page = test.downloads.search(&next).unwrap();
    assert_eq!((names(&page), page.next.as_deref()), (vec!["a/second"], None));
    assert_eq!(page.results[0].support, HubSupport::OtherArchitecture);

    let requests = hub.requests();
    let asked = |index: usize, name: &str| {
        let query = requests[index].query.iter();
        query.filter(|(key, _)| key == name).map(|(_, value)| value.as_str()).collect::<Vec<_>>()
    };
    assert_eq!((asked(0, "search"), asked(0, "filter")), (vec!["qwen3 & 8b"], vec!["gguf"]));
    assert_eq!(
        (asked(0, "sort"), asked(0, "direction"), asked(0, "limit")),
        (vec!["downloads"], vec!["-1"], vec!["20"])
    );
    assert!(asked(0, "expand[]").contains(&"gguf") && asked(0, "cursor").is_empty());
    assert_eq!(asked(1, "cursor"), ["eyJ="]);
    // The next page is asked of the same Hub, whatever host its answer names.
    assert!(requests.iter().all(|request| request.authorization.as_deref() == Some("Bearer hf_abc")));
    let other = HubSearch { sort: HubSort::Likes, format: HubFormat::Mlx, ..search("x") };
    test.downloads.search(&other).unwrap();
    let last = hub.requests().pop().unwrap();
    assert!(last.query.contains(&("sort".into(), "likes".into())));
    assert!(last.query.contains(&("filter".into(), "mlx".into())));
}

#[test]
fn search_that_finds_nothing_is_no_error() {
    let hub = TestHub::start();
    let test = TestDownloads::new(&hub);
    let page = test.downloads.search(&search("nothing has this name")).unwrap();
    assert_eq!((page.results.len(), page.next), (0, None));
    let (code, _) = fails(test.downloads.search(&search("  ")));
    assert_eq!((code, hub.requests().len()), (ErrorCode::InvalidRequest, 1));
}

#[test]
fn search_of_an_unreachable_hub_says_so() {
    let hub = TestHub::start();
    let offline = hunch_library::hub::HubConfig { endpoint: "http://127.0.0.1:1".into(), ..hub.config() };
    let test = TestDownloads::with(offline, settings());
    let (code, message) = fails(test.downloads.search(&search("x")));
    assert_eq!(code, ErrorCode::HubUnreachable);
    assert!(message.contains("no connection") && message.contains("127.0.0.1:1"), "{message}");
}

#[test]
fn search_reports_how_long_a_busy_hub_asks_to_wait() {
    let hub = TestHub::start();
    hub.set_behaviour(|_| Behaviour::status(429).with("RateLimit", "\"api\";r=0;t=55"));
    let test = TestDownloads::new(&hub);
    let (code, message) = fails(test.downloads.search(&search("x")));
    assert_eq!((code, hub.requests().len()), (ErrorCode::HubUnreachable, 1), "it is not asked again");
    assert!(message.contains("too many") && message.contains("Try again in 55 s"), "{message}");
}

#[test]
fn search_denied_or_unknown_to_a_hub_names_no_repository() {
    let hub = TestHub::start();
    for (status, token, expected) in [
        (401, Some("hf_bad"), ErrorCode::HubToken),
        (401, None, ErrorCode::HubUnreachable),
        (403, Some("hf_bad"), ErrorCode::HubUnreachable),
        (404, None, ErrorCode::HubUnreachable),
        (400, None, ErrorCode::HubUnreachable),
    ] {
        hub.set_behaviour(move |_| Behaviour::status(status));
        let config = token.map_or_else(|| hub.config(), |token| hub.config_with_token(token));
        let (code, message) = fails(TestDownloads::with(config, settings()).downloads.search(&search("x")));
        assert_eq!(code, expected, "{status}: {message}");
        assert!(!message.contains("Not found") && !message.contains("access to"), "{message}");
    }
}

#[test]
fn search_refuses_answers_that_are_too_large_deep_or_no_list() {
    let hub = TestHub::start();
    let test = TestDownloads::new(&hub);
    let large = format!("[{}]", vec!["{\"id\":\"a/b\"}"; 1 << 20].join(","));
    let deep = format!("{}{}", "[".repeat(1 << 20), "]".repeat(1 << 20));
    for body in [large, deep, "<html>Sign in to the hotel</html>".into(), "{\"id\":\"a/b\"}".into()] {
        hub.set_search(move |_| (body.clone(), None));
        let (code, message) = fails(test.downloads.search(&search("x")));
        assert_eq!(code, ErrorCode::HubUnreachable, "{message}");
        assert!(message.len() < 400, "{message}");
    }
}

#[test]
fn search_ends_in_time_though_the_answer_comes_byte_by_byte() {
    let hub = TestHub::start();
    hub.set_search(|_| (format!("[{}]", " ".repeat(1 << 20)), None));
    hub.set_behaviour(|_| Behaviour { trickle: Some(1), ..Behaviour::default() });
    let answer_timeout = Duration::from_millis(300);
    let test = TestDownloads::with(hub.config(), DownloadSettings { answer_timeout, ..settings() });
    let begun = Instant::now();
    let (code, message) = fails(test.downloads.search(&search("x")));
    assert_eq!(code, ErrorCode::HubUnreachable);
    assert!(message.contains("took longer"), "{message}");
    assert!(begun.elapsed() < super::PATIENCE);
}

#[test]
fn search_is_repeated_after_a_lost_connection() {
    let hub = TestHub::start();
    hub.set_search(|_| (serde_json::json!([repository("a/b", "llama")]).to_string(), None));
    let mut first = true;
    hub.set_behaviour(move |_| match std::mem::take(&mut first) {
        true => Behaviour::cut(10),
        false => Behaviour::default(),
    });
    let page = TestDownloads::new(&hub).downloads.search(&search("x")).unwrap();
    assert_eq!((names(&page), hub.requests().len()), (vec!["a/b"], 2));
}

#[test]
fn card_is_fetched_as_plain_markdown() {
    let hub = TestHub::start();
    hub.set_card(REPOSITORY, "---\nlicense: mit\n---\n<div align=center><img src=https://x.example/p.png></div>\n# Tiny\n\nText.\n");
    let test = TestDownloads::new(&hub);
    let card = test.downloads.card(&format!("https://huggingface.co/{REPOSITORY}")).unwrap();
    assert_eq!(
        (card.text.as_str(), card.cut, card.repository.as_str()),
        ("# Tiny\n\nText.", false, REPOSITORY)
    );
    assert_eq!(hub.requests()[0].path, format!("/{REPOSITORY}/raw/main/README.md"));
    // Without a card, the text is empty. A long one is cut.
    assert_eq!(test.downloads.card("owner/other").unwrap().text, "");
    hub.set_card(REPOSITORY, &"ä word \n".repeat(1 << 17));
    let card = test.downloads.card(REPOSITORY).unwrap();
    assert!(card.cut && card.text.len() <= 1 << 19, "{}", card.text.len());
    assert!(test.downloads.card("not a name").is_err());
}

#[test]
fn card_of_a_gated_or_missing_repository_is_refused_with_the_reason() {
    let hub = TestHub::start();
    let test = TestDownloads::new(&hub);
    hub.set_behaviour(|_| Behaviour::status(401).with("X-Error-Code", "GatedRepo"));
    assert_eq!(fails(test.downloads.card(REPOSITORY)).0, ErrorCode::HubGated);
    hub.set_behaviour(|_| Behaviour::status(401).with("X-Error-Code", "RepoNotFound"));
    assert_eq!(fails(test.downloads.card(REPOSITORY)).0, ErrorCode::HubNotFound);
}
