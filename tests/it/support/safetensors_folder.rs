//! Writes the tiny model folders of `scripts/mlx-folders.py`, whose tensors come from a small generator.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

/// Generator of `scripts/mlx-folders.py`: Knuth's linear congruential one, seeded by the FNV hash of a name.
struct Noise(u64);

impl Noise {
    fn of(name: &str) -> Self {
        let hash = |state: u64, byte: u8| (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        Self(name.bytes().fold(0xcbf2_9ce4_8422_2325, hash))
    }

    fn next(&mut self) -> u16 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 56) as u16
    }
}

/// A tensor in a safetensors file.
#[derive(Clone)]
pub(crate) struct StoredTensor {
    pub(crate) dtype: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

/// Files of a model folder, to be changed and written.
#[derive(Clone)]
pub(crate) struct ModelFolder {
    pub(crate) config: Json,
    pub(crate) tensors: BTreeMap<String, StoredTensor>,
    pub(crate) tokenizer: Json,
    pub(crate) settings: Json,
}

/// Returns the recording of `scripts/mlx-folders.py`.
pub(crate) fn recording() -> Json {
    serde_json::from_str(include_str!("../../golden/mlx-folders.json")).unwrap()
}

impl ModelFolder {
    /// Makes the tensors of a recorded model. Its tokeniser has one token for each byte.
    pub(crate) fn recorded(model: &Json) -> Self {
        let config = model["config"].clone();
        let mut tensors = BTreeMap::new();
        for entry in model["tensors"].as_array().unwrap() {
            let (name, dtype) = (entry[0].as_str().unwrap(), entry[1].as_str().unwrap());
            let shape: Vec<usize> =
                entry[2].as_array().unwrap().iter().map(|size| size.as_u64().unwrap() as usize).collect();
            let bytes = tensor_bytes(name, dtype, shape.iter().product(), &config);
            tensors.insert(name.to_owned(), StoredTensor { dtype: dtype.to_owned(), shape, bytes });
        }
        let settings = json!({ "eos_token": "<end>", "chat_template": "{{ messages[0].content }}" });
        Self { config, tensors, tokenizer: tokenizer(), settings }
    }

    /// Replaces quantised matrices by F32 ones with the same values.
    pub(crate) fn unquantised(&self) -> Self {
        let mut tensors = self.tensors.clone();
        let modules: Vec<String> =
            self.tensors.keys().filter_map(|name| name.strip_suffix(".scales").map(str::to_owned)).collect();
        for module in modules {
            let [weight, scales, biases] = ["weight", "scales", "biases"]
                .map(|part| tensors.remove(&format!("{module}.{part}")).unwrap());
            let (bits, group) = mode(&self.config, &module);
            let (scales, biases) = (floats(&scales), floats(&biases));
            let (rows, width) = (weight.shape[0], weight.shape[1] * 32 / bits);
            let code = |i: usize| {
                let (at, mask) = (i * bits, (1u32 << bits) - 1);
                let byte = |j: usize| u32::from(*weight.bytes.get(at / 8 + j).unwrap_or(&0));
                ((byte(0) | byte(1) << 8) >> (at % 8)) & mask
            };
            let value = |i: usize| scales[i / group] * code(i) as f32 + biases[i / group];
            let bytes = (0..rows * width).flat_map(|i| value(i).to_le_bytes()).collect();
            let matrix = StoredTensor { dtype: "F32".into(), shape: vec![rows, width], bytes };
            tensors.insert(format!("{module}.weight"), matrix);
        }
        let mut config = self.config.clone();
        config.as_object_mut().unwrap().remove("quantization");
        Self { config, tensors, ..self.clone() }
    }

    /// Writes the folder and returns the path of its weights.
    pub(crate) fn write(&self, folder: &Path) -> PathBuf {
        std::fs::create_dir_all(folder).unwrap();
        let write = |name: &str, json: &Json| std::fs::write(folder.join(name), json.to_string()).unwrap();
        write("config.json", &self.config);
        write("tokenizer.json", &self.tokenizer);
        write("tokenizer_config.json", &self.settings);
        let path = folder.join("model.safetensors");
        write_tensors(&path, self.tensors.iter());
        path
    }
}

/// Writes a safetensors file.
pub(crate) fn write_tensors<'a>(path: &Path, tensors: impl Iterator<Item = (&'a String, &'a StoredTensor)>) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, tensor) in tensors {
        let range = [data.len(), data.len() + tensor.bytes.len()];
        let entry = json!({ "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": range });
        header.insert(name.clone(), entry);
        data.extend(&tensor.bytes);
    }
    let header = Json::Object(header).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    std::fs::write(path, bytes).unwrap();
}

/// Returns bits of a code and weights of a group.
fn mode(config: &Json, module: &str) -> (usize, usize) {
    let table = &config["quantization"];
    let own = if table[module].is_object() { &table[module] } else { table };
    (own["bits"].as_u64().unwrap() as usize, own["group_size"].as_u64().unwrap() as usize)
}

fn floats(tensor: &StoredTensor) -> Vec<f32> {
    let halves = tensor.bytes.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes));
    let is_f16 = tensor.dtype == "F16";
    halves
        .map(
            |bits| {
                if is_f16 {
                    half::f16::from_bits(bits).to_f32()
                } else {
                    half::bf16::from_bits(bits).to_f32()
                }
            },
        )
        .collect()
}

fn tensor_bytes(name: &str, dtype: &str, count: usize, config: &Json) -> Vec<u8> {
    let (one, mantissa): (u16, u32) = if dtype == "F16" { (15 << 10, 10) } else { (127 << 7, 7) };
    let module = name.rsplit_once('.').unwrap().0;
    let halves: Vec<u16> = if dtype == "U32" {
        let mut noise = Noise::of(name);
        return (0..4 * count).map(|_| noise.next() as u8).collect();
    } else if name.ends_with(".scales") || name.ends_with(".biases") {
        let mut noise = Noise::of(&format!("{module}.scales"));
        let bits = mode(config, module).0 as u16;
        let base = one - ((bits + 1) << mantissa);
        let mut scale =
            || base + if mantissa > 8 { noise.next() << (mantissa - 8) } else { noise.next() >> 1 };
        let scales: Vec<u16> = (0..count).map(|_| scale()).collect();
        let bias = |scale: u16| (scale + ((bits - 1) << mantissa)) | 0x8000;
        if name.ends_with(".biases") { scales.into_iter().map(bias).collect() } else { scales }
    } else {
        let mut noise = Noise::of(name);
        let is_norm = name.contains("norm");
        let mut value = || match is_norm {
            true => one + (noise.next() >> 2),
            false => (one - (3 << mantissa) + (noise.next() >> 1)) | (noise.next() & 1) << 15,
        };
        (0..count).map(|_| value()).collect()
    };
    halves.into_iter().flat_map(u16::to_le_bytes).collect()
}

/// Returns a byte-level tokeniser with one token for each of 254 bytes, and two added ones.
fn tokenizer() -> Json {
    let bytes = (0..=255u32).filter(|byte| ![0, 1].contains(byte));
    let text = |byte: u32| {
        let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let moved =
            (0..byte).filter(|b| !matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)).count() as u32;
        char::from_u32(if printable { byte } else { 256 + moved }).unwrap().to_string()
    };
    let vocab: serde_json::Map<String, Json> =
        bytes.enumerate().map(|(id, byte)| (text(byte), json!(id))).collect();
    let added = |id: u32, content: &str| json!({ "id": id, "content": content, "special": true });
    json!({
        "added_tokens": [added(254, "<begin>"), added(255, "<end>")],
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "use_regex": true },
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    })
}
