"""Computes the forward pass of language models of the llama family, with a KV cache.

Receives a `Config`, weights by name and a `Place`, which says where in the memory the tokens stand;
returns logits. Tokenizing, sampling and who shares the memory do not belong here.

Source: Touvron et al., LLaMA (2023) and the papers of the families in `architectures`; Ainslie et
al., GQA (2023); Shazeer, GLU variants (2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from aster_ml import Tensor
from aster_ml.apps.llm.architectures import Config
from aster_ml.apps.llm.rope import Array, rotate, tables
from aster_ml.apps.llm.weights import DTYPES, Matrix, Weights, experts, linear, part_of, rows
from aster_ml.errors import FormatError
from aster_ml.formats.fileio import show_value
from aster_ml.formats.interleaved import Interleaved

# Tokens of a prompt are computed in groups of so many: a product with a number of rows that nothing
# is known to divide has no register tile along them.
GROUP = 8


class Place(Protocol):
    """Where a step's tokens stand: their positions, what they see, where keys and values go."""

    def turn(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the positions. Shapes: table [2, c, k] -> a pair of [n, k]."""
        ...

    def store(self, memory: Tensor, pair: Tensor) -> tuple[Tensor, Tensor]:
        """Stores keys and values, in the memory's dtype, and gives those that are seen.

        Shapes: memory [2, s, h, c, d], pair [2, b, h, n, d] -> a pair of [b, h, l, d].
        """
        ...

    def mask(self, window: int) -> Tensor | None:
        """Which of them each token sees: bool, broadcast to [b, 1, 1, n, l]; None for all."""
        ...

    def last(self, x: Tensor) -> Tensor:
        """The last token of each row. Shapes: x [b, n, e] -> [b, e]."""
        ...


class Chunk:
    """Tokens of one slot, one after the other: slot, first position and count may be variables.

    `last` is the place of the last token whose logits are wanted; without it that is the last.
    """

    def __init__(
        self, positions: Tensor, slot: Any, start: Any, count: Any, last: Any = None
    ) -> None:
        self.positions, self.slot, self.start, self.count = positions, slot, start, count
        self.wanted = count - 1 if last is None else last

    def turn(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the positions."""
        part = table[:, self.start : self.start + self.count]
        return part[0], part[1]

    def store(self, memory: Tensor, pair: Tensor) -> tuple[Tensor, Tensor]:
        """Stores keys and values, and gives all up to the last token."""
        end, slot = self.start + self.count, self.slot
        memory[:, slot : slot + 1, :, self.start : end] = pair.cast(memory.dtype)
        seen = memory[:, slot : slot + 1, :, :end]
        return seen[0], seen[1]

    def mask(self, window: int) -> Tensor | None:
        """Nothing that comes later, and nothing before the window."""
        if self.count.__class__ is int and self.count == 1 and not window:
            return None
        end = self.start + self.count
        seen, token = self.positions[:end], self.positions[self.start : end].reshape(self.count, 1)
        mask = seen <= token
        return mask & (seen > token - window) if window else mask

    def last(self, x: Tensor) -> Tensor:
        """The last token."""
        return x[:, self.wanted : self.wanted + 1].reshape(1, x.shape[-1])


class Rows:
    """One token of each of several slots, from slot 0 on, each at its own position.

    `starts` are the positions as variables, `tokens_at` the same as a tensor [b], `end` how far the
    furthest has come.
    """

    def __init__(
        self, positions: Tensor, starts: Sequence[Any], tokens_at: Tensor, end: Any
    ) -> None:
        self.positions, self.starts, self.tokens_at, self.end = positions, starts, tokens_at, end

    def turn(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of each row's position."""
        part = table[:, self.tokens_at].reshape(2, len(self.starts), 1, 1, table.shape[-1])
        return part[0], part[1]

    def store(self, memory: Tensor, pair: Tensor) -> tuple[Tensor, Tensor]:
        """Stores keys and values of each row, and gives all slots up to the furthest."""
        pair = pair.cast(memory.dtype)
        for i, start in enumerate(self.starts):
            memory[:, i : i + 1, :, start : start + 1] = pair[:, i : i + 1]
        seen = memory[:, : len(self.starts), :, : self.end]
        return seen[0], seen[1]

    def mask(self, window: int) -> Tensor | None:
        """Each row up to its own position, and not before the window."""
        seen = self.positions[: self.end]
        token = self.tokens_at.reshape(len(self.starts), 1, 1, 1, 1)
        mask = seen <= token
        return mask & (seen > token - window) if window else mask

    def last(self, x: Tensor) -> Tensor:
        """The tokens."""
        return x[:, 0]


class Texts:
    """Whole texts beside and after one another in rows, as training reads them; nothing is stored.

    `positions` int [b, n] are those of each token in its own text, and `texts` int [b, n] say which
    of the row's texts it is of.
    """

    def __init__(self, positions: Tensor, texts: Tensor) -> None:
        self.positions, self.texts = positions, texts

    def turn(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the positions."""
        b, n = self.positions.shape
        part = table[:, self.positions].reshape(2, b, 1, n, table.shape[-1])
        return part[0], part[1]

    def store(self, memory: Tensor, pair: Tensor) -> tuple[Tensor, Tensor]:
        """Gives the keys and values that are there."""
        return pair[0], pair[1]

    def mask(self, window: int) -> Tensor | None:
        """Mask of attention: the same text, nothing later, nothing before the window."""
        b, n = self.positions.shape
        seen, token = [self.positions.reshape(b, 1, 1, *s) for s in ((1, n), (n, 1))]
        same = self.texts.reshape(b, 1, 1, 1, n) == self.texts.reshape(b, 1, 1, n, 1)
        mask = same & (seen <= token)
        return mask & (seen > token - window) if window else mask

    def last(self, x: Tensor) -> Tensor:
        """The last token of each row."""
        return x[:, -1]


class Norm:
    """Division by the root of the mean square (or by the deviation), times a weight."""

    def __init__(self, weight: Tensor, bias: Tensor | None, epsilon: float, kind: str) -> None:
        self.weight, self.bias, self.epsilon, self.kind = weight, bias, epsilon, kind

    def __call__(self, x: Tensor) -> Tensor:
        if self.kind == "layer":
            x = x - x.mean(-1, keepdim=True)
        x = x * ((x * x).mean(-1, keepdim=True) + self.epsilon).rsqrt() * self.weight
        return x if self.bias is None else x + self.bias


class Layer:
    """One layer: attention and a feed-forward part, as the file's tensors say."""

    def __init__(self, config: Config, weights: Weights, i: int) -> None:
        self.config, self.window = config, config.windows[i]
        self.rotated = not config.family.unrotated or (i + 1) % config.family.unrotated != 0
        self.prefix, self.weights = f"blk.{i}.", weights
        size, heads = config.size, config.heads * config.head_size
        shared = config.kv_heads * config.head_size
        self.attention_norm = self.norm("attn_norm", size)
        # Phi-2 has one norm for both parts; Gemma has a second one after each, OLMo 2 only those.
        self.feed_norm = self.norm("ffn_norm", size)
        self.after_attention = self.norm("post_attention_norm", size)
        self.after_feed = self.norm("post_ffw_norm", size)
        name = f"{self.prefix}attn_qkv.weight"
        self.qkv: list[tuple[Matrix, Tensor | None]]
        if weights.shape_of(name) is not None:
            joint = weights.matrix(name, heads + 2 * shared, size)
            bias = weights.maybe(f"{self.prefix}attn_qkv.bias", heads + 2 * shared)
            cuts = [(0, heads), (heads, heads + shared), (heads + shared, heads + 2 * shared)]
            self.qkv = [
                (part_of(joint, slice(a, b)), None if bias is None else bias[a:b]) for a, b in cuts
            ]
        else:
            self.qkv = [
                self.matrix(f"attn_{name}", n, size)
                for name, n in (("q", heads), ("k", shared), ("v", shared))
            ]
        self.output = self.matrix("attn_output", size, heads)
        each, whole = config.head_size, {"q": heads, "k": shared}
        # Over each head, or over all heads at once.
        self.part_norms = [
            self.norm(f"attn_{name}_norm", self.length(f"attn_{name}_norm", each, whole[name]))
            for name in ("q", "k")
        ]
        if config.experts:
            self.read_experts()
        else:
            self.read_feed()
        if self.attention_norm is None and self.after_attention is None:
            weights.take(f"{self.prefix}attn_norm.weight", size)

    def length(self, name: str, *lengths: int) -> int:
        """Length of a norm's weight, one of the lengths that it may have."""
        found = self.weights.shape_of(f"{self.prefix}{name}.weight")
        return next((n for n in lengths if found == (n,)), lengths[0])

    def norm(self, name: str, size: int) -> Norm | None:
        """A norm, where the file has one of this name."""
        weight = self.weights.maybe(f"{self.prefix}{name}.weight", size)
        if weight is None:
            return None
        bias = self.weights.maybe(f"{self.prefix}{name}.bias", size)
        return Norm(weight, bias, self.config.epsilon, self.config.family.norm)

    def matrix(self, name: str, *shape: int) -> tuple[Matrix, Tensor | None]:
        """A weight, and its bias where the file has one."""
        weight = self.weights.matrix(f"{self.prefix}{name}.weight", *shape)
        return weight, self.weights.maybe(f"{self.prefix}{name}.bias", *shape[:-1])

    def read_feed(self) -> None:
        """The weights of a feed-forward part: with a gate of its own, a joint one, or none."""
        size = self.config.size
        up = self.weights.shape_of(f"{self.prefix}ffn_up.weight")
        inner = up[0] if up is not None and len(up) == 2 else 0
        self.up = self.matrix("ffn_up", inner, size)
        self.gate = None
        if self.weights.shape_of(f"{self.prefix}ffn_gate.weight") is not None:
            self.gate = self.matrix("ffn_gate", inner, size)
        elif self.config.family.name == "phi3":
            weight, bias = self.up
            inner //= 2
            first, second = slice(inner), slice(inner, None)
            self.gate = part_of(weight, first), None if bias is None else bias[first]
            self.up = part_of(weight, second), None if bias is None else bias[second]
        self.down = self.matrix("ffn_down", size, inner)

    def read_experts(self) -> None:
        """The weights of a mixture of experts, and of one that all tokens share."""
        experts, size = self.config.experts, self.config.size
        up = self.weights.shape_of(f"{self.prefix}ffn_up_exps.weight")
        inner = up[1] if up is not None and len(up) == 3 else 0
        self.choose = self.weights.plain(f"{self.prefix}ffn_gate_inp.weight", experts, size)
        self.experts = [
            self.weights.plain(f"{self.prefix}ffn_{name}_exps.weight", experts, *shape)
            for name, shape in (
                ("gate", (inner, size)),
                ("up", (inner, size)),
                ("down", (size, inner)),
            )
        ]
        up = self.weights.shape_of(f"{self.prefix}ffn_up_shexp.weight")
        self.shared: list[Tensor | Interleaved] = []
        self.shared_gate = None
        if up is not None:
            inner = up[0]
            self.shared = [
                self.weights.plain(f"{self.prefix}ffn_{name}_shexp.weight", *shape)
                for name, shape in (
                    ("gate", (inner, size)), ("up", (inner, size)), ("down", (size, inner)),
                )
            ]  # fmt: skip
            self.shared_gate = self.weights.maybe(f"{self.prefix}ffn_gate_inp_shexp.weight", size)

    def __call__(self, x: Tensor, memory: Tensor, place: Place, table: Tensor) -> Tensor:
        """Shapes: x [b, n, e] -> [b, n, e]."""
        scale = self.config.residual_scale
        inner = x if self.attention_norm is None else self.attention_norm(x)
        attended = self.attend(inner, memory, place, table)
        if self.after_attention is not None:
            attended = self.after_attention(attended)
        if self.config.family.parallel:
            return x + attended + self.feed(inner)
        x = x + (attended if scale == 1 else attended * scale)
        inner = x if self.feed_norm is None else self.feed_norm(x)
        fed = self.experts_feed(inner) if self.config.experts else self.feed(inner)
        if self.after_feed is not None:
            fed = self.after_feed(fed)
        return x + (fed if scale == 1 else fed * scale)

    def attend(self, x: Tensor, memory: Tensor, place: Place, table: Tensor) -> Tensor:
        """Attention to what the memory has, after this step's keys and values went there."""
        config, (b, n) = self.config, x.shape[:2]
        parts = [linear(x, weight, bias) for weight, bias in self.qkv]
        for i, norm in enumerate(self.part_norms):
            if norm is not None and norm.weight.shape[0] != config.head_size:
                parts[i] = norm(parts[i])
        counts = (config.heads, config.kv_heads, config.kv_heads)
        # Shapes: [b, n, h, d], heads before positions from here on
        q, k, v = [
            part.reshape(b, n, count, config.head_size).transpose(1, 2)
            for part, count in zip(parts, counts)
        ]
        q, k = [
            norm(t) if norm is not None and norm.weight.shape[0] == config.head_size else t
            for t, norm in zip((q, k), self.part_norms)
        ]
        if self.rotated:
            cos, sin = place.turn(table)
            q, k = [rotate(t, cos, sin, config.family.halves) for t in (q, k)]
        keys, values = place.store(memory, k.stack(v))
        q = q.reshape(b, config.kv_heads, config.group, n, config.head_size)
        scores = (q @ keys.float().unsqueeze(2).transpose(-2, -1)) * config.score_scale
        if config.score_cap:
            scores = (scores / config.score_cap).tanh() * config.score_cap
        mask = place.mask(self.window)
        if mask is not None:
            scores = mask.where(scores, -float("inf"))
        mixed = scores.softmax(-1) @ values.float().unsqueeze(2)
        mixed = mixed.reshape(b, config.heads, n, config.head_size).transpose(1, 2)
        return linear(mixed.reshape(b, n, config.heads * config.head_size), *self.output)

    def activate(self, x: Tensor) -> Tensor:
        """The activation of the feed-forward part."""
        return x.silu() if self.config.family.activation == "silu" else x.gelu()

    def feed(self, x: Tensor) -> Tensor:
        """The feed-forward part."""
        up = linear(x, *self.up)
        inner = (
            self.activate(up) if self.gate is None else self.activate(linear(x, *self.gate)) * up
        )
        return linear(inner, *self.down)

    def experts_feed(self, x: Tensor) -> Tensor:
        """A few of many feed-forward parts for each token, weighted by how it chose them."""
        config, shape = self.config, x.shape
        x = x.reshape(-1, config.size)
        logits = linear(x, self.choose)
        odds = logits.sigmoid() if config.expert_sigmoid else logits.softmax(-1)
        share, chosen = odds.topk(config.experts_used, dim=-1)
        if config.expert_norm:
            share = share / share.sum(-1, keepdim=True)
        share = share * config.expert_scale
        first, second, third = self.experts
        each = x.unsqueeze(1)
        inner = self.activate(experts(each, first, chosen)) * experts(each, second, chosen)
        result = (experts(inner, third, chosen) * share.unsqueeze(-1)).sum(1)
        if self.shared:
            first, second, third = self.shared
            common = linear(self.activate(linear(x, first)) * linear(x, second), third)
            if self.shared_gate is not None:
                common = common * (x * self.shared_gate).sum(-1, keepdim=True).sigmoid()
            result = result + common
        return result.reshape(shape)


class Model:
    """A language model: its layers and its memory of keys and values for a number of slots."""

    def __init__(
        self, config: Config, weights: Weights, context: int, slots: int = 1, memory: str = "f16"
    ) -> None:
        self.config, self.context, self.slots = config, context, slots
        # The last group of a prompt may end behind the context.
        self.room = context + GROUP - 1
        embedding = weights.shape_of("token_embd.weight")
        self.vocabulary = embedding[0] if embedding is not None else 0
        self.embedding = weights.plain("token_embd.weight", self.vocabulary, config.size)
        self.head = self.embedding
        if weights.shape_of("output.weight") is not None:
            self.head = weights.plain("output.weight", self.vocabulary, config.size)
        self.head_bias = weights.maybe("output.bias", self.vocabulary)
        self.layers = [Layer(config, weights, i) for i in range(config.layers)]
        norm = weights.take("output_norm.weight", config.size)
        bias = weights.maybe("output_norm.bias", config.size)
        self.norm = Norm(norm, bias, config.epsilon, config.family.norm)
        self.tables = self.make_tables(weights)
        if weights.left:
            raise FormatError(
                f"tensor {show_value(min(weights.left))} has no place in a model of the "
                f"architecture {config.family.name}; {len(weights.left)} such tensors",
                "gguf",
            )
        self.weights = weights
        self.positions = Tensor(np.arange(self.room, dtype=np.int32)).realize()
        shape = (2, slots, config.kv_heads, self.room, config.head_size)
        self.memory = [Tensor.zeros(*shape, dtype=DTYPES[memory]).contiguous() for _ in self.layers]
        Tensor.realize(*self.memory)

    def make_tables(self, weights: Weights) -> list[Tensor]:
        """The rotary tables of each layer; layers of one kind share theirs."""
        config = self.config
        names = ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"]
        plain, far, near = [weights.maybe(name, config.rope.size // 2) for name in names]
        longer = far if self.context > config.rope.original else near
        factors: Array | None = None
        if plain is not None or longer is not None:
            factors = (plain if plain is not None else longer).numpy()  # type: ignore[union-attr]
        whole = Tensor(tables(config.rope, self.room, factors)).realize()
        local = whole
        if config.local_rope != config.rope:
            local = Tensor(tables(config.local_rope, self.room)).realize()
        return [local if window else whole for window in config.windows]

    def forward(self, tokens: Tensor, place: Place) -> Tensor:
        """The logits after the last token of each row.

        Shapes: tokens int [b, n] -> [b, v].
        """
        return self.logits(place.last(self.hidden(tokens, place)))

    def hidden(self, tokens: Tensor, place: Place) -> Tensor:
        """Output of the last layer for each token.

        Shapes: tokens int [b, n] -> [b, n, e].
        """
        x = rows(self.embedding, tokens)
        if self.config.embedding_scale != 1:
            x = x * self.config.embedding_scale
        for layer, memory, table in zip(self.layers, self.memory, self.tables):
            x = layer(x, memory, place, table)
        return x

    def logits(self, x: Tensor) -> Tensor:
        """The logits of the token that comes next.

        Shapes: x [*b, e] -> [*b, v].
        """
        config = self.config
        logits = linear(self.norm(x), self.head, self.head_bias)
        if config.logit_scale != 1:
            logits = logits / config.logit_scale
        if config.logit_cap:
            logits = (logits / config.logit_cap).tanh() * config.logit_cap
        return logits
