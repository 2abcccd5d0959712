# SPDX-License-Identifier: Apache-2.0
"""A call, and the protocol of the engines that run calls: the host and each device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from gpucast.arrays.array import Array
from gpucast.arrays.libraries import Lent, Library
from gpucast.core.dtypes import DType
from gpucast.core.fuse import EMPTY, Fuse
from gpucast.core.rule import CastRule, resolve

if TYPE_CHECKING:
    from gpucast.casting.plans import Kernels
    from gpucast.kernel.fused_kernel import FusedOps

_T = TypeVar("_T")
Lengths = tuple[int, ...]


@dataclass(slots=True)
class Call:
    """The checked cast of one array: `gpucast.cast` is a batch of one, `gpucast.cast_many` of several."""

    #: The name of the call, or of its array, in errors: "cast_many: arrays['encoder'][3]".
    caller: str
    source: Array
    #: With a scale that of `resolve` with a scale.
    rule: CastRule
    fuse: Fuse = EMPTY
    #: Where the result goes; None until there is an array for it.
    target: Array | None = None
    #: The array as the caller has it, its library (None: it is native), and the result for the caller.
    given: Any = None
    library: Library | None = None
    result: Any = None
    #: Elements of the calls before it in its batch: random words go on from one to the next.
    start: int = 0

    @property
    def written(self) -> Array:
        """The target of a call that has one by now."""
        assert self.target is not None, "memory has been allocated"
        return self.target


class Engine(ABC):
    """Runs calls in one place, the host or a device. Only engines ask where an array is (`gpucast.casting.engines`)."""

    #: The index of the device; None for the host.
    device: int | None = None
    #: Whether the results of packed types are packed here, whatever the source.
    packs = False
    #: Whether texts are here.
    has_text = False
    #: Whether a call has done its work when it returns.
    waits = False

    # ---- arrays ----

    @abstractmethod
    def empty(self, shape: tuple[int, ...], kind: DType, packs: bool = False) -> Any:
        """An array without set values, as results are here; `packs`: packed types are packed in any case. RuntimeError
        while a CUDA graph is captured."""

    @abstractmethod
    def view(
        self, address: int, shape: Lengths, strides: Lengths | None, kind: DType, owner: object, readonly: bool = False
    ) -> Any:
        """An array over memory here, which `owner` keeps alive. `strides`: in bytes, None for C order. Types below one
        byte have an element per byte."""

    @abstractmethod
    def take(self, x: Any) -> Any:
        """A native array itself if it is here, else a copy of it here."""

    @abstractmethod
    def received(self, y: Array, packed: bool) -> Array:
        """A result from elsewhere, here, in the form of results; `packed`: the source was packed."""

    @abstractmethod
    def number(self, x: Any) -> Any:
        """A contiguous array of one number that is here, as a cast reads it: the number on the host, else itself."""

    def reads(self, x: Any) -> bool:
        """Whether the elements of an array that is here begin where an engine can read them. On the host: anywhere."""
        return True

    # ---- calls ----

    @abstractmethod
    def prepare(self, calls: Sequence[Call]) -> list[Callable[[], None]]:
        """The functions that run calls whose arrays are here. Whatever may fail, but for text, fails in this method. A
        call without a target has a new one when it has run."""

    @abstractmethod
    def run(self, calls: Sequence[Call], library: Library | None = None) -> None:
        """Run calls whose arrays are here, on the stream of a library. DeviceUnavailable where that cannot be."""

    def copy(self, y: Array, target: Array) -> None:
        """Copy an array that is here into another one of its dtype."""
        self.run([Call("cast", y, resolve(y.dtype, y.dtype), target=target)])

    @abstractmethod
    def is_unchanged(self, call: Call) -> bool:
        """Whether the source of a plain call, which is here, is itself a result: the type is the same, and the array
        has the form of results."""

    @abstractmethod
    def plan(self, call: Call) -> Any:
        """The plan for calls like one that has run; None where there is none."""

    @abstractmethod
    def add_kernel(self, kernels: Kernels, rule: CastRule, ops: FusedOps, unpacked: bool = False) -> None:
        """Let a plan launch the kernel of a contiguous cast, if one is loaded here."""

    def require(self, caller: str) -> None:  # noqa: B027 (a default)
        """DeviceUnavailable unless calls can run here."""

    def workspace(self, caller: str) -> Any:
        """Memory that calls keep here from one to the next; None where they need none."""
        return None

    # ---- streams ----

    def stream(self, library: Library | None) -> int | None:
        """The stream here of the arrays of a library; None where there are no streams."""
        return None

    def using(self, stream: int | None, owners: Iterable[Lent | None] = ()) -> AbstractContextManager[Any]:
        """Work within runs here on a stream, after the work of the owners of other arrays and before their next."""
        return nullcontext()

    def pick(self, host: _T, cuda: _T) -> _T:
        """The one of two things that is for this engine."""
        return host if self.device is None else cuda
