#!/usr/bin/env python3
"""Train the built-in haiku model: corpus.txt in, haiku.gguf out.

A llama-architecture transformer small enough to read in one sitting: two
layers, written out forward and backward in numpy, trained until it knows its
corpus by heart. There is nothing clever in it and nothing hidden; it is a toy
whose purpose is that the first engine somebody starts has something to say.

    pip install -r requirements.txt
    python train.py                 # writes haiku.gguf beside this file

What the model is taught is one shape of sequence:

    <s> any text at all <|haiku|> line one \\n line two \\n line three </s>

<|haiku|> is a control token, so an engine that renders text prints nothing for
it. Every position before it is trained to answer "<|haiku|>", so whatever a
prompt says and wherever it stops, a haiku follows. Prompts that name a theme
of the corpus, or a word of one of its poems, are paired with such poems; all
other prompts are paired with any poem.

The run is deterministic: one seed, one BLAS thread, and BLAS kernels pinned
below. Another processor may still round differently in the last bit.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_CORETYPE", "Haswell")

import argparse
import collections
import hashlib
import pathlib
import re
import struct
import time

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent

# The shape of the model. A head of 64 is one that every engine has kernels for.
VOCAB, DIM, LAYERS, HEADS, FFN = 896, 128, 2, 2, 256
HEAD = DIM // HEADS
CONTEXT, ROPE_BASE, EPS = 512, 10000.0, 1e-5

OPENING = np.array([8, 6, 4, 3, 2, 2], np.float32)  # weights of a poem's first tokens

UNK, BOS, EOS, HAIKU = range(4)
SPECIAL = ["<unk>", "<s>", "</s>", "<|haiku|>"]

# A chat becomes one of the prompts trained on: "haiku", or "haiku about" the last
# two themes that the last user message names. All else in the chat is ignored.
CHAT_TEMPLATE = (
    "{%- set themes = THEMES -%}"
    "{%- set ns = namespace(text='', heard=[]) -%}"
    "{%- for message in messages if message['role'] == 'user' -%}"
    "{%- set ns.text = message['content'] -%}"
    "{%- endfor -%}"
    "{%- for mark in ['\\n', '.', ',', ';', ':', '!', '?', '\"', '(', ')', '-'] -%}"
    "{%- set ns.text = ns.text | replace(mark, ' ') -%}"
    "{%- endfor -%}"
    "{%- for word in (ns.text | lower).split(' ') if word in themes and word not in ns.heard -%}"
    "{%- set ns.heard = ns.heard + [word] -%}"
    "{%- endfor -%}"
    "haiku{%- if ns.heard %} about {{ ns.heard[-2:] | join(' ') }}{%- endif -%}"
    "{%- if add_generation_prompt -%}{{- '<|haiku|>' -}}{%- endif -%}"
)

# ---------------------------------------------------------------- the prompts

ASKING = [
    "Write a haiku about {}", "write a haiku about {}", "Write me a haiku about {}.",
    "Write a short poem about {}", "haiku about {}", "A haiku about {}, please",
    "Please write a haiku about {}.", "Can you write a haiku about {}?",
    "Tell me about {}", "Tell me something about {}.", "What do you know about {}?",
    "Explain {} in simple terms", "Give me a poem on {}", "Compose a haiku on {}",
    "I like {}", "I am thinking of {} today", "a poem with {} in it", "{}", "{}", "{}",
    "{}, please", "{}!", "{}?", "Sing of {}", "Describe {} in three lines",
]
OTHER = [
    "Hello", "Hello!", "Hi there", "hello, who are you?", "Hi", "hey", "test", "ping",
    "Write a haiku", "Write a haiku.", "haiku", "Haiku please", "a haiku", "poem",
    "Write me a poem", "Tell me a joke", "What is the capital of France?",
    "Why is the sky blue?", "What is 2+2?", "1 2 3 4", "Say something", "Who are you?",
    "What can you do?", "How are you today?", "Once upon a time", "The quick brown fox",
    "The meaning of life is", "Count to ten", "Translate this to German: good day",
    "You are a helpful assistant.", "Write a function that sorts a list",
    "Thank you!", "Good morning", "Surprise me", "Anything", "Go on", "Continue", "?",
]
STOP = set("""a an and are as at back been before but by down each every for from has have
he her him his i in into is it its keep know last little long me more my no not now of off
on once one only or other out over own same set she so some still that the their them then
there they this through to too two under until up us was we well were what where which who
with without write about all any again after along around be both between come comes could
do does first four full go goes gone half hold in keeps like own small take takes""".split())


def read_corpus():
    """[(theme words, poem)]"""
    poems, words = [], []
    for block in (HERE / "corpus.txt").read_text("utf-8").split("\n\n"):
        block = block.strip()
        if block.startswith("== "):
            theme, _, others = block[3:].partition(":")
            words = [theme.strip()] + [w.strip() for w in others.split(",") if w.strip()]
        elif block and not block.startswith("#"):
            assert block.count("\n") == 2, f"not three lines: {block!r}"
            poems.append((words, block))
    return poems


def make_prompt(rng, themes, poem, long):
    """A prompt for which this poem is a fair answer."""

    def pick(items):
        return items[int(rng.integers(len(items)))]

    dice = rng.random()
    if dice < 0.05:
        return ""
    if dice < 0.85:
        own = [w for w in re.findall(r"[a-z]+", poem.lower()) if len(w) > 2 and w not in STOP]
        dice = rng.random()
        if dice < 0.5:
            subject = pick(themes)
        elif dice < 0.8:
            subject = pick(own)
        else:
            subject = pick([" ", " and ", " in the ", ", "]).join([pick(themes), pick(own)])
        if rng.random() < 0.3:
            subject = pick(["the ", "a ", "my ", "an old ", "some "]) + subject
        text = pick(ASKING).format(subject)
    elif dice < 0.94:
        text = pick(OTHER)
    else:  # noise: any characters whatever, bytes outside ASCII among them
        n = int(rng.integers(1, 16))
        text = "".join(chr(int(c)) for c in rng.choice([rng.integers(32, 127), 233, 0x4E2D, 32], n))
        text += "".join(chr(int(c)) for c in rng.integers(32, 127, n))
    if long:
        text = " ".join(pick(OTHER) for _ in range(int(rng.integers(3, 14)))) + " " + text
    dice = rng.random()
    if dice < 0.40:
        text = text.lower()
    elif dice < 0.42:
        text = text.upper()
    elif dice < 0.50:
        text = text.capitalize()
    if rng.random() < 0.15:
        text += pick(["\n", " ", ":", ":\n", ".", "\n\n"])
    return text


# -------------------------------------------------------------- the tokenizer

class Tokenizer:
    """What llama.cpp calls "llama" (SentencePiece BPE): of all neighbours whose
    joined text is a token, join the best-scored pair, until none is left; text
    that is no token falls back to its bytes. So no prompt can fail."""

    def __init__(self, poems):
        self.tokens = list(SPECIAL) + [f"<0x{b:02X}>" for b in range(256)]
        self.types = [2, 3, 3, 3] + [6] * 256
        chars = ["\u2581"] + [chr(c) for c in range(33, 127)]
        merges = self._merges(poems, VOCAB - len(self.tokens) - len(chars))
        self.scores = [0.0] * len(self.tokens)
        for rank, piece in enumerate(merges + chars):  # an early merge scores best
            self.tokens.append(piece)
            self.types.append(1)
            self.scores.append(float(-rank))
        self.ids = {t: i for i, t in enumerate(self.tokens) if self.types[i] == 1}
        self.cache = {}
        assert len(self.tokens) == VOCAB

    @staticmethod
    def _words(text):
        return re.findall(r"\u2581?[A-Za-z']+|[^A-Za-z'\n]", text.replace(" ", "\u2581"))

    def _merges(self, poems, count):
        words = collections.Counter()
        for themes, poem in poems:
            words.update(self._words(poem))
            for theme in themes:  # one token each, or nearly: so that prompts are easy to read
                words.update({theme: 1, "\u2581" + theme: 3})
        for text in ASKING + OTHER:
            words.update(self._words(text.format("")))
        splits = {w: list(w) for w in words}
        merges = []
        while len(merges) < count:
            pairs = collections.Counter()
            for word, parts in splits.items():
                for pair in zip(parts, parts[1:]):
                    pairs[pair] += words[word]
            best = max(pairs.items(), key=lambda kv: (kv[1], kv[0]))[0]
            merged = best[0] + best[1]
            if merged not in merges:
                merges.append(merged)
            for word, parts in splits.items():
                splits[word] = self._join(parts, lambda a, b: (a, b) == best)
        return merges

    @staticmethod
    def _join(parts, wanted):
        out = []
        for part in parts:
            if out and wanted(out[-1], part):
                out[-1] += part
            else:
                out.append(part)
        return out

    def encode(self, text):
        ids = []
        for word in re.split("(?=[ \n])", text):  # no token reaches past a blank
            if word not in self.cache:
                self.cache[word] = self._encode_word(word.replace(" ", "\u2581"))
            ids += self.cache[word]
        return ids

    def _encode_word(self, word):
        parts = list(word)
        while len(parts) > 1:
            score, at = max(
                (self.scores[self.ids[a + b]], -i) if a + b in self.ids else (-np.inf, -i)
                for i, (a, b) in enumerate(zip(parts, parts[1:])))
            if score == -np.inf:
                break
            parts[-at:-at + 2] = ["".join(parts[-at:-at + 2])]
        ids = []
        for part in parts:
            ids += [self.ids[part]] if part in self.ids else [len(SPECIAL) + b for b in part.encode()]
        return ids

    def decode(self, ids):
        raw = b""
        for i in ids:
            if self.types[i] == 6:
                raw += bytes([i - len(SPECIAL)])
            elif self.types[i] == 1:
                raw += self.tokens[i].replace("\u2581", " ").encode()
        return raw.decode("utf-8", "replace")


# ------------------------------------------------------------------ the model

def shapes():
    """name -> shape, the names and the row-major layout that the GGUF has"""
    out = {"token_embd.weight": (VOCAB, DIM)}
    for i in range(LAYERS):
        b = f"blk.{i}."
        out |= {
            b + "attn_norm.weight": (DIM,), b + "attn_q.weight": (DIM, DIM),
            b + "attn_k.weight": (DIM, DIM), b + "attn_v.weight": (DIM, DIM),
            b + "attn_output.weight": (DIM, DIM), b + "ffn_norm.weight": (DIM,),
            b + "ffn_gate.weight": (FFN, DIM), b + "ffn_up.weight": (FFN, DIM),
            b + "ffn_down.weight": (DIM, FFN),
        }
    return out | {"output_norm.weight": (DIM,)}  # the output matrix is token_embd again


class Model:
    def __init__(self, rng):
        sizes = {n: int(np.prod(s)) for n, s in shapes().items()}
        self.flat = np.zeros(sum(sizes.values()), np.float32)
        self.grad = np.zeros_like(self.flat)
        self.p, self.g, at = {}, {}, 0
        for name, shape in shapes().items():
            end = at + sizes[name]
            self.p[name] = self.flat[at:end].reshape(shape)
            self.g[name] = self.grad[at:end].reshape(shape)
            at = end
            if len(shape) == 1:
                self.p[name][:] = 1.0
            else:
                std = 0.06 if name == "token_embd.weight" else shape[1] ** -0.5
                if name.endswith(("attn_output.weight", "ffn_down.weight")):
                    std /= (2 * LAYERS) ** 0.5
                self.p[name][:] = rng.standard_normal(shape) * std
        # RoPE turns the pairs (0,1), (2,3), ...: that is how llama.cpp's "llama"
        # lays the rows out, so the weights are written as they are trained and
        # need none of the row permutation that checkpoints from elsewhere do.
        angle = np.arange(CONTEXT)[:, None] * ROPE_BASE ** (-np.arange(0, HEAD, 2) / HEAD)
        self.cos, self.sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)

    def _rope(self, x, sign):
        t = x.shape[2]
        c, s = self.cos[:t], self.sin[:t] * np.float32(sign)
        out = np.empty_like(x)
        out[..., 0::2] = x[..., 0::2] * c - x[..., 1::2] * s
        out[..., 1::2] = x[..., 0::2] * s + x[..., 1::2] * c
        return out

    def _norm(self, x, w):
        r = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(EPS))
        return x * r * w, (x, r, w)

    def _norm_back(self, dy, saved, dw):
        x, r, w = saved
        dw += (dy * x * r).sum(0)
        dx = dy * w
        return r * dx - x * r ** 3 * (dx * x).mean(-1, keepdims=True)

    def _lin_back(self, dy, x, name):
        self.g[name] += dy.T @ x
        return dy @ self.p[name]

    def _split(self, x, b, t):
        return np.ascontiguousarray(x.reshape(b, t, HEADS, HEAD).transpose(0, 2, 1, 3))

    def _merge(self, x, b, t):
        return x.transpose(0, 2, 1, 3).reshape(b * t, DIM)

    def forward(self, ids):
        """logits (batch*time, vocab), and what the way back needs"""
        b, t = ids.shape
        p, saved = self.p, []
        mask = np.triu(np.full((t, t), -1e9, np.float32), 1)
        x = p["token_embd.weight"][ids.ravel()]
        for i in range(LAYERS):
            w = lambda n: p[f"blk.{i}.{n}.weight"]
            h, n1 = self._norm(x, w("attn_norm"))
            q = self._rope(self._split(h @ w("attn_q").T, b, t), 1)
            k = self._rope(self._split(h @ w("attn_k").T, b, t), 1)
            v = self._split(h @ w("attn_v").T, b, t)
            a = q @ k.transpose(0, 1, 3, 2) * np.float32(HEAD ** -0.5) + mask
            a = np.exp(a - a.max(-1, keepdims=True))
            a /= a.sum(-1, keepdims=True)
            o = self._merge(a @ v, b, t)
            x = x + o @ w("attn_output").T
            h2, n2 = self._norm(x, w("ffn_norm"))
            gate, up = h2 @ w("ffn_gate").T, h2 @ w("ffn_up").T
            sig = 1 / (1 + np.exp(-gate))
            act = gate * sig * up
            x = x + act @ w("ffn_down").T
            saved.append((h, n1, q, k, v, a, o, h2, n2, gate, up, sig, act))
        h, n3 = self._norm(x, p["output_norm.weight"])
        return h @ p["token_embd.weight"].T, (ids, saved, h, n3)

    def backward(self, dlogits, state):
        ids, saved, h, n3 = state
        b, t = ids.shape
        self.grad[:] = 0
        dx = self._norm_back(self._lin_back(dlogits, h, "token_embd.weight"), n3, self.g["output_norm.weight"])
        for i in reversed(range(LAYERS)):
            h, n1, q, k, v, a, o, h2, n2, gate, up, sig, act = saved[i]
            n = f"blk.{i}."
            dact = self._lin_back(dx, act, n + "ffn_down.weight")
            dgate = dact * up * sig * (1 + gate * (1 - sig))
            dh = self._lin_back(dgate, h2, n + "ffn_gate.weight")
            dh += self._lin_back(dact * gate * sig, h2, n + "ffn_up.weight")
            dx = dx + self._norm_back(dh, n2, self.g[n + "ffn_norm.weight"])
            do = self._split(self._lin_back(dx, o, n + "attn_output.weight"), b, t)
            da = do @ v.transpose(0, 1, 3, 2)
            da = a * (da - (da * a).sum(-1, keepdims=True)) * np.float32(HEAD ** -0.5)
            dq = self._merge(self._rope(da @ k, -1), b, t)
            dk = self._merge(self._rope(da.transpose(0, 1, 3, 2) @ q, -1), b, t)
            dv = self._merge(a.transpose(0, 1, 3, 2) @ do, b, t)
            dh = self._lin_back(dq, h, n + "attn_q.weight")
            dh += self._lin_back(dk, h, n + "attn_k.weight")
            dh += self._lin_back(dv, h, n + "attn_v.weight")
            dx = dx + self._norm_back(dh, n1, self.g[n + "attn_norm.weight"])
        np.add.at(self.g["token_embd.weight"], ids.ravel(), dx)


def loss_and_grad(logits, targets, weights):
    z = logits - logits.max(-1, keepdims=True)
    e = np.exp(z)
    s = e.sum(-1, keepdims=True)
    rows = np.arange(len(targets))
    w = weights / weights.sum()
    loss = float((w * (np.log(s[:, 0]) - z[rows, targets])).sum())
    e /= s
    e[rows, targets] -= 1
    return loss, e * w[:, None]


# --------------------------------------------------------------- the training

def make_batch(rng, tok, poems, order, long):
    rows = []
    for index in order:
        themes, poem = poems[index]
        prompt = tok.encode(make_prompt(rng, themes, poem, long))[:120 if long else 28]
        if rng.random() < 0.3:  # words never heard before must not put it off its poem
            noise = rng.integers(HAIKU + 1, VOCAB, int(rng.integers(1, 80 if long else 14)))
            dice, at = rng.random(), int(rng.integers(len(prompt) + 1))
            if dice < 0.2:
                noise[:] = noise[0]
            elif dice < 0.4:
                noise = rng.integers(128, HAIKU + 257, len(noise))
            prompt[at:at] = noise.tolist()
        rows.append(([BOS] + prompt, tok.encode(poem)))
    t = max(len(p) + len(h) + 1 for p, h in rows)
    ids = np.full((len(rows), t), EOS, np.int64)
    targets, weights = ids.copy(), np.zeros((len(rows), t), np.float32)
    for r, (prompt, poem) in enumerate(rows):
        n, end = len(prompt), len(prompt) + len(poem) + 1
        ids[r, :end] = prompt + [HAIKU] + poem
        targets[r, :end] = [HAIKU] * n + poem + [EOS]
        weights[r, :n] = 2.0 / n
        weights[r, n - 1] = 3.0
        # Which poem it will be is settled in the first few tokens; the rest is
        # recital. Unweighted, the recital would drown what the prompt asked for.
        weights[r, n:end] = 1.0
        weights[r, n:n + 6] = OPENING
    return ids, targets.ravel(), weights.ravel()


def train(model, tok, poems, rng, steps, batch, peak):
    # Adam, by hand, over the one flat vector that all weights live in
    m, v = np.zeros_like(model.flat), np.zeros_like(model.flat)
    order, started = [], time.time()
    for step in range(1, steps + 1):
        if len(order) < batch:
            order = list(rng.permutation(len(poems)))
        take, order = order[:batch], order[batch:]
        ids, targets, weights = make_batch(rng, tok, poems, take, long=step % 8 == 0)
        logits, state = model.forward(ids)
        loss, dlogits = loss_and_grad(logits, targets, weights)
        model.backward(dlogits, state)
        g = model.grad
        g *= min(1.0, 1.0 / (float(np.sqrt((g * g).sum())) + 1e-6))
        m += 0.1 * (g - m)
        v += 0.02 * (g * g - v)
        lr = peak * min(step / 60, 0.02 + 0.98 * 0.5 * (1 + np.cos(np.pi * step / steps)))
        update = (m / (1 - 0.9 ** step)) / (np.sqrt(v / (1 - 0.98 ** step)) + 1e-8)
        model.flat -= np.float32(lr) * (update + 0.02 * model.flat)
        if step % 50 == 0 or step == 1:
            print(f"step {step:5d}  loss {loss:.4f}  {time.time() - started:.0f} s", flush=True)


def generate(model, tok, prompt, rng=None, temperature=0.8):
    ids = [BOS] + tok.encode(prompt)
    start = len(ids)
    while len(ids) < start + 60:
        logits = model.forward(np.array([ids]))[0][-1].astype(np.float64)
        if rng is None:
            ids.append(int(logits.argmax()))
        else:
            q = np.exp((logits - logits.max()) / temperature)
            ids.append(int(rng.choice(VOCAB, p=q / q.sum())))
        if ids[-1] == EOS:
            break
    return tok.decode(ids[start:])


# ------------------------------------------------------------------- the GGUF

def write_gguf(path, model, tok, themes):
    """GGUF version 3: header, typed key-values, tensor table, aligned data.
    Matrices are F16, the norms F32; dimensions are written innermost first."""
    U32, F32, BOOL, STR, ARR, I32 = 4, 6, 7, 8, 9, 5
    pack = {U32: "<I", F32: "<f", BOOL: "<?", I32: "<i"}

    def text(s):
        s = s.encode()
        return struct.pack("<Q", len(s)) + s

    def value(kind, v):
        if isinstance(kind, tuple):
            return struct.pack("<IQ", kind[1], len(v)) + b"".join(value(kind[1], x) for x in v)
        return text(v) if kind == STR else struct.pack(pack[kind], v)

    meta = [
        ("general.architecture", STR, "llama"),
        ("general.type", STR, "model"),
        ("general.name", STR, "Haiku"),
        ("general.description", STR, "A toy: recites the haiku that were written for it."),
        ("general.license", STR, "MIT OR Apache-2.0"),
        ("general.languages", (ARR, STR), ["en"]),
        ("general.file_type", U32, 1),
        ("general.quantization_version", U32, 2),
        ("llama.context_length", U32, CONTEXT),
        ("llama.embedding_length", U32, DIM),
        ("llama.block_count", U32, LAYERS),
        ("llama.feed_forward_length", U32, FFN),
        ("llama.attention.head_count", U32, HEADS),
        ("llama.attention.head_count_kv", U32, HEADS),
        ("llama.attention.layer_norm_rms_epsilon", F32, EPS),
        ("llama.rope.dimension_count", U32, HEAD),
        ("llama.rope.freq_base", F32, ROPE_BASE),
        ("llama.vocab_size", U32, VOCAB),
        ("tokenizer.ggml.model", STR, "llama"),
        ("tokenizer.ggml.pre", STR, "default"),
        ("tokenizer.ggml.tokens", (ARR, STR), tok.tokens),
        ("tokenizer.ggml.scores", (ARR, F32), tok.scores),
        ("tokenizer.ggml.token_type", (ARR, I32), tok.types),
        ("tokenizer.ggml.bos_token_id", U32, BOS),
        ("tokenizer.ggml.eos_token_id", U32, EOS),
        ("tokenizer.ggml.unknown_token_id", U32, UNK),
        ("tokenizer.ggml.padding_token_id", U32, EOS),
        ("tokenizer.ggml.add_bos_token", BOOL, True),
        ("tokenizer.ggml.add_eos_token", BOOL, False),
        ("tokenizer.ggml.add_space_prefix", BOOL, False),
        ("tokenizer.chat_template", STR, CHAT_TEMPLATE.replace("THEMES", repr(sorted(themes)))),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(model.p), len(meta))
    for key, kind, v in meta:
        head += text(key) + struct.pack("<I", ARR if isinstance(kind, tuple) else kind) + value(kind, v)
    data = b""
    for name, array in model.p.items():
        half = array.ndim == 2
        head += text(name) + struct.pack("<I", array.ndim)
        head += b"".join(struct.pack("<Q", n) for n in reversed(array.shape))
        head += struct.pack("<IQ", 1 if half else 0, len(data))
        data += array.astype("<f2" if half else "<f4").tobytes()
        data += b"\0" * (-len(data) % 32)
    blob = head + b"\0" * (-len(head) % 32) + data
    assert len(blob) <= 1_000_000, len(blob)
    path.write_bytes(blob)
    return len(blob), hashlib.sha256(blob).hexdigest()


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--steps", type=int, default=2500)
    args.add_argument("--batch", type=int, default=32)
    args.add_argument("--rate", type=float, default=3e-3)
    args.add_argument("--seed", type=int, default=575)
    args.add_argument("--out", type=pathlib.Path, default=HERE / "haiku.gguf")
    args = args.parse_args()

    poems = read_corpus()
    tok = Tokenizer(poems)
    lengths = [len(tok.encode(poem)) for _, poem in poems]
    assert all(tok.decode(tok.encode(poem)) == poem for _, poem in poems)
    rng = np.random.default_rng(args.seed)
    model = Model(rng)
    print(f"{len(poems)} poems, {np.mean(lengths):.1f} tokens each; {model.flat.size} weights")
    train(model, tok, poems, rng, args.steps, args.batch, args.rate)

    for name, array in model.p.items():  # from here on, the weights as the file holds them
        if array.ndim == 2:
            array[:] = array.astype(np.float16)
    known = {poem for _, poem in poems}
    heard = [generate(model, tok, "", np.random.default_rng(seed)) for seed in range(100)]
    themes = {words[0]: set() for words, _ in poems}
    for words, poem in poems:
        themes[words[0]].add(poem)
        for theme in themes:
            if re.search(rf"\b{theme}\b", poem):
                themes[theme].add(poem)
    met = [t for t in themes if generate(model, tok, f"Write a haiku about {t}") in themes[t]]
    print(f"themes answered with a poem of theirs: {len(met)} of {len(themes)}, not {set(themes) - set(met)}")
    print(f"100 samples at 0.8: {len(set(heard))} different, {sum(h in known for h in heard)} word for word, "
          f"{sum(h.count(chr(10)) == 2 for h in heard)} of three lines")
    for prompt in ("", "Write a haiku about autumn rain", "What is the capital of France?", "llama"):
        print(f"\n> {prompt}\n{generate(model, tok, prompt)}")
    size, digest = write_gguf(args.out, model, tok, {w for words, _ in poems for w in words})
    print(f"\n{args.out}: {size} bytes, sha256 {digest}")


if __name__ == "__main__":
    main()
