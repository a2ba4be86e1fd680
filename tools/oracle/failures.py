"""What must be refused: with a word about the thing at fault, and with nothing left behind."""

import json
import struct

import numpy as np

import checkpoints
from checks import quantize
from folders import regular


def refused(checks, binary, name, model, words, work, scheme="w4a16", more=()):
    """Quantizing fails, the message has all the words, and neither the target nor the partial folder is there."""
    to = work / "out"
    before = snapshot(model)
    done = quantize(binary, model, scheme, to, *more)
    message = done.out + done.err
    passed = done.code not in (0, 101) and done.code > 0
    checks.check(f"refused, {name}: exit code", passed, f"{done.code}")
    missing = [word for word in words if word not in message]
    checks.check(f"refused, {name}: the message", not missing, message.strip().splitlines()[0][:160] if not missing else message[:300])
    left = sorted(path.name for path in work.iterdir() if path.name == "out" or "partial" in path.name)
    checks.check(f"refused, {name}: nothing is left", not left, ", ".join(left))
    checks.check(f"refused, {name}: the source is as it was", snapshot(model) == before)


def snapshot(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def spoilt(work, name, change):
    """A checkpoint of one file whose bytes `change` has changed."""
    folder = work / name.replace(" ", "-")
    tensors = checkpoints.llama(np.random.default_rng(5), "BF16", layers=1)
    checkpoints.write(folder, tensors, checkpoints.config("BF16", layers=1))
    path = folder / "model.safetensors"
    path.write_bytes(change(path.read_bytes()))
    return folder


def with_header(change):
    """Changes the header's JSON, given as text, and leaves the data."""

    def changed(data):
        length = struct.unpack("<Q", data[:8])[0]
        text = change(data[8 : 8 + length].decode()).encode()
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text + data[8 + length :]

    return changed


def edited(change):
    """Changes the header as an object."""

    def text(header):
        entries = json.loads(header)
        change(entries)
        return json.dumps(entries)

    return with_header(text)


def set_offsets(entries, name, offsets):
    entries[name]["data_offsets"] = offsets


def run(checks, binary, known, work):
    values(checks, binary, known, work)
    files(checks, binary, work)
    shards(checks, binary, work)
    ways(checks, binary, work)


def values(checks, binary, known, work):
    """Weights that cannot be coded."""
    for at, (what, value) in enumerate({"NaN": np.nan, "infinity": np.inf, "minus infinity": -np.inf}.items()):
        for scheme in ("w4a16", "nvfp4a16", "fp8-block"):
            tensors = checkpoints.llama(np.random.default_rng(5), "BF16", layers=1)
            tensors["model.layers.0.mlp.up_proj.weight"][11, 13] = value
            folder = checkpoints.write(work / f"value-{at}-{scheme}", tensors, checkpoints.config("BF16", layers=1))
            refused(checks, binary, f"{what} with {scheme}", folder, ["model.layers.0.mlp.up_proj.weight"], work, scheme)
    tensors = checkpoints.llama(np.random.default_rng(5), "BF16", layers=1)
    name = "model.layers.0.mlp.down_proj.weight"
    tensors[name] = np.ascontiguousarray(tensors[name][:, :200])
    folder = checkpoints.write(work / "columns", tensors, checkpoints.config("BF16", layers=1))
    refused(checks, binary, "200 columns in groups of 128", folder, [name, "200", "128"], work)
    refused(checks, binary, "200 columns in blocks of 16", folder, [name, "200", "16"], work, "nvfp4a16")
    if ("torchao", "int8-g128") in known:
        more = ("--as", "torchao")
        refused(checks, binary, "200 columns in torchao's groups of 128", folder, [name, "200", "128"], work, "int8-g128", more)
    tensors[name] = np.zeros((3, 4, 5), tensors[name].dtype)
    folder = checkpoints.write(work / "cube", tensors, checkpoints.config("BF16", layers=1))
    refused(checks, binary, "three dimensions", folder, [name, "[3, 4, 5]"], work)
    tensors[name] = np.zeros((0, 128), tensors[name].dtype)
    folder = checkpoints.write(work / "empty", tensors, checkpoints.config("BF16", layers=1))
    refused(checks, binary, "no rows", folder, [name], work)
    tensors[name] = np.zeros((8, 128), np.int8)
    folder = checkpoints.write(work / "integers", tensors, checkpoints.config("BF16", layers=1))
    refused(checks, binary, "integers as weights", folder, ["I8"], work)


def files(checks, binary, work):
    """Files that lie about themselves."""
    last, first = "model.norm.weight", "lm_head.weight"
    huge = 2**63
    cases = {
        "cut short": (lambda data: data[:-1000], ["model.safetensors"]),
        "cut in the header": (lambda data: data[:100], ["model.safetensors"]),
        "empty file": (lambda data: b"", ["model.safetensors"]),
        "too long": (lambda data: data + b"more", ["model.safetensors"]),
        "header of 2^63 bytes": (lambda data: struct.pack("<Q", huge) + data[8:], ["model.safetensors", str(huge)]),
        "header is no JSON": (with_header(lambda text: text.replace("{", "[", 1)), ["model.safetensors", "JSON"]),
        "offset of 2^63": (edited(lambda entries: set_offsets(entries, last, [huge, huge + 512])), [last]),
        "offset beyond 2^64": (edited(lambda entries: set_offsets(entries, last, [0, 2**65])), ["model.safetensors"]),
        "offsets backwards": (edited(lambda entries: set_offsets(entries, last, [512, 0])), [last]),
        "overlapping tensors": (edited(lambda entries: set_offsets(entries, last, entries[first]["data_offsets"])), [last]),
        "shape that overflows": (edited(lambda entries: entries[last].update(shape=[2**62, 2**62])), [last]),
        "unknown type": (edited(lambda entries: entries[last].update(dtype="F7")), [last, "F7"]),
        "two of one name": (with_header(lambda text: text.replace(f'"{last}"', f'"{first}"')), [first]),
    }
    for name, (change, words) in cases.items():
        refused(checks, binary, name, spoilt(work, name, change), words, work)


def shards(checks, binary, work):
    """Indices and shards that disagree."""
    name = "model.layers.0.self_attn.q_proj.weight"

    def fresh(label):
        folder, _ = regular(work / label, "BF16", shards=3)
        return folder, folder / "model.safetensors.index.json"

    def reindexed(label, change):
        folder, path = fresh(label)
        index = json.loads(path.read_text())
        change(index["weight_map"])
        path.write_text(json.dumps(index))
        return folder

    def other(places):
        return next(file for file in places.values() if file != places[name])

    moved = reindexed("moved", lambda places: places.update({name: other(places)}))
    refused(checks, binary, "index with a wrong shard", moved, [name], work)
    unnamed = reindexed("unnamed", lambda places: places.pop(name))
    refused(checks, binary, "index without a tensor", unnamed, [name], work)
    extra = reindexed("extra", lambda places: places.update(ghost=other(places)))
    refused(checks, binary, "index with a ghost", extra, ["ghost"], work)
    outside = reindexed("outside", lambda places: places.update({name: "../model-00001-of-00003.safetensors"}))
    refused(checks, binary, "index that leads outside", outside, ["../model-00001-of-00003.safetensors"], work)
    absent, _ = fresh("absent")
    (absent / "model-00002-of-00003.safetensors").unlink()
    refused(checks, binary, "a shard is missing", absent, ["model-00002-of-00003.safetensors"], work)
    short, _ = fresh("short")
    shard = short / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-7])
    refused(checks, binary, "a shard is cut short", short, ["model-00002-of-00003.safetensors"], work)


def ways(checks, binary, work):
    """Targets in the way, schemes nobody has, checkpoints that are coded already."""
    model, _ = regular(work, "BF16")
    refused(checks, binary, "an unknown scheme", model, ["w4a61"], work, "w4a61")
    done = quantize(binary, model, "w4a16", work / "coded")
    checks.check("a target is made", done.code == 0)
    before = snapshot(work / "coded")
    again = quantize(binary, model, "w8a16", work / "coded")
    kept = again.code != 0 and snapshot(work / "coded") == before
    checks.check("refused, a target that is there: it is as it was", kept, (again.out + again.err).strip()[:160])
    forced = quantize(binary, model, "w8a16", work / "coded", "--force")
    checks.check("--force replaces it", forced.code == 0 and snapshot(work / "coded") != before)
    refused(checks, binary, "a checkpoint that is coded already", work / "coded", ["quantized already"], work)
    inside = quantize(binary, model, "w4a16", model / "inside")
    checks.check("refused, a target in the source", inside.code != 0 and not (model / "inside").exists(), inside.err.strip()[:160])
