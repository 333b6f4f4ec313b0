//! Searches for repositories by name. The Hub's answer is untrusted: a result without a valid name is skipped, and a
//! fact of the wrong type counts as not reported.

use reqwest::Url;
use serde_json::Value;

use super::client::{Hub, RequestFailure};
use super::listing::{bits, is_gated, is_model_path, quantisation_of};
use super::names;
use crate::types::{HubFormat, HubResult, HubSearch, HubSearchPage, HubSort, HubSupport};
use hunch_error::{Error, Refusal, Result};
use hunch_model::{model_folder, spec};

/// Results of a page.
const PAGE: usize = 20;
/// Limit of an answer, in bytes. One with the chat templates of 20 models has about 200 kB.
const MAX_ANSWER_BYTES: usize = 8 << 20;
/// Limit of the words of a search, in characters.
const MAX_QUERY_CHARS: usize = 200;
/// Limit of a cursor, in bytes.
const MAX_CURSOR_BYTES: usize = 4096;
/// Limit of a shown fact, in characters.
const MAX_FACT_CHARS: usize = 60;
/// Facts to report of each repository. Without them, the Hub reports neither architecture nor files.
const EXPAND: [&str; 9] =
    ["cardData", "config", "downloads", "gated", "gguf", "lastModified", "likes", "siblings", "tags"];

/// Checks the words of a search.
///
/// # Errors
/// [`Refusal::BadSearch`] if there are none or too many.
pub(crate) fn check(search: &HubSearch) -> Result<()> {
    let words = search.query.trim();
    let is_short = words.chars().count() <= MAX_QUERY_CHARS;
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=-_".contains(&byte);
    let is_cursor = |cursor: &String| cursor.len() <= MAX_CURSOR_BYTES && cursor.bytes().all(is_base64);
    let cursor_is_plain = search.cursor.as_ref().is_none_or(is_cursor);
    let is_plain = !words.is_empty() && !words.chars().any(char::is_control);
    if is_plain && is_short && cursor_is_plain { Ok(()) } else { Err(Refusal::BadSearch.into()) }
}

impl Hub {
    /// Searches for repositories.
    pub(crate) async fn search(&self, search: &HubSearch) -> Result<HubSearchPage, RequestFailure> {
        let body = self.read_whole(self.search_url(search), "", MAX_ANSWER_BYTES).await;
        let body = body.map_err(|failure| self.of_search(failure))?;
        let mut page = parse_search(search.format, &body.bytes).map_err(|why| self.not_searched(why))?;
        page.next = body.link.as_deref().and_then(next_cursor);
        Ok(page)
    }

    fn search_url(&self, search: &HubSearch) -> Url {
        let mut url = self.url(["api", "models"]);
        let mut pairs = url.query_pairs_mut();
        pairs.append_pair("search", search.query.trim());
        pairs.append_pair(
            "filter",
            match search.format {
                HubFormat::Gguf => "gguf",
                HubFormat::Mlx => "mlx",
            },
        );
        pairs.append_pair(
            "sort",
            match search.sort {
                HubSort::Downloads => "downloads",
                HubSort::Likes => "likes",
            },
        );
        pairs.append_pair("direction", "-1").append_pair("limit", &PAGE.to_string());
        for fact in EXPAND {
            pairs.append_pair("expand[]", fact);
        }
        if let Some(cursor) = &search.cursor {
            pairs.append_pair("cursor", cursor);
        }
        drop(pairs);
        url
    }

    /// Converts a failure that would name a repository. A mirror may have no search.
    fn of_search(&self, failure: RequestFailure) -> RequestFailure {
        match failure.error {
            Error::HubUnreachable { .. }
            | Error::Refused(Refusal::HubBusy { .. } | Refusal::TokenRejected { .. }) => failure,
            _ => self.not_searched("it does not answer searches"),
        }
    }

    fn not_searched(&self, why: &str) -> RequestFailure {
        RequestFailure::permanent(
            Refusal::NoHubSearch { endpoint: self.address(), detail: why.to_owned() }.into(),
        )
    }
}

/// Parses the Hub's answer to a search. `next` is absent, as it is not in the body.
///
/// # Errors
/// The reason, as a phrase, if the answer is no list.
pub fn parse_search(format: HubFormat, body: &[u8]) -> Result<HubSearchPage, &'static str> {
    let answer: Value = serde_json::from_slice(body).map_err(|_| "the response is not a Hub's")?;
    let Value::Array(repositories) = answer else { return Err("the response is not a Hub's") };
    let mut results: Vec<HubResult> = Vec::new();
    for found in repositories.iter().filter_map(|repository| result(format, repository)).take(PAGE) {
        if !results.iter().any(|known| known.repository == found.repository) {
            results.push(found);
        }
    }
    Ok(HubSearchPage { results, next: None })
}

/// Reads a result. `None` without a valid name, or if the files are listed and none can be a model.
fn result(format: HubFormat, value: &Value) -> Option<HubResult> {
    let name = value.get("id").and_then(Value::as_str)?;
    let repository = names::repository(name).ok().filter(|repository| repository == name)?;
    let tags: Vec<&str> = strings(value.get("tags"), |tag| tag.as_str());
    let files = value.get("siblings").and_then(Value::as_array).is_some();
    let paths: Vec<&str> = strings(value.get("siblings"), |file| file.get("rfilename")?.as_str());
    let is_model = |path: &&&str| match format {
        HubFormat::Gguf => is_model_path(path),
        HubFormat::Mlx => path.ends_with(".safetensors"),
    };
    let models: Vec<&str> = paths.iter().filter(is_model).copied().collect();
    if files && models.is_empty() {
        return None;
    }
    let stated = |key: &str| value.pointer(key).and_then(Value::as_str);
    // A licence without a common identifier has a name of its own.
    let named = || stated("/cardData/license_name");
    let licence =
        stated("/cardData/license").map(|id| if id == "other" { named().unwrap_or(id) } else { id });
    let licence_tag = || tags.iter().find_map(|tag| tag.strip_prefix("license:"));
    let (architecture, parameters, quantisations) = match format {
        HubFormat::Gguf => {
            let quantisations = models.iter().map(|path| quantisation_of(path));
            ("/gguf/architecture", "/gguf/total", quantisations.filter(|name| !name.is_empty()).collect())
        }
        // MLX packs quantised weights in words, so the Hub's number of elements is not that of weights.
        HubFormat::Mlx => ("/config/model_type", "", bits(value, &tags)),
    };
    let architecture = value.pointer(architecture).and_then(Value::as_str).and_then(fact);
    let number = |key: &str| value.get(key).and_then(Value::as_u64);
    Some(HubResult {
        downloads: number("downloads"),
        likes: number("likes"),
        gated: is_gated(value.get("gated").unwrap_or(&Value::Null)),
        licence: licence.or_else(licence_tag).and_then(fact),
        updated: value.get("lastModified").and_then(Value::as_str).and_then(day),
        parameters: (!parameters.is_empty())
            .then(|| value.pointer(parameters).and_then(Value::as_u64))
            .flatten(),
        quantisations: distinct(quantisations),
        support: support(format, architecture.as_deref()),
        architecture,
        repository,
    })
}

fn support(format: HubFormat, architecture: Option<&str>) -> HubSupport {
    let Some(name) = architecture else { return HubSupport::Unknown };
    let runs = match format {
        HubFormat::Gguf => spec::runs_architecture(name),
        HubFormat::Mlx => model_folder::runs_model_type(name),
    };
    if runs { HubSupport::Runs } else { HubSupport::OtherArchitecture }
}

fn strings<'a>(list: Option<&'a Value>, of: impl Fn(&'a Value) -> Option<&'a str>) -> Vec<&'a str> {
    list.and_then(Value::as_array).map(|list| list.iter().filter_map(of).collect()).unwrap_or_default()
}

/// Drops repeated names. The order stays.
fn distinct(names: Vec<String>) -> Vec<String> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

/// Returns a fact that can be shown in a line. `None` if nothing of it can be.
fn fact(text: &str) -> Option<String> {
    let is_shown = |c: &char| !c.is_control() && !names::is_direction_mark(*c);
    let plain: String = text.chars().filter(is_shown).take(MAX_FACT_CHARS).collect();
    let plain = plain.trim();
    (!plain.is_empty()).then(|| plain.to_owned())
}

/// Returns the day of a time such as "2026-10-31T12:00:00.000Z".
fn day(time: &str) -> Option<String> {
    let day = time.get(..10)?;
    let is_day = day.bytes().enumerate().all(|(at, byte)| match at {
        4 | 7 => byte == b'-',
        _ => byte.is_ascii_digit(),
    });
    is_day.then(|| day.to_owned())
}

/// Returns the cursor of the next page from the header `Link`. Only the cursor is used: the address of the next request
/// is built here.
fn next_cursor(link: &str) -> Option<String> {
    let next = link.split(',').find(|part| part.replace(' ', "").contains("rel=\"next\""))?;
    let address = next.split_once('<')?.1.split_once('>')?.0;
    let (_, query) = address.split_once('?')?;
    // Only the query counts, so any base will do.
    let url = Url::parse(&format!("http://localhost/?{query}")).ok()?;
    let cursor = url.query_pairs().find(|(name, _)| name == "cursor")?.1.into_owned();
    (!cursor.is_empty() && cursor.len() <= MAX_CURSOR_BYTES).then_some(cursor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(format: HubFormat, value: Value) -> Vec<HubResult> {
        parse_search(format, value.to_string().as_bytes()).unwrap().results
    }

    #[test]
    fn reads_what_the_hub_reports_of_a_gguf_repository() {
        let results = parsed(
            HubFormat::Gguf,
            serde_json::json!([{
                "id": "Qwen/Qwen3-8B-GGUF", "downloads": 120_000, "likes": 77, "gated": false,
                "lastModified": "2026-10-31T12:00:00.000Z", "cardData": {"license": "apache-2.0"},
                "gguf": {"total": 8_190_735_360_u64, "architecture": "qwen3", "chat_template": "{{ x }}"},
                "siblings": [
                    {"rfilename": "README.md"}, {"rfilename": "Qwen3-8B-Q4_K_M.gguf"},
                    {"rfilename": "Q8_0/m-00001-of-00002.gguf"}, {"rfilename": "Q8_0/m-00002-of-00002.gguf"},
                    {"rfilename": "mmproj-F16.gguf"},
                ],
            }]),
        );
        assert_eq!(
            results,
            [HubResult {
                repository: "Qwen/Qwen3-8B-GGUF".into(),
                downloads: Some(120_000),
                likes: Some(77),
                gated: false,
                licence: Some("apache-2.0".into()),
                updated: Some("2026-10-31".into()),
                architecture: Some("qwen3".into()),
                parameters: Some(8_190_735_360),
                quantisations: vec!["Q4_K_M".into(), "Q8_0".into()],
                support: HubSupport::Runs,
            }]
        );
    }

    #[test]
    fn says_which_architectures_run() {
        let of = |name: &str| {
            let value = serde_json::json!([{"id": "a/b", "gguf": {"architecture": name}}]);
            parsed(HubFormat::Gguf, value)[0].support
        };
        assert_eq!((of("gpt-oss"), of("mamba2")), (HubSupport::Runs, HubSupport::OtherArchitecture));
        let folder = |model_type: &str| {
            let value = serde_json::json!([{"id": "a/b", "config": {"model_type": model_type}}]);
            parsed(HubFormat::Mlx, value)[0].support
        };
        assert_eq!((folder("qwen3"), folder("gemma3")), (HubSupport::Runs, HubSupport::Runs));
        assert_eq!(folder("qwen3_moe"), HubSupport::OtherArchitecture);
    }

    #[test]
    fn reads_the_bits_of_a_folder() {
        let bits = |value: Value| parsed(HubFormat::Mlx, serde_json::json!([value]))[0].quantisations.clone();
        let tagged = serde_json::json!({"id": "a/b", "tags": ["mlx", "4-bit", "99-bit"]});
        assert_eq!(bits(tagged), ["4-bit"]);
        let stated = serde_json::json!({"id": "a/b", "config": {"quantization_config": {"bits": 8}}});
        assert_eq!(bits(stated), ["8-bit"]);
        assert!(bits(serde_json::json!({"id": "a/b"})).is_empty());
    }

    #[test]
    fn skips_repositories_without_a_name_or_a_model() {
        let file = |name: &str| serde_json::json!([{"rfilename": name}]);
        let value = serde_json::json!([
            {"id": "../../etc"}, {"id": "https://huggingface.co/a/b"}, {"id": 7}, {}, null, "text", [],
            {"id": "a/only-a-projector", "siblings": file("mmproj-F16.gguf")},
            {"id": "a/traversal", "siblings": file("../../m.gguf")},
            {"id": "a/good", "siblings": file("m-Q4_0.gguf")},
        ]);
        let names: Vec<String> =
            parsed(HubFormat::Gguf, value).into_iter().map(|found| found.repository).collect();
        assert_eq!(names, ["a/good"]);
    }

    #[test]
    fn facts_of_the_wrong_type_count_as_not_reported() {
        let value = serde_json::json!([{
            "id": "a/b", "downloads": "many", "likes": -1, "gated": null, "lastModified": "äöü-12-31T",
            "cardData": [], "tags": {"license": 1}, "config": "none", "siblings": "none",
            "gguf": {"total": 1.5, "architecture": {"name": "llama"}},
        }]);
        let found = parsed(HubFormat::Gguf, value).remove(0);
        assert_eq!((found.downloads, found.likes, found.gated), (None, None, false));
        assert_eq!((found.licence, found.updated, found.architecture), (None, None, None));
        assert_eq!((found.parameters, found.support), (None, HubSupport::Unknown));
        let noisy = serde_json::json!([{"id": "a/b", "cardData": {"license": format!("mit\n\u{1b}[31m{}", "x".repeat(500))}}]);
        let licence = parsed(HubFormat::Gguf, noisy).remove(0).licence.unwrap();
        assert!(licence.starts_with("mit[31m") && licence.chars().count() == MAX_FACT_CHARS, "{licence}");
    }

    #[test]
    fn refuses_answers_that_are_no_list() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        for body in ["", "<html>", "{}", "{\"error\":\"x\"}", "[1", &deep] {
            assert!(parse_search(HubFormat::Gguf, body.as_bytes()).is_err(), "{:.20}", body);
        }
        let long: Vec<Value> = (0..500).map(|n| serde_json::json!({"id": format!("a/b{n}")})).collect();
        assert_eq!(parsed(HubFormat::Gguf, Value::Array(long)).len(), PAGE);
    }

    #[test]
    fn takes_only_the_cursor_of_the_next_page() {
        let link = "<https://evil.example/api/models?limit=20&cursor=eyJfaWQ%3D>; rel=\"next\"";
        assert_eq!(next_cursor(link).as_deref(), Some("eyJfaWQ="));
        for link in ["", "<https://x/?cursor=a>; rel=\"prev\"", "<https://x/?limit=1>; rel=\"next\"", "next"]
        {
            assert_eq!(next_cursor(link), None, "{link}");
        }
    }

    #[test]
    fn searches_need_words() {
        let search = |query: &str| HubSearch {
            query: query.into(),
            sort: HubSort::Likes,
            format: HubFormat::Gguf,
            cursor: None,
        };
        assert!(check(&search(" qwen3 8b ")).is_ok());
        for query in ["", "  ", "a\nb", &"x".repeat(201)] {
            assert!(check(&search(query)).is_err(), "{query:?}");
        }
    }
}
