//! Names of models as people know them, from a file's metadata and its name: "SmolLM2 135M Instruct". Nothing is
//! recognised by its weights, and quantisations are left out, as lists show them next to the name.

use crate::gguf::Gguf;
use crate::split;

/// Longest name, in characters. The metadata is untrusted.
const MOST_CHARS: usize = 80;
/// Characters of a field that are read. The time grows with their square.
const MOST_READ: usize = 200;

/// The parts of a file's metadata that name its model.
#[derive(Clone, Copy, Debug, Default)]
pub struct NameFields<'a> {
    /// `general.name`.
    pub name: Option<&'a str>,
    /// `general.basename`.
    pub basename: Option<&'a str>,
    /// `general.size_label`.
    pub size_label: Option<&'a str>,
    /// `general.finetune`.
    pub finetune: Option<&'a str>,
}

/// Returns the display name of the model in a file.
pub fn of(gguf: &Gguf) -> String {
    let fields = NameFields {
        name: gguf.str("general.name"),
        basename: gguf.str("general.basename"),
        size_label: gguf.str("general.size_label"),
        finetune: gguf.str("general.finetune"),
    };
    display_name(fields, &split::stem(&gguf.path))
}

/// Returns the display name of a model. `stem` is the name of its file without extension and part number.
///
/// The name is taken from `general.name`, else from base name, size and fine-tune, else from the file. Names of owners,
/// quantisations, file formats and training runs are left out. If the file name contains the whole name, it may add
/// sizes, versions, dates and variants such as "Instruct". A text with neither a known family nor a size stays as it
/// is: only its author knows how to read it.
pub fn display_name(fields: NameFields<'_>, stem: &str) -> String {
    let fields = NameFields {
        name: fields.name.map(beginning),
        basename: fields.basename.map(beginning),
        size_label: fields.size_label.map(beginning),
        finetune: fields.finetune.map(beginning),
    };
    let stem = beginning(stem);
    let parts = [fields.basename, fields.size_label, fields.finetune];
    let composed = fields.basename.map(|_| parts.into_iter().flatten().collect::<Vec<_>>().join("-"));
    let of_file = words(stem);
    let metadata = [fields.name.map(str::to_owned), composed];
    let stated = metadata.iter().flatten().map(|text| words(text)).find(|words| is_model(words));
    let name = match stated {
        Some(stated) => joined(&completed(stated, &of_file)),
        None if is_model(&of_file) => joined(&of_file),
        None => [fields.name, fields.basename]
            .into_iter()
            .flatten()
            .map(str::trim)
            .find(|text| !text.is_empty())
            .unwrap_or(stem)
            .to_owned(),
    };
    name.lines().next().unwrap_or_default().chars().take(MOST_CHARS).collect()
}

/// Returns the beginning of a text that counts.
fn beginning(text: &str) -> &str {
    text.char_indices().nth(MOST_READ).map_or(text, |(end, _)| &text[..end])
}

/// Meaning of a word in a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WordKind {
    /// A known family, with its version if it has one: "Qwen3".
    Family,
    /// Number of weights: "8B", "8x7B", "A3B".
    Size,
    /// A version, date, context length or known variant: "v0.3", "2507", "4K", "Instruct".
    Variant,
    Other,
}

/// A word as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ShownWord {
    text: String,
    kind: WordKind,
}

impl ShownWord {
    /// Compares without case, and without the "v" of versions: "LLaMA v2" is Llama 2.
    fn is(&self, other: &Self) -> bool {
        let key = |word: &Self| word.text.to_lowercase().trim_start_matches('v').to_owned();
        key(self) == key(other)
    }
}

fn is_model(words: &[ShownWord]) -> bool {
    words.iter().any(|word| matches!(word.kind, WordKind::Family | WordKind::Size))
}

fn joined(words: &[ShownWord]) -> String {
    words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(" ")
}

/// Adds the sizes and variants of the file's name, if it contains all words of the stated name.
fn completed(stated: Vec<ShownWord>, of_file: &[ShownWord]) -> Vec<ShownWord> {
    let has = |words: &[ShownWord], wanted: &ShownWord| words.iter().any(|word| word.is(wanted));
    if !stated.iter().all(|word| has(of_file, word)) {
        return stated;
    }
    let known = |word: &&ShownWord| word.kind != WordKind::Other || has(&stated, word);
    let completed: Vec<ShownWord> = of_file.iter().filter(known).cloned().collect();
    if completed.len() > stated.len() { completed } else { stated }
}

/// Splits a text into the words that name the model.
fn words(text: &str) -> Vec<ShownWord> {
    let text = text.trim().trim_end_matches(".gguf");
    let text = text.rsplit('/').next().unwrap_or(text);
    let parts = without_run(without_format(split(without_owner(text))));
    let mut words: Vec<ShownWord> = Vec::new();
    let mut rest = &parts[..];
    while !rest.is_empty() {
        let (word, used) = next_word(rest);
        rest = &rest[used..];
        // A base name may contain the size already.
        if !words.iter().any(|known| known.kind == word.kind && known.is(&word)) {
            words.push(word);
        }
    }
    words
}

/// Removes the owner that some publishers put before a name: "google_gemma-3-4b-it".
fn without_owner(text: &str) -> &str {
    let owned = text.split_once('_').map(|(_, name)| name);
    owned.filter(|name| split(name).first().is_some_and(|word| family(word).is_some())).unwrap_or(text)
}

/// Splits at everything but letters and digits. A dot stays between digits, and so does an underscore in a version:
/// "Llama-3_3" is Llama 3.3.
fn split(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let chars: Vec<char> = text.chars().collect();
    for (i, &c) in chars.iter().enumerate() {
        let word = words.last_mut().expect("there is always a word");
        let digit_follows = chars.get(i + 1).is_some_and(char::is_ascii_digit);
        let digits = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
        let in_version = digits(word.trim_start_matches(['v', 'V']));
        let digit_before = word.ends_with(|c: char| c.is_ascii_digit());
        match c {
            '.' if digit_before && digit_follows => word.push('.'),
            '_' if in_version && digit_follows => word.push('.'),
            _ if c.is_alphanumeric() => word.push(c),
            _ => words.push(String::new()),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Formats and packages, in lower case. They do not name a model.
const FORMATS: [&str; 31] = [
    "gguf",
    "ggml",
    "hf",
    "mlx",
    "awq",
    "gptq",
    "exl2",
    "bnb",
    "dwq",
    "imat",
    "imatrix",
    "i1",
    "ud",
    "f16",
    "f32",
    "bf16",
    "fp16",
    "fp32",
    "fp8",
    "fp4",
    "int4",
    "int8",
    "mxfp4",
    "nvfp4",
    "2bit",
    "3bit",
    "4bit",
    "5bit",
    "6bit",
    "8bit",
    "safetensors",
];
/// Words that belong to a quantisation before them: "Q4_K_M".
const QUANTISATION_PARTS: [&str; 10] = ["k", "m", "s", "l", "xl", "xs", "xxs", "nl", "0", "1"];

/// Removes formats and quantisations.
fn without_format(words: Vec<String>) -> Vec<String> {
    let mut in_quantisation = false;
    words
        .into_iter()
        .filter(|word| {
            let word = word.to_lowercase();
            if in_quantisation && QUANTISATION_PARTS.contains(&word.as_str()) {
                return false;
            }
            let bits = word.trim_start_matches(['i', 't']).strip_prefix('q');
            in_quantisation =
                bits.is_some_and(|bits| bits.len() == 1 && bits.chars().all(|c| c.is_ascii_digit()));
            !in_quantisation && !FORMATS.contains(&word.as_str())
        })
        .collect()
}

/// Removes words that describe a training run: "8k-lc100k-mix1-ep2".
fn without_run(words: Vec<String>) -> Vec<String> {
    let is_run = |word: &str| {
        let word = word.to_lowercase();
        let numbered = |name: &str| {
            let rest = word.strip_prefix(name).map(|rest| rest.trim_end_matches('k'));
            rest.is_some_and(|rest| !rest.is_empty() && rest.chars().all(|c| c.is_ascii_digit()))
        };
        ["lc", "mix", "ep", "epoch", "step", "ckpt", "checkpoint", "iter", "seed"].into_iter().any(numbered)
    };
    let Some(begun) = words.iter().position(|word| is_run(word)) else { return words };
    // The context of a run is no part of a name either, and neither are its versions.
    let stays = |i: usize, word: &str| if i < begun { !is_context(word) } else { variant(word).is_some() };
    words
        .into_iter()
        .enumerate()
        .filter(|(i, word)| stays(*i, &word.to_lowercase()))
        .map(|(_, word)| word)
        .collect()
}

/// Text between a family and its version.
type Join = &'static str;

/// Families by their name in lower case, their spelling, and the text between family and version.
const FAMILIES: [(&str, &str, Join); 59] = [
    ("aya", "Aya", " "),
    ("baichuan", "Baichuan", " "),
    ("bloom", "BLOOM", " "),
    ("codegemma", "CodeGemma", " "),
    ("codellama", "Code Llama", " "),
    ("codestral", "Codestral", " "),
    ("command", "Command", " "),
    ("deepseek", "DeepSeek", " "),
    ("devstral", "Devstral", " "),
    ("dolphin", "Dolphin", " "),
    ("ernie", "ERNIE", " "),
    ("exaone", "EXAONE", " "),
    ("falcon", "Falcon", ""),
    ("gemma", "Gemma", " "),
    ("glm", "GLM", "-"),
    ("gpt", "GPT", "-"),
    ("granite", "Granite", " "),
    ("hermes", "Hermes", " "),
    ("hunyuan", "Hunyuan", " "),
    ("internlm", "InternLM", ""),
    ("kimi", "Kimi", " "),
    ("lfm", "LFM", ""),
    ("llama", "Llama", " "),
    ("llava", "LLaVA", " "),
    ("magistral", "Magistral", " "),
    ("mathstral", "Mathstral", " "),
    ("minicpm", "MiniCPM", ""),
    ("ministral", "Ministral", " "),
    ("mistral", "Mistral", " "),
    ("mixtral", "Mixtral", " "),
    ("moonlight", "Moonlight", " "),
    ("mpt", "MPT", " "),
    ("nemotron", "Nemotron", " "),
    ("olmo", "OLMo", " "),
    ("olmoe", "OLMoE", " "),
    ("openchat", "OpenChat", " "),
    ("openhermes", "OpenHermes", " "),
    ("openllama", "OpenLLaMA", " "),
    ("orca", "Orca", " "),
    ("phi", "Phi", "-"),
    ("pixtral", "Pixtral", " "),
    ("pythia", "Pythia", " "),
    ("qwen", "Qwen", ""),
    ("qwq", "QwQ", " "),
    ("seed", "Seed", " "),
    ("smollm", "SmolLM", ""),
    ("smolvlm", "SmolVLM", ""),
    ("solar", "SOLAR", " "),
    ("stablelm", "StableLM", " "),
    ("starcoder", "StarCoder", ""),
    ("starling", "Starling", " "),
    ("tinyllama", "TinyLlama", " "),
    ("tulu", "Tulu", " "),
    ("vicuna", "Vicuna", " "),
    ("voxtral", "Voxtral", " "),
    ("wizardcoder", "WizardCoder", " "),
    ("wizardlm", "WizardLM", " "),
    ("yi", "Yi", " "),
    ("zephyr", "Zephyr", " "),
];

/// Splits a word into a known family and the version attached to it: "qwen2.5" is Qwen and "2.5".
fn family(word: &str) -> Option<(&'static str, Join, &str)> {
    let letters = word.find(|c: char| !c.is_alphabetic()).unwrap_or(word.len());
    let (name, version) = word.split_at(letters);
    let name = name.to_lowercase();
    // "LLaMA v2" and "phiv2" name a version too.
    let (_, spelling, join) = FAMILIES.iter().find(|(known, ..)| *known == name)?;
    (version.is_empty() || is_version(version)).then_some((*spelling, *join, version))
}

/// Owners that stand before a family: "Meta Llama 3".
const OWNERS: [&str; 6] = ["meta", "google", "microsoft", "ibm", "mistralai", "openai"];

/// Reads the first word, which may consist of several. Returns it with their number.
fn next_word(words: &[String]) -> (ShownWord, usize) {
    let first = &words[0];
    let next = words.get(1).map(String::as_str);
    if first.eq_ignore_ascii_case("gpt") && next.is_some_and(|next| next.eq_ignore_ascii_case("oss")) {
        return (ShownWord { text: "gpt-oss".into(), kind: WordKind::Family }, 2);
    }
    let owner = OWNERS.contains(&first.to_lowercase().as_str());
    if owner && next.is_some_and(|next| family(next).is_some()) {
        let (word, used) = next_word(&words[1..]);
        return (word, used + 1);
    }
    let Some((name, join, attached)) = family(first) else { return (word(first), 1) };
    let separate = next.map(|next| next.trim_start_matches(['v', 'V'])).filter(|next| is_version(next));
    let (version, used) = match (attached, separate) {
        ("", Some(version)) => (version, 2),
        (version, _) => (version, 1),
    };
    let join = if version.is_empty() { "" } else { join };
    (ShownWord { text: format!("{name}{join}{version}"), kind: WordKind::Family }, used)
}

/// A version of a family: "3", "2.5", "3n". Longer numbers are dates.
fn is_version(text: &str) -> bool {
    let number = text.trim_end_matches('n');
    let is_digits = |part: &str| (1..=2).contains(&part.len()) && part.chars().all(|c| c.is_ascii_digit());
    number.split('.').count() <= 2 && number.split('.').all(is_digits)
}

/// A length of a context: "4k", "128k".
fn is_context(lower: &str) -> bool {
    lower.strip_suffix('k').is_some_and(is_number)
}

fn is_number(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit()) && text.parse::<f64>().is_ok()
}

/// Known variants by their name in lower case.
const VARIANTS: [(&str, &str); 49] = [
    ("base", "Base"),
    ("chat", "Chat"),
    ("code", "Code"),
    ("coder", "Coder"),
    ("creative", "Creative"),
    ("distill", "Distill"),
    ("dpo", "DPO"),
    ("edge", "Edge"),
    ("flash", "Flash"),
    ("h", "H"),
    ("instruct", "Instruct"),
    ("instruction", "Instruction"),
    ("it", "IT"),
    ("large", "Large"),
    ("lite", "Lite"),
    ("long", "Long"),
    ("math", "Math"),
    ("maverick", "Maverick"),
    ("medium", "Medium"),
    ("micro", "Micro"),
    ("mini", "Mini"),
    ("moe", "MoE"),
    ("nano", "Nano"),
    ("nemo", "Nemo"),
    ("next", "Next"),
    ("omni", "Omni"),
    ("plus", "Plus"),
    ("preview", "Preview"),
    ("pro", "Pro"),
    ("pt", "PT"),
    ("qat", "QAT"),
    ("r", "R"),
    ("r1", "R1"),
    ("r1t", "R1T"),
    ("reasoner", "Reasoner"),
    ("reasoning", "Reasoning"),
    ("rl", "RL"),
    ("scout", "Scout"),
    ("sft", "SFT"),
    ("small", "Small"),
    ("super", "Super"),
    ("thinking", "Thinking"),
    ("tiny", "Tiny"),
    ("turbo", "Turbo"),
    ("ultra", "Ultra"),
    ("v", "V"),
    ("vision", "Vision"),
    ("vl", "VL"),
    ("zero", "Zero"),
];

fn variant(lower: &str) -> Option<&'static str> {
    VARIANTS.iter().find(|(known, _)| *known == lower).map(|(_, spelling)| *spelling)
}

/// Spells a single word.
fn word(text: &str) -> ShownWord {
    let lower = text.to_lowercase();
    if let Some(spelling) = variant(&lower) {
        return ShownWord { text: spelling.into(), kind: WordKind::Variant };
    }
    let weights = lower.strip_suffix(['b', 'm', 't']).map(|number| number.trim_start_matches(['a', 'e']));
    if weights.is_some_and(|number| number.split('x').all(is_number)) {
        return ShownWord { text: lower.to_uppercase().replace('X', "x"), kind: WordKind::Size };
    }
    if is_context(&lower) {
        return ShownWord { text: lower.to_uppercase(), kind: WordKind::Variant };
    }
    if is_number(lower.trim_start_matches('v')) {
        return ShownWord { text: lower, kind: WordKind::Variant };
    }
    let mut letters = text.chars();
    let plain = text.chars().all(|c| c.is_lowercase());
    let text = match letters.next().filter(|_| plain) {
        Some(first) => first.to_uppercase().chain(letters).collect(),
        None => text.to_owned(),
    };
    ShownWord { text, kind: WordKind::Other }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The display name of a file with `general.name` and no other metadata.
    fn named(name: &str, stem: &str) -> String {
        display_name(NameFields { name: Some(name), ..NameFields::default() }, stem)
    }

    #[test]
    fn names_of_published_files() {
        for (name, stem, expected) in [
            // The publishers' own files.
            ("Smollm2 135M 8k Lc100K Mix1 Ep2", "smollm2-135m-instruct-q4_1", "SmolLM2 135M Instruct"),
            ("Smollm2 1.7B 8k Mix7 Ep2 v2", "smollm2-1.7b-instruct-q4_k_m", "SmolLM2 1.7B Instruct"),
            (
                "Qwen2.5 Coder 0.5B Instruct AWQ",
                "qwen2.5-coder-0.5b-instruct-q4_k_m",
                "Qwen2.5 Coder 0.5B Instruct",
            ),
            (
                "Qwen2.5 Coder 1.5B Instruct GGUF",
                "qwen2.5-coder-1.5b-instruct-q4_k_m",
                "Qwen2.5 Coder 1.5B Instruct",
            ),
            ("qwen2.5-7b-instruct", "qwen2.5-7b-instruct-fp16", "Qwen2.5 7B Instruct"),
            ("Qwen3 8B Instruct", "Qwen3-8B-Q4_K_M", "Qwen3 8B Instruct"),
            ("Phi3", "Phi-3-mini-4k-instruct-q4", "Phi-3 Mini 4K Instruct"),
            ("Gemma 3 4b It Qat Q4_0 Unquantized", "gemma-3-4b-it-q4_0", "Gemma 3 4B IT QAT Unquantized"),
            ("Granite 3.3 8b Instruct", "granite-3.3-8b-instruct-Q4_K_M", "Granite 3.3 8B Instruct"),
            ("Granite 4.0 H Tiny", "granite-4.0-h-tiny-Q4_K_M", "Granite 4.0 H Tiny"),
            ("Gpt Oss 20b", "gpt-oss-20b-mxfp4", "gpt-oss 20B"),
            ("OLMo 2 0425 1B Instruct", "OLMo-2-0425-1B-Instruct-Q4_K_M", "OLMo 2 0425 1B Instruct"),
            // bartowski: the owner before the name.
            ("Meta Llama 3.1 8B Instruct", "Meta-Llama-3.1-8B-Instruct-IQ4_XS", "Llama 3.1 8B Instruct"),
            ("Llama 3.2 3B Instruct", "Llama-3.2-3B-Instruct-Q6_K_L", "Llama 3.2 3B Instruct"),
            ("Gemma 3 4b It", "google_gemma-3-4b-it-Q4_K_M", "Gemma 3 4B IT"),
            ("Gemma 3n E4B It", "google_gemma-3n-E4B-it-Q4_K_M", "Gemma 3n E4B IT"),
            ("Phi 4 Mini Instruct", "microsoft_Phi-4-mini-instruct-Q8_0", "Phi-4 Mini Instruct"),
            (
                "Mistral Small 3.2 24B Instruct 2506",
                "mistralai_Mistral-Small-3.2-24B-Instruct-2506-Q4_K_M",
                "Mistral Small 3.2 24B Instruct 2506",
            ),
            (
                "DeepSeek R1 Distill Qwen 7B",
                "DeepSeek-R1-Distill-Qwen-7B-Q4_K_M",
                "DeepSeek R1 Distill Qwen 7B",
            ),
            (
                "DeepSeek R1 0528 Qwen3 8B",
                "deepseek-ai_DeepSeek-R1-0528-Qwen3-8B-Q4_K_M",
                "DeepSeek R1 0528 Qwen3 8B",
            ),
            (
                "Llama 3_3 Nemotron Super 49B v1_5",
                "nvidia_Llama-3_3-Nemotron-Super-49B-v1_5-Q3_K_S",
                "Llama 3.3 Nemotron Super 49B v1.5",
            ),
            ("QwQ 32B", "Qwen_QwQ-32B-Q4_K_M", "QwQ 32B"),
            ("SmolLM3 3B", "HuggingFaceTB_SmolLM3-3B-Q4_K_M", "SmolLM3 3B"),
            // unsloth.
            (
                "Qwen3-30B-A3B-Instruct-2507",
                "Qwen3-30B-A3B-Instruct-2507-UD-Q4_K_XL",
                "Qwen3 30B A3B Instruct 2507",
            ),
            ("Qwen3-4B-Thinking-2507", "Qwen3-4B-Thinking-2507-Q4_K_M", "Qwen3 4B Thinking 2507"),
            (
                "Qwen3-Coder-30B-A3B-Instruct",
                "Qwen3-Coder-30B-A3B-Instruct-UD-IQ2_XXS",
                "Qwen3 Coder 30B A3B Instruct",
            ),
            ("Gemma-3-270M-It", "gemma-3-270m-it-F16", "Gemma 3 270M IT"),
            ("Gpt-Oss-20B", "gpt-oss-20b-UD-Q4_K_XL", "gpt-oss 20B"),
            ("Llama 3.2 3B Instruct Bnb 4bit", "unsloth.Q4_K_M", "Llama 3.2 3B Instruct"),
            // TheBloke.
            ("LLaMA v2", "llama-2-7b-chat.Q4_K_M", "Llama 2 7B Chat"),
            (
                "mistralai_mistral-7b-instruct-v0.2",
                "mistral-7b-instruct-v0.2.Q4_K_M",
                "Mistral 7B Instruct v0.2",
            ),
            (
                "mistralai_mixtral-8x7b-instruct-v0.1",
                "mixtral-8x7b-instruct-v0.1.Q3_K_M",
                "Mixtral 8x7B Instruct v0.1",
            ),
            (
                "tinyllama_tinyllama-1.1b-chat-v1.0",
                "tinyllama-1.1b-chat-v1.0.Q4_K_M",
                "TinyLlama 1.1B Chat v1.0",
            ),
            ("codellama_codellama-7b-instruct-hf", "codellama-7b-instruct.Q5_K_S", "Code Llama 7B Instruct"),
            (
                "cognitivecomputations_dolphin-2.9-llama3-8b",
                "dolphin-2.9-llama3-8b.Q4_0",
                "Dolphin 2.9 Llama 3 8B",
            ),
            // mlx-community and other conversions.
            ("mlx-community/Llama-3.2-1B-Instruct-4bit", "model", "Llama 3.2 1B Instruct"),
            (
                "Mistral Nemo Instruct 2407",
                "Mistral-Nemo-Instruct-2407.i1-Q4_K_M",
                "Mistral Nemo Instruct 2407",
            ),
            ("Yi 1.5 9B Chat", "Yi-1.5-9B-Chat-bf16", "Yi 1.5 9B Chat"),
            ("Hermes 3 Llama 3.1 8B", "Hermes-3-Llama-3.1-8B.Q4_K_M", "Hermes 3 Llama 3.1 8B"),
            ("MythoMax L2 13b", "mythomax-l2-13b.Q4_K_M", "MythoMax L2 13B"),
        ] {
            assert_eq!(named(name, stem), expected, "{name:?} in {stem:?}");
        }
    }

    #[test]
    fn file_name_counts_where_the_metadata_names_nothing() {
        for (name, stem, expected) in [
            ("", "Qwen_Qwen3-8B-Q4_K_M", "Qwen3 8B"),
            ("Models", "gemma-2-2b-it-Q4_K_M", "Gemma 2 2B IT"),
            (
                "Checkpoint 1200",
                "Phi-3.5-mini-instruct_Uncensored-Q4_K_M",
                "Phi-3.5 Mini Instruct Uncensored",
            ),
            ("workspace", "starcoder2-3b-Q8_0", "StarCoder2 3B"),
        ] {
            assert_eq!(named(name, stem), expected, "{name:?} in {stem:?}");
        }
        assert_eq!(display_name(NameFields::default(), "llama3.2-1b"), "Llama 3.2 1B");
    }

    #[test]
    fn base_name_size_and_fine_tune_replace_a_missing_name() {
        let fields =
            |basename, size_label, finetune| NameFields { name: None, basename, size_label, finetune };
        let smollm = fields(Some("smollm2"), Some("135M"), Some("8k-lc100k-mix1-ep2"));
        assert_eq!(display_name(smollm, "sha256-ab12"), "SmolLM2 135M");
        let qwen = fields(Some("Qwen3-8B"), Some("8B"), None);
        assert_eq!(display_name(qwen, "blob"), "Qwen3 8B");
        let mistral = fields(Some("Mistral"), Some("7B"), Some("Instruct"));
        assert_eq!(display_name(mistral, "blob"), "Mistral 7B Instruct");
    }

    #[test]
    fn long_metadata_is_cut_before_it_is_read() {
        let long: String = (0..200_000).map(|i| format!("w{i} ")).collect();
        let name = display_name(NameFields { name: Some(&long), ..NameFields::default() }, &long);
        assert!(name.starts_with("w0 w1") && name.chars().count() <= MOST_CHARS, "{name}");
    }

    #[test]
    fn file_name_adds_no_unknown_words_and_no_other_model() {
        assert_eq!(named("Qwen3 8B", "Qwen3-8B-for-bob-Instruct-Q4_K_M"), "Qwen3 8B Instruct");
        assert_eq!(named("Qwen3 8B", "Llama-3.2-1B-Instruct"), "Qwen3 8B");
        assert_eq!(named("Qwen3 8B", "target"), "Qwen3 8B");
    }

    #[test]
    fn unknown_names_stay_as_they_are() {
        assert_eq!(named("my_best model-Q4_K_M", "x"), "my_best model-Q4_K_M");
        assert_eq!(display_name(NameFields::default(), "target"), "target");
        assert_eq!(named(" \n ", "draft-f16"), "draft-f16");
    }

    #[test]
    fn long_and_broken_names_are_cut() {
        let long = "Qwen3 8B ".to_owned() + &"ä".repeat(500);
        assert_eq!(named(&long, "x").chars().count(), MOST_CHARS);
        assert_eq!(named("a\nb", "x"), "a");
        for odd in ["", "_", "-_-", "v", "B", "Q", "q4", "1.", "Llama 3.", "é_é", "GPT OSS"] {
            named(odd, odd);
        }
    }
}
