# SPDX-License-Identifier: Apache-2.0
"""`gpucast.save` and `gpucast.load`: arrays of any library in one file, and back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gpucast.arrays import composites, libraries
from gpucast.arrays.bitpacking import unpack_codes
from gpucast.arrays.packed import PackedArray, as_array
from gpucast.casting import engines
from gpucast.core.arithmetic import exact
from gpucast.core.dtypes import DType, dtype
from gpucast.files import raw_data, tensor_file
from gpucast.files.tensor import CHUNK_BYTES, FileError, NDArray, Spec, Tensor, checked_name, slices
from gpucast.kernel import devices, streams

#: Where the arrays of these libraries are; others are registered adapters.
_NATIVE = {"numpy": "cpu", "cupy": "cuda"}


@exact()
def save(path: str | os.PathLike[str], arrays: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Save arrays by name in one file, exactly: every code, in any type that the format has or can describe.

    Parameters
    ----------
    path
        Its suffix is the format: ``.safetensors``, ``.npz``, or for one array ``.npy`` or ``.pb`` (ONNX). The file
        appears whole, or stays as it was.
    arrays
        A dict. Arrays as `gpucast.cast` takes them, of the host or a device: of NumPy, ml_dtypes, CuPy, PyTorch or JAX,
        a `PackedArray`, lists; and a `Quantized`, whose parts are ``w``, ``w.scales``, ``w.zero_points`` and
        ``w.global_scale`` in the file.
    metadata
        Texts by name, for ``.safetensors`` and ``.npz``.

    Raises
    ------
    TypeError
        For arguments of other kinds, and for arrays that `gpucast.cast` does not take.
    ValueError
        ``gpucast.files.FileError`` for names and types that the format cannot hold.

    Other programs read the files. A ``.safetensors`` file has the format's own types, among them F8 and F4 (of whole
    bytes). float6, and integers below one byte, are bytes of type U8 there; in an ``.npz`` file all types below one
    byte are. The metadata has type and shape of those. Other types that NumPy lacks are structured arrays of one field
    in ``.npz`` and ``.npy``, which `gpucast.cast` takes as `numpy.load` gives them.
    """
    name, texts = _path(path, "save"), _texts(metadata)
    if name.lower().endswith(tensor_file.MODEL):
        suffixes = ", ".join(tensor_file.SUFFIXES)
        raise FileError(f"{name}: an {tensor_file.MODEL} file holds a model, not arrays alone; expected {suffixes}")
    given = {one: _checked(one, x) for one, x in _parts(name, arrays, texts).items()}
    plan = [Spec(one, kind, array.shape) for one, (_, array, kind) in given.items()]
    if texts and not name.lower().endswith((".safetensors", ".npz")):
        raise FileError(f"{name}: such a file has no place for metadata, as of quantized arrays; write .safetensors")
    with tensor_file.create(name, plan, texts) as writer:
        for spec in plan:
            writer.write(spec, _chunks(*given[spec.name]))


@exact()
def load(path: str | os.PathLike[str], *, library: str | None = None, device: Any = None) -> dict[str, Any]:
    """Load all arrays of a file by name: of a file that `gpucast.save` or another program wrote.

    Parameters
    ----------
    path
        A ``.safetensors``, ``.npz`` or ``.npy`` file, an ONNX tensor (``.pb``) or model (``.onnx``).
    library
        "numpy" (the default), "cupy" (on a device), "torch" or "jax": the library of the arrays.
    device
        The device of the arrays: "cpu" (the default), "cuda" or "cuda:N".

    Returns
    -------
    A dict. Types that NumPy lacks are arrays of ml_dtypes, those below one byte a `PackedArray`, or what the library
    has for them, as in `gpucast.cast`. A saved `Quantized` is one again, also if ``gpucast convert`` wrote it. Text
    is a NumPy array on the host.

    Raises
    ------
    ValueError
        For a library or device that is not known. ``gpucast.files.FileError`` for a malformed file.
    OSError
        For a file that cannot be read.
    DeviceUnavailable
        When a GPU is asked for that cannot be used.
    """
    name, place = _path(path, "load"), _Place(library, device)
    with tensor_file.TensorFile(name) as file:
        tensors = {tensor.name: tensor for tensor in file.tensors}
        found: dict[str, Any] = {}
        used: set[str] = set()
        for base, (text, composite) in composites.described(file.metadata).items():
            # Another program may have removed the tensors but kept the metadata.
            if base in tensors:
                caller = f"{name}: tensor {base!r}"
                names = {ending: base + ending for ending in composite.endings(text, caller)}
                for one in names.values():
                    if one not in tensors:
                        raise FileError(f"{caller}: {one!r} is missing")
                used.update(names.values())
                parts = {ending: place.native(tensors[one]) for ending, one in names.items()}
                found[base] = _joined(composite, parts, text, place.library, caller)
        return {
            one: found[one] if one in found else place.array(tensor)
            for one, tensor in tensors.items()
            if one in found or one not in used
        }


def _path(path: Any, caller: str) -> str:
    try:
        name = os.fspath(path)
    except TypeError:
        name = path
    if not isinstance(name, str):
        raise TypeError(
            f"{caller}: path is {type(path).__name__}; expected text or a pathlib.Path, and then the arrays"
        )
    return name


def _texts(metadata: Any) -> dict[str, str]:
    texts = {} if metadata is None else metadata
    if not isinstance(texts, Mapping) or not all(isinstance(one, str) for pair in texts.items() for one in pair):
        raise TypeError(f"save: metadata={metadata!r} must be a dict of texts")
    # They tell `load` what arrays are.
    if own := sorted(name for name in texts if name.startswith("gpucast.")):
        raise ValueError(f"save: metadata has {own[0]!r}; names that begin with 'gpucast.' are those of save itself")
    return dict(texts)


def _parts(path: str, arrays: Any, texts: dict[str, str]) -> dict[str, Any]:
    """The arrays by name, with composites as their parts, which are described in `texts`."""
    if not isinstance(arrays, Mapping):
        raise TypeError(f"save: arrays is {type(arrays).__name__}; expected a dict of arrays by name, as {{'x': x}}")
    parts: dict[str, Any] = {}
    for name, x in arrays.items():
        found = composites.find(x)
        split = {"": x}
        if found is not None:
            prefix, composite = found
            split, texts[prefix + checked_name(name, path)] = composite.split(x)
        for ending, part in split.items():
            one = checked_name(name, path) + ending
            if one in parts:
                raise FileError(f"{path}: the name {one!r} is that of an array and of a part of {name!r}; rename one")
            parts[one] = part
    return parts


def _checked(name: str, x: Any) -> tuple[Any, Any, DType]:
    """An array as the caller gave it, as a native one, and its dtype."""
    caller = f"save: tensor {name!r}"
    with streams.visit(x):
        array = as_array(x, caller)
    return x, array, dtype(array.dtype, caller=f"{caller}: ")


def _chunks(x: Any, array: Any, kind: DType) -> Iterator[NDArray]:
    """The elements in row-major order, as `Tensor.chunks` gives them, copied from a device as they are written."""
    with streams.visit(x):
        host = engines.to_host(array)
    if isinstance(host, PackedArray):
        data = host.data
        for start in range(0, array.size, CHUNK_BYTES):
            count = min(CHUNK_BYTES, array.size - start)
            yield unpack_codes(data[kind.nbytes(start) : kind.nbytes(start + count)], kind.bits, count).view(kind.numpy)
        return
    flat = host if kind.family == "string" else np.ascontiguousarray(host, dtype=kind.numpy)
    yield from slices(flat.reshape(-1), flat.itemsize)


class _Place:
    """Where loaded arrays go."""

    def __init__(self, library: Any, device: Any) -> None:
        caller = "load"
        others = libraries.with_arrays()
        if library not in (None, *_NATIVE, *others):
            names = ", ".join(map(repr, (*_NATIVE, *others)))
            raise ValueError(f"{caller}: library={library!r} is not known; expected one of {names}")
        own = _NATIVE.get(library)
        place = devices.parse(device, caller) or own or "cpu"
        if own is not None and own != place.partition(":")[0]:
            raise ValueError(f"{caller}: library={library!r} has arrays of {own!r}; got device={device!r}")
        self._engine = engines.named(place, caller)
        self.library = library if library in others else None
        self._adapter = None if self.library is None else libraries.of_library(self.library)

    def native(self, tensor: Tensor) -> Any:
        """The array of a tensor, of NumPy or CuPy."""
        array = _read(tensor)
        is_text = tensor.dtype is None or tensor.dtype.family == "string"
        return array if is_text else self._engine.take(array)

    def array(self, tensor: Tensor) -> Any:
        """The array of a tensor in the library."""
        array = self.native(tensor)
        if self._adapter is None:
            return array
        try:
            return self._adapter.from_array(array)
        except TypeError as error:
            raise TypeError(f"load: tensor {tensor.name!r}: {error}") from None


def _read(tensor: Tensor) -> Any:
    kind = tensor.dtype
    if kind is None or not kind.packed:
        return tensor.read()
    data = np.empty(kind.nbytes(tensor.size), np.uint8)
    done = 0
    for chunk in tensor.chunks():
        encoded = raw_data.encoded(kind, chunk)
        data[done : done + encoded.size] = encoded
        done += encoded.size
    return PackedArray(data, kind, tensor.shape)


def _joined(composite: composites.Composite, parts: dict[str, Any], text: str, library: str | None, caller: str) -> Any:
    try:
        return composite.join(parts, text, library, caller)
    except FileError:
        raise
    except (TypeError, ValueError) as error:
        raise FileError(f"{caller}: {error}") from None
