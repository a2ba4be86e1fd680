"""The text that the demo model learns from, as one file of documents.

    python corpus.py --out corpus.jsonl

Three sources, all under licences that allow it (MIT, Apache-2.0, BSD):

* the documentation that comes with the Rust toolchain (`rustup component add rust-docs`): its books, its reference, and the
  pages of `core`, `alloc` and `std`, turned from HTML into Markdown;
* the Markdown files and the documentation comments of the crates in cargo's registry whose `Cargo.toml` names one of those
  licences, and the Markdown files of the page's packages, of which the same holds;
* the docstrings of Python's library and of PyTorch, transformers and some others, where they are installed.

Nothing of this repository is among it: its own documentation is what the model is evaluated on. Paragraphs that occur more than
once are kept once.
"""

import argparse
import ast
import hashlib
import importlib.util
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

# Books that print themselves on one page.
BOOKS = [
    "book", "reference", "nomicon", "cargo", "rustc", "edition-guide", "embedded-book", "rust-by-example", "rustdoc",
    "style-guide", "clippy", "unstable-book",
]
CRATES = ["std", "alloc", "core", "proc_macro", "test"]
PACKAGES = [
    "torch", "transformers", "safetensors", "numpy", "tokenizers", "compressed_tensors", "torchao", "sympy", "networkx", "mlx", "jinja2",
    "peft", "accelerate", "bitsandbytes", "huggingface_hub", "pandas", "scipy", "pydantic", "httpx", "typer", "click",
]
# Python's own, under its licence.
LIBRARY = ["asyncio", "collections", "concurrent", "ctypes", "email", "http", "importlib", "json", "logging", "multiprocessing",
    "sqlite3", "unittest", "urllib", "xml", "tkinter", "distutils"]
LICENCES = re.compile(r"\b(MIT|Apache-2\.0|BSD|ISC|Unlicense|CC0|Zlib)\b")
# What pages say besides their text: links to sources, numbers of rules, curly quotes that nobody types.
FURNITURE = re.compile(r"^(Source|Note|Example|\[[\w.\-]+\]|Copy item path|Expand description|Show more)$")
QUOTES = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "\u00a0": " ", "↩": ""})
# Pages of processors' instructions say the same thing thousands of times.
SKIPPED = re.compile(r"/(arch|simd|intrinsics)/|/all\.html|redirect|sidebar")
# Bindings made by machines say one thing per function.
SKIPPED_CRATES = re.compile(r"windows|winapi|web-sys|js-sys|cudarc|libc-|linux-raw-sys|objc|ndk|wasm")
BLOCKS = {"p", "li", "tr", "pre", "blockquote", "dd", "dt", "h1", "h2", "h3", "h4", "h5", "summary"}
HIDDEN = {"script", "style", "nav", "button", "svg", "noscript", "rustdoc-toolbar", "rustdoc-topbar"}


class Markdown(HTMLParser):
    """A page's main part as Markdown."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.blocks, self.text, self.hidden, self.main, self.code = [], [], 0, 0, 0
        self.prefix = ""

    def handle_starttag(self, tag, attributes):
        classes = dict(attributes).get("class") or ""
        if tag in HIDDEN or self.hidden:
            if tag in HIDDEN:
                self.hidden += 1
            return
        if tag == "main" or (tag == "section" and "main-content" in (dict(attributes).get("id") or "")):
            self.main += 1
        if tag in BLOCKS:
            self.flush()
            self.prefix = {"li": "- ", "blockquote": "> "}.get(tag, "#" * int(tag[1]) + " " if tag[0] == "h" and tag[1:].isdigit() else "")
        if tag == "pre":
            self.code = 1
        elif tag == "code" and not self.code:
            self.text.append("`")
        elif tag == "td" or tag == "th":
            self.text.append(" | ")
        elif tag == "br":
            self.text.append("\n")
        elif tag in ("strong", "b") and not self.code:
            self.text.append("**")
        elif tag == "em" and not self.code and "fa" not in classes:
            self.text.append("*")

    def handle_endtag(self, tag):
        if self.hidden:
            self.hidden -= tag in HIDDEN
            return
        if tag == "code" and not self.code:
            self.text.append("`")
        elif tag in ("strong", "b") and not self.code:
            self.text.append("**")
        elif tag == "em" and not self.code:
            self.text.append("*")
        if tag in BLOCKS:
            self.flush()
        if tag == "pre":
            self.code = 0

    def handle_data(self, data):
        if self.main and not self.hidden:
            self.text.append(data if self.code else re.sub(r"\s+", " ", data))

    def flush(self):
        text, self.text = "".join(self.text), []
        if self.code:
            text = text.strip("\n")
            if text.strip():
                self.blocks.append("```rust\n" + text + "\n```")
            return
        text = re.sub(r"[§ⓘ]", "", text).strip()
        if text and text not in ("`", "**"):
            self.blocks.append(self.prefix + text)
        self.prefix = ""


def page(path):
    parser = Markdown()
    try:
        parser.feed(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, AssertionError):
        return ""
    parser.flush()
    return parser.blocks


def rust(root):
    for book in BOOKS:
        whole = root / book / "print.html"
        paths = [whole] if whole.exists() else sorted((root / book).rglob("*.html"))
        for path in paths:
            yield f"rust/{book}", page(path)
    for path in sorted((root / "error_codes").glob("E*.html")):
        yield "rust/error_codes", page(path)
    for crate in CRATES:
        for path in sorted((root / crate).rglob("*.html")):
            if not SKIPPED.search(str(path)):
                yield f"rust/{crate}", page(path)
    releases = root / "releases.md"
    if releases.exists():
        yield "rust/releases", releases.read_text().split("\n\n")


def crates(registry):
    for manifest in sorted(registry.glob("src/*/*/Cargo.toml")):
        licence = re.search(r'^license = "(.*)"', manifest.read_text(errors="replace"), re.M)
        if not licence or not LICENCES.search(licence[1]) or "GPL" in licence[1]:
            continue
        for path in sorted(manifest.parent.rglob("*.md")):
            if "LICENSE" not in path.name.upper() and path.stat().st_size < 400_000:
                yield f"crate/{manifest.parent.name}", path.read_text(errors="replace").split("\n\n")


def comments(registry):
    """What crates say of their items: runs of `///` and `//!`."""
    for manifest in sorted(registry.glob("src/*/*/Cargo.toml")):
        licence = re.search(r'^license = "(.*)"', manifest.read_text(errors="replace"), re.M)
        if not licence or not LICENCES.search(licence[1]) or "GPL" in licence[1] or SKIPPED_CRATES.match(manifest.parent.name):
            continue
        for path in sorted(manifest.parent.rglob("*.rs")):
            blocks, block = [], []
            for line in path.read_text(errors="replace").split("\n"):
                found = re.match(r"\s*//[/!] ?(.*)$", line)
                if found:
                    block.append(found[1])
                elif block:
                    blocks += "\n".join(block).split("\n\n")
                    block = []
            yield f"crate/{manifest.parent.name}", blocks


def packages(root):
    for manifest in sorted(root.glob("node_modules/**/package.json")):
        try:
            licence = json.loads(manifest.read_text()).get("license", "")
        except (ValueError, AttributeError):
            continue
        if LICENCES.search(str(licence)):
            for path in sorted(manifest.parent.glob("*.md")):
                if "LICENSE" not in path.name.upper() and path.stat().st_size < 400_000:
                    yield f"node/{manifest.parent.name}", path.read_text(errors="replace").split("\n\n")


def docstrings(package):
    found = importlib.util.find_spec(package)
    if not found or not found.submodule_search_locations:
        return
    root = Path(found.submodule_search_locations[0])
    for path in sorted(root.rglob("*.py")):
        if "test" in path.name or "/tests/" in str(path):
            continue
        try:
            tree = ast.parse(path.read_text(errors="replace"))
        except (SyntaxError, ValueError, RecursionError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                text = ast.get_docstring(node)
                if text and len(text) > 80:
                    yield f"python/{package}", text.split("\n\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--registry", type=Path, default=Path.home() / ".cargo" / "registry")
    arguments = parser.parse_args()
    sysroot = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True).stdout.strip()
    web = Path(__file__).resolve().parents[2] / "web"
    sources = [rust(Path(sysroot) / "share/doc/rust/html"), crates(arguments.registry), comments(arguments.registry), packages(web)]
    sources += [docstrings(package) for package in PACKAGES + LIBRARY]
    seen, sizes = set(), {}
    with arguments.out.open("w") as file:
        for source in sources:
            for name, blocks in source:
                kept = []
                for block in blocks:
                    block = block.translate(QUOTES).rstrip()
                    if FURNITURE.match(block):
                        continue
                    key = hashlib.blake2b(re.sub(r"[\d\s]+", "", block).encode(), digest_size=8).digest()
                    if len(block) > 30 and key in seen:
                        continue
                    seen.add(key)
                    kept.append(block)
                text = "\n\n".join(kept).strip()
                # What is left of a page whose paragraphs were all said elsewhere is headings.
                if len(text) < 200:
                    continue
                family = name.split("/")[0] + "/" + name.split("/")[1].split("-")[0] if name.startswith("rust") else name if name.startswith("python") else name.split("/")[0]
                sizes[family] = sizes.get(family, 0) + len(text)
                file.write(json.dumps({"source": name, "text": text}) + "\n")
    for name, size in sorted(sizes.items(), key=lambda item: -item[1]):
        print(f"{size / 1e6:8.2f} MB  {name}", file=sys.stderr)


if __name__ == "__main__":
    main()
