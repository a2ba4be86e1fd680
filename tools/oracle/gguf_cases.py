"""GGUF: read with gguf-py; blocks that it can make compared byte by byte, others decoded with it and bounded.

Names, the order of rows in queries and keys, types by llama.cpp's recipes, metadata and the tokenizer are checked as well.
"""

import math

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader, quants

import checkpoints
from checks import quantize
from folders import MODULES, check_report, regular
from reference.numbers import F32

LAYOUT = "gguf"
NAMES = dict(zip(MODULES, ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")))
NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
# `general.file_type`, and the type of most matrices.
FILES = {
    "fp32": (0, Type.F32),
    "fp16": (1, Type.F16),
    "bf16": (32, Type.BF16),
    "q8_0": (7, Type.Q8_0),
    "q4_0": (2, Type.Q4_0),
    "q6_k": (18, Type.Q6_K),
    "q4_k_s": (14, Type.Q4_K),
    "q4_k_m": (15, Type.Q4_K),
    "q5_0": (8, Type.Q5_0),
    "q5_k_s": (16, Type.Q5_K),
    "q5_k_m": (17, Type.Q5_K),
    "q5_1": (9, Type.Q5_1),
    "q4_1": (3, Type.Q4_1),
    "q3_k_l": (13, Type.Q3_K),
    "q3_k_m": (12, Type.Q3_K),
    "q3_k_s": (11, Type.Q3_K),
    "q2_k": (10, Type.Q2_K),
    "mxfp4a16": (38, Type.MXFP4),
    "nvfp4a16": (39, Type.NVFP4),
}
# Types that gguf-py makes itself, and the largest relative error of the others on normal weights with outliers.
EXACT = {Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.MXFP4, Type.Q5_0, Type.Q5_1, Type.Q4_1}
BOUNDS = {Type.Q6_K: 0.025, Type.Q5_K: 0.05, Type.Q4_K: 0.10, Type.Q3_K: 0.22, Type.Q2_K: 0.45, Type.NVFP4: 0.11}
# What is kept is as the checkpoint has it.
KEPT = {np.dtype(np.float32): Type.F32, np.dtype(np.float16): Type.F16}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}


def target(name):
    """llama.cpp's name for a tensor."""
    fixed = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in fixed:
        return fixed[name]
    _, _, layer, *_, module, kind = name.split(".")
    return f"blk.{layer}.{(NAMES | NORMS)[module]}.{kind}"


def ordered(name, weight, heads, kv_heads):
    """Rows of queries and keys as llama.cpp turns them: neighbours instead of halves."""
    count = heads if "q_proj" in name else kv_heads if "k_proj" in name else None
    if count is None:
        return weight
    rows = weight.shape[0]
    return weight.reshape(count, 2, rows // count // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def wanted_type(scheme, name, weight, layers, tied, dtype):
    """llama.cpp's recipe; what a plan for the layers alone does not name is kept."""
    base = FILES[scheme][1]
    if weight.ndim == 1:
        return Type.F32
    if base in (Type.F32, Type.F16, Type.BF16, Type.Q8_0):
        return base
    table = name == "model.embed_tokens.weight"
    if table or name == "lm_head.weight":
        if base in (Type.MXFP4, Type.NVFP4):
            return KEPT.get(dtype, Type.BF16)
        return base if table and not tied else Type.Q6_K
    layer = int(name.split(".")[2])
    favoured = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    value, down, output = ("v_proj" in name, "down_proj" in name, "o_proj" in name)
    if scheme in ("q4_k_m", "q5_k_m") and favoured and (value or down):
        return Type.Q6_K
    if scheme == "q4_k_s" and (value and layer < 4 or down and layer < layers // 8):
        return Type.Q5_K
    if scheme == "q3_k_l" and (value or down or output):
        return Type.Q5_K
    if scheme == "q3_k_m" and (value or down or output):
        return Type.Q5_K if value and layer < 2 or down and layer < layers // 16 else Type.Q4_K
    # Two queries share a value in these models; where four do, llama.cpp takes Q4_K for it.
    if scheme == "q2_k" and (value or down or output):
        return Type.Q3_K
    return base


def stored(tensor):
    """A tensor's bytes as `[rows, bytes of a row]`."""
    data = np.ascontiguousarray(tensor.data).view(np.uint8)
    rows = int(np.prod(tensor.shape[1:])) if len(tensor.shape) > 1 else 1
    return data.reshape(rows, -1)


def decode(tensor, scale=1.0):
    return quants.dequantize(stored(tensor), tensor.tensor_type).astype(F32) * F32(scale)


def encode(weight, kind):
    rows = weight.reshape(-1, weight.shape[-1])
    if kind == Type.F32:
        return rows.view(np.uint8)
    if kind == Type.F16:
        return rows.astype(np.float16).view(np.uint8)
    return quants.quantize(rows, kind).view(np.uint8)


def without_sign_of_zero(data, kind):
    """The scale of a block of nothing but negative zeros has one sign in gguf-py and the other in llama.cpp."""
    if kind not in (Type.Q4_0, Type.Q5_0):
        return data
    blocks = data.reshape(-1, {Type.Q4_0: 18, Type.Q5_0: 22}[kind]).copy()
    blocks[(blocks[:, 0] == 0) & (blocks[:, 1] == 0x80), 1] = 0
    return blocks


def case(checks, binary, name, model, tensors, scheme, to, layers=2, tied=False, heads=4, kv_heads=2):
    done = quantize(binary, model, scheme, to)
    if not checks.check(f"{name}: quantizes", done.code == 0, done.err.strip()[:300] if done.code else ""):
        return None
    reader = GGUFReader(to)
    found = {tensor.name: tensor for tensor in reader.tensors}
    wanted = {target(one): one for one in tensors if not (tied and one == "lm_head.weight")}
    extra = set(found) - set(wanted)
    scales = {one for one in extra if one.endswith(".scale")}
    checks.check(f"{name}: tensors", set(wanted) <= set(found) and extra - scales <= {"rope_freqs.weight"}, f"{len(found)} tensors")
    aligned = all(tensor.data_offset % reader.alignment == 0 for tensor in reader.tensors)
    checks.check(f"{name}: every tensor is aligned", aligned, f"{reader.alignment} bytes")
    wrong_types, wrong_bytes, wrong_shapes, errors, decoded = [], [], [], [], {}
    for one, source in wanted.items():
        if one not in found:
            continue
        tensor, weight = found[one], tensors[source].astype(F32)
        kind = tensor.tensor_type
        if list(tensor.shape) != list(reversed(weight.shape)):
            wrong_shapes.append(f"{one} {list(tensor.shape)}")
            continue
        expected = wanted_type(scheme, source, weight, layers, tied, tensors[source].dtype)
        if kind != expected:
            wrong_types.append(f"{one} is {kind.name}, expected {expected.name}")
        weight = np.ascontiguousarray(ordered(source, weight, heads, kv_heads))
        if kind in EXACT:
            a, b = (without_sign_of_zero(x, kind).ravel() for x in (stored(tensor), encode(weight, kind)))
            unequal = np.flatnonzero(a != b)
            if len(unequal):
                at = unequal[0]
                bytes_found, bytes_wanted = (x[at : at + 8].tobytes().hex() for x in (a, b))
                wrong_bytes.append(f"{one} {kind.name}: {len(unequal)} bytes, first at {at}: {bytes_found} instead of {bytes_wanted}")
        scale_name = one.removesuffix(".weight") + ".scale"
        scale = float(found[scale_name].data[0]) if scale_name in found else 1.0
        values = decode(tensor, scale).reshape(weight.shape)
        if weight.ndim == 2:
            error = math.sqrt(((values - weight).astype(np.float64) ** 2).sum() / (weight.astype(np.float64) ** 2).sum())
            if not error <= BOUNDS.get(kind, math.inf):
                errors.append(f"{one} {kind.name}: {error:.4f}")
            # Back in the checkpoint's order of rows.
            back = values
            if "q_proj" in source or "k_proj" in source:
                count = heads if "q_proj" in source else kv_heads
                back = values.reshape(count, values.shape[0] // count // 2, 2, -1).swapaxes(1, 2).reshape(values.shape)
            decoded[source] = back
    checks.check(f"{name}: shapes", not wrong_shapes, "; ".join(wrong_shapes[:3]))
    checks.check(f"{name}: types", not wrong_types, "; ".join(wrong_types[:3]))
    checks.check(f"{name}: bytes", not wrong_bytes, "; ".join(wrong_bytes[:3]))
    checks.check(f"{name}: errors are bounded", not errors, "; ".join(errors[:3]))
    reported = {line["name"] for line in done.report["weights"]}
    check_report(checks, name, done.report, tensors, {one: decoded[one] for one in reported if one in decoded})
    nvfp4 = {one for one, tensor in found.items() if tensor.tensor_type == Type.NVFP4}
    named = {one.removesuffix(".weight") + ".scale" for one in nvfp4}
    checks.check(f"{name}: every NVFP4 tensor has a scale", named == scales, f"{len(scales)} scales")
    return reader


def field(reader, key):
    found = reader.get_field(key)
    return None if found is None else found.contents()


def check_metadata(checks, name, reader, scheme, settings):
    tokenizer = checkpoints.tokenizer()
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    padded = tokens + [f"[PAD{at}]" for at in range(len(tokens), settings["vocab_size"])]
    heads = settings["num_attention_heads"]
    wanted = {
        "general.architecture": "llama",
        "general.type": "model",
        "general.file_type": FILES[scheme][0],
        "general.quantization_version": 2,
        "llama.block_count": settings["num_hidden_layers"],
        "llama.context_length": settings["max_position_embeddings"],
        "llama.embedding_length": settings["hidden_size"],
        "llama.feed_forward_length": settings["intermediate_size"],
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": settings["num_key_value_heads"],
        "llama.rope.dimension_count": settings["hidden_size"] // heads,
        "llama.vocab_size": settings["vocab_size"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": padded,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in tokenizer["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 3,
    }
    wrong = [f"{key}: {str(field(reader, key))[:60]} instead of {str(value)[:60]}" for key, value in wanted.items() if field(reader, key) != value]
    checks.check(f"{name}: metadata", not wrong, "; ".join(wrong[:3]) or f"{len(wanted)} keys")
    rope = settings["rope_parameters"]["rope_theta"]
    near = math.isclose(field(reader, "llama.rope.freq_base") or math.nan, rope, rel_tol=1e-6)
    near &= math.isclose(field(reader, "llama.attention.layer_norm_rms_epsilon") or math.nan, settings["rms_norm_eps"], rel_tol=1e-6)
    checks.check(f"{name}: real numbers of the metadata", near)
    kinds = field(reader, "tokenizer.ggml.token_type") or []
    checks.check(f"{name}: special tokens are control tokens", list(kinds[1:4]) == [3, 3, 3] and len(kinds) == len(padded))
    checks.check(f"{name}: the tokenizer's splitting is named", bool(field(reader, "tokenizer.ggml.pre")), field(reader, "tokenizer.ggml.pre"))


def rope_factors(settings):
    """Llama 3's rope scaling, frequency by frequency."""
    rope = settings["rope_parameters"]
    size = settings["hidden_size"] // settings["num_attention_heads"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    context, factors = rope["original_max_position_embeddings"], []
    for at in range(0, size, 2):
        length = 2 * math.pi * rope["rope_theta"] ** (at / size)
        smooth = (context / length - low) / (high - low)
        middle = 1 / ((1 - smooth) / rope["factor"] + smooth)
        factors.append(1 if length < context / high else rope["factor"] if length > context / low else middle)
    return factors


def run(checks, binary, known, work):
    names = [scheme for layout, scheme in known if layout == LAYOUT]
    if not names:
        checks.skip(LAYOUT, "the program has no such layout")
        return
    missing = sorted(set(FILES) - set(names))
    checks.check(f"{LAYOUT}: every type is there", not missing, ", ".join(missing) or f"{len(names)} types")
    for scheme in names:
        if scheme not in FILES:
            checks.skip(f"{LAYOUT} {scheme}", "no reference")
            continue
        for type_name in ("BF16", "F16", "F32"):
            model, tensors = regular(work, type_name, tame=True)
            name = f"{LAYOUT} {scheme} {type_name}"
            reader = case(checks, binary, name, model, tensors, scheme, work / f"{type_name}-{scheme}.gguf")
            if reader and type_name == "BF16":
                check_metadata(checks, name, reader, scheme, checkpoints.config(type_name))
        model, tensors = regular(work, "BF16", shards=3, tame=True)
        case(checks, binary, f"{LAYOUT} {scheme} BF16 in shards", model, tensors, scheme, work / f"sharded-{scheme}.gguf")
        subnormal(checks, binary, scheme, work)
    tied(checks, binary, work)
    refused(checks, binary, work)


def subnormal(checks, binary, scheme, work):
    """Numbers whose reciprocals are infinite must not become codes that are no numbers. llama.cpp leaves their codes undefined."""
    model, tensors = regular(work, "BF16")
    to = work / f"subnormal-{scheme}.gguf"
    done = quantize(binary, model, scheme, to)
    if not checks.check(f"{LAYOUT} {scheme} subnormal numbers: quantizes", done.code == 0, done.err.strip()[:200] if done.code else ""):
        return
    finite = all(np.isfinite(decode(tensor)).all() for tensor in GGUFReader(to).tensors)
    checks.check(f"{LAYOUT} {scheme} subnormal numbers: everything decodes to numbers", finite)


def tied(checks, binary, work):
    """A model with one table for embedding and head, and Llama 3's rope."""
    settings = checkpoints.config("BF16", tied=True, layers=3, rope=LLAMA3)
    tensors = checkpoints.llama(np.random.default_rng(9), "BF16", layers=3, tied=True, tame=True)
    model = checkpoints.write(work / "tied", tensors, settings)
    for scheme in ("q8_0", "q4_k_m", "nvfp4a16"):
        name = f"{LAYOUT} {scheme} tied"
        reader = case(checks, binary, name, model, tensors, scheme, work / f"tied-{scheme}.gguf", layers=3, tied=True)
        if reader is None:
            continue
        check_metadata(checks, name, reader, scheme, settings)
        factors = next((tensor for tensor in reader.tensors if tensor.name == "rope_freqs.weight"), None)
        fits = factors is not None and np.allclose(factors.data, rope_factors(settings), rtol=1e-6)
        checks.check(f"{name}: rope factors", fits)


def refused(checks, binary, work):
    """What no GGUF can be made of."""
    tensors = checkpoints.llama(np.random.default_rng(5), "BF16", layers=1)
    cases = {}
    bad = dict(tensors)
    bad["model.layers.0.mlp.up_proj.weight"] = bad["model.layers.0.mlp.up_proj.weight"].copy()
    bad["model.layers.0.mlp.up_proj.weight"][11, 13] = np.nan
    cases["NaN"] = (bad, checkpoints.config("BF16", layers=1), "model.layers.0.mlp.up_proj.weight")
    unknown = dict(tensors) | {"model.layers.0.mlp.mystery.weight": tensors["model.layers.0.mlp.up_proj.weight"]}
    cases["an unknown tensor"] = (unknown, checkpoints.config("BF16", layers=1), "model.layers.0.mlp.mystery.weight")
    other = checkpoints.config("BF16", layers=1) | {"architectures": ["MysteryForCausalLM"], "model_type": "mystery"}
    cases["an unknown architecture"] = (tensors, other, "Mystery")
    for name, (content, settings, word) in cases.items():
        model = checkpoints.write(work / name.replace(" ", "-"), content, settings)
        to = work / "refused.gguf"
        done = quantize(binary, model, "q8_0", to)
        message = (done.out + done.err).strip()
        checks.check(f"{LAYOUT} refused, {name}: says so", done.code not in (0, 101) and word.lower() in message.lower(), message[:160])
        left = [path.name for path in work.iterdir() if "refused" in path.name]
        checks.check(f"{LAYOUT} refused, {name}: nothing is left", not left, ", ".join(left))
