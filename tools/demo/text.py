"""The text that the demo model is evaluated on: the prose of this project's documentation.

    python tools/demo/text.py > crates/roofline-verbs/data/demo/evaluation.txt

Headings, paragraphs and lists of the guide, the method and the design; code, tables and printed output are left out, since figures in
columns say little about how well a model reads. The file is kept as it was made, so that perplexities of different days compare.
"""

import re
import sys
from pathlib import Path

PAGES = ["README.md", "docs/method.md", "docs/design.md", "docs/guide"]


def prose(text):
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    lines = [line for line in text.split("\n") if not line.lstrip().startswith("|") and not line.startswith("    ")]
    lines = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line) for line in lines]
    # A paragraph is one line: where it was wrapped is no part of it.
    blocks, block = [], []
    for line in [*lines, ""]:
        starts = re.match(r"\s*([-*#>]|\d+\.)\s", line)
        if block and (not line.strip() or starts):
            blocks.append(" ".join(part.strip() for part in block))
            block = []
        if line.strip():
            block.append(line)
    return [block for block in blocks if not block.startswith(("<", "!["))]


def main():
    root = Path(__file__).resolve().parents[2]
    pages = []
    for name in PAGES:
        path = root / name
        pages += sorted(path.glob("*.md")) if path.is_dir() else [path]
    sys.stdout.write("\n\n".join("\n\n".join(prose(page.read_text())) for page in pages) + "\n")


if __name__ == "__main__":
    main()
