# SPDX-License-Identifier: Apache-2.0
"""Whatever runs on a device: one value that gives the text for the compiler and the bytes for a launch.

The text consists of the files of ``kernels/`` and some twenty lines: the constants of the dtypes, and the kernel's name
and options. It has no includes. A family of kernels is a function that returns a `Kernel`: `cast_kernel`,
`fused_kernel` and `batch_kernel` in this folder; those of quantization, loss scales and `gpucast.ufunc` in their rooms.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from gpucast.core.dtypes import DType
from gpucast.kernel.fields import Fields

#: What the address of the first tile is a multiple of on every GPU: from sm_100 on some kernels have vector accesses of
#: so many bytes.
ALIGNED = 32

#: A file of ``kernels/``, or the table of a struct, which stands before the file that uses it.
Part = str | Fields

_FAMILIES = {"bool": "BoolFamily", "int": "IntFamily", "float": "FloatFamily", "e8m0": "E8M0Family"}


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel. Those of one name and one line are equal."""

    #: Also the name of its function (``extern "C"``).
    name: str
    #: In dependency order: each uses only those before it.
    parts: tuple[Part, ...]
    #: The dtypes whose structs the text has.
    dtypes: tuple[DType, ...]
    #: The lines that make the kernel, after all others.
    line: str
    #: Threads of a block.
    threads: int
    #: The parameters of the function.
    arguments: Fields
    #: Elements of a thread, and of a tile.
    elements: int = 1
    tile: int = 1
    #: The most elements with which the first tile begins before the array: none where `dst` is a multiple of `ALIGNED`.
    ahead: int = 0
    #: Elements of a thread in one turn of its loop; 0 without one.
    turn: int = 0
    #: The compute capability (90 for 9.0) from which its blocks stay until all is done, so that no more are launched
    #: than a device holds at a time. None: on no device.
    stays_from: int | None = None

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Kernel) and (self.name, self.line) == (other.name, other.line))

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def text(self) -> str:
        return unit(parts_text(self.parts), self.dtypes, [self.line])

    @property
    def block(self) -> int:
        """Elements of a block."""
        return self.elements * self.threads

    def blocks(self, n: int, dst: int = 1) -> int:
        """Blocks to launch for n elements (0 for none) whose results begin at the address `dst`."""
        ahead = self.ahead if dst % ALIGNED else 0
        return -(-(n + ahead) // (self.elements * self.threads)) if n else 0


#: The parameters of a kernel of one array: the source, the bit of its first byte at which it begins (0 to 7, for packed
#: types), the result, and the number of elements.
ARRAY = Fields("Array", (("src", "const u8*"), ("src_bit", "u32"), ("dst", "u8*"), ("n", "i64")))


@lru_cache
def array_and(given: Fields) -> Fields:
    """The parameters of a kernel of one array with a struct after them. Its bytes are those of both, joined."""
    return Fields("Array", (*ARRAY.rows, ("given", given)))


# ---- text ----


def unit(prelude: str, dtypes: Iterable[DType], lines: Iterable[str]) -> str:
    """One translation unit: a text, the structs of dtypes, lines."""
    structs = "".join(dtype_struct(kind) for kind in dict.fromkeys(dtypes))
    return f"{prelude}\nnamespace gpucast {{\n{structs}}}  // namespace gpucast\n{''.join(lines)}"


def program(kernels: Sequence[Kernel]) -> str:
    """One translation unit of several kernels, one of which has the parts of all."""
    longest = max((kernel.parts for kernel in kernels), key=len)
    dtypes = [kind for kernel in kernels for kind in kernel.dtypes]
    return unit(parts_text(longest), dtypes, [kernel.line for kernel in kernels])


@lru_cache(maxsize=64)
def parts_text(parts: tuple[Part, ...]) -> str:
    """The text of files and structs."""
    return "\n".join(kernel_file(part) if isinstance(part, str) else part.text for part in parts)


def host_section() -> str:
    """The text that lets a C++ compiler build the rest for the host: a model of the GPU's instructions and CUDA's
    built-ins.
    """
    return kernel_file("host/model.hpp") + kernel_file("host/cuda.hpp")


def kernel_file(name: str) -> str:
    """The text of a file in ``kernels/``, from the installed package or from the checkout."""
    here = os.path.dirname(os.path.dirname(__file__))
    for folder in (here, os.path.dirname(here)):
        path = os.path.join(folder, "kernels", name)
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                return file.read()
    raise FileNotFoundError(f"gpucast: the kernel {name} is missing from {here}; install gpucast again")


@lru_cache
def dtype_struct(kind: DType) -> str:
    """A dtype as a C++ struct of constants. Enumerators, because static constants of a class would remain in the
    compiled module as variables."""
    lines = [
        f"typedef {_FAMILIES[kind.family]} family;",
        f"enum : u32 {{ bits = {kind.bits} }};",
        f"enum : bool {{ is_bool = {kind.family == 'bool':d}, is_int = {kind.family == 'int':d} }};",
        f"enum : bool {{ is_float = {kind.family == 'float':d}, is_e8m0 = {kind.family == 'e8m0':d} }};",
        f"enum : bool {{ has_inf = {kind.has_inf:d}, has_nan = {kind.has_nan:d} }};",
        f"enum : u64 {{ mask = {kind.code_mask:#x}, sign_code = {kind.sign_code:#x}, max_code = {kind.max_code:#x} }};",
    ]
    if kind.is_float:
        lines += [
            f"enum : int {{ mantissa_bits = {kind.mantissa_bits}, bias = {kind.bias} }};",
            (
                f"enum : bool {{ nan_is_signed = {kind.nan_is_signed:d}, "
                f"has_negative_zero = {kind.has_negative_zero:d} }};"
            ),
        ]
    if kind.has_nan:
        lines.append(f"enum : u64 {{ nan_code = {kind.nan_code:#x} }};")
    if kind.has_inf:
        lines.append(f"enum : u64 {{ inf_code = {kind.inf_code:#x} }};")
    return f"struct {kind.name} {{\n" + "".join(f"    {line}\n" for line in lines) + "};\n"
