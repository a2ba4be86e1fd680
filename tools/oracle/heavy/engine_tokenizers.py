"""Makes small tokenizers with the parts that the released ones have, and what the tokenizers library and transformers make of texts and chats.

    python engine_tokenizers.py ../../../crates/roofline-engine/tests/data

Each folder under `tokenizers` has a `tokenizer.json`, a `tokenizer_config.json` with a chat template, and `tokenizer_expected.json`: for every text
its tokens with and without those that the tokenizer adds, and what the former decode to with and without special tokens; for a chat the text and its
tokens. That of `llama` has the 131 tokens of the model beside it: it knows the bytes of a few letters outside ASCII and no others.
"""

import json
import sys
from pathlib import Path

import common  # noqa: F401: settings of the libraries

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "The roof of a processor is flat where it computes and steep where it reads.",
    "A model reads all of its weights for every token it writes, and the cache of the tokens before.",
    "There are the numbers that are stored, the numbers that are computed and the numbers that are measured.",
    "The time of a step is the larger of the two, and the rest is what the others take.",
]
TEXTS = [
    "The roof is flat.",
    "  two spaces before, one after ",
    "it's 12345 and 3.14; they'll see THE END",
    "café, naïve — 東 🙂",
    "lines\n\n  and more\nlines \n",
    "",
    " ",
    "def f(x):\n    return x**2  # why?",
]
# What the tokenizer of 131 tokens has no bytes for: other scripts, tabs, letters made of two, and what no font has.
MORE_TEXTS = ["\ttabs\t\tand\r\nreturns", "Größe 京都 привет 👩‍👧 ½", "cafe\u0301 \u00e5 a\u030a \u1e9b\u0323", "\u0000\u007f\ufffd\U0010ffff"]
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " How steep is the roof? "},
    {"role": "assistant", "content": "As steep as memory."},
    {"role": "user", "content": "And then?"},
]

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# OpenAI's o200k.
GPT_OSS = "|".join(
    [
        rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]*[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]+{CONTRACTIONS}?",
        rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]+[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]*{CONTRACTIONS}?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)

CHATML = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|start|>system\\nYou answer.<|end|>\\n' }}{% endif %}"
    "{% for message in messages %}{{ '<|start|>' + message['role'] + '\\n' + message['content'] + '<|end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{% endif %}"
)
LLAMA3_CHAT = (
    "{% for message in messages %}"
    "{% set content = '<|start|>' + message['role'] + '\\n\\n' + message['content'] | trim + '<|end|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\\n\\n' }}{% endif %}"
)
LLAMA2_CHAT = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}"
    "{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
    "{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate user/assistant.') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
GEMMA_CHAT = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<|start|>' + role + '\\n' + message['content'] | trim + '<|end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>model\\n' }}{% endif %}"
)

SPECIAL = ["<|pad|>", "<|begin|>", "<|eos|>", "<|start|>", "<|end|>"]
PAD, BOS, EOS = SPECIAL[:3]


def with_bos(tokenizer):
    return processors.TemplateProcessing(single=f"{BOS} $A", pair=f"{BOS} $A {BOS}:1 $B:1", special_tokens=[(BOS, tokenizer.token_to_id(BOS))])


def byte_level(splits, size=320, alphabet=None, normalizer=None, bos=False, **more):
    """BPE over bytes, each written as a letter, after these cuts."""
    made = Tokenizer(models.BPE(**more))
    made.pre_tokenizer = pre_tokenizers.Sequence(splits)
    made.decoder = decoders.ByteLevel()
    if normalizer:
        made.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet() if alphabet is None else alphabet
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=SPECIAL, initial_alphabet=sorted(alphabet), show_progress=False)
    made.train_from_iterator(CORPUS, trainer)
    plain = processors.ByteLevel(trim_offsets=False)
    made.post_processor = processors.Sequence([plain, with_bos(made)]) if bos else plain
    return made


def cut(pattern):
    return [
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]


def known_bytes():
    """The letters that stand for the bytes of ASCII and of `TEXTS`."""
    known = "".join(map(chr, range(32, 127))) + "".join(TEXTS)
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return {letter for word, _ in level.pre_tokenize_str(known) for letter in word}


def pieces(normalizer, pre_tokenizer, strip):
    """BPE over letters as SentencePiece's models become it: spaces are letters, and what is no letter of it falls back to bytes."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=90, show_progress=False))
    learned = json.loads(trained.to_str())["model"]
    letters = sorted(set("".join(learned["vocab"])) | set("abcdefghijklmnopqrstuvwxyz0123456789é東"))
    merges = [tuple(pair) for pair in learned["merges"]]
    words = [*SPECIAL, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *("".join(pair) for pair in merges), *letters]
    vocabulary = {word: at for at, word in enumerate(dict.fromkeys(words))}
    made = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.add_special_tokens([AddedToken(word, normalized=False, special=True) for word in [*SPECIAL, "<unk>"]])
    if normalizer:
        made.normalizer = normalizer
    if pre_tokenizer:
        made.pre_tokenizer = pre_tokenizer
    made.post_processor = with_bos(made)
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence(parts + [decoders.Strip(" ", 1, 0)] * strip)
    return made


SPACES = normalizers.Replace(" ", "\u2581")
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)

TOKENIZERS = {
    "llama": (lambda: byte_level(cut(LLAMA3), size=131, alphabet=known_bytes(), bos=True, ignore_merges=True), LLAMA3_CHAT),
    "tokenizers/llama3": (lambda: byte_level(cut(LLAMA3), bos=True, ignore_merges=True), LLAMA3_CHAT),
    "tokenizers/qwen2": (lambda: byte_level(cut(QWEN2), normalizer=normalizers.NFC()), CHATML),
    "tokenizers/smollm2": (lambda: byte_level([pre_tokenizers.Digits(individual_digits=True), BYTES]), CHATML),
    "tokenizers/gpt-oss": (lambda: byte_level(cut(GPT_OSS)), CHATML),
    "tokenizers/llama2": (lambda: pieces(normalizers.Sequence([normalizers.Prepend("\u2581"), SPACES]), None, 1), LLAMA2_CHAT),
    "tokenizers/mistral": (lambda: pieces(None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False), 1), LLAMA2_CHAT),
    "tokenizers/gemma": (lambda: pieces(SPACES, pre_tokenizers.Split(" ", "merged_with_previous"), 0), GEMMA_CHAT),
}


def expected(made, loaded, texts):
    cases = []
    for text in [*texts, f"{SPECIAL[3]}user\nThe roof{SPECIAL[4]} is", f"a {SPECIAL[3]} b"]:
        ids = made.encode(text).ids
        cases.append(
            {
                "text": text,
                "ids": ids,
                "ids_without_special": made.encode(text, add_special_tokens=False).ids,
                "decoded": made.decode(ids),
                "decoded_with_special": made.decode(ids, skip_special_tokens=False),
            }
        )
    chats = []
    for messages, generate in [(CHAT, True), (CHAT[1:2], True), (CHAT[1:3], False)]:
        text = loaded.apply_chat_template(messages, tokenize=False, add_generation_prompt=generate)
        ids = made.encode(text, add_special_tokens=False).ids
        chats.append({"messages": messages, "add_generation_prompt": generate, "text": text, "ids": ids})
    return {"texts": cases, "chats": chats}


def lines(found):
    """JSON with a line for every case."""
    parts = [f'"{name}": [\n' + ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n]" for name, cases in found.items()]
    return "{" + ",\n".join(parts) + "}\n"


def make(folder, name):
    build, template = TOKENIZERS[name]
    made, texts = build(), TEXTS if name == "llama" else TEXTS + MORE_TEXTS
    if name == "llama" and made.get_vocab_size() != 131:
        sys.exit(f"{name}: {made.get_vocab_size()} tokens instead of the model's 131")
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"), pretty=False)
    names = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD}
    config = names | {
        "add_bos_token": made.encode("").ids != [],
        "chat_template": template,
        "clean_up_tokenization_spaces": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    loaded = PreTrainedTokenizerFast.from_pretrained(folder)
    found = expected(made, loaded, texts)
    for case in found["texts"]:
        # Transformers reads the file as the library that wrote it.
        if loaded(case["text"])["input_ids"] != case["ids"]:
            sys.exit(f"{name}: transformers has other tokens for {case['text']!r}")
    (folder / "tokenizer_expected.json").write_text(lines(found))
    return f"{name}: {made.get_vocab_size()} tokens, {len(found['texts'])} texts, {len(found['chats'])} chats"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for name in TOKENIZERS:
        print(make(Path(sys.argv[1]) / name, name), flush=True)
