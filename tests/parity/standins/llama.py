"""Stand-in for `extra.models.llama`: rotary places, grouped heads, gated feed-forward."""

from __future__ import annotations

from aster_ml import Tensor, UOp, nn


def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0) -> Tensor:
    """Cosine and sine of each place's angle in each plane, [1, end, 1, dim / 2, 2]."""
    rates = 1.0 / (theta ** (Tensor.arange(0, dim, 2)[: dim // 2] / dim))
    angles = Tensor.arange(end).unsqueeze(1) * rates.unsqueeze(0)
    return Tensor.stack(angles.cos(), angles.sin(), dim=-1).reshape(1, end, 1, dim // 2, 2)


def rotate(x: Tensor, freqs: Tensor) -> Tensor:
    """Neighbouring pairs of x, turned by their angles."""
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    a, b = pairs[..., 0], pairs[..., 1]
    c, s = freqs[..., 0], freqs[..., 1]
    return Tensor.stack(a * c - b * s, a * s + b * c, dim=-1).flatten(3)


class Attention:
    """Attention whose keys and values serve several heads, with a cache."""

    def __init__(self, dim: int, n_heads: int, n_kv_heads: int, max_context: int) -> None:
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.head_dim = dim // n_heads
        self.max_context = max_context
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)

    def __call__(
        self, x: Tensor, start_pos: UOp | int, freqs: Tensor, mask: Tensor | None
    ) -> Tensor:
        batch, length, _ = x.shape
        q = rotate(self.wq(x).reshape(batch, length, self.n_heads, self.head_dim), freqs)
        k = rotate(self.wk(x).reshape(batch, length, self.n_kv_heads, self.head_dim), freqs)
        v = self.wv(x).reshape(batch, length, self.n_kv_heads, self.head_dim)
        if not hasattr(self, "cache_kv"):
            shape = (2, batch, self.max_context, self.n_kv_heads, self.head_dim)
            cache = Tensor.zeros(*shape, dtype=x.dtype).contiguous().realize()
            if isinstance(x.device, tuple):
                cache = cache.shard(x.device, axis=4)
            self.cache_kv = cache.realize()
        end = start_pos + length
        self.cache_kv[:, :, start_pos:end].assign(Tensor.stack(k, v)).realize()
        repeats = self.n_heads // self.n_kv_heads
        keys, values = (
            self.cache_kv[i, :, 0:end].repeat_interleave(repeats, dim=2).transpose(1, 2)
            for i in (0, 1)
        )
        out = q.transpose(1, 2).scaled_dot_product_attention(keys, values, attn_mask=mask)
        return self.wo(out.transpose(1, 2).reshape(batch, length, -1))


class FeedForward:
    """Down of (SiLU of one product times another)."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        self.w1 = nn.Linear(dim, hidden_dim, bias=False)
        self.w2 = nn.Linear(hidden_dim, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden_dim, bias=False)

    def __call__(self, x: Tensor) -> Tensor:
        return self.w2(self.w1(x).silu() * self.w3(x))


class TransformerBlock:
    """Attention and feed-forward, each on a normalised input and added to it."""

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        n_heads: int,
        n_kv_heads: int,
        norm_eps: float,
        max_context: int,
    ) -> None:
        self.attention = Attention(dim, n_heads, n_kv_heads, max_context)
        self.feed_forward = FeedForward(dim, hidden_dim)
        self.attention_norm = nn.RMSNorm(dim, norm_eps)
        self.ffn_norm = nn.RMSNorm(dim, norm_eps)

    def __call__(
        self, x: Tensor, start_pos: UOp | int, freqs: Tensor, mask: Tensor | None
    ) -> Tensor:
        h = x + self.attention(self.attention_norm(x), start_pos, freqs, mask)
        return (h + self.feed_forward(self.ffn_norm(h))).contiguous()


class Transformer:
    """Llama: tokens to the next token.

    Source: Touvron et al. 2023.
    """

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        n_heads: int,
        n_layers: int,
        norm_eps: float,
        vocab_size: int,
        n_kv_heads: int | None = None,
        rope_theta: float = 10000.0,
        max_context: int = 1024,
    ) -> None:
        kv_heads = n_kv_heads or n_heads
        self.layers = [
            TransformerBlock(dim, hidden_dim, n_heads, kv_heads, norm_eps, max_context)
            for _ in range(n_layers)
        ]
        self.norm = nn.RMSNorm(dim, norm_eps)
        self.tok_embeddings = nn.Embedding(vocab_size, dim)
        self.output = nn.Linear(dim, vocab_size, bias=False)
        freqs = precompute_freqs_cis(dim // n_heads, 2 * max_context, rope_theta)
        self.freqs_cis = freqs.contiguous().realize()

    def __call__(self, tokens: Tensor, start_pos: UOp | int, temperature: float = 0.0) -> Tensor:
        length = tokens.shape[1]
        x = self.tok_embeddings(tokens)
        freqs = self.freqs_cis.cast(x.dtype)[:, start_pos : start_pos + length]
        mask = None
        if length > 1:
            mask = Tensor.full(
                (1, 1, length, start_pos + length), float("-inf"), dtype=x.dtype, device=x.device
            ).triu(start_pos + 1)
        for layer in self.layers:
            x = layer(x, start_pos, freqs, mask)
        logits = self.output(self.norm(x))[:, -1]
        if temperature == 0.0:
            return logits.argmax(-1).flatten().realize()
        return (logits / temperature).softmax().multinomial().flatten().realize()
