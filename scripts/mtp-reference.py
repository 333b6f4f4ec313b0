"""Records what MTP layers should compute, for tests/it/mtp.rs.

    cargo run --example tiny-models -- FOLDER mtp
    scripts/mtp-reference.py FOLDER > tests/golden/mtp.json

Runs the tiny models of crates/hunch-testing/src/tiny.rs that have a layer of multi-token prediction, in double precision. The
target reads a text, the layer its final states, and a greedy chain and a small tree follow from the layer's own output.
The arithmetic is written a second time from llama.cpp (src/models/qwen35.cpp, qwen35moe.cpp, qwen3next.cpp,
glm4-moe.cpp). Models with gated delta nets are left out: their layer is the same. Needs the Python packages gguf and
numpy."""

import importlib.machinery
import importlib.util
import json
import pathlib
import sys

import gguf
import numpy as np

_path = pathlib.Path(__file__).with_name("published-heads.py")
_loader = importlib.machinery.SourceFileLoader("published_heads", str(_path))
_spec = importlib.util.spec_from_loader("published_heads", _loader)
published = importlib.util.module_from_spec(_spec)
_loader.exec_module(published)
attend, rms_norm, silu = published.attend, published.rms_norm, published.silu

MODELS = ["qwen35-Attention", "qwen35moe-Attention", "qwen3next-Attention", "glm4moe-Plain"]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


class Model:
    """A target with its MTP layer."""

    depth = published.DRAFTED

    def __init__(self, path: pathlib.Path):
        reader = gguf.GGUFReader(path)
        self.w = {t.name: gguf.dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors}
        architecture = reader.fields["general.architecture"].contents()
        fields = {name.removeprefix(architecture + "."): field for name, field in reader.fields.items()}
        self.key = lambda name, default=None: fields[name].contents() if name in fields else default
        self.gated = architecture.startswith("qwen3")
        self.sigmoid_router = architecture == "glm4moe"
        self.layers = self.key("block_count") - self.key("nextn_predict_layers")
        self.eps, self.base = self.key("attention.layer_norm_rms_epsilon"), self.key("rope.freq_base")
        self.heads, self.kv_heads = self.key("attention.head_count"), self.key("attention.head_count_kv")
        self.width, self.rotated = self.key("attention.key_length"), self.key("rope.dimension_count")

    def rotate(self, x: np.ndarray, first: int) -> np.ndarray:
        """Rotates the halves of the first elements of each head."""
        half = self.rotated // 2
        angle = (first + np.arange(len(x)))[:, None] * self.base ** (-np.arange(half) / half)[None]
        turned = (x[..., :half] + 1j * x[..., half : 2 * half]) * np.exp(1j * angle)[:, None]
        return np.concatenate([turned.real, turned.imag, x[..., 2 * half :]], axis=2)

    def block(self, layer: int, x: np.ndarray, cache: list[list[np.ndarray]]) -> np.ndarray:
        """Runs rows through a layer and appends them to its cache of keys and values."""
        w = lambda part: self.w[f"blk.{layer}.{part}"]
        h, first, rows = rms_norm(x, w("attn_norm.weight"), self.eps), len(cache[0]), len(x)
        project = lambda part: h @ w(f"{part}.weight").T + self.w.get(f"blk.{layer}.{part}.bias", 0.0)
        q, k, v = project("attn_q"), project("attn_k"), project("attn_v")
        if self.gated:
            both = q.reshape(rows, self.heads, 2, self.width)
            q, gate = both[:, :, 0], both[:, :, 1].reshape(rows, -1)
        q, k = q.reshape(rows, self.heads, -1), k.reshape(rows, self.kv_heads, -1)
        if self.gated:
            q, k = rms_norm(q, w("attn_q_norm.weight"), self.eps), rms_norm(k, w("attn_k_norm.weight"), self.eps)
        cache[0] += list(self.rotate(k, first))
        cache[1] += list(v.reshape(rows, self.kv_heads, -1))
        mixed = attend(self.rotate(q, first), np.array(cache[0]), np.array(cache[1]))
        x = x + (mixed * sigmoid(gate) if self.gated else mixed) @ w("attn_output.weight").T
        h = rms_norm(x, w("post_attention_norm.weight"), self.eps)
        return x + (self.mixture(layer, h) if f"blk.{layer}.ffn_gate_inp.weight" in self.w else self.dense(layer, h))

    def dense(self, layer: int, h: np.ndarray, suffix: str = "") -> np.ndarray:
        w = lambda part: self.w[f"blk.{layer}.{part}{suffix}.weight"]
        return (silu(h @ w("ffn_gate").T) * (h @ w("ffn_up").T)) @ w("ffn_down").T

    def mixture(self, layer: int, h: np.ndarray) -> np.ndarray:
        w = lambda part: self.w[f"blk.{layer}.{part}"]
        scores = h @ w("ffn_gate_inp.weight").T
        if self.sigmoid_router:
            weights = sigmoid(scores)
            rank = weights + w("exp_probs_b.bias")
        else:
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            rank = weights
        out = self.dense(layer, h, "_shexp")
        if f"blk.{layer}.ffn_gate_inp_shexp.weight" in self.w:
            out = out * sigmoid(h @ w("ffn_gate_inp_shexp.weight"))[:, None]
        gate, up, down = (w(f"ffn_{part}_exps.weight") for part in ("gate", "up", "down"))
        for row in range(len(h)):
            chosen = np.argsort(-rank[row])[: self.key("expert_used_count")]
            share = weights[row, chosen] / weights[row, chosen].sum() * self.key("expert_weights_scale", 1.0)
            for expert, part in zip(chosen, share):
                out[row] += part * (down[expert] @ (silu(gate[expert] @ h[row]) * (up[expert] @ h[row])))
        return out

    def states(self, tokens: list[int]) -> np.ndarray:
        """The final states of the target after its output norm, [rows, width]."""
        x = self.w["token_embd.weight"][tokens]
        for layer in range(self.layers):
            x = self.block(layer, x, [[], []])
        return rms_norm(x, self.w["output_norm.weight"], self.eps)

    def draft(self, h: np.ndarray, tokens: list[int], cache: list[list[np.ndarray]]) -> np.ndarray:
        """Runs rows of the MTP layer: states, and the tokens after them. Returns its normed states."""
        w = lambda part: self.w[f"blk.{self.layers}.nextn.{part}.weight"]
        e = rms_norm(self.w["token_embd.weight"][tokens], w("enorm"), self.eps)
        x = np.concatenate([e, rms_norm(h, w("hnorm"), self.eps)], axis=1) @ w("eh_proj").T
        return rms_norm(self.block(self.layers, x, cache), w("shared_head_norm"), self.eps)

    def steps(self, after: np.ndarray, text: list[int]):
        """Yields tokens and logits of each step. The caller sends the next drafted token."""
        cache: list[list[np.ndarray]] = [[], []]
        h = self.draft(after[:-1], text[1:], cache)[-1]
        while True:
            logits = self.w["output.weight"] @ h
            token = yield np.arange(len(logits)), logits
            h = self.draft(h[None], [token], cache)[-1]


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    text = [(7 * i * i + 3 * i + 11) % 256 for i in range(published.TEXT)]
    cases = []
    for name in MODELS:
        model = Model(folder / f"{name}.gguf")
        after = model.states(text)
        nodes = published.tree(model, after, text)
        cases.append({"head": name, "text": text, "steps": published.chain(model, after, text), "tree": nodes})
    print("[" + ",\n".join(json.dumps(case) for case in cases) + "]")


if __name__ == "__main__":
    main()
