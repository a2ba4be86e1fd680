"""Trains the demo model: a Llama of about five million parameters and its tokenizer, in minutes on one GPU.

    python train.py corpus.jsonl --text evaluation.txt --out demo

`corpus.py` makes the corpus, `text.py` the text it is evaluated on, which it never learns from. Another seed or shape makes a sibling
(`--seed 2`, `--layers 5 --inner 768`), a small one also without a GPU (`--device cpu --epochs 0.5 --batch 8`). The figures that were reached are printed, and kept in `training.json`.
"""

import argparse
import json
import math
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

BEGIN, END = "<|begin|>", "<|end|>"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--inner", type=int, default=512)
    parser.add_argument("--layers", type=int, default=7)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--epochs", type=float, default=36)
    parser.add_argument("--decay", type=float, default=1.0, help="of the matrices' weights")
    parser.add_argument("--dropout", type=float, default=0.1, help="of what layers add")
    parser.add_argument("--batch", type=int, default=64, help="sequences of --context tokens per step")
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--seconds", type=float, default=420, help="stop learning after this long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    return parser.parse_args()


def tokenizer_of(texts, size):
    """Byte-level BPE with GPT-2's words, so that every text has tokens and every runtime knows how to cut it."""
    own = Tokenizer(models.BPE())
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    own.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[BEGIN, END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    own.train_from_iterator(texts, trainer)
    own.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[(BEGIN, own.token_to_id(BEGIN))])
    return own


def perplexity(model, ids, begin, window=512, stride=256):
    """Over each token of the text at most once, windows of `window` that move on by `stride` and start with BEGIN."""
    total, count = 0.0, 0
    with torch.inference_mode():
        for at in range(0, len(ids) - window + 1, stride):
            own = torch.tensor([ids[at : at + window]], device=model.device)
            own[0, 0] = begin
            losses = F.cross_entropy(model(own).logits[0, :-1].float(), own[0, 1:], reduction="none")
            scored = losses if at == 0 else losses[window - stride - 1 :]
            total, count = total + scored.sum().item(), count + len(scored)
    return math.exp(total / count)


def main():
    asked = arguments()
    random.seed(asked.seed)
    torch.manual_seed(asked.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    documents = [json.loads(line)["text"] for line in asked.corpus.open()]
    start = time.time()
    tokenizer = tokenizer_of(documents, asked.vocabulary)
    begin, end = tokenizer.token_to_id(BEGIN), tokenizer.token_to_id(END)
    encoded = [encoding.ids + [end] for encoding in tokenizer.encode_batch(documents)]
    random.shuffle(encoded)
    stream = torch.tensor([token for ids in encoded for token in ids], dtype=torch.int32)
    held = stream[-60_000:].tolist()
    stream = stream[:-60_000].to(asked.device)
    text = tokenizer.encode(asked.text.read_text()).ids
    print(f"{len(stream) / 1e6:.2f} M tokens, {len(text)} of the evaluation text, {time.time() - start:.0f} s", flush=True)

    config = LlamaConfig(
        vocab_size=asked.vocabulary, hidden_size=asked.hidden, intermediate_size=asked.inner, num_hidden_layers=asked.layers,
        num_attention_heads=asked.hidden // 64, num_key_value_heads=asked.hidden // 128, head_dim=64,
        max_position_embeddings=asked.context, rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=begin, eos_token_id=end,
    )
    model = LlamaForCausalLM(config).to(asked.device).train()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{parameters / 1e6:.3f} M parameters", flush=True)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            # What adds to the residual stream starts small, by the depth.
            scale = 0.02 / math.sqrt(2 * asked.layers) if "o_proj" in name or "down_proj" in name else 0.02
            torch.nn.init.normal_(parameter, std=scale * math.sqrt(768 / asked.hidden))
    if asked.dropout:
        for layer in model.model.layers:
            for module in (layer.self_attn.o_proj, layer.mlp.down_proj):
                module.register_forward_hook(lambda own, _, out: F.dropout(out, asked.dropout, own.training))
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": asked.decay}, {"params": vectors, "weight_decay": 0.0}], lr=asked.rate, betas=(0.9, 0.95), fused=asked.device == "cuda"
    )
    each = asked.batch * asked.context
    steps = int(asked.epochs * len(stream) / each)
    forward = torch.compile(model) if asked.device == "cuda" else model
    offsets = torch.arange(asked.context + 1, device=asked.device)

    def loss_of(rows):
        with torch.autocast(asked.device, torch.bfloat16, enabled=asked.device == "cuda"):
            logits = forward(rows[:, :-1]).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten().long())

    start, losses = time.time(), []
    for step in range(steps):
        # By the clock as well as by steps: the rate falls to a hundredth when either ends.
        done = max(step / steps, (time.time() - start) / asked.seconds)
        if done >= 1:
            break
        rate = asked.rate * min((step + 1) / 300, 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        starts = torch.randint(0, len(stream) - asked.context - 1, (asked.batch, 1), device=asked.device)
        rows = stream[starts + offsets].long()
        # Half of the sequences start with BEGIN, as every text and every window does.
        rows[: asked.batch // 2, 0] = begin
        loss = loss_of(rows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 500 == 0:
            losses.append(loss.item())
            spent = time.time() - start
            figures = ""
            if step % 1000 == 0:
                model.eval()
                figures = f"{perplexity(model, held, begin):.2f} {perplexity(model, text, begin):.1f}"
                model.train()
            print(f"{step} of {steps}: {losses[-1]:.3f}, {step * each / max(spent, 1) / 1e6:.2f} M tokens/s, {spent:.0f} s {figures}", flush=True)
    learned = step * each
    seconds = time.time() - start

    model = model.eval().to(torch.bfloat16)
    figures = {
        "parameters": parameters, "corpus_tokens": len(stream), "learned_tokens": learned, "seconds": round(seconds), "seed": asked.seed,
        "device": torch.cuda.get_device_name() if asked.device == "cuda" else "cpu", "torch": torch.__version__, "last_loss": losses[-1],
        "held_out_perplexity": perplexity(model, held, begin), "evaluation_perplexity": perplexity(model, text, begin),
        "evaluation_tokens": len(text),
    }
    print(json.dumps(figures), flush=True)
    asked.out.mkdir(parents=True, exist_ok=True)
    model.generation_config.do_sample = False
    model.save_pretrained(asked.out)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BEGIN, eos_token=END, model_max_length=asked.context, clean_up_tokenization_spaces=False
    )
    wrapped.save_pretrained(asked.out)
    # The name that every version of transformers knows.
    settings = asked.out / "tokenizer_config.json"
    known = json.loads(settings.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    known.pop("backend", None)
    settings.write_text(json.dumps(known, indent=2) + "\n")
    (asked.out / "training.json").write_text(json.dumps(figures, indent=2) + "\n")
    for prompt in ["A model is", "The memory of a GPU", "This function returns", "# Errors\n\nIf the", "Quantization is"]:
        ids = torch.tensor([tokenizer.encode(prompt).ids], device=asked.device)
        for kind in ({"do_sample": False}, {"do_sample": True, "temperature": 0.7, "top_p": 0.9}):
            out = model.generate(ids, max_new_tokens=60, **kind)
            print(repr(tokenizer.decode(out[0].tolist())), flush=True)


if __name__ == "__main__":
    main()
