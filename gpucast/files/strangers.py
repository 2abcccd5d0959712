# SPDX-License-Identifier: Apache-2.0
"""Files that are not what their names say, by their first bytes: pointers, web pages, and formats of others."""

from __future__ import annotations

import re
from typing import BinaryIO

from gpucast.files import file_limits
from gpucast.files.tensor import FileError

GGUF = "GGUF (llama.cpp), whose blocks are not read here; convert the checkpoint that it was made from"
#: What no file of tensors begins with (small letters, without blanks before it), and what such a file is.
_BEGINNINGS = (
    (b"version https://git-lfs.github.com", "is a pointer of Git LFS, not the file itself: fetch it with git lfs pull"),
    (b"<!doctype html", "is a web page, not a file of tensors: download the file itself, perhaps after logging in"),
    (b"<html", "is a web page, not a file of tensors: download the file itself, perhaps after logging in"),
    (b"<?xml", "is an XML document, perhaps an error of the server: download the file itself"),
    (b'{"error', "is an error message of a server, not a file of tensors: download the file itself"),
    (b"entry not found", "is an error message of a server, not a file of tensors: download the file itself"),
    (b"gguf", f"is {GGUF}"),
    (b"\x89hdf\r\n", "is HDF5 (Keras), which is not read here; save its weights as .npz or .safetensors"),
)
#: What the files of PyTorch begin with, and .npz too.
_ZIP = b"pk\x03\x04"
#: A pickle, which may run a program when it is read: a protocol, and that of older files of PyTorch or a frame.
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_TORCH = "is a file of PyTorch, whatever its name says; save it with safetensors.torch.save_file"


def check(file: BinaryIO, path: str, suffix: str) -> None:
    """FileError if the file begins as one of another kind. It is read from its beginning again then."""
    begin = file.read(64).lstrip().lower()
    file.seek(0)
    found = next((what for beginning, what in _BEGINNINGS if begin.startswith(beginning)), None)
    if found is None and suffix in (".safetensors", ".onnx") and begin.startswith(_ZIP):
        found = _TORCH
    # As a length of a header these bytes would be far too many.
    if suffix == ".safetensors" and _PICKLE.match(begin) and int.from_bytes(begin[:8], "little") > file_limits.HEADER:
        found = _TORCH
    if found is not None:
        raise FileError(f"{path}: {found}")
