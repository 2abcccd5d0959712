# SPDX-License-Identifier: Apache-2.0
"""The cache of plans: a call keeps its decisions for the next call of the same kind.

A plan is found by the function, the class of x, its dtype, its new type and the keywords, in one probe; it then looks
at the arrays themselves. The cache is in the extension module, which runs plans of casts; without it there are none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from gpucast.arrays.packed import PackedArray
from gpucast.core.dtypes import DTYPES, DType, is_foreign
from gpucast.core.extension import MODULE
from gpucast.core.rule import CAST_VERSIONS, CastRule, Options
from gpucast.host import loops
from gpucast.kernel import ON_NEW_DRIVER

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _nothing(*call: Any) -> None:
    """Keep no plan: without the extension module every call takes the checked path."""


def function(
    roles: str, *, second: tuple[str, Any] = ("to", ...), **defaults: Any
) -> tuple[Callable[..., Any], Callable[..., None]]:
    """``hit`` and ``keep`` of a public function with these keywords, in their order.

    ``hit(x, to, keywords)``, or ``hit(x, to, ...)`` with all of them: the result of a call for which there is a plan;
    None, nothing done, for any other call. ``keep(x, to, ..., plan)`` makes the plan serve calls like this one.
    A role says how a keyword takes part in the search: "k" by what it is, "f" by whether it is None, "." not at all.
    `second`: the name of the second argument, and its default, or ``...``.
    """
    if MODULE is None:
        return _nothing, _nothing
    found: tuple[Any, Any] = MODULE.function(*second, tuple(defaults), tuple(defaults.values()), roles)
    _hits.append(found[0])
    for look in _looks:
        look(found[0])
    return found


_hits: list[Callable[..., Any]] = []
_looks: list[Callable[[Callable[..., Any]], object]] = []


def for_each_hit(look: Callable[[Callable[..., Any]], object]) -> None:
    """Call ``look(hit)`` for the `hit` of each function, also of those that come later."""
    _looks.append(look)
    for found in _hits:
        look(found)


#: The keywords of a cast.
_KEYWORDS = dict(zip(Options._fields[:12], Options()[:12], strict=True))
_ROLES = "kkkkkf.ffk.k"
hit, _keep = function(_ROLES, **_KEYWORDS)
#: The keywords of `gpucast.cast_many` have the same places; a call cannot name those of a cast that it has not.
hit_list, keep_list = function(
    f"{_ROLES}f.",
    **{{"device": " device", "copy": " copy"}.get(name, name): value for name, value in _KEYWORDS.items()},
    finite=None,
    floating_only=False,
)


def by_plan(hit: Callable[..., Any]) -> Callable[[_Function], _Function]:
    """The same function of an array, what it is to become, and keywords, which takes the result of a plan where `hit`
    gives one."""

    def decorated(checked: _Function) -> _Function:
        function: Any = checked
        name, second, required = function.__name__, function.__code__.co_varnames[1], not function.__defaults__

        # Keywords that are not given cost nothing: so a call takes half as long as with a parameter for each.
        @wraps(checked)
        def call(x: Any = ..., to: Any = ..., /, **keywords: Any) -> Any:
            result = hit(x, to, keywords)
            if result is not None:
                return result
            if to is not ...:
                return checked(x, to, **keywords)
            if required and second not in keywords:
                raise TypeError(f"{name}: no type is given; expected one: the second argument is `{second}`")
            return checked(**keywords) if x is ... else checked(x, **keywords)

        return call  # type: ignore[return-value]

    return decorated


forget: Callable[[], None] = _nothing if MODULE is None else MODULE.forget
count: Callable[[], int] = (lambda: 0) if MODULE is None else MODULE.count_plans


class Kernels(NamedTuple):
    """The kernels of a plan by device: those that multiply by any DOUBLE, and those by a scale that FLOAT has."""

    by_double: dict[int, Any]
    by_float: dict[int, Any] | None

    @classmethod
    def of(cls, fuses: bool) -> Kernels:
        return cls({}, {} if fuses else None)


def make(
    kind: Literal["numpy", "cupy", "packed", "tensors", "list", "quantized", "dequantized", ""],
    run: Callable[..., Any] | None = None,
    empty: Callable[[Any], Any] | None = None,
    rule: CastRule | None = None,
    works: bytes | None = None,
    kernels: dict[Any, Any] | None = None,
    kernels_by_float: dict[Any, Any] | None = None,
    library: Any = None,
    made: Any = None,
    bits: tuple[int, int] = (0, 0),
) -> Any:
    """A plan of the module (``kernels/host/plan.hpp``), run for arrays of a kind; "": by `run` alone.

    ``run(x, ...)``, with the keywords that are no keys, serves calls that the module leaves to it: it gives the result,
    or None, nothing done, where only the checked path can tell what is right. ``empty(x)`` gives a new result, or None.
    """
    src, dst = (None, None) if rule is None else (rule.src.numpy, rule.dst.numpy)
    return MODULE.plan(kind, run, empty, src, dst, works, kernels, kernels_by_float, library, made, *bits)


def keep(x: Any, to: Any, options: Options, rule: CastRule, plan: Any) -> None:
    """Keep the plan of a cast, if the names in the call can never change their meaning. `plan`: None for none."""
    if plan is None or options.versions is not CAST_VERSIONS or options.device is not None:
        return
    if not (options.copy is True or (options.copy is False and rule.src is not rule.dst)):
        return
    if is_lasting(x.dtype, to, *options[:5]):
        _keep(x, to, *options[:12], plan)


def works(rule: CastRule, fuses: bool, scaled: bool) -> bytes | None:
    """The work of loops in a plan; None where the module has none, as for types that came later."""
    if MODULE is None or rule.src not in DTYPES or rule.dst not in DTYPES or not has_arrays(rule):
        return None
    try:
        return loops.fused(rule, scaled) if fuses else loops.plain(rule)
    except LookupError:
        return None


@lru_cache(maxsize=4096)
def of_arrays(rule: CastRule, fuses: bool, scaled: bool) -> Any:
    """The plan for casts of NumPy's arrays; None where there is none."""
    found = works(rule, fuses, scaled)
    return None if found is None else of_works(rule, found)


@lru_cache(maxsize=1024)
def of_packed(rule: CastRule, fuses: bool, scaled: bool) -> Any:
    """The plan for casts of packed elements in NumPy's bytes; None where there is none."""
    found, bits = works(rule, fuses, scaled), (rule.src.bits, rule.dst.bits if rule.dst.packed else 0)
    if found is None:
        return None
    return make("packed", rule=rule, works=found, library=PackedArray, made=rule.dst, bits=bits)


def of_works(rule: CastRule, works: bytes) -> Any:
    """The plan for NumPy's arrays of a rule's types by these works."""
    return make("numpy", rule=rule, works=works)


def has_arrays(rule: CastRule) -> bool:
    """Whether the module knows the arrays of both types: not those of types that NumPy and ml_dtypes lack."""
    return not (rule.src.numpy.names or rule.dst.numpy.names)


def is_lasting(*values: Any) -> bool:
    """Whether no value can come to mean something else: none can change."""
    for value in values:
        if not (isinstance(value, (type, np.dtype, DType)) or type(value) in (bool, int, str, type(None))):
            if not (is_lasting(*value) if type(value) is tuple else is_foreign(type(value))):
                return False
    return True


# Plans hold kernels of the driver with which they were made.
ON_NEW_DRIVER.append(forget)
