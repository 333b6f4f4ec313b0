"""Records what published heads should compute, for tests/it/published_heads.rs.

    cargo run --example tiny-models -- FOLDER heads
    scripts/published-heads.py FOLDER > tests/golden/published-heads.json

Runs a tiny Llama target and the tiny heads of crates/hunch-testing/src/tiny_heads.rs in double precision. The target reads a
text, a head its hidden states, and a greedy chain follows from the head's own output. Heads that read drafted tokens
also score the nodes of a small tree: each path is run by itself, without a mask. Heads that draft blocks score whole
blocks after several lengths of the text, each from the beginning. The arithmetic of the papers is written a second time:
EAGLE (arXiv 2401.15077), EAGLE-3 (2503.01840), Medusa (2401.10774), MLP speculator (2404.19124), DFlash (2602.06036),
DSpark (2607.05147). Rows of a block see the positions that z-lab/dflash shows them (_attention_mask in model.py). Needs
the Python packages gguf and numpy."""

import functools
import json
import math
import pathlib
import sys

import gguf
import numpy as np

# Tokens of the text, and drafted tokens.
TEXT = 24
DRAFTED = 4
# Logits recorded of each step, and of each place of a block.
TOP, TOP_OF_BLOCK = 12, 5
# Tokens of the text before the blocks of several rounds. The last one goes back.
READ = [9, 13, 14, 24, 18]
DRAFTED_TOKEN = 7
# Nodes of the tree: the parent, and the rank of the token after it. Ranks beyond the greedy chain.
TREE = [(None, 0), (None, 2), (1, 1), (0, 1), (1, 0)]
TYPES = {"F32": "<f4", "F16": "<f2", "I64": "<i8", "BOOL": "?"}


def safetensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    tensors = {}
    for name, entry in json.loads(raw[8:start]).items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        data = raw[start + first : start + last]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(data, TYPES[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"])
        if entry["dtype"] not in ("I64", "BOOL"):
            tensors[name] = tensors[name].astype(np.float64)
    return tensors


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1.0 + np.exp(-x))


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, sees=lambda query, key: key <= query) -> np.ndarray:
    """Attention of [rows, heads, width] queries, which are the last rows of the keys. `sees` decides by position."""
    group = q.shape[1] // k.shape[1]
    out = np.zeros_like(q)
    for row in range(q.shape[0]):
        position = k.shape[0] - q.shape[0] + row
        seen = [key for key in range(k.shape[0]) if sees(position, key)]
        for head in range(q.shape[1]):
            scores = k[seen, head // group] @ q[row, head] / np.sqrt(q.shape[2])
            weights = np.exp(scores - scores.max())
            out[row, head] = weights / weights.sum() @ v[seen, head // group]
    return out.reshape(q.shape[0], -1)


class Target:
    def __init__(self, path: pathlib.Path):
        reader = gguf.GGUFReader(path)
        self.w = {t.name: gguf.dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors}
        key = lambda name: reader.fields[f"llama.{name}"].contents()
        self.layers, self.eps, self.base = key("block_count"), key("attention.layer_norm_rms_epsilon"), key("rope.freq_base")
        self.heads, self.kv_heads = key("attention.head_count"), key("attention.head_count_kv")

    def rotate(self, x: np.ndarray) -> np.ndarray:
        """Rotates neighbours, as llama.cpp stores Llama's matrices."""
        width = x.shape[2]
        angle = np.arange(x.shape[0])[:, None] * self.base ** (-2.0 * np.arange(width // 2) / width)[None]
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        out = np.empty_like(x)
        out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
        out[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
        return out

    def states(self, tokens: list[int]) -> list[np.ndarray]:
        """The residual stream after each layer, [rows, width]."""
        x, after = self.w["token_embd.weight"][tokens], []
        for layer in range(self.layers):
            w = lambda part: self.w[f"blk.{layer}.{part}.weight"]
            h = rms_norm(x, w("attn_norm"), self.eps)
            q, k, v = ((h @ w(part).T) for part in ("attn_q", "attn_k", "attn_v"))
            q = self.rotate(q.reshape(len(tokens), self.heads, -1))
            k = self.rotate(k.reshape(len(tokens), self.kv_heads, -1))
            x = x + attend(q, k, v.reshape(len(tokens), self.kv_heads, -1)) @ w("attn_output").T
            h = rms_norm(x, w("ffn_norm"), self.eps)
            x = x + (silu(h @ w("ffn_gate").T) * (h @ w("ffn_up").T)) @ w("ffn_down").T
            after.append(x)
        return after


class Head:
    # Longest chain that is recorded, and whether drafted tokens are read.
    depth, reads_drafts = DRAFTED, True

    def __init__(self, folder: pathlib.Path, target: Target):
        self.target = target
        self.w = safetensors(folder / "model.safetensors")
        config = json.loads((folder / "config.json").read_text())
        self.outer, self.config = config, config.get("transformer_layer_config", config)
        self.prefix = "midlayer" if "midlayer.self_attn.q_proj.weight" in self.w else "layers.0"
        self.eps = self.config["rms_norm_eps"]
        self.k, self.v, self.positions = [], [], 0
        self.three = f"{self.prefix}.hidden_norm.weight" in self.w

    def taps(self) -> list[int]:
        """Layers whose output is read, from 0. The paper counts the layers whose input is read."""
        n = self.target.layers
        if not self.three:
            return [n - 1]
        if "eagle_config" in self.outer:
            return self.outer["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
        return [i - 1 for i in self.outer.get("eagle_aux_hidden_state_layer_ids", [2, n // 2, n - 3])]

    def frequencies(self, width: int) -> np.ndarray:
        inverse = self.config.get("rope_theta", 10000.0) ** (-2.0 * np.arange(width // 2) / width)
        scaling = self.config.get("rope_scaling")
        if scaling is None:
            return inverse
        low = scaling["original_max_position_embeddings"] / scaling["low_freq_factor"]
        high = scaling["original_max_position_embeddings"] / scaling["high_freq_factor"]
        out = []
        for frequency in inverse:
            length = 2 * np.pi / frequency
            if length < high:
                out.append(frequency)
            elif length > low:
                out.append(frequency / scaling["factor"])
            else:
                share = (scaling["original_max_position_embeddings"] / length - scaling["low_freq_factor"]) / (
                    scaling["high_freq_factor"] - scaling["low_freq_factor"]
                )
                out.append((1 - share) * frequency / scaling["factor"] + share * frequency)
        return np.array(out)

    def rotate(self, x: np.ndarray) -> np.ndarray:
        """Rotates halves, as Hugging Face stores Llama's matrices."""
        half = x.shape[2] // 2
        angle = (self.positions + np.arange(x.shape[0]))[:, None] * self.frequencies(x.shape[2])[None]
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        first, second = x[..., :half], x[..., half:]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=2)

    def layer(self, y: np.ndarray, x: np.ndarray) -> np.ndarray:
        w = lambda part: self.w[f"{self.prefix}.{part}.weight"]
        rows, heads, kv_heads = len(y), self.config["num_attention_heads"], self.config["num_key_value_heads"]
        q = self.rotate((y @ w("self_attn.q_proj").T).reshape(rows, heads, -1))
        self.k += list(self.rotate((y @ w("self_attn.k_proj").T).reshape(rows, kv_heads, -1)))
        self.v += list((y @ w("self_attn.v_proj").T).reshape(rows, kv_heads, -1))
        self.positions += rows
        x = x + attend(q, np.array(self.k), np.array(self.v)) @ w("self_attn.o_proj").T
        h = rms_norm(x, w("post_attention_layernorm"), self.eps)
        return x + (silu(h @ w("mlp.gate_proj").T) * (h @ w("mlp.up_proj").T)) @ w("mlp.down_proj").T

    def fuse(self, after: list[np.ndarray]) -> np.ndarray:
        """Fuses rows of the target's states."""
        if not self.three:
            return rms_norm(after[self.taps()[0]], self.target.w["output_norm.weight"], self.target.eps)
        streams = [after[tap] for tap in self.taps()]
        if "fc_norm.0.weight" in self.w:
            streams = [rms_norm(s, self.w[f"fc_norm.{i}.weight"], self.eps) for i, s in enumerate(streams)]
        return np.concatenate(streams, axis=1) @ self.w["fc.weight"].T

    def run(self, g: np.ndarray, tokens: list[int]) -> np.ndarray:
        e = self.target.w["token_embd.weight"][tokens]
        if not self.three:
            x = np.concatenate([e, g], axis=1) @ self.w["fc.weight"].T + self.w["fc.bias"]
            return self.layer(x, x)
        normed = rms_norm(g, self.w[f"{self.prefix}.hidden_norm.weight"], self.eps)
        e = rms_norm(e, self.w[f"{self.prefix}.input_layernorm.weight"], self.eps)
        return self.layer(np.concatenate([e, normed], axis=1), normed if self.outer.get("norm_before_residual") else g)

    def score(self, a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and their logits."""
        if not self.three:
            logits = self.target.w["output.weight"] @ a
            return np.arange(len(logits)), logits
        logits = self.w["lm_head.weight"] @ rms_norm(a, self.w["norm.weight"], self.eps)
        d2t = self.w["d2t"]
        return (d2t if np.all(np.diff(d2t) > 0) else d2t + np.arange(len(d2t))), logits

    def feedback(self, a: np.ndarray) -> np.ndarray:
        return rms_norm(a, self.w["norm.weight"], self.eps) if self.outer.get("norm_output") else a

    def steps(self, after: list[np.ndarray], text: list[int]):
        """Yields tokens and logits of each step. The caller sends the next drafted token."""
        self.k, self.v, self.positions = [], [], 0
        # The states of a token meet the embedding of the next one.
        a = self.run(self.fuse(after)[:-1], text[1:])[-1]
        while True:
            token = yield self.score(a)
            a = self.run(self.feedback(a)[None], [token])[-1]


class LlamaCppHead(Head):
    """EAGLE-3 in a GGUF file: the same arithmetic on other names, with neighbours rotated together."""

    NAMES = {
        "input_layernorm": "attn_norm", "hidden_norm": "attn_norm_2", "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }  # fmt: skip

    def __init__(self, path: pathlib.Path, target: Target):
        self.target, self.prefix, self.three = target, "layers.0", True
        reader = gguf.GGUFReader(path)
        value = lambda t: t.data if t.name == "d2t" else gguf.dequantize(t.data, t.tensor_type).astype(np.float64)
        own = {t.name: value(t) for t in reader.tensors}
        key = lambda name: reader.fields[f"eagle3.{name}"].contents()
        self.w = {f"layers.0.{name}.weight": own[f"blk.0.{part}.weight"] for name, part in self.NAMES.items()}
        self.w |= {"fc.weight": own["fc.weight"], "norm.weight": own["output_norm.weight"]}
        self.w |= {"lm_head.weight": own["output.weight"], "d2t": own["d2t"]}
        self.divisors, self.base = own["rope_freqs.weight"], key("rope.freq_base")
        self.eps, self.layers = key("attention.layer_norm_rms_epsilon"), key("target_layers")
        self.outer = {"norm_before_residual": key("norm_before_residual")}
        self.config = {
            "num_attention_heads": key("attention.head_count"),
            "num_key_value_heads": key("attention.head_count_kv"),
        }

    def taps(self) -> list[int]:
        return [layer - 1 for layer in self.layers]

    def rotate(self, x: np.ndarray) -> np.ndarray:
        width = x.shape[2]
        frequencies = self.base ** (-2.0 * np.arange(width // 2) / width) / self.divisors
        angle = (self.positions + np.arange(x.shape[0]))[:, None] * frequencies[None]
        turn = np.exp(1j * angle)[:, None]
        turned = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
        out = np.empty_like(x)
        out[..., 0::2], out[..., 1::2] = turned.real, turned.imag
        return out


class Medusa:
    depth, reads_drafts = 3, False

    def __init__(self, folder: pathlib.Path, target: Target):
        self.w, self.target = safetensors(folder / "model.safetensors"), target

    def state(self, after: list[np.ndarray]) -> np.ndarray:
        """The target's final state of the last token that it has seen."""
        return rms_norm(after[-1][-2], self.target.w["output_norm.weight"], self.target.eps)

    def steps(self, after: list[np.ndarray], text: list[int]):
        h = self.state(after)
        for k in range(3):
            x = h + silu(self.w[f"{k}.0.linear.weight"] @ h + self.w[f"{k}.0.linear.bias"])
            logits = self.w[f"{k}.1.weight"] @ x
            yield np.arange(len(logits)), logits


class MlpSpeculator(Medusa):
    reads_drafts = True

    def part(self, name: str, i: int, kind: str = "weight") -> np.ndarray:
        """Weights of a position, or those of the last one before it that has some."""
        while f"speculator.{name}.{i}.{kind}" not in self.w:
            i -= 1
        return self.w[f"speculator.{name}.{i}.{kind}"]

    def steps(self, after: list[np.ndarray], text: list[int]):
        positions, token = 3, text[-1]
        state = rms_norm(self.state(after), 1.0, 1e-6) / np.sqrt(2)
        width = self.part("proj", 0).shape[0]
        state_weight = 0.5 ** (0.5 / positions)
        token_weight = np.sqrt((1 - state_weight**2) * width / 2)
        for i in range(positions):
            x = self.part("proj", i) @ state + token_weight / state_weight * self.part("emb", i)[token]
            x = rms_norm(x, self.part("ln", i), 1e-6) + self.part("ln", i, "bias")
            state = np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x])
            logits = self.part("head", i) @ state
            token = yield np.arange(len(logits)), logits


class DFlash:
    # Row of a block that scores the first token.
    reads_drafts, first = False, 1

    def __init__(self, folder: pathlib.Path, target: Target):
        self.target, self.w = target, safetensors(folder / "model.safetensors")
        config = json.loads((folder / "config.json").read_text())
        own = config["dflash_config"] or config
        self.taps, self.mask, self.block = own["target_layer_ids"], own["mask_token_id"], config["block_size"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.layers, self.eps, self.base = config["num_hidden_layers"], config["rms_norm_eps"], config["rope_theta"]
        self.depth = self.block - self.first
        types = config.get("layer_types", ["full_attention"] * self.layers)
        self.windows = [config["sliding_window"] if of == "sliding_attention" else None for of in types]
        # Layers with a window are causal unless the file says otherwise for all layers.
        self.causal = [config.get("is_causal", window is not None) for window in self.windows]

    def sees(self, layer: int, query: int, key: int) -> bool:
        hidden = self.causal[layer] and key > query
        return not hidden and (self.windows[layer] is None or abs(query - key) < self.windows[layer])

    def rotate(self, x: np.ndarray, first: int) -> np.ndarray:
        half = x.shape[2] // 2
        angle = (first + np.arange(x.shape[0]))[:, None] * self.base ** (-np.arange(half) / half)[None]
        turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)[:, None]
        return np.concatenate([turned.real, turned.imag], axis=2)

    def score(self, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        logits = self.target.w["output.weight"] @ state
        return np.arange(len(logits)), logits

    def steps(self, after: list[np.ndarray], text: list[int]):
        known = len(text) - 1
        context = np.concatenate([after[tap][:known] for tap in self.taps], axis=1) @ self.w["fc.weight"].T
        context = rms_norm(context, self.w["hidden_norm.weight"], self.eps)
        x = self.target.w["token_embd.weight"][[text[-1]] + [self.mask] * (self.block - 1)]
        for layer in range(self.layers):
            w = lambda part: self.w[f"layers.{layer}.{part}.weight"]
            y = rms_norm(x, w("input_layernorm"), self.eps)
            both = np.concatenate([context, y])
            q = (y @ w("self_attn.q_proj").T).reshape(len(y), self.heads, -1)
            k = (both @ w("self_attn.k_proj").T).reshape(len(both), self.kv_heads, -1)
            v = (both @ w("self_attn.v_proj").T).reshape(len(both), self.kv_heads, -1)
            q = self.rotate(rms_norm(q, w("self_attn.q_norm"), self.eps), known)
            k = self.rotate(rms_norm(k, w("self_attn.k_norm"), self.eps), 0)
            x = x + attend(q, k, v, functools.partial(self.sees, layer)) @ w("self_attn.o_proj").T
            h = rms_norm(x, w("post_attention_layernorm"), self.eps)
            x = x + (silu(h @ w("mlp.gate_proj").T) * (h @ w("mlp.up_proj").T)) @ w("mlp.down_proj").T
        x = rms_norm(x, self.w["norm.weight"], self.eps)
        token = text[-1]
        for row in range(self.first, self.block):
            tokens, logits = self.score(x[row])
            token = yield tokens, logits + self.bias(token)

    def bias(self, before: int) -> np.ndarray | float:
        """Values that the token before a place adds to its logits."""
        return 0.0


class DSpark(DFlash):
    reads_drafts, first = True, 0

    def score(self, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        logits = self.w["lm_head.weight"] @ state
        return np.arange(len(logits)), logits

    def bias(self, before: int) -> np.ndarray:
        return self.w["markov_head.markov_w2.weight"] @ self.w["markov_head.markov_w1.weight"][before]


class LlamaCppDFlash(DFlash):
    """DFlash in a GGUF file, with an output head of its own."""

    NAMES = LlamaCppHead.NAMES | {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}

    def __init__(self, path: pathlib.Path, target: Target):
        self.target = target
        reader = gguf.GGUFReader(path)
        own = {t.name: gguf.dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors if t.name != "d2t"}
        self.d2t = next(t.data for t in reader.tensors if t.name == "d2t")
        key = lambda name: reader.fields[f"dflash.{name}"].contents()
        self.layers, self.block, self.base = key("block_count"), key("block_size"), key("rope.freq_base")
        self.heads, self.kv_heads = key("attention.head_count"), key("attention.head_count_kv")
        self.eps, self.taps = key("attention.layer_norm_rms_epsilon"), [i - 1 for i in key("target_layers")]
        self.mask = reader.fields["tokenizer.ggml.mask_token_id"].contents()
        self.depth = self.block - self.first
        self.windows, self.causal = [None] * self.layers, [False] * self.layers
        if "dflash.attention.sliding_window" in reader.fields:
            size = key("attention.sliding_window")
            self.windows = [size if slides else None for slides in key("attention.sliding_window_pattern")]
            self.causal = [key("attention.causal")] * self.layers
        self.w = {
            f"layers.{layer}.{name}.weight": own[f"blk.{layer}.{part}.weight"]
            for layer in range(self.layers)
            for name, part in self.NAMES.items()
            if name != "hidden_norm"
        }
        self.w |= {"fc.weight": own["fc.weight"], "hidden_norm.weight": own["enc.output_norm.weight"]}
        self.w |= {"norm.weight": own["output_norm.weight"], "lm_head.weight": own["output.weight"]}
        self.w |= {name: values for name, values in own.items() if name.startswith("markov")}

    def score(self, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.d2t, self.w["lm_head.weight"] @ state


class LlamaCppDSpark(LlamaCppDFlash):
    """DSpark in a GGUF file, whose block begins to score in the row after the last token."""

    reads_drafts = True

    def bias(self, before: int) -> np.ndarray:
        return self.w["markov_w2.weight"] @ self.w["markov_w1.weight"][before]


def along(head, after: list[np.ndarray], text: list[int], path: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and logits after the drafted tokens of a path."""
    steps = head.steps(after, text)
    scores = next(steps)
    for token in path:
        scores = steps.send(token)
    return scores


def recorded(tokens: np.ndarray, logits: np.ndarray, count: int = TOP) -> dict:
    top = [[int(tokens[i]), round(float(logits[i]), 4)] for i in np.argsort(-logits)[:count]]
    return {"deviation": round(float(np.std(logits)), 4), "top": top}


def chain(head, after: list[np.ndarray], text: list[int]) -> list[dict]:
    """Scores of each step of a greedy chain."""
    path, steps = [], []
    for _ in range(head.depth):
        steps.append(recorded(*along(head, after, text, path)))
        path.append(steps[-1]["top"][0][0])
    return steps


def tree(head, after: list[np.ndarray], text: list[int]) -> list[dict]:
    """Nodes of a tree with the scores after them."""
    nodes, paths = [], []
    for parent, rank in TREE:
        before = [] if parent is None else paths[parent]
        scores = recorded(*along(head, after, text, before))
        paths.append(before + [scores["top"][rank][0]])
        nodes.append({"parent": parent, "token": paths[-1][-1], "scores": recorded(*along(head, after, text, paths[-1]))})
    return nodes


def rounds(head, after: list[np.ndarray], text: list[int]) -> list[dict]:
    """Whole blocks after the first tokens of a text, with one token for all that were drafted."""
    blocks = []
    for read in READ if isinstance(head, DFlash) else []:
        scores = (along(head, after, text[:read], [DRAFTED_TOKEN] * place) for place in range(head.depth))
        blocks.append({"read": read, "places": [recorded(*place, TOP_OF_BLOCK) for place in scores]})
    return blocks


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    target = Target(folder / "target.gguf")
    text = [(7 * i * i + 3 * i + 11) % 256 for i in range(TEXT)]
    after = target.states(text)
    cases = []
    kinds = {"medusa": Medusa, "mlp": MlpSpeculator, "dflash": DFlash, "dflash-sliding": DFlash}
    kinds["dspark"] = DSpark
    in_gguf = {"llama-cpp": LlamaCppHead, "dflash-llama-cpp": LlamaCppDFlash, "dspark-llama-cpp": LlamaCppDSpark}
    names = ["eagle1", "eagle3", "speculators", "normed", "llama-cpp", "medusa", "mlp"]
    names += ["dflash", "dflash-sliding", "dflash-llama-cpp", "dspark", "dspark-llama-cpp"]
    for name in names:
        if name in in_gguf:
            head = in_gguf[name](folder / f"{name}.gguf", target)
        else:
            head = kinds.get(name, Head)(folder / name, target)
        nodes = tree(head, after, text) if head.reads_drafts else []
        case = {"head": name, "text": text, "steps": chain(head, after, text), "tree": nodes}
        cases.append(case | {"rounds": rounds(head, after, text)})
    print("[" + ",\n".join(json.dumps(case) for case in cases) + "]")


if __name__ == "__main__":
    main()
