"""Stand-in for `examples.gpt2`: attention with a cache of keys and values, and the network."""

from __future__ import annotations

from aster_ml import Tensor, UOp, nn

MAX_CONTEXT = 128


class Attention:
    """Causal attention over what came before `start_pos` and the new tokens."""

    def __init__(self, dim: int, n_heads: int) -> None:
        self.c_attn = nn.Linear(dim, 3 * dim)
        self.c_proj = nn.Linear(dim, dim)
        self.n_heads = n_heads
        self.head_dim = dim // n_heads

    def __call__(self, x: Tensor, start_pos: UOp | int, mask: Tensor | None) -> Tensor:
        batch, length, dim = x.shape
        split = (batch, length, self.n_heads, self.head_dim)
        q, k, v = (part.reshape(*split) for part in self.c_attn(x).chunk(3, dim=-1))
        if not hasattr(self, "cache_kv"):
            shape = (2, batch, MAX_CONTEXT, self.n_heads, self.head_dim)
            self.cache_kv = Tensor.zeros(*shape, dtype=x.dtype).contiguous().realize()
        end = start_pos + length
        self.cache_kv[:, :, start_pos:end].assign(Tensor.stack(k, v)).realize()
        keys, values = self.cache_kv[0, :, 0:end], self.cache_kv[1, :, 0:end]
        heads = (t.transpose(1, 2) for t in (q, keys, values))
        out = Tensor.scaled_dot_product_attention(*heads, attn_mask=mask)
        return self.c_proj(out.transpose(1, 2).reshape(batch, length, dim))


class FeedForward:
    """Up, GELU, down."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        self.c_fc = nn.Linear(dim, hidden_dim)
        self.c_proj = nn.Linear(hidden_dim, dim)

    def __call__(self, x: Tensor) -> Tensor:
        return self.c_proj(self.c_fc(x).gelu())


class TransformerBlock:
    """Attention and feed-forward, each on a normalised input and added to it."""

    def __init__(self, dim: int, n_heads: int, norm_eps: float) -> None:
        self.attn = Attention(dim, n_heads)
        self.mlp = FeedForward(dim, 4 * dim)
        self.ln_1 = nn.LayerNorm(dim, norm_eps)
        self.ln_2 = nn.LayerNorm(dim, norm_eps)

    def __call__(self, x: Tensor, start_pos: UOp | int, mask: Tensor | None) -> Tensor:
        x = x + self.attn(self.ln_1(x), start_pos, mask)
        return x + self.mlp(self.ln_2(x))


class Transformer:
    """GPT-2: tokens and places to the next token.

    Source: Radford et al. 2019.
    """

    def __init__(
        self,
        dim: int,
        n_heads: int,
        n_layers: int,
        norm_eps: float,
        vocab_size: int,
        max_seq_len: int = MAX_CONTEXT,
    ) -> None:
        self.wte = nn.Embedding(vocab_size, dim)
        self.wpe = nn.Embedding(max_seq_len, dim)
        self.h = [TransformerBlock(dim, n_heads, norm_eps) for _ in range(n_layers)]
        self.ln_f = nn.LayerNorm(dim, norm_eps)
        self.lm_head = nn.Linear(dim, vocab_size, bias=False)
        self.places = max_seq_len

    def __call__(self, tokens: Tensor, start_pos: UOp | int, temperature: float = 0.0) -> Tensor:
        length = tokens.shape[1]
        end = start_pos + length
        place = Tensor.arange(self.places).reshape(1, -1)[:, start_pos:end]
        x = self.wte(tokens) + self.wpe(place)
        mask = None
        if length > 1:
            mask = Tensor.full((1, 1, length, end), float("-inf"), dtype=x.dtype)
            mask = mask.triu(start_pos + 1)
        for block in self.h:
            x = block(x, start_pos, mask)
        logits = self.lm_head(self.ln_f(x))[:, -1]
        if temperature == 0.0:
            return logits.argmax(-1).flatten().realize()
        return (logits / temperature).softmax().multinomial().flatten().realize()
