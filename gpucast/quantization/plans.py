# SPDX-License-Identifier: Apache-2.0
"""Plans of the functions that quantize: a call like an earlier one is one of the module, or repeats launches.

On the host they serve the formats that `host_calls.quantizing` describes; an earlier result of the checked path says
how results look. On devices: `cuda_plans`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from gpucast.arrays import libraries
from gpucast.arrays.packed import PackedArray
from gpucast.casting import plans
from gpucast.core.arithmetic import exact
from gpucast.core.extension import MODULE
from gpucast.kernel import ON_NEW_DRIVER, recording
from gpucast.quantization import grouped_on_host, host_plans
from gpucast.quantization.call_choices import NO_SIGNS, by_numbers, choices, signs_of
from gpucast.quantization.cuda_plans import Ask, Asked, CudaPlan, flat, is_record
from gpucast.quantization.formats import Format

#: The most plans of a function on devices.
_MOST_PLANS = 1024


class Repeats:
    """A public function of an array, what it is to become, and keywords: it keeps plans of its calls."""

    _hit_view: Any = None
    _keep_view: Any = None

    def __init__(
        self,
        roles: str,
        ask: Callable[..., Ask | None],
        host: Callable[..., Any] | None = None,
        *,
        second: tuple[str, Any] = ("to", ...),
        kind: Literal["quantized", "dequantized", ""] = "",
        **defaults: Any,
    ) -> None:
        """`roles`, `second` and `defaults`: as for `gpucast.casting.plans.function`. ``ask(to, *keyed)``: how a
        device plan asks for calls with these values of keyed keywords; None for none.
        ``host(x, to, keywords, result)``: the plan of a call on the host, if there may be one. `kind`: that of device
        plans, by which the module serves calls itself."""
        self.hit, self._keep = plans.function(roles, second=second, **defaults)
        self._roles, self._ask, self._host, self._kind = roles, ask, host, kind
        self._out = list(defaults).index("out")
        #: Of the same calls for NumPy's arrays over the memory of other libraries: keys may be equal.
        self._for_views = partial(plans.function, roles, second=second, **defaults)
        self._cuda: dict[Any, CudaPlan] = {}
        # Programs hold kernels of the driver with which they were made.
        ON_NEW_DRIVER.append(self._cuda.clear)

    def call(self, checked: Callable[..., Any], x: Any, to: Any, keywords: tuple[Any, ...]) -> Any:
        """The result of a call by its plan, or of ``checked(x, to, *keywords)``, whose plan is kept."""
        found = self.hit(x, to, *keywords)
        return self.checked(checked, x, to, keywords) if found is None else found

    def checked(self, checked: Callable[..., Any], x: Any, to: Any, keywords: tuple[Any, ...]) -> Any:
        """The same for a call that has no plan yet."""
        return libraries.untraced(self._checked, checked, x, to, keywords)

    def _checked(self, checked: Callable[..., Any], x: Any, to: Any, keywords: tuple[Any, ...]) -> Any:
        library = libraries.find(x)
        numbers = None if library is None else library.without_gradients([x])
        if numbers is not None:
            # Plans are for numbers alone; nobody records the call.
            return self.call(checked, numbers[0], to, keywords)
        if recording.THREAD.recording is not None:
            # Part of another call, whose plan repeats all that is done.
            return checked(x, to, *keywords)
        with recording.recorded() as record:
            result = checked(x, to, *keywords)
        if MODULE is not None:
            self._keep_plan(x, to, keywords, result, record)
        return result

    # Numbers that plans keep, such as the factor of a transform, are not computed under the caller's modes.
    @exact()
    def _keep_plan(self, x: Any, to: Any, keywords: tuple[Any, ...], result: Any, record: recording.Recording) -> None:
        if not (hasattr(x, "dtype") and hasattr(x, "shape")):
            # Such as an object that only speaks a protocol: the module looks for no plan.
            return
        keyed = [value for value, role in zip(keywords, self._roles, strict=True) if role == "k"]
        if not (isinstance(to, Format) or plans.is_lasting(to)) or not plans.is_lasting(*keyed):
            return
        if record.launches:
            plan = self._cuda_plan(x, to, keywords, keyed, result, record)
        else:
            plan = (
                None
                if self._host is None
                else self._host(x, to, keywords, result) or self._by_view(x, to, keywords, result)
            )
        if plan is not None:
            self._keep(x, to, *keywords, plan)

    def _by_view(self, x: Any, to: Any, keywords: tuple[Any, ...], result: Any) -> Any:
        """The plan of a call on the host whose arrays another library lends to NumPy; None where there is none."""
        name = _library_name(x)
        if name is None or self._host is None or keywords[self._out] is not None:
            return None
        library = libraries.of_library(name)
        native, results, seen = _viewed(x, library), _viewed(result, library), _all_viewed(keywords, library, type(x))
        if native is None or results is None or seen is None:
            return None
        inner = self._host(native, to, seen, results)
        if inner is None:
            return None
        if self._hit_view is None:
            self._hit_view, self._keep_view = self._for_views()
        hit: Any = self._hit_view
        self._keep_view(native, to, *seen, inner)

        def run(x: Any, *free: Any) -> Any:
            given = iter(free)
            own = [value if role == "k" else next(given) for value, role in zip(keywords, self._roles, strict=True)]
            seen = None if own[self._out] is not None else _all_viewed(own, library, type(x))
            native = None if seen is None else _viewed(x, library)
            if seen is None or native is None:
                return None
            y = hit(native, to, *seen)
            return None if y is None else _given_back(y, library, name)

        return plans.make("", run)

    def _cuda_plan(
        self, x: Any, to: Any, keywords: tuple[Any, ...], keyed: list[Any], result: Any, record: recording.Recording
    ) -> Any:
        flags = [value is None for value, role in zip(keywords, self._roles, strict=True) if role == "f"]
        # 1 and True are two keys of the module.
        key = type(x), x.dtype, type(to), to, *map(type, keyed), *keyed, *flags
        plan = self._cuda.get(key)
        if plan is None:
            ask = self._ask(to, *keyed)
            if ask is None:
                return None
            if len(self._cuda) >= _MOST_PLANS:
                self._cuda.clear()
            plan = self._cuda[key] = CudaPlan(ask, self._kind)
        free = [value for value, role in zip(keywords, self._roles, strict=True) if role != "k"]
        return plan.keep((x, *free), record, result, _library_name(x))


def _library_name(x: Any) -> str | None:
    """The library of an array, or of the parts of a quantized one."""
    name: str | None = x.library if is_record(type(x)) else libraries.library_of(x)
    return name


def _viewed(x: Any, library: libraries.Library) -> Any:
    """An array, or an object of such, with NumPy's arrays over the same memory, but for packed codes; None where the
    library lends none."""
    if isinstance(x, tuple):
        parts = [_viewed(one, library) for one in x]
        is_known = all((part is None) == (one is None) for part, one in zip(parts, x, strict=True))
        return _tuple_like(x, parts) if is_known else None
    if x is None or isinstance(x, PackedArray):
        return x
    if not is_record(type(x)):
        return library.view(x)
    found = {name: part if isinstance(part, PackedArray) else library.view(part) for name, part in x.parts().items()}
    if any(part is None for part in found.values()):
        return None
    if x.format.element.packed and not isinstance(found["data"], PackedArray):
        found["data"] = PackedArray.pack(found["data"])
    native = object.__new__(type(x))
    vars(native).update(vars(x), **found, library=None)
    return native


def _all_viewed(keywords: Sequence[Any], library: libraries.Library, kind: type) -> tuple[Any, ...] | None:
    """Arguments with NumPy's arrays over the memory of those of a class; None where the library lends none."""
    found = list(keywords)
    for i, one in enumerate(keywords):
        if type(one) is kind:
            found[i] = library.view(one)
            if found[i] is None:
                return None
    return tuple(found)


def _tuple_like(x: Any, parts: Sequence[Any]) -> Any:
    """A tuple of the class of another one."""
    return tuple(parts) if type(x) is tuple else x._make(parts)


def _given_back(y: Any, library: libraries.Library, name: str) -> Any:
    """What `_viewed` makes of the arrays of a library, back."""
    if isinstance(y, tuple):
        return _tuple_like(y, [_given_back(one, library, name) for one in y])
    if y is None or isinstance(y, PackedArray):
        return y
    if not is_record(type(y)):
        return library.from_array(y)
    vars(y).update({key: library.from_array(part) for key, part in y.parts().items()}, library=name)
    return y


# ---- what calls ask for, on devices ----


def _quantized_on_device(
    to: Any, axis: Any, layout: Any, transpose: Any, rounding: Any, hadamard: Any, moved_to: Any
) -> Ask | None:
    if moved_to is not None:
        return None
    choose = choices(hadamard)

    def ask(x: Any, seed: Any, offset: Any, scale: Any, amax: Any, signs: Any, out: Any) -> Asked | None:
        found = choose(rounding, seed, offset, signs)
        if found is None:
            return None
        random, key = found
        read: list[Any] = [x]
        numbers: list[Any] = []
        for one in (scale, amax):
            if type(one) in (int, float):
                # It is among the arguments of the launches.
                numbers += type(one), one
            elif one is not None:
                # Another library's arrays may be written on another stream.
                if type(one) is not type(x):
                    return None
                read.append(one)
        if numbers:
            key = (key, *numbers)
        keeper = out[0] if type(out) is tuple and out else out
        return Asked(read, out, key, random, (), None, keeper, "quantize", found[1], (scale, amax))

    return ask


def _dequantized_on_device(to: Any, hadamard: Any) -> Ask | None:
    def ask(q: Any, signs: Any, seed: Any, out: Any) -> Asked | None:
        key = NO_SIGNS if hadamard is None else signs_of(signs, seed)
        if key is None or (hadamard is None and not signs is seed is None):
            return None
        read: list[Any] = []
        form = flat(q, read)
        return Asked(read, out, (*key, q.format.name, q.axis), None, (), form, q, "dequantize", key)

    return ask


def _transformed_on_device(length: Any, axis: Any, inverse: Any, to: Any) -> Ask | None:
    def ask(x: Any, signs: Any, seed: Any, out: Any) -> Asked | None:
        key = signs_of(signs, seed)
        return None if key is None else Asked([x], out, key, caller="hadamard")

    return ask


def _grouped_on_device(to: Any, *keyed: Any) -> Ask | None:
    rounding = keyed[-1]

    def ask(x: Any, offsets: Any, scale: Any, seed: Any, offset: Any, out: Any) -> Asked | None:
        found = by_numbers([x, offsets], scale, rounding, seed, offset)
        if found is None:
            return None
        read, key, random = found
        if random is not None and random.offset + x.shape[0] * x.shape[1] > 1 << 64:
            return None
        # Another library's arrays may be written on another stream.
        if any(type(one) is not type(x) for one in read):
            return None
        return Asked(read, out, key, random, caller="quantize_grouped")

    return ask


QUANTIZE = Repeats(
    "kkkkf.ffkfk.", _quantized_on_device, host_plans.quantized, second=("format", ...), kind="quantized",
    axis=-1, scale_layout="linear", transpose=False, rounding=None, seed=None, offset=0, scale=None, amax=None,
    hadamard=None, signs=None, device=None, out=None,
)  # fmt: skip
DEQUANTIZE = Repeats(
    "kff.", _dequantized_on_device, host_plans.dequantized, second=("to", "FLOAT"), kind="dequantized",
    hadamard=None, signs=None, seed=None, out=None,
)  # fmt: skip
HADAMARD = Repeats(
    "kffkk.",
    _transformed_on_device,
    host_plans.transformed,
    axis=-1,
    signs=None,
    seed=None,
    inverse=False,
    to="FLOAT",
    out=None,
)
#: The type or format comes first; the layout of scales is None for casts.
GROUPED, GROUPED_CASTS = (
    Repeats(
        ".fkkkf..", _grouped_on_device, grouped_on_host.planned,
        offsets=None, scale=None, pad=128, scale_layout="linear", rounding=None, seed=None, offset=0, out=None,
    )
    for _ in range(2)
)  # fmt: skip
