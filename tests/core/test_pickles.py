# SPDX-License-Identifier: Apache-2.0
"""Pickles that are kept: those of earlier versions load, and new ones name nothing but public paths."""

from __future__ import annotations

import pickle
import pickletools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import gpucast
import gpucast.quantization.reference
from gpucast import files, layers, mixed, quantization

#: As pickled when the modules lay side by side in one folder, protocol 4.
OBJECTS = {
    "PackedArray": (
        b"\x80\x04\x95\xd9\x00\x00\x00\x00\x00\x00\x00\x8c\x0egpucast.packed\x94\x8c\x0bPackedArray\x94\x93\x94"
        b"\x8c\x16numpy._core.multiarray\x94\x8c\x0c_reconstruct\x94\x93\x94\x8c\x05numpy\x94\x8c\x07ndarray"
        b"\x94\x93\x94K\x00\x85\x94C\x01b\x94\x87\x94R\x94(K\x01K\x02\x85\x94h\x06\x8c\x05dtype\x94\x93\x94\x8c"
        b"\x02u1\x94\x89\x88\x87\x94R\x94(K\x03\x8c\x01|\x94NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00t\x94b"
        b"\x89C\x02!\x03\x94t\x94b\x8c\x0egpucast.dtypes\x94\x8c\x04_row\x94\x93\x94\x8c\x04INT4\x94\x85\x94R"
        b"\x94K\x03\x85\x94\x87\x94R\x94."
    ),
    "Quantized": (
        b"\x80\x04\x95l\x02\x00\x00\x00\x00\x00\x00\x8c\x1egpucast.quantization.quantized\x94\x8c\tQuantized"
        b"\x94\x93\x94)\x81\x94}\x94(\x8c\x04data\x94\x8c\x0egpucast.packed\x94\x8c\x0bPackedArray\x94\x93\x94"
        b"\x8c\x16numpy._core.multiarray\x94\x8c\x0c_reconstruct\x94\x93\x94\x8c\x05numpy\x94\x8c\x07ndarray"
        b"\x94\x93\x94K\x00\x85\x94C\x01b\x94\x87\x94R\x94(K\x01K\x02\x85\x94h\x0c\x8c\x05dtype\x94\x93\x94\x8c"
        b"\x02u1\x94\x89\x88\x87\x94R\x94(K\x03\x8c\x01|\x94NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00t\x94b"
        b"\x89C\x02ww\x94t\x94b\x8c\x0egpucast.dtypes\x94\x8c\x04_row\x94\x93\x94\x8c\x04INT4\x94\x85\x94R\x94K"
        b"\x01K\x04\x86\x94\x87\x94R\x94\x8c\x06scales\x94h\x0bh\x0eK\x00\x85\x94h\x10\x87\x94R\x94(K\x01K\x01K"
        b"\x01\x86\x94h\x15\x8c\x02f4\x94\x89\x88\x87\x94R\x94(K\x03\x8c\x01<\x94NNNJ\xff\xff\xff\xffJ\xff\xff"
        b"\xff\xffK\x00t\x94b\x89C\x04%I\x12>\x94t\x94b\x8c\x06format\x94\x8c\x1cgpucast.quantization.formats"
        b'\x94\x8c\x06Format\x94\x93\x94)\x81\x94}\x94(\x8c\x04name\x94\x8c\x04mine\x94\x8c\x07element\x94h"'
        b"\x8c\x05scale\x94h\x1f\x8c\x05FLOAT\x94\x85\x94R\x94\x8c\x05block\x94K\x04\x85\x94\x8c\x04rule\x94"
        b"\x8c\x04amax\x94\x8c\x0bzero_points\x94\x89\x8c\x0cglobal_scale\x94\x89\x8c\x07divisor\x94G@\x1c\x00"
        b"\x00\x00\x00\x00\x00\x8c\x0esmallest_scale\x94G8\x10\x00\x00\x00\x00\x00\x00ubhCNhDN\x8c\x05dtype\x94"
        b"h>\x8c\x04axis\x94K\x01\x8c\x0cscale_layout\x94\x8c\x06linear\x94ub."
    ),
    "Format": (
        b"\x80\x04\x95\xec\x00\x00\x00\x00\x00\x00\x00\x8c\x1cgpucast.quantization.formats\x94\x8c\x06Format"
        b"\x94\x93\x94)\x81\x94}\x94(\x8c\x04name\x94\x8c\x04mine\x94\x8c\x07element\x94\x8c\x0egpucast.dtypes"
        b"\x94\x8c\x04_row\x94\x93\x94\x8c\x04INT4\x94\x85\x94R\x94\x8c\x05scale\x94h\n\x8c\x05FLOAT\x94\x85"
        b"\x94R\x94\x8c\x05block\x94K\x04\x85\x94\x8c\x04rule\x94\x8c\x04amax\x94\x8c\x0bzero_points\x94\x89"
        b"\x8c\x0cglobal_scale\x94\x89\x8c\x07divisor\x94G@\x1c\x00\x00\x00\x00\x00\x00\x8c\x0esmallest_scale"
        b"\x94G8\x10\x00\x00\x00\x00\x00\x00ub."
    ),
    "CastReport": (
        b"\x80\x04\x95\xac\x00\x00\x00\x00\x00\x00\x00\x8c\x0egpucast.report\x94\x8c\nCastReport\x94\x93\x94)"
        b"\x81\x94}\x94(\x8c\x08elements\x94K\x02\x8c\x07nonzero\x94K\x02\x8c\tsaturated\x94K\x00\x8c\x07wrappe"
        b"d\x94K\x00\x8c\x08infinite\x94K\x01\x8c\x03nan\x94K\x00\x8c\x08nan_lost\x94K\x00\x8c\x0bunderflowed"
        b"\x94K\x00\x8c\x12max_relative_error\x94G?\xd0\x00\x00\x00\x00\x00\x00ub."
    ),
    "DeviceUnavailable": (
        b"\x80\x04\x95;\x00\x00\x00\x00\x00\x00\x00\x8c\x0egpucast.errors\x94\x8c\x11DeviceUnavailable\x94\x93"
        b"\x94\x8c\x0ccast: no GPU\x94\x85\x94R\x94."
    ),
    "FileError": (
        b"\x80\x04\x95<\x00\x00\x00\x00\x00\x00\x00\x8c\x14gpucast.files.tensor\x94\x8c\tFileError\x94\x93\x94"
        b"\x8c\x0fx.npy: is empty\x94\x85\x94R\x94."
    ),
    "DType": (
        b"\x80\x04\x95*\x00\x00\x00\x00\x00\x00\x00\x8c\x0egpucast.dtypes\x94\x8c\x04_row\x94\x93\x94\x8c\x08BF"
        b"LOAT16\x94\x85\x94R\x94."
    ),
    "FInfo": (
        b"\x80\x04\x95\xe2\x00\x00\x00\x00\x00\x00\x00\x8c\x0egpucast.dtypes\x94\x8c\x05FInfo\x94\x93\x94)\x81"
        b"\x94}\x94(\x8c\x05dtype\x94h\x00\x8c\x04_row\x94\x93\x94\x8c\x0cFLOAT8E4M3FN\x94\x85\x94R\x94\x8c\x04"
        b"bits\x94K\x08\x8c\x03max\x94G@|\x00\x00\x00\x00\x00\x00\x8c\x03min\x94G\xc0|\x00\x00\x00\x00\x00\x00"
        b"\x8c\x03eps\x94G?\xc0\x00\x00\x00\x00\x00\x00\x8c\x0fsmallest_normal\x94G?\x90\x00\x00\x00\x00\x00"
        b"\x00\x8c\x12smallest_subnormal\x94G?`\x00\x00\x00\x00\x00\x00\x8c\x04nexp\x94K\x04\x8c\x05nmant\x94K"
        b"\x03\x8c\x07has_inf\x94\x89\x8c\x07has_nan\x94\x88ub."
    ),
    "IInfo": (
        b"\x80\x04\x95^\x00\x00\x00\x00\x00\x00\x00\x8c\x0egpucast.dtypes\x94\x8c\x05IInfo\x94\x93\x94)\x81\x94"
        b"}\x94(\x8c\x05dtype\x94h\x00\x8c\x04_row\x94\x93\x94\x8c\x04INT4\x94\x85\x94R\x94\x8c\x04bits\x94K"
        b"\x04\x8c\x03min\x94J\xf8\xff\xff\xff\x8c\x03max\x94K\x07ub."
    ),
    "Policy": (
        b"\x80\x04\x95\x91\x00\x00\x00\x00\x00\x00\x00\x8c\x14gpucast.mixed.policy\x94\x8c\x06Policy\x94\x93"
        b"\x94)\x81\x94}\x94(\x8c\x0bparam_dtype\x94\x8c\x0egpucast.dtypes\x94\x8c\x04_row\x94\x93\x94\x8c\x05F"
        b"LOAT\x94\x85\x94R\x94\x8c\rcompute_dtype\x94h\x08\x8c\x08BFLOAT16\x94\x85\x94R\x94\x8c\x0coutput_dtyp"
        b"e\x94h\x0bub."
    ),
    "NoOpLossScale": (
        b"\x80\x04\x951\x00\x00\x00\x00\x00\x00\x00\x8c\x18gpucast.mixed.loss_scale\x94\x8c\rNoOpLossScale\x94"
        b"\x93\x94)\x81\x94."
    ),
    "StaticLossScale": (
        b"\x80\x04\x95I\x00\x00\x00\x00\x00\x00\x00\x8c\x18gpucast.mixed.loss_scale\x94\x8c\x0fStaticLossScale"
        b"\x94\x93\x94)\x81\x94}\x94\x8c\x06_scale\x94G@ \x00\x00\x00\x00\x00\x00sb."
    ),
    "DynamicLossScale": (
        b"\x80\x04\x95\x0e\x01\x00\x00\x00\x00\x00\x00\x8c\x18gpucast.mixed.loss_scale\x94\x8c\x10DynamicLossSc"
        b"ale\x94\x93\x94)\x81\x94}\x94(\x8c\x06period\x94M\xd0\x07\x8c\x06factor\x94G@\x00\x00\x00\x00\x00\x00"
        b"\x00\x8c\x0emin_loss_scale\x94G?\xf0\x00\x00\x00\x00\x00\x00\x8c\x06_state\x94\x8c\x16numpy._core.mul"
        b"tiarray\x94\x8c\x0c_reconstruct\x94\x93\x94\x8c\x05numpy\x94\x8c\x07ndarray\x94\x93\x94K\x00\x85\x94C"
        b"\x01b\x94\x87\x94R\x94(K\x01K\x03\x85\x94h\x0c\x8c\x05dtype\x94\x93\x94\x8c\x02u4\x94\x89\x88\x87\x94"
        b"R\x94(K\x03\x8c\x01<\x94NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00t\x94b\x89C\x0c\x00\x00\x80D\x00"
        b"\x00\x80:\x00\x00\x00\x00\x94t\x94bub."
    ),
    "Cast": (
        b"\x80\x04\x95\xb5\x00\x00\x00\x00\x00\x00\x00\x8c\x0egpucast.layers\x94\x8c\x04Cast\x94\x93\x94)\x81"
        b"\x94}\x94(\x8c\x04name\x94\x8c\x00\x94\x8c\x08saturate\x94\x88\x8c\nround_mode\x94\x8c\x02up\x94\x8c"
        b"\x08training\x94\x88\x8c\tlda_coeff\x94G?\xe0\x00\x00\x00\x00\x00\x00\x8c\x05_seen\x94\x8c\x0egpucast"
        b".dtypes\x94\x8c\x04_row\x94\x93\x94\x8c\x05FLOAT\x94\x85\x94R\x94K\x03\x85\x94\x86\x94\x8c\x02to\x94h"
        b"\x0f\x8c\x07FLOAT16\x94\x85\x94R\x94ub."
    ),
    "CastLike": (
        b"\x80\x04\x95}\x00\x00\x00\x00\x00\x00\x00\x8c\x0egpucast.layers\x94\x8c\x08CastLike\x94\x93\x94)\x81"
        b"\x94}\x94(\x8c\x04name\x94\x8c\x04like\x94\x8c\x08saturate\x94\x88\x8c\nround_mode\x94\x8c\x02up\x94"
        b"\x8c\x08training\x94\x88\x8c\tlda_coeff\x94G?\xf0\x00\x00\x00\x00\x00\x00\x8c\x05_seen\x94Nub."
    ),
}
#: The same of functions, protocol 0, by their paths in gpucast.
FUNCTIONS = {
    "cast": b"cgpucast.cast\ncast\np0\n.",
    "cast_like": b"cgpucast.cast\ncast_like\np0\n.",
    "cast_many": b"cgpucast.cast_many\ncast_many\np0\n.",
    "cast_report": b"cgpucast.report\ncast_report\np0\n.",
    "device_function": b"cgpucast.device_function\ndevice_function\np0\n.",
    "dequantize": b"cgpucast.quantization.calls\ndequantize\np0\n.",
    "empty": b"cgpucast.creation\nempty\np0\n.",
    "empty_like": b"cgpucast.creation\nempty_like\np0\n.",
    "finfo": b"cgpucast.dtypes\nfinfo\np0\n.",
    "from_bytes": b"cgpucast.creation\nfrom_bytes\np0\n.",
    "iinfo": b"cgpucast.dtypes\niinfo\np0\n.",
    "quantize": b"cgpucast.quantization.calls\nquantize\np0\n.",
    "warmup": b"cgpucast.warmup\nwarmup\np0\n.",
    "reference.cast": b"cgpucast.reference\ncast\np0\n.",
    "quantization.reference.quantize": b"cgpucast.quantization.reference\nquantize\np0\n.",
    "mixed.get_policy": b"cgpucast.mixed.policy\nget_policy\np0\n.",
    "mixed.select_tree": b"cgpucast.mixed.select\nselect_tree\np0\n.",
    "files.load": b"cgpucast.files.formats\nload\np0\n.",
    "device.unavailable": b"cgpucast.device\nunavailable\np0\n.",
}


def objects() -> dict[str, Any]:
    """What was pickled."""
    layer = layers.Cast("FLOAT16", lda_coeff=0.5)
    layer.forward(np.zeros(3, np.float32))
    mine = quantization.Format("mine", "INT4", "FLOAT", (4,), "amax")
    return {
        "PackedArray": gpucast.PackedArray.pack(np.array([1, 2, 3], np.uint8), "INT4"),
        "Quantized": gpucast.quantize(np.ones((1, 4), np.float32), mine),
        "Format": mine,
        "CastReport": gpucast.CastReport(2, 2, infinite=1, max_relative_error=0.25),
        "DeviceUnavailable": gpucast.DeviceUnavailable("cast: no GPU"),
        "FileError": files.FileError("x.npy: is empty"),
        "DType": gpucast.dtype("BFLOAT16"),
        "FInfo": gpucast.finfo("FLOAT8E4M3FN"),
        "IInfo": gpucast.iinfo("INT4"),
        "Policy": mixed.get_policy("params=float32,compute=bfloat16,output=float32"),
        "NoOpLossScale": mixed.NoOpLossScale(),
        "StaticLossScale": mixed.StaticLossScale(8.0),
        "DynamicLossScale": mixed.DynamicLossScale(1024.0),
        "Cast": layer,
        "CastLike": layers.CastLike(name="like"),
    }


def at(path: str) -> Any:
    """What is at a path in gpucast."""
    found: Any = gpucast
    for name in path.split("."):
        found = getattr(found, name)
    return found


def modules_in(pickled: bytes) -> set[str]:
    """The modules of gpucast that a pickle of protocol 4 names."""
    texts = [text for _, text, _ in pickletools.genops(pickled) if isinstance(text, str)]
    return {text for text in texts if text.partition(".")[0] == "gpucast"}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_of_earlier_versions_load(name: str) -> None:
    was = objects()[name]
    loaded = pickle.loads(OBJECTS[name])
    assert type(loaded) is type(was)
    if isinstance(was, (layers.Cast, layers.CastLike)):
        assert vars(loaded) == vars(was)
    else:
        assert repr(loaded) == repr(was)


def test_what_was_loaded_works() -> None:
    packed, quantized, layer = (pickle.loads(OBJECTS[name]) for name in ("PackedArray", "Quantized", "Cast"))
    assert gpucast.cast(packed, "FLOAT").tolist() == [1, 2, 3]
    assert np.allclose(gpucast.dequantize(quantized), 1)
    assert layer.backward(np.ones(3, np.float16)).tolist() == [0.5] * 3
    assert pickle.loads(OBJECTS["DType"]) is gpucast.dtype("BFLOAT16")


@pytest.mark.parametrize("path", FUNCTIONS)
def test_functions_of_earlier_versions_load(path: str) -> None:
    assert pickle.loads(FUNCTIONS[path]) is at(path)


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_are_pickled_under_public_paths(name: str) -> None:
    public = {"gpucast", *(f"gpucast.{module}" for module in ("dtypes", "files", "layers", "mixed", "quantization"))}
    pickled = pickle.dumps(objects()[name], 4)
    assert modules_in(pickled) and modules_in(pickled) <= public
    assert type(pickle.loads(pickled)) is type(objects()[name])


@pytest.mark.parametrize("path", FUNCTIONS)
def test_functions_are_pickled_under_public_paths(path: str) -> None:
    (module,) = modules_in(pickle.dumps(at(path), 4))
    assert module in ("gpucast", f"gpucast.{path}".rpartition(".")[0], "gpucast.quantization")


def test_a_process_that_imported_nothing_loads_them() -> None:
    """The pickles alone say what is to be imported; and the names of old modules hide no function."""
    pickles = [*OBJECTS.values(), *FUNCTIONS.values()]
    code = (
        "import pickle, sys\n"
        f"for pickled in {pickles!r}:\n"
        "    pickle.loads(pickled)\n"
        "import gpucast\n"
        "assert all(type(f).__name__ == 'function' for f in (gpucast.cast, gpucast.cast_many, gpucast.warmup))\n"
        "assert not hasattr(gpucast, 'packed') and not {'cupy', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
