# SPDX-License-Identifier: Apache-2.0
"""The list of all kernels, and the digests of their PTX."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from bench.static import digests
from bench.static.catalog import all_kernels, chosen
from gpucast.core.dtypes import dtype
from gpucast.core.rule import resolve
from gpucast.kernel.fused_kernel import cast_kernel
from gpucast.kernel.kernel import Kernel


def kernel(src: str, dst: str) -> Kernel:
    return cast_kernel(resolve(dtype(src), dtype(dst)))


def changed(of: Kernel, old: str, new: str) -> Kernel:
    """The kernel with a piece of its text replaced."""
    assert old in of.line
    return dataclasses.replace(of, line=of.line.replace(old, new))


#: The digests of PTX so far: no text is compiled twice.
KNOWN: dict[tuple[str, str], str] = {}


def rows(*kernels: Kernel, done: Any = None, share: Any = None) -> dict[str, Any]:
    archs = ["sm_90"]
    known = (KNOWN if share is None else {}) if done is None else done
    found = digests.digests(kernels, kernels if share is None else share, archs, 1, known)
    if done is None:
        KNOWN.update(digests.known(found))
    # As it is read from a file.
    return json.loads(json.dumps({"architectures": archs, "only": "", "kernels": found}))


def differences(old: Any, new: Any) -> list[str]:
    return digests.compared(old, new).lines


def test_comments() -> None:
    text = 'a // one\n/* two\n three */ b "// kept" \'c\'\n\n  asm("/* kept */ \\" // kept");\n'
    assert digests.without_comments(text) == 'a\nb "// kept" \'c\'\nasm("/* kept */ \\" // kept");'


def test_a_change_of_a_kernel_is_told_and_a_comment_is_none() -> None:
    one, other = kernel("FLOAT", "INT8"), kernel("FLOAT", "INT16")
    before = rows(one, other)
    assert digests.compared(before, rows(one, other)) == (2, 0, 0, [])
    commented = changed(one, "\n", " // a comment\n")
    assert rows(commented)["kernels"] == rows(one)["kernels"]
    wraps = changed(one, "Overflow::wrap", "Overflow::saturate")
    name, wider = one.name, other.name
    assert differences(before, rows(wraps, other)) == [f"differs: sm_90 {name}"]
    assert differences(before, rows(one)) == [f"gone: {wider}"]
    assert differences(rows(one), before) == [f"new: {wider}"]
    # Another text with the same PTX.
    spaced = changed(one, "Overflow::wrap", "Overflow ::wrap")
    assert digests.compared(before, rows(spaced, other)) == (1, 1, 0, [])
    # Two kernels of a name are a set.
    both = rows(one, wraps)
    assert differences(both, rows(wraps, one)) == []
    assert differences(both, before | {"kernels": {name: before["kernels"][name]}}) == [f"differs: sm_90 {name}"]


def test_another_text_without_ptx_is_left() -> None:
    one = kernel("FLOAT", "INT8")
    wraps = changed(one, "Overflow::wrap", "Overflow::saturate")
    texts = rows(one, share=[])
    assert texts["kernels"][one.name][0][1] == {}
    assert digests.compared(rows(one), texts) == (1, 0, 0, []) == digests.compared(texts, rows(one))
    assert digests.compared(texts, rows(wraps)) == (0, 0, 1, []) == digests.compared(rows(wraps), texts)
    # Parts count, too.
    longer = dataclasses.replace(one, parts=(*one.parts, "fused.cu"))
    assert digests.text_digest(longer) != digests.text_digest(one) != digests.text_digest(wraps)


def test_known_text_is_not_compiled_again() -> None:
    one = kernel("FLOAT", "INT8")
    text = rows(one)["kernels"][one.name][0][0]
    (of_name,) = rows(one, done={(text, "sm_90"): "from before"})["kernels"].values()
    assert of_name == [[text, {"sm_90": "from before"}]]
    assert digests.known({"k": [(text, {"sm_90": "p"})]}) == {(text, "sm_90"): "p"}


def test_only_what_both_files_cover_is_compared() -> None:
    before = rows(kernel("FLOAT", "INT8"), kernel("FLOAT", "INT16"))
    after = rows(kernel("FLOAT", "INT16")) | {"only": "int16"}
    assert differences(before, after) == []
    many = [f"kernel{number}" for number in range(4000)]
    tenth = [name for name in many if chosen(name, 10, "")]
    shards = [name for shard in range(10) for name in many if chosen(name, 10, "", shard)]
    assert sorted(shards) == sorted(many) and shards[: len(tenth)] == tenth
    assert 300 < len(tenth) < 500 and tenth == [name for name in many if chosen(name, 10, "")]


def test_every_family_is_in_the_list(exhaustive: bool) -> None:
    kernels = all_kernels()
    assert [one.name for one in kernels] == sorted(one.name for one in kernels)
    names = {one.name for one in kernels}
    assert len(kernels) > (30_000 if exhaustive else 5_000)
    for part in ("many_", "scaled_wide_amax", "stochastic", "transposed", "strided", "unpacked", "finite", "select"):
        assert any(part in name for name in names), part
    for part in ("quantize_groups", "tiles", "hadamard", "4over6", "_back", "row_scaled", "steps", "128x4", "top"):
        assert any(part in name for name in names), part


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    options = ["--only", "^gpucast_float32_to_(int8|bool)$", "--arch", "sm_90", "--jobs", "1"]
    assert digests.main([str(before), *options]) == 0
    figures = json.loads(before.read_text())
    assert list(figures["kernels"]) == ["gpucast_float32_to_bool", "gpucast_float32_to_int8"]
    del figures["kernels"]["gpucast_float32_to_int8"]
    before.write_text(json.dumps(figures))
    assert digests.main([str(after), *options, "--against", str(before)]) == 1
    told = capsys.readouterr().out
    assert "the text of 2 kernels, the PTX of 2 (100.0%) for sm_90, in" in told
    assert (
        "new: gpucast_float32_to_int8\n1 kernels of the same text, 0 of the same PTX, 0 of another text without PTX, "
        "not compared; 1 differences" in told
    )
    assert digests.main([str(after), *options, "--texts"]) == 0
    assert "the PTX of 0 (0.0%)" in capsys.readouterr().out
    figures["compiler"] = "1.0"
    before.write_text(json.dumps(figures))
    with pytest.raises(SystemExit, match="before.json is of NVRTC 1.0, this is NVRTC"):
        digests.main([str(after), *options, "--against", str(before)])
