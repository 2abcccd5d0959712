# SPDX-License-Identifier: Apache-2.0
"""Dask: casts a ``dask.array`` chunk by chunk on its workers.

`gpucast.cast`, `cast_like` and `cast_many` take Dask arrays, too, and give what `cast` here gives.
`gpucast.quantize` takes none: no Dask array holds a `gpucast.Quantized`, and blocks need not end where chunks do.
Chunks whose last axis is whole become one each with ``[dask.delayed(gpucast.quantize)(chunk, "mxfp4") for chunk in
x.rechunk({-1: -1}).to_delayed().ravel()]``: with the codes and scales of the whole array where a scale is that of one
block along this axis, and with scales of their own where it is for more (NVFP4's global scale, square blocks).

Chunks are NumPy or CuPy arrays, and the results are of the same kind (``device="cpu"`` brings CuPy chunks to the host).
Everything except the elements is checked when the graph is built. Dask cannot hold a `PackedArray`, so types below one
byte are refused for results on a device; on the host they have one element per byte. Chunks of other types that CuPy
lacks can neither be joined by Dask nor sent to another worker: cast them back, store them chunk by chunk, or bring them
to the host.

On a cluster ``rechunk`` does not support types that NumPy lacks by its default method; set
``dask.config.set({"array.rechunk.method": "tasks"})``.
"""

from __future__ import annotations

import functools
import math
import pickle
import sys
from typing import Any

import numpy as np

try:
    import dask.array
except ImportError as error:
    raise ImportError(f"gpucast.interop.dask needs Dask ({error}): pip install 'gpucast[dask]'") from error

from gpucast.arrays.bitpacking import namespace
from gpucast.arrays.libraries import CastFunction, Library
from gpucast.arrays.packed import PackedArray
from gpucast.casting import cast as casting
from gpucast.core.dtypes import dtype
from gpucast.core.rule import Options, newest_version

__all__ = ["LIBRARY", "cast"]


def cast(array: Any, to: Any, **keywords: Any) -> Any:
    """Cast a Dask array of any shape and chunks to the type `to`: a Dask array of the same chunks, not computed yet.

    Parameters
    ----------
    array
        A ``dask.array.Array`` of NumPy or CuPy chunks, of any type that `gpucast.cast` takes, text included.
    to, keywords
        As for `gpucast.cast`; no `out`, no `amax`. `scale` may be a Dask array of one element. ``device="cuda"`` needs
        a GPU where the graph is built, too.

        With ``rounding="stochastic"`` element i of a chunk takes random number `offset` + n + i, n being the size of
        all chunks before it (in row-major order of the chunks). So chunks along the first axis alone give the result
        of one cast of the whole array; chunks along other axes give another result of the same distribution.

    Raises
    ------
    TypeError, ValueError, DeviceUnavailable
        At once: as `gpucast.cast`, and for results that would be PackedArrays.
    TypeError, ValueError, OverflowError
        When computed: for elements that cannot be cast, with the chunk.
    """
    if not isinstance(array, dask.array.Array):
        raise TypeError(f"cast: array is of type {type(array).__name__}; expected a dask.array.Array")
    for name in ("out", "amax"):
        if keywords.get(name) is not None:
            raise ValueError(f"cast: {name} would be written by every chunk; expected None for a Dask array")
    scale = keywords.get("scale")
    arguments = [array]
    tried = dict(keywords)
    if isinstance(scale, dask.array.Array):
        if scale.size != 1:
            raise ValueError(f"cast: scale has shape {scale.shape}; expected one element")
        arguments.append(scale.reshape(()))
        tried["scale"] = namespace(scale._meta).ones(1, scale.dtype)
        del keywords["scale"]
    _teach_distributed()
    dst = dtype(to, caller="cast: to=")
    # Casting zero elements makes all checks of a cast, and shows the kind of array that results.
    nothing = _refuse_packed(casting.cast(array._meta.reshape(-1)[:0], dst, **tried))
    sizes = array.chunks if keywords.get("seed") is not None else None
    if sizes is not None:
        _check_offset(array, keywords.get("offset", 0))
    return dask.array.map_blocks(
        functools.partial(_chunk, to=dst.name, keywords=keywords, chunks=sizes),
        *arguments,
        dtype=nothing.dtype,
        meta=_of_dimensions(nothing, array.ndim),
        token="cast",
    )


def _chunk(x: Any, scale: Any = None, *, block_id: Any, to: str, keywords: dict[str, Any], chunks: Any) -> Any:
    """Cast one chunk, on a worker. `chunks`: the sizes of all chunks, if the number of elements before it matters."""
    if scale is not None:
        keywords = keywords | {"scale": scale}
    if chunks is not None:
        keywords = keywords | {"offset": int(keywords.get("offset", 0)) + _elements_before(block_id, chunks)}
    try:
        return _refuse_packed(casting.cast(x, to, **keywords))
    except (TypeError, ValueError, OverflowError) as error:
        kind = next(kind for kind in (TypeError, ValueError, OverflowError) if isinstance(error, kind))
        raise kind(f"{error} (in chunk {block_id} of the Dask array)") from None


def _elements_before(block_id: tuple[int, ...], chunks: tuple[tuple[int, ...], ...]) -> int:
    """The number of elements in the chunks before this one."""
    before = 0
    slab = math.prod(map(sum, chunks))
    for index, sizes in zip(block_id, chunks, strict=True):
        # `slab`: the number of elements in chunks that have the same index as this one along the axes so far.
        length = sum(sizes)
        slab = slab // length if length else 0
        before += slab * sum(sizes[:index])
        slab *= sizes[index]
    return before


def _check_offset(array: Any, offset: int) -> None:
    if math.isnan(array.size):
        raise ValueError(
            "cast: the sizes of some chunks are unknown, and random numbers go by them; "
            "call compute_chunk_sizes() first"
        )
    if offset + array.size > 1 << 64:
        raise ValueError(f"cast: offset={offset} leaves no 64-bit number for each of {array.size} elements")


def _refuse_packed(y: Any) -> Any:
    if isinstance(y, PackedArray):
        raise TypeError(
            f"cast: {y.dtype.name} on a device is a PackedArray, which no Dask array can hold; give device='cpu', "
            "or call gpucast.cast in a function of your own for to_delayed()"
        )
    return y


def _of_dimensions(nothing: Any, ndim: int) -> Any:
    """An array of the same kind with `ndim` dimensions, and without elements unless `ndim` is 0."""
    return nothing.reshape((0,) * ndim) if ndim else type(nothing)((), nothing.dtype)


_cast = cast


class DaskLibrary(Library):
    """Dask arrays, which are cast when they are computed."""

    def take(self, x: Any, caller: str, writing: bool = False) -> Any:
        raise TypeError(
            f"{caller}: x is a Dask array, whose elements are not there yet; call it for chunks, in x.map_blocks, or "
            "for x.compute()"
        )

    def is_transforming(self, x: Any) -> bool:
        return True

    def cast(self, cast: CastFunction, x: Any, to: Any, options: Options) -> Any:
        # Every version of CastLike is a version of Cast, too.
        if options.opset is not None:
            opset = newest_version(options.opset, options.versions, options.caller)
            options = options._replace(opset=opset)
        keywords = options._asdict()
        del keywords["caller"], keywords["versions"], keywords["argument"]
        return _cast(x, to, **keywords)


LIBRARY = DaskLibrary()


# ---- what dask.distributed gets wrong ----


class _Float8E5M2:
    """Unpickles to the dtype FLOAT8E5M2. Unpickling imports this module, so that the receiver of an array can send it
    too."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _float8e5m2, ()


def _float8e5m2() -> np.dtype[Any]:
    return dtype("FLOAT8E5M2").numpy


@functools.cache
def _register() -> None:
    from distributed.protocol.numpy import serialize_numpy_ndarray
    from distributed.protocol.serialize import dask_serialize

    broken = _float8e5m2()

    def serialize(x: Any, context: Any = None) -> Any:
        if x.dtype != broken:
            return serialize_numpy_ndarray(x, context)
        header, frames = serialize_numpy_ndarray(x.view(np.uint8), context)
        # The mark of distributed for dtypes that it pickles.
        header["dtype"] = (1, pickle.dumps(_Float8E5M2()))
        return header, frames

    dask_serialize.register(np.ndarray, serialize)


def _teach_distributed() -> None:
    """Let processes of dask.distributed, if this is one, exchange arrays of FLOAT8E5M2.

    The dtype reports the kind "f", so distributed would send only its name, "<f1", which NumPy does not know.
    """
    if "distributed" in sys.modules:
        _register()


_teach_distributed()
