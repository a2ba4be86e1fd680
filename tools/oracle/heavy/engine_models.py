"""Random GGUF files in the shapes of released models, made to be timed.

    python engine_models.py FOLDER MODEL FORMAT THREADS

Weights are normal with a spread of 0.02. The tokenizer is the least that llama.cpp loads: control tokens, the 256 bytes, and names for all else. An
F16 file is written first; `llama_model_quantize` makes the other formats of it, by its own recipes.
"""

import ctypes
import sys
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np

# llama.cpp's numbers for the formats it makes of an F16 file.
FORMATS = {"q4_0": 2, "q8_0": 7, "q4_k_s": 14, "q4_k_m": 15, "q5_k_m": 17, "q6_k": 18, "bf16": 32}
SPREAD = 0.02


class Shape(NamedTuple):
    """A Llama's sizes, as in its `config.json`. The head is the embedding."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int

    def cache_bytes(self, tokens):
        """Keys and values in FP16."""
        return 2 * self.layers * self.kv_heads * self.head * tokens * 2


MODELS = {
    # https://huggingface.co/meta-llama/Llama-3.2-1B and Llama-3.2-3B, config.json
    "llama-3.2-1b": Shape(2048, 8192, 16, 32, 8, 64, 128256),
    "llama-3.2-3b": Shape(3072, 8192, 28, 24, 8, 128, 128256),
    # None was released: it is there to try the script.
    "tiny": Shape(256, 512, 2, 4, 2, 64, 512),
}


def tensors(shape):
    """Names and shapes, outputs before inputs."""
    queries, keys = shape.heads * shape.head, shape.kv_heads * shape.head
    yield "token_embd.weight", (shape.vocabulary, shape.hidden)
    yield "output_norm.weight", (shape.hidden,)
    for layer in range(shape.layers):
        for name, size in {
            "attn_norm": (shape.hidden,),
            "attn_q": (queries, shape.hidden),
            "attn_k": (keys, shape.hidden),
            "attn_v": (keys, shape.hidden),
            "attn_output": (shape.hidden, queries),
            "ffn_norm": (shape.hidden,),
            "ffn_gate": (shape.inner, shape.hidden),
            "ffn_up": (shape.inner, shape.hidden),
            "ffn_down": (shape.hidden, shape.inner),
        }.items():
            yield f"blk.{layer}.{name}.weight", size


def describe(writer, shape):
    writer.add_block_count(shape.layers)
    writer.add_context_length(131072)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head)
    writer.add_value_length(shape.head)
    writer.add_rope_dimension_count(shape.head)
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    kinds = gguf.TokenType
    known = [("<unk>", kinds.UNKNOWN), ("<s>", kinds.CONTROL), ("</s>", kinds.CONTROL)]
    known += [(f"<0x{byte:02X}>", kinds.BYTE) for byte in range(256)]
    known += [(f"t{at}", kinds.NORMAL) for at in range(len(known), shape.vocabulary)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, _ in known])
    writer.add_token_scores([0.0] * len(known))
    writer.add_token_types([kind for _, kind in known])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def write(path, shape):
    """The F16 file, one tensor in memory at a time. Norms are FP32, as llama.cpp's converter writes them."""
    generator = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    describe(writer, shape)
    kinds = {name: np.dtype(np.float32 if len(size) == 1 else np.float16) for name, size in tensors(shape)}
    for name, size in tensors(shape):
        writer.add_tensor_info(name, size, kinds[name], int(np.prod(size)) * kinds[name].itemsize)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, size in tensors(shape):
        values = generator.standard_normal(size, dtype=np.float32) * np.float32(SPREAD)
        writer.write_tensor_data((values + (len(size) == 1)).astype(kinds[name]))
    writer.close()


def requantize(source, to, name, threads):
    import llama_cpp

    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.nthread, parameters.ftype = threads, FORMATS[name]
    code = llama_cpp.llama_model_quantize(str(source).encode(), str(to).encode(), ctypes.byref(parameters))
    if code:
        sys.exit(f"{to}: llama_model_quantize ends with {code}")


def ensure(folder, model, name, threads):
    """The file of a model in a format, made if it is not there. A file that was not finished has another name."""
    path = folder / f"{model}-{name}.gguf"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    print(f"making {path.name}", file=sys.stderr, flush=True)
    if name == "f16":
        write(unfinished, MODELS[model])
    else:
        requantize(ensure(folder, model, "f16", threads), unfinished, name, threads)
    return unfinished.rename(path)


if __name__ == "__main__":
    if len(sys.argv) != 5 or sys.argv[2] not in MODELS or sys.argv[3] not in ("f16", *FORMATS):
        sys.exit(f"{__doc__}\nModels: {', '.join(MODELS)}. Formats: f16, {', '.join(FORMATS)}.")
    print(ensure(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])))
