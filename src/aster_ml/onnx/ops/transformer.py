"""Computes attention, rotary positions, and caches of keys and values."""

from __future__ import annotations

import math
from typing import Any

from aster_ml import Tensor, dtypes
from aster_ml.errors import ShapeError, UnsupportedError
from aster_ml.onnx.ops.math import wide
from aster_ml.onnx.ops.reduce import layer_normalization
from aster_ml.onnx.ops.registry import MICROSOFT, RESTS, Value, attributes_of, op
from aster_ml.onnx.ops.types import element_type


def heads_of(x: Tensor, count: int) -> Tensor:
    """[batch, length, heads * size] -> [batch, heads, length, size]."""
    return x.reshape((x.shape[0], x.shape[1], count, -1)).transpose(1, 2)


def with_past(
    k: Tensor, v: Tensor, past_key: Tensor | None, past_value: Tensor | None
) -> tuple[Tensor, Tensor, int]:
    """Keys and values behind those of a cache, and how many of these there are."""
    if past_key is None or past_value is None:
        return k, v, 0
    return past_key.cat(k, dim=2), past_value.cat(v, dim=2), past_key.shape[2]


def of_each_head(q: Tensor, x: Tensor) -> Tensor:
    """Keys or values of groups of heads, repeated for each head of the queries."""
    share = q.shape[1] // x.shape[1]
    return x.repeat_interleave(share, 1) if share > 1 else x


def numbers(x: Tensor, count: int, axis: int, rank: int) -> Tensor:
    """0, 1, ... along one of `rank` axes."""
    sizes = [1] * rank
    sizes[axis] = count
    return Tensor.arange(count, dtype=dtypes.int64, device=x.device).reshape(tuple(sizes))


@op("Attention")
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    q_num_heads: int | None = None,
    left_window_size: int = -1,
    right_window_size: int = -1,
    qk_matmul_output_mode: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    call: Any,
) -> Value:
    """softmax(scale Q K^T + mask) V with heads in groups, a cache, and windows."""
    rank = q.ndim
    if rank == 3:
        if not q_num_heads or not kv_num_heads:
            raise ShapeError("inputs of three axes, and no numbers of heads")
        q, k, v = heads_of(q, q_num_heads), heads_of(k, kv_num_heads), heads_of(v, kv_num_heads)
    k, v, past = with_past(k, v, past_key, past_value)
    present_key, present_value = k, v
    if q.shape[1] % k.shape[1]:
        raise ShapeError(f"{q.shape[1]} heads of queries in {k.shape[1]} groups")
    k, v = of_each_head(q, k), of_each_head(q, v)
    # Both factors take the root of the scale, which keeps narrow floats in range.
    root = math.sqrt(scale if scale is not None else 1 / math.sqrt(q.shape[-1]))
    scores = (wide(q) * root).matmul((wide(k) * root).transpose(-1, -2))
    shown = scores
    kept, bias = masks(
        scores, attn_mask, is_causal, past, nonpad_kv_seqlen, left_window_size, right_window_size
    )
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    capped = scores
    scores = masked(scores, kept, bias)
    exact = scores if softmax_precision is None else scores.cast(element_type(softmax_precision))
    shares = exact.softmax(-1).cast(scores.dtype)
    if kept is not None:
        # A row of which nothing is kept has no shares.
        shares = kept.any(-1, keepdim=True).where(shares, 0)
    y = shares.cast(wide(v).dtype).matmul(wide(v)).cast(q.dtype)
    if rank == 3:
        y = y.transpose(1, 2).flatten(2)
    by_mode = [shown, capped, scores, shares]
    picked = by_mode[qk_matmul_output_mode].cast(q.dtype) if call.wants(3) else None
    return y, present_key, present_value, picked


def masked(scores: Tensor, kept: Tensor | None, bias: Tensor | None) -> Tensor:
    """Scores with a bias, and minus infinity where they do not count."""
    scores = scores if bias is None else scores + bias
    return scores if kept is None else kept.where(scores, -math.inf)


def masks(
    scores: Tensor,
    mask: Tensor | None,
    causal: int,
    past: int,
    lengths: Tensor | None,
    left: int,
    right: int,
) -> tuple[Tensor | None, Tensor | None]:
    """Which scores count, and what is added to them."""
    queries, keys = scores.shape[-2:]
    kept: Tensor | None = None
    bias: Tensor | None = None

    def keep(more: Tensor) -> None:
        nonlocal kept
        kept = more if kept is None else kept & more

    if mask is not None:
        missing = keys - mask.shape[-1]
        if mask.dtype is dtypes.bool:
            if missing > 0:
                mask = mask.pad([*[(0, 0)] * (mask.ndim - 1), (0, missing)])
            keep(mask)
        else:
            bias = wide(mask)
            if missing > 0:
                bias = bias.pad([*[(0, 0)] * (mask.ndim - 1), (0, missing)], value=-math.inf)
    row = numbers(scores, queries, 2, 4)
    column = numbers(scores, keys, 3, 4)
    at = row + past
    if lengths is not None:
        size = lengths.cast(dtypes.int64).reshape((-1, 1, 1, 1))
        keep(column < size)
        at = row + (size - queries)
    if causal:
        keep(column <= at)
    if left >= 0:
        keep(column >= at - left)
    if right >= 0:
        keep(column <= at + right)
    return kept, bias


@op("RotaryEmbedding")
def rotary_embedding(
    x: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    position_ids: Tensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Tensor:
    """Pairs of elements of each head turned by the angle of their position."""
    rank = x.ndim
    if rank == 3:
        if not num_heads:
            raise ShapeError("an input of three axes, and no num_heads")
        # [batch, length, heads, size]
        y = x.reshape((x.shape[0], x.shape[1], num_heads, -1))
    else:
        y = x.transpose(1, 2)
    turned = rotary_embedding_dim or y.shape[-1]
    cosine, sine = cos_cache, sin_cache
    if position_ids is not None:
        cosine, sine = cos_cache[position_ids], sin_cache[position_ids]
    cosine = cosine[..., : turned // 2].unsqueeze(2)
    sine = sine[..., : turned // 2].unsqueeze(2)
    part, rest = y[..., :turned], y[..., turned:]
    if interleaved:
        a, b = part[..., 0::2], part[..., 1::2]
    else:
        a, b = part[..., : turned // 2], part[..., turned // 2 :]
    first, second = cosine * a - sine * b, sine * a + cosine * b
    if interleaved:
        part = first.stack(second, dim=-1).flatten(-2)
    else:
        part = first.cat(second, dim=-1)
    y = part if not rest.shape[-1] else part.cat(rest, dim=-1)
    return y.reshape(x.shape) if rank == 3 else y.transpose(1, 2)


# of com.microsoft


@op("RotaryEmbedding", domain=MICROSOFT, rest=rotary_embedding)
def rotary_embedding_of_microsoft(
    x: Tensor,
    position_ids: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    *,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    scale: float = 1.0,
    **rest: Any,
) -> Tensor:
    """As the standard operator; the width of a head is that of the caches without `num_heads`."""
    if is_packed_batching or scale != 1.0:
        raise UnsupportedError("RotaryEmbedding with is_packed_batching or a scale")
    places = position_ids
    length = x.shape[1] if x.ndim == 3 else x.shape[2]
    if places.ndim == 1 or places.numel() == 1:
        places = places.reshape((1, 1)) + numbers(x, length, 1, 2)
        places = places.expand((x.shape[0], length))
    heads = num_heads or (x.shape[-1] // (2 * cos_cache.shape[-1]) if x.ndim == 3 else 0)
    return rotary_embedding(x, cos_cache, sin_cache, places, num_heads=heads, **rest)


def attended(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None, kept: Tensor | None, bias: Tensor | None
) -> Tensor:
    """Attention of heads [batch, heads, length, size] -> [batch, length, heads * size]."""
    factor = scale or 1 / math.sqrt(q.shape[-1])
    k, v = of_each_head(q, k), of_each_head(q, v)
    scores = masked(wide(q).matmul(wide(k).transpose(-1, -2)) * factor, kept, bias)
    return scores.softmax(-1).matmul(wide(v)).cast(q.dtype).transpose(1, 2).flatten(2)


@op("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    bias: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    *,
    num_heads: int,
    mask_filter_value: float = -10000.0,
    scale: float | None = None,
    unidirectional: int = 0,
) -> Value:
    """Attention of separate queries, keys and values [batch, length, heads * size]."""
    if key is None or value is None or query.ndim != 3:
        raise UnsupportedError("MultiHeadAttention of packed queries, keys and values")
    if bias is not None:
        size = query.shape[-1]
        query = query + bias[:size]
        key = key + bias[size : size + key.shape[-1]] if key.ndim == 3 else key
        value = value + bias[size + key.shape[-1] :] if value.ndim == 3 else value
    q = heads_of(query, num_heads)
    k = heads_of(key, num_heads) if key.ndim == 3 else key
    v = heads_of(value, num_heads) if value.ndim == 3 else value
    k, v, past = with_past(k, v, past_key, past_value)
    kept, more = None, None if attention_bias is None else wide(attention_bias)
    if key_padding_mask is not None:
        if key_padding_mask.ndim != 2:
            raise UnsupportedError("a key_padding_mask that is not [batch, keys]")
        # A row of which nothing is kept has the shares of its scores, all as far down.
        shown = key_padding_mask.ne(0).reshape((q.shape[0], 1, 1, -1))
        down = shown.where(0.0, mask_filter_value)
        more = down if more is None else more + down
    if unidirectional:
        at = numbers(q, q.shape[2], 2, 4) + past
        kept = numbers(q, k.shape[2], 3, 4) <= at
    return attended(q, k, v, scale, kept, more), k, v


def attention_of_packed(
    packed: Tensor,
    mask_index: Tensor | None,
    attention_bias: Tensor | None,
    *,
    qkv_hidden_sizes: list[int] | None = None,
    **rest: Any,
) -> Value:
    """Attention of queries, keys and values that stand side by side."""
    sizes = qkv_hidden_sizes or [packed.shape[-1] // 3] * 3
    q, k, v = packed.split(sizes, dim=-1)
    mask = None
    if mask_index is not None:
        mask = mask_index
        if mask.ndim == 1:
            column = numbers(packed, packed.shape[1], 1, 2)
            mask = (column < mask.reshape((-1, 1))).cast(dtypes.int32)
    return multi_head_attention(q, k, v, None, mask, attention_bias, **rest)[0]


RESTS[attention_of_packed] = attributes_of(multi_head_attention)


@op("Attention", domain=MICROSOFT, rest=attention_of_packed)
def attention_of_microsoft(
    x: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    mask_index: Tensor | None = None,
    past: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_sequence_length: Tensor | None = None,
    *,
    do_rotary: int = 0,
    past_present_share_buffer: int = 0,
    **rest: Any,
) -> Value:
    """Attention with its own product for queries, keys and values."""
    if past is not None or do_rotary or past_present_share_buffer:
        raise UnsupportedError("Attention of com.microsoft with past or do_rotary")
    packed = x.matmul(weights) if bias is None else x.matmul(weights) + bias
    return attention_of_packed(packed, mask_index, attention_bias, **rest)


@op("GroupQueryAttention", domain=MICROSOFT, host="seqlens_k total_sequence_length")
def group_query_attention(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    seqlens_k: Any = None,
    total_sequence_length: Any = None,
    cos_cache: Tensor | None = None,
    sin_cache: Tensor | None = None,
    position_ids: Tensor | None = None,
    attention_bias: Tensor | None = None,
    head_sink: Tensor | None = None,
    *,
    num_heads: int,
    kv_num_heads: int,
    do_rotary: int = 0,
    local_window_size: int = -1,
    rotary_interleaved: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    smooth_softmax: int = -1,
    qk_output: int = 0,
    causal: int = 1,
    k_quant_type: str = "NONE",
    v_quant_type: str = "NONE",
    sliding_window_cache: int = 0,
) -> Value:
    """Causal attention in groups of heads with a cache of keys and values of equal lengths."""
    if softcap or smooth_softmax > 0 or head_sink is not None or qk_output:
        raise UnsupportedError("softcap, smooth_softmax, head_sink or qk_output")
    if not causal or sliding_window_cache or {k_quant_type, v_quant_type} != {"NONE"}:
        raise UnsupportedError("a cache that is quantised or slides, or attention both ways")
    if key is None or value is None:
        size = query.shape[-1] // (num_heads + 2 * kv_num_heads)
        query, key, value = query.split(
            [num_heads * size, kv_num_heads * size, kv_num_heads * size], dim=-1
        )
    q, k, v = heads_of(query, num_heads), heads_of(key, kv_num_heads), heads_of(value, kv_num_heads)
    total = int(total_sequence_length.reshape(-1)[0])
    past = total - q.shape[2]
    if len({*seqlens_k.reshape(-1).tolist()}) > 1 or seqlens_k.reshape(-1)[0] + 1 != total:
        raise UnsupportedError("sequences of different lengths in one batch")
    if do_rotary and cos_cache is not None and sin_cache is not None:
        at = numbers(q, q.shape[2], 1, 2) + past
        places = (at if position_ids is None else position_ids).expand((q.shape[0], q.shape[2]))
        q, k = (
            rotary_embedding(
                y, cos_cache, sin_cache, places, interleaved=rotary_interleaved,
                rotary_embedding_dim=2 * cos_cache.shape[-1],
            )
            for y in (q, k)
        )  # fmt: skip
    if past_key is not None and past_value is not None and past:
        k = past_key[:, :, :past].cat(k, dim=2)
        v = past_value[:, :, :past].cat(v, dim=2)
    at = numbers(q, q.shape[2], 2, 4) + past
    column = numbers(q, total, 3, 4)
    kept = column <= at
    if local_window_size >= 0:
        kept = kept & (column > at - local_window_size)
    more = None if attention_bias is None else wide(attention_bias)
    return attended(q, k, v, scale, kept, more), k, v


@op("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(
    input_ids: Tensor,
    segment_ids: Tensor | None,
    word_embedding: Tensor,
    position_embedding: Tensor,
    segment_embedding: Tensor | None = None,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 0,
) -> Value:
    """The sum of the embeddings of words, positions and segments, normalised."""
    length = input_ids.shape[1]
    place = (
        position_embedding[:length] if position_ids is None else position_embedding[position_ids]
    )
    total = word_embedding[input_ids] + place
    if segment_ids is not None and segment_embedding is not None:
        total = total + segment_embedding[segment_ids]
    if gamma is None:
        raise ShapeError("gamma is missing")
    result = layer_normalization(total, gamma, beta, epsilon=epsilon)[0]
    if mask is None:
        counted = Tensor.zeros((input_ids.shape[0],), dtype=dtypes.int32, device=total.device)
    else:
        counted = mask.cast(dtypes.int32).sum(-1).cast(dtypes.int32)
    return result, counted, total
