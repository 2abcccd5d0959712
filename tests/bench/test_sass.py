# SPDX-License-Identifier: Apache-2.0
"""Machine code in; instructions, basic blocks and the way of a full tile out."""

from __future__ import annotations

import re

import pytest

from bench.static.paths import Path, by_wide_accesses, full_tile
from bench.static.sass import Access, Block, Instruction, UnknownCode, parse
from gpucast.kernel import compiler, disassembler


def instruction(line: str) -> Instruction:
    found = re.fullmatch(r"(?:@(!?\w+) )?(\S+) ?(.*)", line.strip())
    assert found is not None
    return Instruction(found[1] or "", found[2], tuple(found[3].split(", ")))


def flow(*blocks: tuple[str, list[int]]) -> list[Block]:
    """Blocks of instructions, one a line, each with the numbers of those that follow it."""
    return [Block([instruction(line) for line in code.splitlines()], following) for code, following in blocks]


@pytest.mark.parametrize(
    ("line", "predicates", "access"),
    [
        ("@!P0 LDG.E.128.CONSTANT R4, desc[UR4][R2.64+-0x10]", set(), Access("global", False, 16)),
        ("STG.E.U8 desc[UR4][R2.64], RZ", set(), Access("global", True, 1)),
        ("LDG.E.ENL2.256 R8, R4, desc[UR4][R2.64]", set(), Access("global", False, 32)),
        ("@P1 LDS.U16 R0, [R3+UR5+0x20]", set(), Access("shared", False, 2)),
        ("ISETP.GT.U32.AND P1, PT, R6, UR8, P3", {"P1", "PT"}, None),
        ("PLOP3.LUT P0, PT, P2, P1, PT, 0x2, 0x0", {"P0", "PT"}, None),
        ("IADD3 R14, P1, P3, R11, R8, -R15", {"P1", "P3"}, None),
        ("IADD3.X R0, R5, -0x1, RZ, P0, !PT", set(), None),
        ("LOP3.LUT P1, RZ, R12, 0xf, RZ, 0xc0, !PT", {"P1"}, None),
        ("SEL R5, RZ, 0x2, P0", set(), None),
        ("UISETP.NE.U32.AND UP0, UPT, UR4, URZ, UPT", {"UP0", "UPT"}, None),
    ],
)
def test_what_an_instruction_sets_and_accesses(line: str, predicates: set[str], access: Access | None) -> None:
    assert instruction(line).sets() == predicates
    assert instruction(line).access == access


def test_a_jump_to_nobody_knows_where() -> None:
    for jump in ("BRX R2 -0x10", "JMP R4", "CALL.REL.NOINC `(f)"):
        text = f'digraph f {{\nsubgraph "cluster_k" {{\n"k"\n[label="{{<entry>{jump} ;\\l}}"]\n}}\n}}\n'
        with pytest.raises(UnknownCode, match=re.escape(jump.split(maxsplit=1)[0])):
            parse(text)


def test_a_jump_whose_places_are_named() -> None:
    jump = 'BRX R2 -0x10 (*"BRANCH_TARGETS .L_1,.L_2"*)'
    nodes = "".join(f'"{name}"\n[label="{{<entry>{code} ;\\l}}"]\n' for name, code in
                    (("k", jump.replace('"', '\\"')), (".L_1", "EXIT"), (".L_2", "EXIT")))  # fmt: skip
    (blocks,) = parse(f'digraph f {{\nsubgraph "cluster_k" {{\n{nodes}}}\n}}\n').values()
    assert [block.successors for block in blocks] == [[1, 2], [], []]


# ---- the way of a tile ----

LOAD, STORE = "LDG.E.128 R4, desc[UR4][R2.64]", "STG.E.128 desc[UR4][R8.64], R4"
TURN = "MOV R1, R2\n@P1 BRA"
MOVES = "MOV R4, R6\nMOV R5, R6\nBRA"
TAIL = "STG.E.U8 desc[UR4][R8.64], R4\n@P1 BRA"

#: Blocks, and the instructions of the path of a tile of 16 bytes: a loop counts once, a rare one and a tail not at all.
LOOPS: dict[str, tuple[list[Block], int]] = {
    "straight": (flow((f"{LOAD}\nIADD3 R4, R4, 0x1, RZ\n{STORE}\nEXIT", [])), 4),
    "always": (flow((TURN, [0, 1]), (f"{LOAD}\n{STORE}\nEXIT", [])), 5),
    "before": (flow(("@P0 BRA", [1, 2]), (TURN, [1, 2]), (f"{LOAD}\n{STORE}\nEXIT", [])), 4),
    "sometimes": (
        flow((f"{LOAD}\n@P0 BRA", [1, 2]), (f"{STORE}\nEXIT", []), (TURN, [2, 3]), (MOVES, [1])), 4,
    ),
    "rarely": (
        flow((f"{LOAD}\n@P0 BRA", [1, 2]), (f"{STORE}\nEXIT", []), ("PMTRIG 0x2", [3]), (TURN, [3, 4]), (MOVES, [1])),
        4,
    ),
    "tail": (
        flow((f"{LOAD}\n@P0 BRA", [1, 2]), (f"{STORE}\nEXIT", []), (TAIL, [2, 3]), ("EXIT", [])), 4,
    ),
    # One turn over tiles at the ends of the array has the same accesses.
    "ends": (
        flow(("@P0 BRA", [1, 2]), (f"{LOAD}\n{STORE}\nEXIT", []), (f"{LOAD}\n{STORE}\n@P1 BRA", [2, 3]), ("EXIT", [])),
        4,
    ),
    # A thread with a tile leaves under the condition that its accesses have.
    "leaves": (flow((f"@!P0 {LOAD}\n@!P0 {STORE}\n@!P0 EXIT", [1]), (TAIL, [1, 2]), ("EXIT", [])), 3),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_loops_are_passed_once_at_most(name: str) -> None:
    blocks, instructions = LOOPS[name]
    found = full_tile(blocks, 16, 16)
    assert found.instructions == instructions
    assert (found.loads, found.stores) == ({16: 1}, {16: 1})


def test_the_wide_way_is_taken_and_its_longer_side_counts() -> None:
    wide, narrow = "LDG.E.128 R4, desc[UR4][R2.64]\n@P1 BRA", "LDG.E.64 R4, desc[UR4][R2.64]"
    blocks = flow(
        ("S2R R0, SR_TID.X\n@P0 BRA", [1, 5]),
        (wide, [2, 3]),
        ("MOV R4, R5\nBRA", [4]),
        ("MOV R4, R6\nMOV R5, R6\nMOV R7, R6", [4]),
        ("STG.E.64 desc[UR4][R8.64], R4\nEXIT", []),
        (f"{narrow}\n{narrow}\nSTG.E desc[UR4][R8.64], R4\nSTG.E desc[UR4][R8.64+0x4], R6\nEXIT", []),
    )
    assert full_tile(blocks, 16, 8) == Path((0, 1, 3, 4), 9, {16: 1}, {8: 1})


def test_of_opposite_guards_one_counts_as_access_and_both_as_instructions() -> None:
    narrow = "\n".join("@!P0 LDG.E R4, desc[UR4][R2.64]" for _ in range(3))
    wide = "@P0 LDG.E.64 R4, desc[UR4][R12.64]\nSTG.E.64 desc[UR4][R8.64], R4\nEXIT"
    found = full_tile(flow((f"{narrow}\n{wide}", [])), 8, 8)
    assert (found.loads, found.instructions) == ({8: 1}, 6)
    with pytest.raises(UnknownCode, match="no way leads to an exit"):
        full_tile(flow(("BRA", [0])))


def test_of_too_many_paths_wide_accesses_tell() -> None:
    """Narrow loads may be passed by or not, then comes a tile: the longest path to it counts."""
    narrow = [("LDG.E R4, desc[UR4][R2.64]\n@P0 BRA", [n + 1, n + 2]) for n in range(30)]
    blocks = flow(*narrow, ("MOV R1, R2", [31]), (f"{LOAD}\n{STORE}\nEXIT", []))
    found = by_wide_accesses(blocks, 16, 16)
    assert found.blocks == tuple(range(32)) and (found.loads, found.stores) == ({4: 30, 16: 1}, {16: 1})
    # Where all have a loop, the shortest one does.
    looping = flow(
        (f"{LOAD}\n@P0 BRA", [0, 1]), ("@P0 BRA", [2, 3]), ("MOV R1, R2\n" * 9 + "BRA", [3]), (f"{STORE}\nEXIT", [])
    )
    assert by_wide_accesses(looping, 16, 16).blocks == (0, 1, 3)


# ---- what the compiler makes ----

_KERNEL = """
extern "C" __global__ void __launch_bounds__(256) k(const uint4* src, uint4* dst) {{
    const unsigned i = blockIdx.x * 256 + threadIdx.x;
    uint4 v = src[i];
    {work}
    dst[i] = v;
}}
"""


def compiled(work: str, arch: str = "sm_90") -> tuple[list[Block], list[str]]:
    """The blocks of a kernel, and its opcodes as listed."""
    code = compiler.compile(_KERNEL.format(work=work), "k", arch).code
    listed = re.findall(r"^\s+/\*[0-9a-f]{4}\*/\s+(\S+)", disassembler.disassemble(code).decode(), re.MULTILINE)
    return parse(disassembler.disassemble(code, disassembler.GRAPH).decode())["k"], listed


@pytest.mark.parametrize(
    ("work", "arch"), [("", "sm_80"), ("v.x ^= v.y; v.z ^= 77; v.w *= v.x;", "sm_90"), ("v.x ^= v.y;", "sm_100")]
)
def test_compiled_code_without_branches_counts_to_its_exit(work: str, arch: str) -> None:
    blocks, listed = compiled(work, arch)
    found = full_tile(blocks, 16, 16)
    assert found.instructions == listed.index("EXIT") + 1 > 8
    assert (found.loads, found.stores) == ({16: 1}, {16: 1})


def test_threads_that_part_meet_again() -> None:
    """Both sides of a branch that the compiler keeps lead to the store, each of them once."""
    blocks, _ = compiled("if (v.x & 1) { v.x /= v.y; v.y *= 3; } else { v.z /= v.w; }")
    (last,) = [number for number, block in enumerate(blocks) if block.exits]
    before = [number for number, block in enumerate(blocks) if last in block.successors]
    assert len(before) == 2 and not any(blocks[number].exits for number in before)
