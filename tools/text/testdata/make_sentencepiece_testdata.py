#!/usr/bin/env python3
"""Makes *.model and sentencepiece_golden.json with the sentencepiece package (pip install sentencepiece).

    python3 make_sentencepiece_testdata.py                # writes the files into this directory, from the sources here
    python3 make_sentencepiece_testdata.py 5000 a.model   # prints golden texts of another model for a manual check
"""

import glob
import io
import json
import os
import random
import sys

import sentencepiece

HERE = os.path.dirname(os.path.abspath(__file__))

# Like Llama 2, like Gemma, and like T5 with a normalizer of its own.
MODELS = {
    "llama": dict(model_type="bpe", vocab_size=520, byte_fallback=True, split_digits=True, remove_extra_whitespaces=False,
                  allow_whitespace_only_pieces=True, normalization_rule_name="identity", character_coverage=0.99),
    "gemma": dict(model_type="bpe", vocab_size=560, byte_fallback=True, split_digits=True, remove_extra_whitespaces=False,
                  add_dummy_prefix=False, normalization_rule_name="identity", character_coverage=0.99,
                  pad_id=0, eos_id=1, bos_id=2, unk_id=3, user_defined_symbols=["<start_of_turn>", "\n", "\n\n", "\t", "▁▁"]),
    "unigram": dict(model_type="unigram", vocab_size=400, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
                    user_defined_symbols=["<extra_id_0>"], character_coverage=0.98),
}

# "ſ" becomes "s", U+00A0 a space, "ﬁ" and "ﬁn" other texts, and U+200B nothing.
RULES = [("017F", "0073"), ("00A0", "0020"), ("FB01", "0066 0069"), ("FB01 006E", "0046 0049 004E"), ("200B", ""),
         ("00C4", "0041 0308"), ("0041 030A", "00C5")]

TEXTS = [
    "", " ", "  ", "\n", "a", " a", "a ", "Hello, world!", "It's we'll  two   three    four     spaces", "x\n\ny\n \n z\t\ttabs",
    "int main() {\n\treturn 0;\n}\n", "1 12 123 12345678901 3.14 1e-6", "Straße naïve café déjà vu über Ωμέγα Ärger Å",
    "Привет, мир! Ещё раз.", "你好，世界。今天天气很好", "こんにちは世界 カタカナ", "안녕하세요 세계", "שלום עולם مرحبا بالعالم", "हिन्दी में लिखा ไทยภาษา",
    "👋🏽 👨‍👩‍👧‍👦 🇩🇪 ❤️ emoji😀text", "e\u0301 a\u0308\u0323", "\u00a0nbsp\u2003em\u3000cjk\u200bzwsp", "\u2028line\u2029para\u0085nel",
    "ﬁnd a ﬁsh, ſay", "<s>a</s><unk><pad><0x41>", "<start_of_turn>user\nhi<extra_id_0>x", "\u2581a\u2581\u2581b ▁", "\x01\x7f control",
    "\ufeffbom \ufffd replacement", "   leading", "trailing   ", "𐐀𐐁 𠀀𠀁 𝒜𝒷", "x" * 70, "snake_case CamelCase kebab-case",
]


def random_text(rng):
    alphabets = ["abc de the of and ing", "0123456789", " \t\n ", "éüßñ Ωж", "你好世", "😀👍\u200d\u0301", "'!?.,<>|-_", "ſﬁn\u00a0\u200bA\u030aÄ",
                 "<s></s>\u2581"]
    return "".join(rng.choice(rng.choice(alphabets)) for _ in range(rng.randrange(1, 40)))


def train(name):
    root = os.path.join(HERE, "../../..")
    files = sorted(glob.glob(os.path.join(root, "base/*.h"))) + sorted(glob.glob(os.path.join(root, "*/README.md")))
    lines = [line for file in files for line in open(file).read().split("\n") if line.strip()] + TEXTS[2:] * 3
    rules = os.path.join(HERE, "rules.tsv")
    options = dict(MODELS[name])
    if name == "unigram":
        with open(rules, "w") as file:
            file.writelines("%s\t%s\n" % rule for rule in RULES)
        options["normalization_rule_tsv"] = rules
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, num_threads=1,
                                             minloglevel=2, **options)
    if name == "unigram":
        os.remove(rules)
    with open(os.path.join(HERE, name + ".model"), "wb") as file:
        file.write(model.getvalue())


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 24
    if len(sys.argv) == 1:
        for name in MODELS:
            train(name)
    rng = random.Random(7)
    texts = TEXTS + [random_text(rng) for _ in range(count)]
    paths = sys.argv[2:] or [os.path.join(HERE, name + ".model") for name in MODELS]
    golden = {"texts": texts, "models": {}}
    for path in paths:
        model = sentencepiece.SentencePieceProcessor(model_file=path)
        ids = [model.encode(text) for text in texts]
        golden["models"][os.path.basename(path)] = {
            "vocabulary": model.vocab_size(), "end_of_text": model.eos_id(), "ids": ids, "decoded": [model.decode(i) for i in ids]}
    out = sys.stdout if len(sys.argv) > 1 else open(os.path.join(HERE, "sentencepiece_golden.json"), "w")
    json.dump(golden, out, ensure_ascii=True, separators=(",", ":"))
    out.write("\n")


if __name__ == "__main__":
    main()
