# SPDX-License-Identifier: Apache-2.0
"""Reads what ptxas said about the kernels when the cuda device was built (cmake/kernel_resources.cmake).

    kernel_resources.py DIRECTORY        lists registers, shared memory, stack and spills of every kernel, the instances
                                         of a template in one line; exit 1 if a hot kernel spills registers to memory
                                         or one of the hot kinds isn't there; 77 if there is no file: nothing was built
"""
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

# Kernels in which a spill costs time on every token. Each pattern must match at least one kernel.
HOT = {
    "attention": re.compile(r"attention"),
    "norms": re.compile(r"norm"),
    "reductions": re.compile(r"reduce"),
    "copies": re.compile(r"copy|gather|map_"),
}
ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\w+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


def kernels_in(text):
    """Yields (mangled name, architecture, registers, shared, stack, spilled bytes)."""
    name = frame = None
    for line in text.splitlines():
        entry = ENTRY.search(line)
        if entry:
            name, frame = entry.groups(), None
        elif FRAME.search(line):
            frame = [int(n) for n in FRAME.search(line).groups()]
        elif USED.search(line) and name and frame:
            shared = SHARED.search(line)
            yield (*name, int(USED.search(line).group(1)), int(shared.group(1)) if shared else 0, frame[0],
                   frame[1] + frame[2])
            name = None


def readable(names):
    """Demangled names without arguments: shardcheck::gpu::rms_norm_rows."""
    if shutil.which("c++filt") is None:
        return dict(zip(names, names))
    text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return {n: re.sub(r"^void ", "", re.split(r"[<(]", t)[0]) for n, t in zip(names, text.splitlines())}


def report(texts):
    """(lines of the table, problems)"""
    found = [k for text in texts for k in kernels_in(text)]
    names = readable(sorted({k[0] for k in found}))
    groups = defaultdict(list)
    for mangled, architecture, *numbers in found:
        groups[names[mangled], architecture].append(numbers)
    lines, problems = [], []
    for (name, architecture), instances in sorted(groups.items()):
        registers, shared, stack, spilled = (max(column) for column in zip(*instances))
        lines.append(f"{name:45} {architecture:7} {len(instances):3} instances, at most {registers:3} registers, "
                     f"{shared:6} B shared, {stack:4} B stack, {spilled:4} B spilled")
        kinds = [kind for kind, pattern in HOT.items() if pattern.search(name)]
        if spilled and kinds:
            problems.append(f"{name} ({architecture}) spills up to {spilled} bytes per thread; it is one of the hot "
                            f"kernels ({kinds[0]}): give it fewer live values or smaller tiles")
    for kind, pattern in HOT.items():
        if not any(pattern.search(name) for name, _ in groups):
            problems.append(f"none of the kernels is one of the {kind} ({pattern.pattern}): was something renamed?")
    return lines, problems


def main():
    # Notes without their object file are of a source that was removed since.
    files = sorted(f for f in Path(sys.argv[1]).rglob("*.ptxas") if f.with_suffix("").exists())
    if not files:
        print("SKIPPED: the cuda device was not built here, so ptxas said nothing about its kernels")
        return 77
    lines, problems = report([f.read_text(encoding="utf-8") for f in files])
    print(*lines, *problems, sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
