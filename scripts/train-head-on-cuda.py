#!/usr/bin/env python3
"""Trains a draft head for a small Llama or Qwen2 model on an NVIDIA GPU, in minutes instead of hours.

It is the recipe of `hunch drafter train` (docs/drafters.md), with PyTorch: the model writes prompts and answers, a ridge
regression starts the head, AdamW improves it. Answers have up to 384 tokens, a head can draft several tokens, and
several heads learn from the same batches. Only tokens are kept. Hidden states are computed again when a batch needs
them. The order of sums on a GPU is free, so two runs give slightly different weights.

    scripts/train-head-on-cuda.py TARGET.gguf --tokens 10000000 --out FOLDER

Writes one GGUF file and one curve of held-out acceptance for each head. `hunch drafter eval --head FILE` measures a head
in Hunch's own arithmetic. Needs the Python packages torch, numpy, gguf, tokenizers and jinja2."""

import argparse
import hashlib
import json
import math
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import jinja2
import numpy as np
import tokenizers
import torch
import torch.nn.functional as F
from torch import Tensor, nn

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

EPS = 1e-5
MARKER = "Uc7Jq2Zx9"
PROMPT_TOKENS, ANSWER_TOKENS = 128, 384
GREEDY_EVERY, HELD_OUT_EVERY = 3, 10
TEMPERATURE, TOP_K, TOP_P, MIN_P = 0.7, 40, 0.95, 0.05
BETAS, DECAY, CLIP, LAST_RATE, WARM_UP = (0.9, 0.95), 0.05, 1.0, 0.05, 100
RIDGE_PENALTY, RIDGE_POSITIONS = 100.0, 200_000
# Weight of the loss of each token of a draft, relative to the one before it.
DEPTH_WEIGHT = 0.8


# The target.


@dataclass
class Layer:
    attn_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | float
    out: Tensor
    ffn_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass
class Cache:
    """Keys and values of some sequences, `[layers][rows, kv heads, length, head width]`."""

    keys: list[Tensor]
    values: list[Tensor]

    def select(self, rows: Tensor) -> None:
        for all_ in (self.keys, self.values):
            for i in range(len(all_)):
                all_[i] = all_[i][rows]


if triton:

    @triton.jit
    def attend_one(q, k, v, out, lengths, length, kv_heads, scale, GROUP: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
        """Attention of one new row a sequence: a program serves the query heads of one KV head."""
        at = tl.program_id(0).to(tl.int64)
        n = tl.load(lengths + at // kv_heads)
        head, column = tl.arange(0, 16), tl.arange(0, WIDTH)
        query = tl.load(q + (at * GROUP + head[:, None]) * WIDTH + column[None, :], mask=head[:, None] < GROUP, other=0.0)
        best = tl.full([16], -1.0e30, tl.float32)
        total = tl.zeros([16], tl.float32)
        sums = tl.zeros([16, WIDTH], tl.float32)
        for start in range(0, n, BLOCK):
            row = start + tl.arange(0, BLOCK)
            places = (at * length + row[:, None]) * WIDTH + column[None, :]
            keys = tl.load(k + places, mask=row[:, None] < n, other=0.0)
            values = tl.load(v + places, mask=row[:, None] < n, other=0.0)
            score = tl.dot(query, tl.trans(keys)) * scale
            score = tl.where(row[None, :] < n, score, -1.0e30)
            most = tl.maximum(best, tl.max(score, 1))
            weight = tl.exp(score - most[:, None])
            shrink = tl.exp(best - most)
            total = total * shrink + tl.sum(weight, 1)
            sums = sums * shrink[:, None] + tl.dot(weight.to(values.dtype), values)
            best = most
        result = (sums / total[:, None]).to(query.dtype)
        tl.store(out + (at * GROUP + head[:, None]) * WIDTH + column[None, :], result, mask=head[:, None] < GROUP)


def dequantised(data: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    return gguf.dequantize(data, kind).astype(np.float32)


class Target:
    """A model of the architectures Llama or Qwen2, from a GGUF file of any weight type."""

    def __init__(self, path: str, device: torch.device, dtype: torch.dtype):
        reader = gguf.GGUFReader(path)
        value = lambda key: reader.fields[key].contents()
        kind = value("general.architecture")
        if kind not in ("llama", "qwen2"):
            raise SystemExit("This script trains heads for the architectures Llama and Qwen2.")
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        pool = ProcessPoolExecutor(mp_context=multiprocessing.get_context("fork"))
        parts = {name: pool.submit(dequantised, np.asarray(tensor.data), tensor.tensor_type) for name, tensor in tensors.items()}
        load = lambda *names: torch.from_numpy(np.concatenate([parts.pop(name).result() for name in names]))
        matrix = lambda *names: load(*(f"{name}.weight" for name in names)).to(device, dtype)
        vector = lambda name: load(f"{name}.weight").to(device)
        self.device, self.dtype, self.name = device, dtype, value("general.name")
        size = lambda key: value(f"{kind}.{key}")
        self.width, self.depth = size("embedding_length"), size("block_count")
        self.heads, self.kv_heads = size("attention.head_count"), size("attention.head_count_kv")
        self.head_width = self.width // self.heads
        self.eps, self.base = size("attention.layer_norm_rms_epsilon"), size("rope.freq_base")
        # Files of Llama store the pairs that are rotated next to each other, those of Qwen2 as halves of a head.
        self.has_neighbours = kind == "llama"
        self.embedding = matrix("token_embd")
        self.output = matrix("output") if "output.weight" in tensors else self.embedding
        norm = load("output_norm.weight")
        self.output_norm = norm.to(device)
        self.layers = []
        for i in range(self.depth):
            name = lambda part, i=i: f"blk.{i}.{part}"
            self.layers.append(
                Layer(
                    vector(name("attn_norm")),
                    matrix(*(name(f"attn_{part}") for part in "qkv")),
                    load(*(f"{name(f'attn_{part}')}.bias" for part in "qkv")).to(device, dtype) if kind == "qwen2" else 0.0,
                    matrix(name("attn_output")),
                    vector(name("ffn_norm")),
                    matrix(name("ffn_gate"), name("ffn_up")),
                    matrix(name("ffn_down")),
                )
            )
        half = self.head_width // 2
        frequencies = self.base ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.outer(torch.arange(1024, dtype=torch.float64), frequencies)
        self.cos, self.sin = angles.cos().float().to(device), angles.sin().float().to(device)
        self.fingerprint = hashlib.sha256(norm.numpy().astype("<f4").tobytes()).hexdigest()
        # Layers whose residual stream a head reads, and the last.
        last = self.depth - 1
        self.taps = sorted({i for i in (2, self.depth // 2 - 1, self.depth - 4) if 0 <= i < last}) + [last]
        self.tokenizer = tokenizer(value)
        self.template = jinja2.Environment().from_string(value("tokenizer.chat_template"))
        self.ends = {value("tokenizer.ggml.eos_token_id")}
        self.ends |= {ids[0] for ids in map(self.encode, ("<|im_end|>", "<|endoftext|>")) if len(ids) == 1}
        pool.shutdown()
        self.fast = triton is not None and device.type == "cuda" and self.kernel_is_right()

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def render(self, text: str, answer: bool) -> str:
        return self.template.render(messages=[{"role": "user", "content": text}], add_generation_prompt=answer)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotates pairs of values. x is `[rows, length, heads, width]`."""
        cos, sin = self.cos[positions][:, :, None], self.sin[positions][:, :, None]
        pairs = x.unflatten(-1, (-1, 2)).unbind(-1) if self.has_neighbours else x.chunk(2, -1)
        a, b = (part.float() for part in pairs)
        rotated = (a * cos - b * sin, a * sin + b * cos)
        return (torch.stack(rotated, -1).flatten(-2) if self.has_neighbours else torch.cat(rotated, -1)).to(x.dtype)

    def forward(self, tokens: Tensor, positions: Tensor, cache: Cache | None, taps: bool = False) -> list[Tensor]:
        """Runs `tokens [rows, length]`. Returns the residual stream after each tapped layer, or after the last alone.

        Without a cache, or with an empty one, a row sees the rows before it. Else `length` is 1, and the row of each
        sequence is at `positions`."""
        rows, length = tokens.shape
        x = self.embedding[tokens].float()
        kept = []
        q_width, kv_width = self.heads * self.head_width, self.kv_heads * self.head_width
        sequence = torch.arange(rows, device=self.device)
        for i, layer in enumerate(self.layers):
            y = F.rms_norm(x, (self.width,), layer.attn_norm, self.eps).to(self.dtype)
            q, k, v = (y @ layer.qkv.T + layer.qkv_bias).split((q_width, kv_width, kv_width), -1)
            q = self.rotate(q.unflatten(-1, (self.heads, -1)), positions)
            k = self.rotate(k.unflatten(-1, (self.kv_heads, -1)), positions)
            v = v.unflatten(-1, (self.kv_heads, -1))
            if cache is not None and length == 1:
                cache.keys[i][sequence, :, positions[:, 0]] = k[:, 0]
                cache.values[i][sequence, :, positions[:, 0]] = v[:, 0]
                y = self.attend_cached(q[:, 0], cache.keys[i], cache.values[i], positions[:, 0] + 1)
                y = y.reshape(rows, 1, -1)
            else:
                q, k, v = (part.transpose(1, 2) for part in (q, k, v))
                if cache is not None:
                    cache.keys[i][:, :, :length], cache.values[i][:, :, :length] = k, v
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(-2)
            x = x + y @ layer.out.T
            y = F.rms_norm(x, (self.width,), layer.ffn_norm, self.eps).to(self.dtype)
            gate, up = (y @ layer.gate_up.T).chunk(2, -1)
            x = x + (F.silu(gate) * up) @ layer.down.T
            if (taps and i in self.taps) or i + 1 == self.depth:
                kept.append(x)
        return kept

    def attend_cached(self, q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
        group, scale = self.heads // self.kv_heads, self.head_width**-0.5
        if self.fast:
            q, out = q.contiguous(), torch.empty_like(q)
            grid = (q.shape[0] * self.kv_heads,)
            attend_one[grid](q, keys, values, out, lengths, keys.shape[2], self.kv_heads, scale, GROUP=group, WIDTH=self.head_width, BLOCK=64)
            return out
        q = q.unflatten(1, (self.kv_heads, group))
        mask = torch.arange(keys.shape[2], device=self.device) < lengths[:, None]
        score = (q @ keys.transpose(-1, -2)).float() * scale
        weight = score.masked_fill(~mask[:, None, None], -torch.inf).softmax(-1)
        return (weight.to(values.dtype) @ values).flatten(1, 2)

    def kernel_is_right(self) -> bool:
        """Compares the kernel with PyTorch's operations on random numbers."""
        random = lambda *shape: torch.randn(shape, device=self.device).to(self.dtype)
        q = random(5, self.heads, self.head_width)
        keys, values = (random(5, self.kv_heads, 208, self.head_width) for _ in range(2))
        lengths = torch.tensor([1, 63, 64, 65, 200], device=self.device)
        self.fast = False
        slow = self.attend_cached(q, keys, values, lengths).float()
        self.fast = True
        fast = self.attend_cached(q, keys, values, lengths).float()
        error = float((fast - slow).abs().max())
        print(f"attention kernel: largest error {error:.4f}", flush=True)
        return error < 0.03

    def final(self, x: Tensor) -> Tensor:
        """The state after the output norm."""
        return F.rms_norm(x, (self.width,), self.output_norm, self.eps)

    def logits(self, x: Tensor) -> Tensor:
        return (self.final(x).to(self.dtype) @ self.output.T).float()


# Splits of text before its bytes are merged, by name.
DIGITS = tokenizers.pre_tokenizers.Digits(True), tokenizers.pre_tokenizers.ByteLevel(False)
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = tokenizers.pre_tokenizers.Split(tokenizers.Regex(QWEN), "isolated"), tokenizers.pre_tokenizers.ByteLevel(False, use_regex=False)
SPLITS = {"smollm": DIGITS, "qwen2": WORDS}


def tokenizer(value) -> tokenizers.Tokenizer:
    """The byte-level tokeniser of a GGUF file."""
    split = SPLITS.get(value("tokenizer.ggml.pre"))
    if value("tokenizer.ggml.model") != "gpt2" or split is None:
        raise SystemExit(f"This script knows the tokenisers {', '.join(SPLITS)}.")
    tokens, types = value("tokenizer.ggml.tokens"), value("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in value("tokenizer.ggml.merges")]
    model = tokenizers.models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges)
    found = tokenizers.Tokenizer(model)
    found.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(list(split))
    found.decoder = tokenizers.decoders.ByteLevel()
    control = [token for token, type_ in zip(tokens, types) if type_ == gguf.TokenType.CONTROL]
    found.add_special_tokens(control)
    return found


# Text.


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The `TOP_K` largest logits and their tokens. They are in the blocks with the largest maxima, so a GPU sorts less."""
    block = math.gcd(logits.shape[-1], 256)
    if block < 32 or logits.shape[-1] < 2 * TOP_K * block:
        return logits.topk(TOP_K, -1)
    blocks = logits.unflatten(-1, (-1, block))
    best = blocks.amax(-1).topk(TOP_K, -1).indices
    values, at = blocks.gather(1, best[:, :, None].expand(-1, -1, block)).flatten(1).topk(TOP_K, -1)
    return values, best.gather(1, at // block) * block + at % block


def filtered(logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The likeliest tokens and their probabilities, as Hunch filters them: on the distribution at temperature 1."""
    values, tokens = likeliest(logits)
    p = values.softmax(-1)
    keep = (p.cumsum(-1) - p < TOP_P) & (p >= MIN_P * p[..., :1])
    return tokens, (values / temperature).masked_fill(~keep, -torch.inf).softmax(-1)


@torch.no_grad()
def write(target: Target, starts: list[list[int]], most: int, temperature: float, greedy: Tensor, deadline: float) -> list[list[int]]:
    """Continues each start until an end token or `most` tokens. Rows of `greedy` take the likeliest token."""
    device, longest = target.device, max(map(len, starts))
    count, length = len(starts), longest + most
    length += -length % 8
    lengths = torch.tensor([len(start) for start in starts], device=device)
    padded = torch.tensor([start + [0] * (longest - len(start)) for start in starts], device=device)
    shape = (count, target.kv_heads, length, target.head_width)
    cache = Cache(*([torch.zeros(shape, device=device, dtype=target.dtype) for _ in target.layers] for _ in range(2)))
    logits = []
    for at in range(0, count, 256):
        rows = slice(at, min(at + 256, count))
        part = Cache(*([tensor[rows] for tensor in all_] for all_ in (cache.keys, cache.values)))
        tokens = padded[rows]
        positions = torch.arange(longest, device=device).expand(len(tokens), -1)
        (x,) = target.forward(tokens, positions, part)
        logits.append(target.logits(x[torch.arange(len(tokens), device=device), lengths[rows] - 1]))
    # Its tensors are views of the whole cache.
    del part
    logits = torch.cat(logits)
    ends = torch.tensor(sorted(target.ends), device=device)
    written = torch.full((count, most), -1, dtype=torch.int64, device=device)
    active, greedy = torch.arange(count, device=device), greedy.to(device)
    for step in range(most):
        tokens, p = filtered(logits, temperature)
        draw = tokens.gather(1, torch.multinomial(p, 1))[:, 0]
        token = torch.where(greedy, tokens[:, 0], draw)
        written[active, step] = token
        lengths = lengths + 1
        if step + 1 == most:
            break
        if step % 8 == 7:
            # Sequences that have written no end token.
            rows = (~torch.isin(written[active, : step + 1], ends).any(1)).nonzero()[:, 0]
            if len(rows) == 0 or time.monotonic() > deadline:
                break
            if len(rows) < 0.8 * len(active):
                cache.select(rows)
                active, greedy, lengths, token = active[rows], greedy[rows], lengths[rows], token[rows]
        (x,) = target.forward(token[:, None], lengths[:, None] - 1, cache)
        logits = target.logits(x[:, 0])
    texts = []
    for row in written.tolist():
        end = next((i for i, token in enumerate(row) if token in target.ends), None)
        texts.append([token for token in (row if end is None else row[: end + 1]) if token >= 0])
    return texts


@dataclass
class Text:
    """Prompts with their answers. An answer starts at token `starts[i]` of `tokens[i]`."""

    tokens: list[list[int]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    greedy: list[bool] = field(default_factory=list)

    def add(self, tokens: list[int], start: int, greedy: bool) -> None:
        self.tokens.append(tokens)
        self.starts.append(start)
        self.greedy.append(greedy)

    def answer_tokens(self) -> int:
        return sum(map(len, self.tokens)) - sum(self.starts)


def collect(target: Target, wanted: int, seconds: float, parallel: int, answer_tokens: int) -> tuple[Text, Text]:
    """Lets the target write prompts and answers. Returns those to train on and the held-out ones."""
    before, after = target.render(MARKER, False).split(MARKER)
    turn, turn_end = target.encode(before), after.split("\n")[0]
    train, held_out = Text(), Text()
    begun, number = time.monotonic(), 0
    while train.answer_tokens() < wanted and time.monotonic() - begun < seconds:
        deadline = begun + seconds
        never = torch.zeros(parallel, dtype=torch.bool)
        drafts = write(target, [turn] * parallel, PROMPT_TOKENS, 1.0, never, deadline)
        texts = [target.tokenizer.decode(ids, skip_special_tokens=False).split(turn_end)[0].strip() for ids in drafts]
        starts = [target.encode(target.render(text, True)) for text in texts if text]
        starts.sort(key=len)
        greedy = torch.arange(len(starts)) % GREEDY_EVERY == 0
        answers = write(target, starts, answer_tokens, TEMPERATURE, greedy, deadline + 30)
        # Equal prompts are held out together.
        for start, answer, is_greedy in zip(starts, answers, greedy.tolist()):
            digest = hashlib.sha256(str(start).encode()).digest()
            part = held_out if digest[0] * HELD_OUT_EVERY < 256 else train
            if len(answer) > 4:
                part.add(start + answer, len(start), is_greedy)
            number += 1
        passed = time.monotonic() - begun
        print(f"{passed:6.1f} s: {number} answers, {train.answer_tokens()} tokens to train on, {held_out.answer_tokens()} held out", flush=True)
    return train, held_out


# Heads.


class Block(nn.Module):
    """The feed-forward block after the first product of a step."""

    def __init__(self, width: int, inner: int):
        super().__init__()
        spread = (3.0 / width) ** 0.5
        random = lambda: nn.Parameter((torch.rand(inner, width) * 2 - 1) * spread)
        self.norm, self.gate, self.up = nn.Parameter(torch.ones(width)), random(), random()
        self.down = nn.Parameter(torch.zeros(width, inner))

    def forward(self, x: Tensor) -> Tensor:
        y = F.rms_norm(x.float(), x.shape[-1:], self.norm, EPS)
        return x + (F.silu(y @ self.gate.T) * (y @ self.up.T)) @ self.down.T


class Head(nn.Module):
    """The network of crates/hunch-model/src/heads/mlp.rs on standardised states. It returns predicted states."""

    def __init__(self, name: str, width: int, inputs: int, inner: int, depth: int):
        super().__init__()
        self.name, self.width, self.inner, self.depth = name, width, inner, depth
        self.fc, self.bias = nn.Parameter(torch.zeros(width, inputs * width)), nn.Parameter(torch.zeros(width))
        self.block = Block(width, inner)
        if depth > 1:
            self.context = nn.Parameter(torch.randn(width, (inputs - 1) * width) * 0.01)
            self.next = nn.Parameter(torch.randn(width, 2 * width) * 0.02)
            self.next_bias = nn.Parameter(torch.zeros(width))
            self.next_block = Block(width, inner)

    def forward(self, states: Tensor, embeddings: list[Tensor]) -> list[Tensor]:
        x = torch.cat((states, embeddings[0]), -1) @ self.fc.T + self.bias
        found = [self.block(x)]
        if self.depth > 1:
            context = states @ self.context.T + self.next_bias
            for embedding in embeddings[1 : self.depth]:
                last = F.rms_norm(found[-1].float(), (self.width,), None, EPS)
                x = context + torch.cat((last, embedding.float()), -1) @ self.next.T
                found.append(self.next_block(x))
        return found


@dataclass
class Batch:
    """Positions of some answers. `valid[k]` marks those whose answer has k + 1 more rows."""

    states: Tensor
    embeddings: list[Tensor]
    future: list[Tensor]
    tokens: list[Tensor]
    valid: list[Tensor]
    greedy: Tensor


class Trainer:
    def __init__(self, target: Target, text: Text, held_out: Text, shortlist: int, depth: int):
        self.target, self.text, self.held_out, self.depth = target, text, held_out, depth
        counts = np.bincount(np.concatenate([tokens[start:] for tokens, start in zip(text.tokens, text.starts)]), minlength=len(target.embedding))
        order = np.argsort(-counts, kind="stable")
        for size in (shortlist, 2 * shortlist):
            print(f"the {size} most frequent tokens are {counts[order[:size]].sum() / counts.sum():.4f} of all")
        self.vocabulary = torch.from_numpy(np.sort(order[:shortlist])).to(target.device)
        self.rows = target.output[self.vocabulary]
        self.mean = self.deviation = None

    @torch.no_grad()
    def batch(self, text: Text, members: list[int]) -> Batch:
        """Runs the target on some answers and returns their positions."""
        target, depth, width = self.target, self.depth, self.target.width
        longest = max(len(text.tokens[i]) for i in members)
        tokens = torch.tensor([text.tokens[i] + [0] * (longest - len(text.tokens[i])) for i in members], device=target.device)
        lengths = torch.tensor([len(text.tokens[i]) for i in members], device=target.device)[:, None]
        starts = torch.tensor([text.starts[i] for i in members], device=target.device)[:, None]
        greedy = torch.tensor([text.greedy[i] for i in members], device=target.device)
        rows = torch.arange(longest, device=target.device)[None]
        *tapped, last = target.forward(tokens, rows.expand(len(members), -1), None, True)
        final = target.final(last)
        if self.mean is None:
            inside = (rows >= starts - 1) & (rows < lengths)
            self.mean, self.deviation = final[inside].mean(0), final[inside].std(0).clamp_min(1e-3)
        sequence, row = ((rows >= starts - 1) & (rows < lengths - 1)).nonzero(as_tuple=True)
        unit = lambda x: F.rms_norm(x, (width,), None, EPS)
        parts = [(final[sequence, row] - self.mean) / self.deviation] + [unit(state[sequence, row]) for state in tapped]
        end = lengths[sequence, 0]
        at = [torch.minimum(row + 1 + k, end - 1) for k in range(depth + 1)]
        embeddings = [unit(target.embedding[tokens[sequence, at[k]]].float()).to(target.dtype) for k in range(depth)]
        return Batch(
            torch.cat(parts, -1).to(target.dtype),
            embeddings,
            [final[sequence, at[k]] for k in range(depth)],
            [tokens[sequence, at[k + 1]] for k in range(depth)],
            [row + 1 + k < end for k in range(depth + 1)],
            greedy[sequence],
        )

    def logits(self, x: Tensor) -> Tensor:
        """Logits of the shortlist after standardised states."""
        return (x.float() * self.deviation + self.mean).to(self.rows.dtype) @ self.rows.T

    def loss(self, head: Head, batch: Batch, hybrid: bool) -> Tensor:
        """Cross entropy to the target's distribution; with `hybrid` the LK loss (arXiv 2602.23881)."""
        total = 0.0
        for k, x in enumerate(head(batch.states, batch.embeddings)):
            p = (batch.future[k].to(self.rows.dtype) @ self.rows.T).float().log_softmax(-1)
            q = self.logits(x).float().log_softmax(-1)
            p_, count = p.exp(), batch.valid[k].sum().clamp_min(1)
            loss = -(p_ * q).sum(-1)
            if hybrid:
                overlap = torch.minimum(p_, q.exp()).sum(-1)
                weight = torch.exp(-3.0 * overlap.detach())
                entropy = -(p_ * p).sum(-1)
                loss = weight * (loss - entropy) + (1 - weight) * (1 - overlap)
            total = total + DEPTH_WEIGHT**k * (loss * batch.valid[k]).sum() / count
        return total

    @torch.no_grad()
    def start(self, heads: list[Head], members: int) -> None:
        """Sets the first step of every head to a ridge regression."""
        xx = xy = 0.0
        seen = 0
        for at in range(0, len(self.text.tokens), members):
            batch = self.batch(self.text, list(range(at, min(at + members, len(self.text.tokens)))))
            x = torch.cat((batch.states, batch.embeddings[0]), -1).float()
            x = torch.cat((x, torch.ones_like(x[:, :1])), -1)
            y = (batch.future[0] - self.mean) / self.deviation
            xx, xy, seen = xx + (x.T @ x).double(), xy + (x.T @ y).double(), seen + len(x)
            if seen >= RIDGE_POSITIONS:
                break
        xx += RIDGE_PENALTY * torch.eye(len(xx), dtype=xx.dtype, device=xx.device)
        solved = torch.linalg.solve(xx, xy).float()
        for head in heads:
            head.fc.copy_(solved[:-1].T)
            head.bias.copy_(solved[-1])

    @torch.no_grad()
    def acceptance(self, heads: list[Head], members: int, positions: int) -> list[dict]:
        """Measures each head on held-out answers: acceptance by depth, and tokens per pass with drafts of its depth. Tokens
        before the measured one were accepted."""
        sums = [torch.zeros(4, self.depth, dtype=torch.float64) for _ in heads]
        chains, seen = [torch.zeros(4, dtype=torch.float64) for _ in heads], 0
        for at in range(0, len(self.held_out.tokens), members):
            batch = self.batch(self.held_out, list(range(at, min(at + members, len(self.held_out.tokens)))))
            for head, sum_, chain in zip(heads, sums, chains):
                accepted = torch.ones_like(batch.greedy, dtype=torch.float32)
                length = torch.ones_like(accepted)
                with torch.autocast(self.target.device.type, torch.bfloat16, enabled=self.target.device.type == "cuda"):
                    predicted = head(batch.states, batch.embeddings)
                for k, x in enumerate(predicted):
                    scores = self.logits(x).float()
                    guess = self.vocabulary[scores.argmax(-1)]
                    right = (guess == batch.tokens[k]).float()
                    p_tokens, p = filtered((batch.future[k].to(self.rows.dtype) @ self.target.output.T).float(), TEMPERATURE)
                    found, q = filtered(scores, TEMPERATURE)
                    same = p_tokens[:, :, None] == self.vocabulary[found][:, None, :]
                    overlap = torch.minimum(p, (same * q[:, None, :]).sum(-1)).sum(-1)
                    # The last row of a greedy answer has no next token to compare with.
                    valid = batch.valid[k] & (~batch.greedy | batch.valid[k + 1])
                    got = torch.where(batch.greedy, right, overlap)
                    accepted = accepted * got * valid
                    length = length + accepted
                    for i, mask in enumerate((batch.greedy & valid, ~batch.greedy & valid)):
                        sum_[2 * i, k] += float(got[mask].sum())
                        sum_[2 * i + 1, k] += float(mask.sum())
                for i, mask in enumerate((batch.greedy, ~batch.greedy)):
                    chain[2 * i] += float(length[mask].sum())
                    chain[2 * i + 1] += float(mask.sum())
            seen += len(batch.greedy)
            if seen >= positions:
                break
        result = []
        for head, sum_, chain in zip(heads, sums, chains):
            share = lambda row: [round(float(sum_[row, k] / sum_[row + 1, k].clamp_min(1)), 4) for k in range(head.depth)]
            result.append(
                {
                    "greedy": share(0),
                    "sampled": share(2),
                    "positions": [int(sum_[1, 0]), int(sum_[3, 0])],
                    "tokens_a_pass": [round(float(chain[i] / chain[i + 1].clamp_min(1)), 4) for i in (0, 2)],
                }
            )
        return result

    def batches(self, members: int, random: np.random.Generator) -> list[list[int]]:
        """Draws an order of the answers, `members` a batch. The answers of a batch have similar lengths, so few rows are
        padding."""
        order = random.permutation(len(self.text.tokens)).tolist()
        batches = []
        for at in range(0, len(order), 16 * members):
            alike = sorted(order[at : at + 16 * members], key=lambda i: len(self.text.tokens[i]))
            batches += [alike[i : i + members] for i in range(0, len(alike) - members + 1, members)]
        random.shuffle(batches)
        return batches

    def train(self, heads: list[tuple[Head, bool]], rate: float, members: int, epochs: int, seconds: float, out: Path, seed: int, positions: int) -> None:
        device, begun = self.target.device, time.monotonic()
        networks = [head for head, _ in heads]
        self.start(networks, members)
        curves = [[{"step": 0, **found}] for found in self.acceptance(networks, members, positions)]
        best = [-1.0] * len(heads)
        print("ridge regression:", [curve[0] for curve in curves], f"{time.monotonic() - begun:.1f} s", flush=True)
        matrices = lambda head: [p for p in head.parameters() if p.dim() > 1]
        vectors = lambda head: [p for p in head.parameters() if p.dim() == 1]
        groups = lambda head: [{"params": matrices(head), "weight_decay": DECAY}, {"params": vectors(head), "weight_decay": 0.0}]
        adams = [torch.optim.AdamW(groups(head), lr=rate, betas=BETAS, fused=device.type == "cuda") for head in networks]
        random = np.random.default_rng(seed)
        per_epoch = len(self.text.tokens) // members
        total, step, timed, losses = per_epoch * epochs, 0, None, [0.0] * len(heads)
        batches: list[list[int]] = []
        while step < total:
            if not batches:
                batches = self.batches(members, random)
            batch = self.batch(self.text, batches.pop())
            share = step / total
            now = rate * min(1.0, (step + 1) / WARM_UP) * (LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * share)))
            for i, ((head, hybrid), adam) in enumerate(zip(heads, adams)):
                with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                    loss = self.loss(head, batch, hybrid and share > 2 / 3)
                adam.zero_grad(set_to_none=True)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(head.parameters(), CLIP)
                for group in adam.param_groups:
                    group["lr"] = now
                adam.step()
                losses[i] = loss.detach()
            step += 1
            if step == 10:
                timed = (time.monotonic(), step)
            if step == 60 and timed:
                # The steps that fit, with a share for measuring and writing.
                each = (time.monotonic() - timed[0]) / (step - timed[1])
                total = max(step + 1, min(total, step + int((seconds - (time.monotonic() - begun)) * 0.9 / each)))
                print(f"{1e3 * each:.1f} ms a step, {total} steps, {total / per_epoch:.2f} epochs", flush=True)
            if step == total or (step > 60 and step % max(total // 8, 1) == 0):
                found = self.acceptance(networks, members, positions)
                for i, (head, _) in enumerate(heads):
                    curves[i].append({"step": step, "loss": round(float(losses[i]), 4), **found[i]})
                    mean = sum(found[i]["tokens_a_pass"])
                    print(f"{time.monotonic() - begun:6.1f} s: {head.name}", curves[i][-1], flush=True)
                    if mean > best[i]:
                        best[i] = mean
                        self.export(head, np.mean(found[i]["sampled"]), out / f"{head.name}.gguf")
                    facts = {"head": head.name, "seed": seed, "training_tokens": self.text.answer_tokens(), "steps": step, "answers_a_step": members, "epochs": step / per_epoch, "rate": rate, "curve": curves[i]}
                    (out / f"{head.name}.json").write_text(json.dumps(facts, indent=1) + "\n")

    @torch.no_grad()
    def export(self, head: Head, acceptance: float, path: Path) -> None:
        """Writes a head as Hunch reads it: scales of the states folded in, matrices as Q8_0. `acceptance` is the mean
        over the tokens of a draft, in chat sampling."""
        target, width = self.target, self.target.width
        writer = gguf.GGUFWriter(path, "hunch-head")
        writer.add_name(f"Head for {target.name}")
        writer.add_string("hunch-head.kind", "mlp")
        writer.add_array("hunch-head.layers", target.taps[:-1])
        writer.add_array("hunch-head.vocabulary", self.vocabulary.tolist())
        writer.add_uint32("hunch-head.embedding_length", width)
        writer.add_uint32("hunch-head.feed_forward_length", head.inner)
        writer.add_uint32("hunch-head.training_tokens", self.text.answer_tokens())
        writer.add_float32("hunch-head.acceptance", float(acceptance))
        writer.add_string("hunch-head.target.name", target.name)
        writer.add_string("hunch-head.target.norm", target.fingerprint)

        def put(name: str, tensor: Tensor) -> None:
            values = tensor.detach().float().cpu().contiguous().numpy()
            if values.ndim == 1:
                writer.add_tensor(name, values)
                return
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)

        def folded(weights: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
            # The network reads (f - mean) / deviation, the file f itself.
            first = weights[:, :width] / self.deviation
            return torch.cat((first, weights[:, width:]), 1), bias - first @ self.mean

        def put_block(prefix: str, block: Block) -> None:
            put(f"{prefix}ffn_norm.weight", block.norm)
            put(f"{prefix}ffn_gate.weight", block.gate)
            put(f"{prefix}ffn_up.weight", block.up)
            put(f"{prefix}ffn_down.weight", block.down)

        fc, bias = folded(head.fc, head.bias)
        put("fc.weight", fc)
        put("fc.bias", bias)
        put_block("", head.block)
        if head.depth > 1:
            writer.add_uint32("hunch-head.depth", head.depth)
            context, bias = folded(head.context, head.next_bias)
            put("context.weight", context)
            put("context.bias", bias)
            put("next.fc.weight", head.next)
            put_block("next.", head.next_block)
        put("out_scale", self.deviation)
        put("out_shift", self.mean)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help="GGUF file of the model that the head drafts for")
    parser.add_argument("--out", type=Path, required=True, help="folder for the heads and their curves")
    parser.add_argument("--tokens", type=int, default=10_000_000, help="answer tokens to train on")
    parser.add_argument("--collect-seconds", type=float, default=1e9, help="end collecting after this time")
    parser.add_argument("--train-seconds", type=float, default=1e9, help="fit the number of steps to this time")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rate", type=float, default=1e-3, help="highest learning rate")
    parser.add_argument("--parallel", type=int, default=3072, help="answers written at the same time")
    parser.add_argument("--answer-tokens", type=int, default=ANSWER_TOKENS, help="most tokens of an answer")
    parser.add_argument("--members", type=int, default=32, help="answers of a gradient step")
    parser.add_argument("--held-out", type=int, default=40_000, help="positions that acceptance is measured on")
    parser.add_argument("--shortlist", type=int, default=4_096, help="tokens that a head scores")
    parser.add_argument("--heads", default="small:768:1", help="heads to train: NAME:WIDTH:DEPTH[:lk],...")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--text", type=Path, help="keep the text in this file, or continue from it")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(2)
    target = Target(args.target, device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    args.out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    if args.text and args.text.exists():
        train, held_out = (Text(**part) for part in json.loads(args.text.read_text()))
    else:
        train, held_out = collect(target, args.tokens, args.collect_seconds, args.parallel, args.answer_tokens)
        if args.text:
            args.text.write_text(json.dumps([vars(train), vars(held_out)]))
    print(f"{train.answer_tokens()} tokens in {len(train.tokens)} answers, {time.monotonic() - begun:.1f} s", flush=True)
    for tokens, start in list(zip(held_out.tokens, held_out.starts))[:2]:
        print(repr(target.tokenizer.decode(tokens[:start], skip_special_tokens=False)[-200:]))
        print("  ", repr(target.tokenizer.decode(tokens[start:], skip_special_tokens=False)[:300]))
    heads = []
    for text in args.heads.split(","):
        name, inner, depth, *options = text.split(":")
        head = Head(name, target.width, len(target.taps) + 1, int(inner), int(depth)).to(device)
        heads.append((head, "lk" in options))
    trainer = Trainer(target, train, held_out, args.shortlist, max(head.depth for head, _ in heads))
    trainer.train(heads, args.rate, args.members, args.epochs, args.train_seconds, args.out, args.seed, args.held_out)
    if device.type == "cuda":
        print(f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB of GPU memory at most, {torch.cuda.get_device_name()}")


if __name__ == "__main__":
    main()
