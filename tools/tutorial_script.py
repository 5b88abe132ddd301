"""Prints a shell script that follows docs/tutorial.md.

The script writes the tutorial's files into the current folder, runs its commands, and stops at the first command whose
exit code is not the expected one.

    python3 tools/tutorial_script.py docs/tutorial.md > tutorial.sh
"""

import re
import shlex
import sys

BLOCK = re.compile(r"^<!-- (?P<mark>.+?) -->\n```\w*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
END = "end-of-a-file-of-the-tutorial"


def script(tutorial: str) -> str:
    """Returns the script for a page. `tests/it/book.rs` explains the marks in the page."""
    lines = ["set -u"]
    for block in BLOCK.finditer(tutorial):
        kind, _, detail = block["mark"].partition(": ")
        text = block["text"]
        if kind == "file":
            lines += [f'mkdir -p "$(dirname {detail})"', f"cat > {detail} << '{END}'", text + END]
        elif kind in ("run", "run with torch", "record"):
            lines += [f"printf '+ %s' {shlex.quote(text)}", f"sh -e -c {shlex.quote(text)}"]
            lines += [f"[ $? = {detail or '0'} ] || exit 1"]
        elif kind != "output":
            raise ValueError(f"the tutorial has an unknown mark `{block['mark']}`")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as page:
        sys.stdout.write(script(page.read()))
