#!/usr/bin/env python3
"""Makes marks_golden.json with the tokenizers package: BPE of characters, which marks spaces, and all kinds of added tokens.

    python3 make_marks_testdata.py    # writes the file into this directory; make_testdata.py must have run
"""

import json
import os
import random

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from make_testdata import HERE, TEXTS, random_text

MARK = "\u2581"
CHAT = [("<|im_start|>", {}), ("<|im_end|>", {"rstrip": True})]
ODD = [
    ("<mask>", {"lstrip": True}), ("<both>", {"lstrip": True, "rstrip": True}), ("word", {"single_word": True}),
    ("n\u00e9e", {"single_word": True, "normalized": True, "special": False}), ("<pad>", {"normalized": True}),
    ("\n\n", {"special": False, "normalized": True}), ("<mask>x", {}), ("<A>", {"rstrip": True, "normalized": True}),
    ("e\u0301!", {"normalized": True, "special": False, "lstrip": True}),
]
ODD_TEXTS = [
    "<|im_start|>user\n2 + 2 =<|im_end|>\n<|im_start|>assistant\n", " <|im_end|> \n a", "a <mask> b<mask>x", "<mask>", "a  <both>\n b",
    "word words sword word_ (word) word\u0301 \u24d0word word", "n\u00e9e ne\u0301e (n\u00e9e)", "x<pad>y <pad> <pad>", "<pad>", "a\n\n\nb",
    "<A> <A>\t<A>b", "e\u0301!\u00e9! \u00e9!", MARK + "a " + MARK, "<0x41> <s>a</s> b<unk>", "  two  spaces  ", "<both><both> <both>",
]


def sequence(kind, *steps):
    return {"type": "Sequence", kind: list(steps)}


def replace(old, new):
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def metaspace(scheme, split):
    return {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": split}


LLAMA = sequence("normalizers", {"type": "Prepend", "prepend": MARK}, replace(" ", MARK))
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
GEMMA_SPLIT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
JOIN = [replace(MARK, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
LLAMA_DECODER = sequence("decoders", *JOIN, {"type": "Strip", "content": " ", "start": 1, "stop": 0})
# Base, normalizer, pre_tokenizer, decoder, added tokens.
VARIANTS = {
    "llama": ("marks", LLAMA, None, LLAMA_DECODER, CHAT + ODD),
    "gemma": ("marks", replace(" ", MARK), GEMMA_SPLIT, sequence("decoders", *JOIN), CHAT),
    "first": ("marks", None, metaspace("first", False), sequence("decoders", {"type": "ByteFallback"}, metaspace("first", False)),
              CHAT + ODD),
    "always": ("marks", {"type": "NFC"}, metaspace("always", True), LLAMA_DECODER, ODD),
    "digits": ("marks", None, sequence("pretokenizers", {"type": "Digits", "individual_digits": True},
                                       metaspace("never", True)), sequence("decoders", *JOIN), ODD),
    "bytes": ("bytes", sequence("normalizers", {"type": "NFC"}, replace("ab", "ba")), BYTES, BYTES, CHAT + ODD),
}


def marks():
    """A model of characters whose other bytes are tokens."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(
        vocab_size=600, special_tokens=names, limit_alphabet=120, show_progress=False))
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = document["added_tokens"][:3]
    return document


def variant(base, normalizer, pre_tokenizer, decoder, added):
    document = json.loads(json.dumps(base))
    vocabulary = document["model"]["vocab"]
    next_id = max([*vocabulary.values(), *(token["id"] for token in document["added_tokens"])]) + 1
    for content, options in added:
        one_id = vocabulary.get(content, next_id)
        next_id += one_id == next_id
        document["added_tokens"].append({"id": one_id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
                                         "normalized": False, "special": True, **options})
    return {**document, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "decoder": decoder}


def main():
    rng = random.Random(11)
    texts = TEXTS + ODD_TEXTS + [random_text(rng) for _ in range(16)]
    golden = {"marks": marks(), "texts": texts, "variants": {}}
    bases = {"marks": golden["marks"], "bytes": json.load(open(os.path.join(HERE, "tokenizer.json")))}
    for name, (base, *parts) in VARIANTS.items():
        document = variant(bases[base], *parts)
        one = Tokenizer.from_str(json.dumps(document))
        ids = [one.encode(text, add_special_tokens=False).ids for text in texts]
        golden["variants"][name] = {
            "base": base, **{key: document[key] for key in ("added_tokens", "normalizer", "pre_tokenizer", "decoder")}, "ids": ids,
            "decoded": [one.decode(one_ids, skip_special_tokens=False) for one_ids in ids]}
    with open(os.path.join(HERE, "marks_golden.json"), "w") as out:
        json.dump(golden, out, ensure_ascii=True, separators=(",", ":"))
        out.write("\n")


if __name__ == "__main__":
    main()
