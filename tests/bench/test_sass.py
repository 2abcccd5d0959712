# SPDX-License-Identifier: Apache-2.0
"""Machine code as text in; instructions, basic blocks and the way of a full tile out."""

from __future__ import annotations

import re

import pytest

from bench.static.paths import Path, full_tile
from bench.static.sass import Access, Block, Instruction, UnknownCode, parse
from gpucast.compile import compiler, disassembler


def graph(text: str) -> str:
    """What nvdisasm prints for a kernel of one line per instruction; a label stands on its own line. Of jumps it knows
    BRA alone."""
    nodes: dict[str, list[str]] = {"k": []}
    name, edges, same = "k", list[tuple[str, str]](), dict[str, str]()
    for number, line in enumerate(map(str.strip, text.strip().splitlines())):
        if line.endswith(":"):
            if not nodes[name]:
                same[line[:-1]] = name
                continue
            if not re.match("(BRA|EXIT)", nodes[name][-1]):
                edges.append((name, line[:-1]))
            name = line[:-1]
            nodes[name] = []
            continue
        if nodes[name] and re.search(r"\b(BRA|EXIT|CALL)\b", nodes[name][-1]):
            if nodes[name][-1].startswith("@"):
                edges.append((name, f"BB{number}"))
            name = f"BB{number}"
            nodes[name] = []
        nodes[name].append(line)
        if target := re.search(r"BRA.*`\(([^)]+)\)", line):
            edges.append((name, target[1]))
    lines = ["digraph f {", 'subgraph "cluster_k" {']
    for name, code in nodes.items():
        label = "".join("\\ " + re.sub(r"([ {}<>|])", r"\\\1", line) + "\\ ;\\l" for line in code)
        lines += [f'"{name}"', f'[label="{{<entry>{label}}}"]']
    lines += [f'"{one}":exit0:e -> "{same.get(other, other)}":entry:n [style=solid];' for one, other in edges]
    return "\n".join([*lines, "}", "}", ""])


def flow(text: str) -> list[Block]:
    return parse(graph(text))["k"]


def instructions(text: str) -> list[Instruction]:
    return [one for block in flow(text) for one in block.instructions]


def shape(found: list[Block]) -> list[tuple[int, list[int], bool]]:
    """Of every block: how many instructions, what follows, whether it ends the thread."""
    return [(len(block.instructions), block.successors, block.exits) for block in found]


def test_an_instruction_is_taken_apart() -> None:
    guarded, store, wide, narrow, jump, _ = instructions(
        """
        @!P0 LDG.E.128.CONSTANT R4, desc[UR4][R2.64+-0x10]
        STG.E.U8 desc[UR4][R2.64], RZ
        LDG.E.ENL2.256 R8, R4, desc[UR4][R2.64]
        @P1 LDS.U16 R0, [R3+UR5+0x20]
        @UP1 BRA `(.L_x_0)
        .L_x_0:
        EXIT
        """
    )
    assert (guarded.guard, guarded.opcode, guarded.base) == ("!P0", "LDG.E.128.CONSTANT", "LDG")
    assert guarded.operands == ("R4", "desc[UR4][R2.64+-0x10]")
    assert guarded.access == Access("global", False, 16)
    assert store.access == Access("global", True, 1)
    assert wide.access == Access("global", False, 32)
    assert narrow.access == Access("shared", False, 2)
    assert (jump.operands, jump.access) == (("`(...)",), None)
    assert str(guarded) == " @!P0 LDG.E.128.CONSTANT R4, desc[UR4][R2.64+-0x10]"


@pytest.mark.parametrize(
    ("line", "predicates"),
    [
        ("ISETP.GT.U32.AND P1, PT, R6, UR8, P3", {"P1", "PT"}),
        ("PLOP3.LUT P0, PT, P2, P1, PT, 0x2, 0x0", {"P0", "PT"}),
        ("IADD3 R14, P1, P3, R11, R8, -R15", {"P1", "P3"}),
        ("IADD3.X R0, R5, -0x1, RZ, P0, !PT", set()),
        ("LOP3.LUT P1, RZ, R12, 0xf, RZ, 0xc0, !PT", {"P1"}),
        ("SEL R5, RZ, 0x2, P0", set()),
        ("UISETP.NE.U32.AND UP0, UPT, UR4, URZ, UPT", {"UP0", "UPT"}),
    ],
)
def test_which_predicates_an_instruction_sets(line: str, predicates: set[str]) -> None:
    assert instructions(line)[0].sets() == predicates


def test_a_diamond() -> None:
    found = flow(
        """
        ISETP.NE.AND P0, PT, R0, RZ, PT
        @P0 BRA `(.L_x_0)
        MOV R1, R2
        BRA `(.L_x_1)
        .L_x_0:
        MOV R1, R3
        .L_x_1:
        STG.E desc[UR4][R2.64], R1
        EXIT
        """
    )
    assert shape(found) == [(2, [1, 2], False), (1, [3], False), (2, [3], False), (2, [], True)]


def test_an_exit_under_a_condition_goes_on() -> None:
    found = flow("@P0 EXIT\nMOV R1, R2\nEXIT")
    assert shape(found) == [(1, [1], True), (2, [], True)]


@pytest.mark.parametrize("jump", ["BRX R2 -0x10", "JMP R4", "CALL.REL.NOINC `(f)"])
def test_a_jump_to_nobody_knows_where(jump: str) -> None:
    with pytest.raises(UnknownCode, match=re.escape(jump.split(maxsplit=1)[0])):
        flow(f"{jump}\nEXIT")


# ---- the way of a tile ----


def test_a_kernel_that_never_ends() -> None:
    with pytest.raises(UnknownCode, match="no way leads to an exit"):
        full_tile(flow(".L_x_0:\nBRA `(.L_x_0)"))


def tile_path(text: str, load_bytes: int, store_bytes: int) -> Path:
    return full_tile(flow(text), load_bytes, store_bytes)


ONE_BLOCK = "LDG.E.128 R4, desc[UR4][R2.64]\nIADD3 R4, R4, 0x1, RZ\nSTG.E.128 desc[UR4][R8.64], R4\nEXIT"


def test_straight_code_counts_whole() -> None:
    assert tile_path(ONE_BLOCK, 16, 16) == Path((0,), 4, {16: 1}, {16: 1}, False)


def test_the_wide_way_is_taken_and_its_longer_side_counts() -> None:
    """Behind the check for a whole tile: a wide way, with a side of one and of three instructions, and a narrow one."""
    found = tile_path(
        """
        S2R R0, SR_TID.X
        @P0 BRA `(.L_tail)
        LDG.E.128 R4, desc[UR4][R2.64]
        @P1 BRA `(.L_long)
        MOV R4, R5
        BRA `(.L_store)
        .L_long:
        MOV R4, R6
        MOV R5, R6
        MOV R7, R6
        .L_store:
        STG.E.64 desc[UR4][R8.64], R4
        EXIT
        .L_tail:
        LDG.E.64 R4, desc[UR4][R2.64]
        LDG.E.64 R6, desc[UR4][R2.64+0x8]
        STG.E desc[UR4][R8.64], R4
        STG.E desc[UR4][R8.64+0x4], R6
        EXIT
        """,
        16,
        8,
    )
    assert (found.instructions, found.loads, found.stores, found.loop) == (9, {16: 1}, {8: 1}, False)


def test_of_opposite_guards_one_counts_as_access_and_both_as_instructions() -> None:
    found = tile_path(
        """
        @!P0 LDG.E R4, desc[UR4][R2.64]
        @!P0 LDG.E R5, desc[UR4][R2.64+0x4]
        @!P0 LDG.E R6, desc[UR4][R2.64+0x8]
        @P0 LDG.E.64 R4, desc[UR4][R12.64]
        STG.E.64 desc[UR4][R8.64], R4
        EXIT
        """,
        8,
        8,
    )
    assert (found.loads, found.instructions) == ({8: 1}, 6)


MARKED = """
    LDG.E.128 R4, desc[UR4][R2.64]
    @P0 BRA `(.L_rare)
    .L_store:
    STG.E.128 desc[UR4][R8.64], R4
    EXIT
    .L_rare:
    {}
    MOV R4, R6
    MOV R5, R6
    BRA `(.L_store)
    """


def test_a_loop_is_told_but_not_that_of_a_tail_nor_a_marked_one() -> None:
    turn = ".L_turn:\nMOV R1, R2\n@P1 BRA `(.L_turn)"
    always = tile_path(f"{turn}\n{ONE_BLOCK}", 16, 16)
    assert (always.loop, always.instructions) == (True, 6)
    # A loop that may be passed by.
    sometimes = tile_path(MARKED.format(turn), 16, 16)
    assert (sometimes.loop, sometimes.instructions) == (True, 4)
    before = tile_path(f"@P0 BRA `(.L_tile)\n{turn}\n.L_tile:\n{ONE_BLOCK}", 16, 16)
    assert (before.loop, before.instructions) == (True, 5)
    rarely = tile_path(MARKED.format(f"PMTRIG 0x2\n{turn}"), 16, 16)
    assert (rarely.loop, rarely.instructions) == (False, 4)
    tail = tile_path(
        """
        LDG.E.128 R4, desc[UR4][R2.64]
        @P0 BRA `(.L_turn)
        STG.E.128 desc[UR4][R8.64], R4
        EXIT
        .L_turn:
        STG.E.U8 desc[UR4][R8.64], R4
        @P1 BRA `(.L_turn)
        EXIT
        """,
        16,
        16,
    )
    assert (tail.loop, tail.instructions) == (False, 4)
    # A loop over tiles at the ends of the array, one turn of which has the same accesses.
    ends = tile_path(
        f"@P0 BRA `(.L_turn)\n{ONE_BLOCK}\n.L_turn:\n" + ONE_BLOCK.replace("EXIT", "@P1 BRA `(.L_turn)\nEXIT"), 16, 16
    )
    assert (ends.loop, ends.instructions) == (False, 5)
    # A thread with a tile leaves under the condition that its accesses have.
    rest = "\n.L_turn:\nSTG.E.U8 desc[UR4][R8.64], R4\n@P1 BRA `(.L_turn)\nEXIT"
    leaves = tile_path("\n".join(f"@!P0 {line.strip()}" for line in ONE_BLOCK.strip().splitlines()) + rest, 16, 16)
    assert (leaves.loop, leaves.stores) == (False, {16: 1})


# ---- what the compiler makes ----

_KERNEL = """
extern "C" __global__ void __launch_bounds__(256) k(const uint4* src, uint4* dst, unsigned n) {{
    const unsigned i = blockIdx.x * 256 + threadIdx.x;
    {check}
    uint4 v = src[i];
    {work}
    dst[i] = v;
}}
"""


def compiled(work: str = "", check: str = "", arch: str = "sm_90") -> list[Block]:
    code = compiler.compile(_KERNEL.format(check=check, work=work), "k", arch).code
    return parse(disassembler.disassemble(code, disassembler.GRAPH).decode())["k"]


@pytest.mark.parametrize(
    ("work", "arch"), [("", "sm_80"), ("v.x ^= v.y; v.z ^= 77; v.w *= v.x;", "sm_90"), ("v.x ^= v.y;", "sm_100")]
)
def test_compiled_code_without_branches_counts_to_its_exit(work: str, arch: str) -> None:
    code = compiler.compile(_KERNEL.format(work=work, check=""), "k", arch).code
    listed = re.findall(r"^\s+/\*[0-9a-f]{4}\*/\s+(\S+)", disassembler.disassemble(code).decode(), re.MULTILINE)
    found = full_tile(compiled(work, arch=arch), 16, 16)
    assert found.instructions == listed.index("EXIT") + 1 > 8
    assert (found.loads, found.stores, found.loop) == ({16: 1}, {16: 1}, False)


def test_threads_that_part_meet_again() -> None:
    """Both sides of a branch that the compiler keeps lead to the store, each of them once."""
    blocks = compiled("if (v.x & 1) { v.x /= v.y; v.y *= 3; } else { v.z /= v.w; }")
    (last,) = [number for number, block in enumerate(blocks) if block.exits]
    before = [number for number, block in enumerate(blocks) if last in block.successors]
    assert len(before) == 2 and not any(blocks[number].exits for number in before)
