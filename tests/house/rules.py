# SPDX-License-Identifier: Apache-2.0
"""Checks the rules of the house that no compiler sees: who may include whom, and what a source file begins with.

    rules.py DIRECTORY      prints each broken rule as file:line: sentence, exit 1 if there is one
"""
import re
import sys
from pathlib import Path

# A folder may include itself and these. reference and sharded share only model: else comparing them proves nothing.
MAY_INCLUDE = {
    "model": set(),
    "reference": {"model"},
    "kernels": {"model"},
    "sharded": {"kernels", "model"},
    "sim": {"sharded", "kernels", "model"},
    "harness": {"model", "reference", "kernels", "sharded", "sim"},
}
# Place, what it may not include, why; the first place that a file lies in counts.
MAY_NOT_INCLUDE = [
    # harness/local recomputes what the program did; calling the program's own code would repeat its mistakes.
    ("harness/local/", re.compile(r"(sharded/ops|kernels/(cpu|meta|cuda|emu|twin|field))/"),
     "it recomputes what that code did"),
    ("harness/proof/", re.compile(r"kernels/(cpu|meta|cuda|emu)/"), "it knows the field alone"),
    # A communicator of GPUs moves their memory.
    ("sharded/comm/nccl/", re.compile(r"kernels/(cpu|meta|emu|field)/"), "it is for GPUs alone"),
    *((place, re.compile(r"kernels/(cpu|meta|cuda|emu|field)/"), "it runs on every device and may not know on which")
      for place in ("sharded/", "sim/", "harness/")),
]

INCLUDE = re.compile(r'\s*#\s*include\s*[<"]([^>"]+)[>"]')
HEAVY = re.compile(r"(Eigen|nlohmann|CLI)/")
PRIVATE = re.compile(r"^// (.* )?Private[ :]", re.M)
SOURCES = {".cpp", ".hpp", ".cu", ".cuh"}
LICENCE = "// SPDX-License-Identifier: Apache-2.0"


def problems_of(name, text):
    """Yields (line, sentence) for the file of that name, relative to the root."""
    folder = name.split("/")[0]
    lines = text.splitlines()
    if not lines or lines[0] != LICENCE:
        yield 1, f"the first line is not '{LICENCE}'"
    if name.endswith((".hpp", ".cuh")) and "#pragma once" not in lines:
        yield 1, "a header without #pragma once"
    for number, line in enumerate(lines, 1):
        include = INCLUDE.match(line)
        if not include:
            continue
        target = include.group(1)
        other = target.split("/")[0]
        if folder in MAY_INCLUDE and other in MAY_INCLUDE and other not in MAY_INCLUDE[folder] | {folder}:
            yield number, f"{folder}/ may not include {other}/: see 'Dependencies' in docs/architecture.md"
        for place, forbidden, why in MAY_NOT_INCLUDE:
            if name.startswith(place):
                if forbidden.match(target):
                    yield number, f"{place} may not include {target}: {why}"
                break


def is_private(text):
    """Says the comment at the head of this header that it is for .cpp files alone?"""
    return PRIVATE.search(text.split("#pragma once")[0]) is not None


def check(root):
    """Yields every broken rule below root as (file, line, sentence)."""
    files = [p for f in [*MAY_INCLUDE, "tests", "bench"] for p in sorted((root / f).rglob("*")) if p.suffix in SOURCES]
    texts = {p.relative_to(root).as_posix(): p.read_text(encoding="utf-8") for p in files}
    private = {name for name, text in texts.items() if name.endswith(".hpp") and is_private(text)}
    for name, text in texts.items():
        for line, sentence in problems_of(name, text):
            yield name, line, sentence
        if not name.endswith(".hpp") or name in private or name.split("/")[0] not in MAY_INCLUDE:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            include = INCLUDE.match(line)
            if include and (include.group(1) in private or HEAVY.match(include.group(1))):
                yield name, number, (f"a public header includes {include.group(1)}; include it in the .cpp file, or say "
                                     "'Private to .cpp files.' in this header's opening comment")


def main():
    found = list(check(Path(sys.argv[1])))
    for name, line, sentence in found:
        print(f"{name}:{line}: {sentence}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
