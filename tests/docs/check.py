# SPDX-License-Identifier: Apache-2.0
"""Runs the commands that a Markdown page shows, and holds the page against what they print.

    check.py PAGE --program SHARDCHECK

A block is checked if an HTML comment stands right before it:

    <!-- checked: exact -->            run each '$ ' line, compare the lines after it with what it printed, line by line
    <!-- checked: runs -->             run each '$ ' line (the whole block, if none begins with '$ '); the output may differ
    <!-- checked: file my-plan.json --> write the block to that file, for the commands that follow on the page
    <!-- checked: no, REASON -->       left alone

More lines inside the comment:

    volatile: REGEX    figures that differ from run to run or machine to machine: what matches in either text becomes '~'
    exit: N            the exit code that each command of the block ends with; 0 unless said

In the shown output a line that is only '...' stands for any number of lines. A block of language 'console' must have one of
the comments, so that no command on a page goes unchecked by oversight. Commands run as typed at the top of the project, in a
scratch folder that holds links to all that is there; ./dev runs the program that was built rather than building it again.
Relative links, and paths in back-quotes that begin with a folder of the project, must exist.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 240

COMMENT = re.compile(r"<!--\s*checked:((?:(?!-->).)*)-->\s*\Z", re.S)
FENCE = re.compile(r"^(```+)[ \t]*(\S*)[^\n]*\n(.*?)^\1[ \t]*$", re.S | re.M)


class PageError(Exception):
    """What is wrong with a page, with the line where."""


@dataclass
class Block:
    line: int  # of the opening fence, from 1
    language: str
    text: str
    mode: str = ""  # exact, runs, file, no; empty without a comment
    argument: str = ""
    volatile: list = field(default_factory=list)
    exit: int = 0


def parse_comment(block, comment):
    first, *rest = [line.strip() for line in comment.strip().splitlines()]
    block.mode, _, block.argument = first.partition(" ")
    block.mode = block.mode.rstrip(",")
    block.argument = block.argument.strip()
    if block.mode not in ("exact", "runs", "file", "no"):
        raise PageError(f"{block.line}: 'checked: {first}' is none of exact, runs, file NAME, 'no, REASON'")
    if block.mode in ("file", "no") and not block.argument:
        raise PageError(f"{block.line}: 'checked: {block.mode}' needs {'a name' if block.mode == 'file' else 'a reason'}")
    for line in filter(None, rest):
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "volatile":
            block.volatile.append(re.compile(value))
        elif key == "exit":
            block.exit = int(value)
        else:
            raise PageError(f"{block.line}: '{line}' is none of 'volatile: REGEX', 'exit: N'")


def blocks_of(page):
    """The fenced blocks of a page, in order."""
    indented = re.search(r"^[ \t]+```+console", page, re.M)
    if indented:
        raise PageError(f"{page.count(chr(10), 0, indented.end()) + 1}: an indented console block can't be checked")
    blocks = []
    for match in FENCE.finditer(page):
        block = Block(page.count("\n", 0, match.start()) + 1, match.group(2), match.group(3))
        comment = COMMENT.search(page, 0, match.start())
        if comment:
            parse_comment(block, comment.group(1))
        elif block.language == "console":
            raise PageError(f"{block.line}: a console block that is not checked; put <!-- checked: exact -->, "
                            "<!-- checked: runs --> or <!-- checked: no, REASON --> before it")
        blocks.append(block)
    return blocks


def commands_of(block):
    """(line, command, shown output lines) of a block; a command goes on after a backslash at the end of its line."""
    if not re.search(r"^\$ ", block.text, re.M):
        return [[block.line + 1, block.text.strip(), []]] if block.mode == "runs" and block.text.strip() else []
    commands = []
    continued = False
    for number, line in enumerate(block.text.splitlines(), block.line + 1):
        if continued:
            commands[-1][1] += "\n" + line
        elif line.startswith("$ "):
            commands.append([number, line[2:], []])
        elif commands:
            commands[-1][2].append(line)
        elif line.strip():
            raise PageError(f"{number}: output before the first '$ ' line")
        continued = commands and not commands[-1][2] and commands[-1][1].endswith("\\")
    return commands


def masked(line, volatile):
    for pattern in volatile:
        line = pattern.sub("~", line)
    return re.sub(r"\s+", " ", line).strip() if volatile else line.rstrip()


def difference(shown, printed, volatile):
    """The index of the first shown line that doesn't fit and a sentence, or None. '...' takes as few lines as will do."""
    shown = [masked(line, volatile) for line in shown]
    printed = [masked(line, volatile) for line in printed]
    while shown and not shown[-1]:
        shown.pop()
    while printed and not printed[-1]:
        printed.pop()
    reach = {0}  # numbers of printed lines that the shown lines so far can have taken
    for index, line in enumerate(shown):
        if line == "...":
            after = set(range(min(reach), len(printed) + 1))
        else:
            after = {n + 1 for n in reach if n < len(printed) and printed[n] == line}
        if not after:
            at = min(reach)
            got = f"'{printed[at]}'" if at < len(printed) else "no more lines"
            return index, f"the page shows '{line}', the command printed {got}"
        reach = after
    if len(printed) not in reach:
        return len(shown), f"the command printed more: '{printed[max(reach)]}'"
    return None


def run(command, folder, environment):
    try:
        done = subprocess.run(["bash", "-ec", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_SECONDS,
                              encoding="utf-8", errors="replace")
    except subprocess.TimeoutExpired as expired:
        raise PageError(f"it ran longer than {TIMEOUT_SECONDS} s") from expired
    return done.returncode, done.stdout.splitlines()


def check_block(block, folder, environment):
    """Yields (line, sentence) for each command that fails."""
    if block.mode == "file":
        target = Path(folder) / block.argument
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(block.text, encoding="utf-8")
    if block.mode not in ("exact", "runs"):
        return
    commands = commands_of(block)
    if not commands:
        yield block.line, "a checked block without a command"
    for line, command, shown in commands:
        try:
            code, printed = run(command, folder, environment)
        except PageError as error:
            yield line, f"{command}: {error}"
            continue
        if code != block.exit:
            yield line, "\n    ".join([f"{command}: exit code {code}, not {block.exit}; it printed", *printed[-20:]])
        elif block.mode == "exact":
            found = difference(shown, printed, block.volatile)
            if found:
                index, sentence = found
                yield line + command.count("\n") + 1 + index, f"{command}: {sentence}"


def check_paths(page, page_folder):
    """Yields (line, sentence) for links and quoted paths that lead nowhere."""
    tops = {p.name for p in ROOT.iterdir() if p.is_dir() and not p.name.startswith((".", "build"))}
    prose = FENCE.sub(lambda m: "\n" * m.group(0).count("\n"), page)
    for number, line in enumerate(prose.splitlines(), 1):
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", line):
            if "://" not in link and not link.startswith("mailto:") and not (page_folder / link).exists():
                yield number, f"the link {link} leads nowhere"
        for path in re.findall(r"`([\w.-]+/[\w./-]*)`", line):
            parts = path.split("/")
            is_pattern = any(re.fullmatch(r"[A-Z]{2,}", part) for part in parts)
            if parts[0] in tops and not is_pattern and not (ROOT / path).exists():
                yield number, f"there is no {path} in this project"


def check_page(page, page_folder, program):
    """All that is wrong with the page's text, as (line, sentence)."""
    environment = dict(os.environ, SHARDCHECK_PROGRAM=str(program), LC_ALL="C.UTF-8")
    yield from check_paths(page, page_folder)
    with tempfile.TemporaryDirectory(prefix="shardcheck-docs-") as folder:
        for entry in ROOT.iterdir():
            if not entry.name.startswith((".git", "build")):
                (Path(folder) / entry.name).symlink_to(entry)
        for block in blocks_of(page):
            for line, sentence in check_block(block, folder, environment):
                yield line, sentence


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("page", type=Path)
    parser.add_argument("--program", type=Path, required=True)
    arguments = parser.parse_args()
    count = 0
    try:
        text = arguments.page.read_text(encoding="utf-8")
        for line, sentence in check_page(text, arguments.page.parent, arguments.program):
            print(f"{arguments.page.name}:{line}: {sentence}")
            count += 1
    except PageError as error:
        print(f"{arguments.page.name}:{error}")
        count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
