"""Attaches to Tensor what the modules of this package define as functions, by subject.

An operation is a function of tensors in the module of its subject; as an attribute of a class it is
a method. All of it is written out, so that editors and type checkers follow each name to where it
is defined. Class methods stand in `ops.create` and `ops.random`, since type checkers do not
follow one that is attached; formulas of which there are kernels, in `kernel_library.formulas`.
"""

from __future__ import annotations

from typing import Self

from aster_ml.dtype import dtypes
from aster_ml.ops import (
    activations,
    contract,
    custom,
    devices,
    digest,
    elementary,
    functions,
    index,
    interop,
    join,
    linalg,
    loss,
    math,
    neural,
    order,
    pool,
    random,
    scan,
    select,
    sets,
    shown,  # fmt: skip
)
from aster_ml.ops import assign as writing
from aster_ml.ops import solve as systems
from aster_ml.ops.handle import Handle


class Operations(Handle):
    """Methods of tensors that other modules define."""

    __slots__ = ()

    # arithmetic

    __ge__ = math.ge
    __le__ = math.le
    sub = math.sub
    div = math.div
    mod = math.mod
    __round__ = math.round_digits
    bitwise_and = math.bitwise_and
    bitwise_or = math.bitwise_or
    bitwise_xor = math.bitwise_xor
    lshift = math.lshift
    rshift = math.rshift
    pow = math.pow
    square = math.square
    rsqrt = math.rsqrt
    abs = math.abs
    sign = math.sign
    copysign = math.copysign
    maximum = math.maximum
    minimum = math.minimum
    clamp = math.clamp
    clip = math.clip
    lerp = math.lerp
    floor = math.floor
    ceil = math.ceil
    round = math.round
    isnan = math.isnan
    isinf = math.isinf
    isfinite = math.isfinite
    isclose = math.isclose

    # functions of one tensor

    exp = functions.exp
    log = functions.log
    log10 = functions.log10
    logaddexp = functions.logaddexp
    cos = functions.cos
    tan = functions.tan
    asin = functions.asin
    acos = functions.acos
    atan = functions.atan
    sinh = functions.sinh
    cosh = functions.cosh
    tanh = functions.tanh
    asinh = functions.asinh
    acosh = functions.acosh
    atanh = functions.atanh
    erf = functions.erf

    # functions that keep what others round away

    expm1 = elementary.expm1
    log1p = elementary.log1p
    hypot = elementary.hypot
    atan2 = elementary.atan2
    nextafter = elementary.nextafter
    diff = elementary.diff

    # order

    argmax = order.argmax
    argmin = order.argmin
    sort = order.sort
    argsort = order.argsort
    topk = order.topk

    # scans

    cumsum = scan.cumsum
    cumprod = scan.cumprod
    cummax = scan.cummax
    cummin = scan.cummin
    logcumsumexp = scan.logcumsumexp

    # sets

    unique_all = sets.unique_all
    unique = sets.unique
    searchsorted = sets.searchsorted

    # reading and writing

    __getitem__ = index.getitem
    assign = writing.assign
    replace = writing.replace
    __delitem__ = writing.delitem
    __setitem__ = writing.setitem

    # picking and placing

    gather = select.gather
    scatter = select.scatter
    scatter_reduce = select.scatter_reduce
    masked_fill = select.masked_fill
    masked_select = select.masked_select
    nonzero = select.nonzero
    one_hot = select.one_hot
    tril = select.tril
    triu = select.triu
    diag = select.diag
    diagonal = select.diagonal

    # putting together and taking apart

    cat = join.cat
    stack = join.stack
    split = join.split
    chunk = join.chunk
    meshgrid = join.meshgrid
    roll = join.roll
    pad = join.pad

    # products that sum

    dot = contract.dot
    matmul = contract.matmul
    __matmul__ = contract.matmul_operator
    __rmatmul__ = contract.rmatmul_operator
    linear = contract.linear
    einsum = staticmethod(contract.einsum)
    conv2d = contract.conv2d
    conv_transpose2d = contract.conv_transpose2d
    image_dot = contract.image_dot
    image_conv2d = contract.image_conv2d

    # windows

    avg_pool2d = pool.avg_pool2d
    max_pool2d = pool.max_pool2d
    max_unpool2d = pool.max_unpool2d
    interpolate = pool.interpolate

    # linear algebra

    qr = linalg.qr
    svd = linalg.svd
    newton_schulz = linalg.newton_schulz
    _eye_like = systems._eye_like
    det = systems.det
    slogdet = systems.slogdet
    inv = systems.inv
    solve = systems.solve
    cholesky = systems.cholesky
    eigh = systems.eigh
    eigvalsh = systems.eigvalsh
    matrix_power = systems.matrix_power
    matrix_rank = systems.matrix_rank
    pinv = systems.pinv
    cross = systems.cross

    # random numbers like another tensor

    multinomial = random.multinomial
    rand_like = random.rand_like
    randn_like = random.randn_like

    # digests

    CHUNK_SIZE = digest.CHUNK_SIZE
    keccak = digest.keccak
    hash = digest.hash

    # devices

    to = devices.to
    to_ = devices.to_
    shard = devices.shard
    shard_ = devices.shard_
    shard_like = devices.shard_like

    # kernels written by hand

    as_param = custom.as_param
    call = custom.call
    custom_kernel = custom.custom_kernel

    # numbers and text

    __float__ = shown.as_float
    __int__ = shown.as_int
    __index__ = shown.as_index
    __complex__ = shown.as_complex
    __format__ = shown.formatted
    __contains__ = shown.contains
    __repr__ = shown.text_of
    _repr_html_ = shown._repr_html_

    # protocols of other packages

    __dlpack__ = interop.to_dlpack
    __array_namespace__ = interop.array_namespace
    __dlpack_device__ = interop.dlpack_device
    __array_ufunc__ = interop.array_ufunc
    __array_function__ = interop.array_function
    __buffer__ = interop.to_buffer
    __bytes__ = interop.to_bytes
    __arrow_c_stream__ = interop.arrow_stream
    __array__ = interop.to_array

    # operators

    __iadd__ = writing.iadd
    __isub__ = writing.isub
    __imul__ = writing.imul
    __itruediv__ = writing.itruediv
    __ifloordiv__ = writing.ifloordiv
    __imod__ = writing.imod
    __ipow__ = writing.ipow
    __iand__ = writing.iand
    __ior__ = writing.ior
    __ixor__ = writing.ixor
    __ilshift__ = writing.ilshift
    __irshift__ = writing.irshift
    __imatmul__ = contract.imatmul
    __floordiv__ = math.floordiv
    __rfloordiv__ = math.rfloordiv
    __divmod__ = math.divmod_operator
    __rdivmod__ = math.rdivmod_operator
    __pow__ = math.pow_operator
    __rpow__ = math.rpow_operator
    __abs__ = math.abs_operator

    @property
    def mT(self) -> Self:
        """The last two axes exchanged."""
        return self.transpose(-2, -1)

    # Casts by name stand last, because they hide the built-in names.

    # neural networks

    relu = activations.relu
    relu6 = activations.relu6
    hardtanh = activations.hardtanh
    hardsigmoid = activations.hardsigmoid
    hardswish = activations.hardswish
    sigmoid = activations.sigmoid
    swish = activations.swish
    silu = activations.silu
    softplus = activations.softplus
    logsigmoid = activations.logsigmoid
    softsign = activations.softsign
    gelu = activations.gelu
    quick_gelu = activations.quick_gelu
    elu = activations.elu
    celu = activations.celu
    selu = activations.selu
    leaky_relu = activations.leaky_relu
    mish = activations.mish
    softmax = activations.softmax
    log_softmax = activations.log_softmax
    logsumexp = activations.logsumexp
    cross_entropy = loss.cross_entropy
    sparse_categorical_crossentropy = loss.sparse_categorical_crossentropy
    nll_loss = loss.nll_loss
    binary_crossentropy = loss.binary_crossentropy
    binary_crossentropy_logits = loss.binary_crossentropy_logits
    layernorm = neural.layernorm
    batchnorm = neural.batchnorm
    dropout = neural.dropout
    sequential = neural.sequential

    def bool(self) -> Self:
        """Cast to bool."""
        return self.cast(dtypes.bool)

    def short(self) -> Self:
        """Cast to int16."""
        return self.cast(dtypes.int16)

    def int(self) -> Self:
        """Cast to int32."""
        return self.cast(dtypes.int32)

    def long(self) -> Self:
        """Cast to int64."""
        return self.cast(dtypes.int64)

    def half(self) -> Self:
        """Cast to float16."""
        return self.cast(dtypes.float16)

    def bfloat16(self) -> Self:
        """Cast to bfloat16."""
        return self.cast(dtypes.bfloat16)

    def float(self) -> Self:
        """Cast to float32."""
        return self.cast(dtypes.float32)

    def double(self) -> Self:
        """Cast to float64."""
        return self.cast(dtypes.float64)
