#!/usr/bin/env python3
"""Makes tokenizer.json and golden.json with the tokenizers package (pip install tokenizers), from the sources here.

    python3 make_testdata.py          # writes both files into this directory
    python3 make_testdata.py 5000     # prints more golden texts for a manual check; writes nothing
"""

import glob
import json
import os
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def byte_level(prefix=False, regex=True):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


VARIANTS = {
    "gpt2": (byte_level(), False),
    "prefix": (byte_level(prefix=True), False),
    "smollm": (pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level()]), False),
    "digit_runs": (
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False), byte_level(prefix=True)]), False),
    "llama3": (pre_tokenizers.Sequence([split(LLAMA3), byte_level(regex=False)]), True),
    "qwen2": (pre_tokenizers.Sequence([split(QWEN2), byte_level(regex=False)]), False),
    "qwen2_nfc": (pre_tokenizers.Sequence([split(QWEN2), byte_level(regex=False)]), False),
}

def normalizers(*steps):
    return {"type": "Sequence", "normalizers": list(steps)}


# Normalizers that change no text.
NO_OPS = {
    "empty": normalizers(),
    "nested": normalizers(normalizers(), normalizers(normalizers())),
    "strip": {"type": "Strip", "strip_left": False, "strip_right": False},
    "replace": {"type": "Replace", "pattern": {"String": "a"}, "content": "a"},
    "bert": {"type": "BertNormalizer", "clean_text": False, "handle_chinese_chars": False, "strip_accents": None,
             "lowercase": False},
    "bert_accents": {"type": "BertNormalizer", "clean_text": False, "handle_chinese_chars": False,
                     "strip_accents": False, "lowercase": False},
}

TEXTS = [
    "", " ", "  ", "\n", "a", " a", "a ", "Hello, world!", "It's we'll I'D THEY'RE don'T x'ſ 'ſ 's' 'LL'", "''s '' 'x",
    "int main() {\n\treturn 0;\n}\n", "a  b   c    d\n\n\ne \n f\r\n\r\n  g", "\t\ttabs\t and  spaces  ",
    "1 12 123 1234 12345678901 3.14 1e-6 0x7F", "٣٤٥ Ⅷ ½ ²³ 一二三 〇 𝟙𝟚𝟛𝟜", "Straße naïve café déjà vu über Ωμέγα",
    "Привет, мир! Ещё раз.", "你好，世界。今天天气很好", "こんにちは世界 カタカナ ｶﾀｶﾅ", "안녕하세요 세계", "שלום עולם مرحبا بالعالم",
    "हिन्दी में लिखा ไทยภาษา", "👋🏽 👨‍👩‍👧‍👦 🇩🇪 ❤️ emoji😀text", "e\u0301 combining a\u0308\u0323 x\u0300y", "\u00a0nbsp\u2003em\u3000cjk\u200bzwsp",
    "\u2028line\u2029para\u0085nel\x0b\x0c", "\x00\x01\x7f control", "<|endoftext|>", "a<|endoftext|> b<|endoftext|><|endoftext|>c",
    "<think>not</think> <think >", "<|endoftext", "snake_case CamelCase kebab-case __init__ ++i --j !=", "…—“quoted”‘single’",
    "a\u0301\u0302\u0303", "\u1112\u1161\u11ab\u1100\u1173\u11af \u212b \u2126 q\u0307\u0323 \u1e69 s\u0323\u0307 \u0958 \u2adc",
    "Tie\u0302\u0301ng Vie\u0323\u0302t <think>e\u0301</think><|endoftext|>\u0301x", "\uf900\U0002f800 \u0344 \U0001d15e \u1fbe\u0399", "ﬀﬁﬂﬅ ǅ ª º ʰ ˆ", "𐐀𐐁 𠀀𠀁 𝒜𝒷", "\ufeffbom \ufffd replacement", "   leading", "trailing   ", " \n \n ", "x" * 70 + " " + "ab" * 60,
]


def random_text(rng):
    alphabets = ["ab cd's'll're 't\n", "0123456789", " \t\r\n", "éüßñ Ωж", "你好世", "😀👍\u200d\u0301", "'!?.,<>|-_", "ſSLRVmDt'",
                 "\u00a0\u2003\u3000\u0085\u2028", "٣½Ⅷ一"]
    return "".join(rng.choice(rng.choice(alphabets)) for _ in range(rng.randrange(1, 40)))


def train():
    files = sorted(glob.glob(os.path.join(HERE, "../../../../base/**/*.h"), recursive=True))
    files += sorted(glob.glob(os.path.join(HERE, "../../../../*/README.md")))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = byte_level()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train(files, trainers.BpeTrainer(
        vocab_size=768, special_tokens=[AddedToken("<|endoftext|>", special=True, normalized=False)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=True)])
    return tokenizer


def variant(tokenizer, name):
    document = json.loads(tokenizer.to_str())
    document["pre_tokenizer"] = json.loads(VARIANTS[name][0].__getstate__())
    document["model"]["ignore_merges"] = VARIANTS[name][1]
    document["normalizer"] = {"type": "NFC"} if name.endswith("nfc") else None
    return document


def check_no_ops(tokenizer, texts, golden):
    """The forms that tokenizer_json_test.cc compares with the plain ones have their ids in the package, too."""
    def sequence(*steps):
        return {"type": "Sequence", "pretokenizers": list(steps)}

    def check(document, name):
        one = Tokenizer.from_str(json.dumps(document))
        assert [one.encode(text, add_special_tokens=False).ids for text in texts] == golden["ids"][name], document

    nfc = {"type": "NFC"}
    for form in NO_OPS.values():
        check({**variant(tokenizer, "gpt2"), "normalizer": form}, "gpt2")
        check({**variant(tokenizer, "qwen2"), "normalizer": normalizers(form, normalizers(nfc), nfc, form)}, "qwen2_nfc")
    plain = variant(tokenizer, "gpt2")
    bytes_only = plain["pre_tokenizer"]
    for form in (sequence(bytes_only), sequence(sequence(bytes_only)), sequence(sequence(), bytes_only, sequence())):
        check({**plain, "pre_tokenizer": form}, "gpt2")
    check({**plain, "post_processor": {"type": "Sequence", "processors": []}}, "gpt2")


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 24
    path = os.path.join(HERE, "tokenizer.json")
    if len(sys.argv) == 1:
        document = variant(train(), "gpt2")
        with open(path, "w") as file:
            json.dump(document, file, ensure_ascii=False, separators=(",", ":"))
            file.write("\n")
    tokenizer = Tokenizer.from_file(path)
    rng = random.Random(7)
    texts = TEXTS + [random_text(rng) for _ in range(count)]
    golden = {"variants": {}, "no_ops": NO_OPS, "texts": texts, "ids": {}, "ids_as_text": {}}
    for name in VARIANTS:
        document = variant(tokenizer, name)
        golden["variants"][name] = {"pre_tokenizer": document["pre_tokenizer"], "ignore_merges": VARIANTS[name][1],
                                    "normalizer": document["normalizer"]}
        one = Tokenizer.from_str(json.dumps(document))
        golden["ids"][name] = [one.encode(text, add_special_tokens=False).ids for text in texts]
        one.encode_special_tokens = True
        golden["ids_as_text"][name] = {
            index: one.encode(text, add_special_tokens=False).ids
            for index, text in enumerate(texts) if "<|endoftext|>" in text}
        for text, ids in zip(texts, golden["ids"][name]):
            decoded = one.decode(ids, skip_special_tokens=False)
            assert "prefix" in name or "runs" in name or "nfc" in name or decoded == text, (name, text, decoded)
    check_no_ops(tokenizer, texts, golden)
    out = sys.stdout if len(sys.argv) > 1 else open(os.path.join(HERE, "golden.json"), "w")
    json.dump(golden, out, ensure_ascii=True, separators=(",", ":"))
    out.write("\n")


if __name__ == "__main__":
    main()
