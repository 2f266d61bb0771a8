#!/bin/bash
# Tests the command line: the tokens of texts and JSON lines in one data set, any number of threads, malformed
# tokenizers, exit codes.
set -uo pipefail
tokenize=$PWD/$1 tokenizer=$PWD/$2 sentencepiece=$PWD/$3
cd "$TEST_TMPDIR"
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }

mkdir -p texts bpe
cp "$tokenizer" bpe/tokenizer.json
printf 'ab' >texts/a.txt
printf '{"text": "c"}\n\n{"text": ""}\n' >texts/b.jsonl
"$tokenize" --data=texts --output=small --format=json >out 2>err || fail "texts: $(cat err)"
python3 - <<'END' || fail "the data set is another: $(cat out)"
import json, struct
result = json.load(open("out"))
assert result["documents"] == 3 and result["tokens"] == 6 and result["bytes"] == 3, result
assert struct.unpack("<6H", open("small.bin", "rb").read()) == (97, 98, 256, 99, 256, 256)
index = open("small.idx", "rb").read()
assert index[:9] == b"MMIDIDX\x00\x00" and struct.unpack("<QBQQ", index[9:34]) == (1, 8, 3, 4)
assert struct.unpack("<3i3q4q", index[34:]) == (3, 2, 1, 0, 6, 10, 0, 1, 2, 3)
END

# Prompts are sequences of mode 1.
printf '{"prompt": "ab", "completion": "c"}\n{"text": "d"}\n' >pairs.jsonl
"$tokenize" --data=pairs.jsonl --output=pairs >out 2>err || fail "pairs: $(cat err)"
python3 - <<'END' || fail "the data set of pairs is another"
import struct
assert struct.unpack("<6H", open("pairs.bin", "rb").read()) == (97, 98, 99, 256, 100, 256)
assert struct.unpack("<3i3q3q3b", open("pairs.idx", "rb").read()[34:]) == (2, 2, 2, 0, 4, 8, 0, 2, 3, 1, 0, 0)
END

# Special tokens are ids in pairs, in all documents or in none; a chat's end is not doubled.
printf '{"prompt": "<|endoftext|>a", "completion": "b<|endoftext|>"}\n{"text": "<|endoftext|>"}\n' >special.json
for policy in pairs ids text; do
  "$tokenize" --data=special.json --tokenizer=bpe --output=special --special_tokens=$policy --format=json >out 2>err || fail "$policy: $(cat err)"
  python3 - "$policy" <<'END' || fail "--special_tokens=$policy has other ids"
import json, struct, sys
size = json.load(open("out"))["tokens"]
ids = struct.unpack("<%dH" % size, open("special.bin", "rb").read())
assert ids.count(0) == {"pairs": 3, "ids": 3, "text": 2}[sys.argv[1]], ids
assert (size == 5) == (sys.argv[1] == "ids"), ids
END
done

# Tokens are used as they are; invalid lines are skipped up to a limit, and counted.
printf '{"input_ids": [5, 6, 7], "labels": [-100, 6, -100]}\n{"input_ids": [999]}\n{\n' >tokens.json
"$tokenize" --data=tokens.json --output=tokens --max_bad_lines=2 --format=json >out 2>err || fail "tokens: $(cat err)"
python3 - <<'END' || fail "the data set of tokens is another: $(cat out)"
import json, struct
assert json.load(open("out"))["bad_lines"] == 2
assert struct.unpack("<3H", open("tokens.bin", "rb").read()) == (5, 6, 7)
assert struct.unpack("<4i", open("tokens.idx", "rb").read()[34:50]) == (1, 1, 1, 0)
END
"$tokenize" --data=tokens.json --output=tokens --max_bad_lines=2 | grep -q "; 2 invalid lines" || fail "does not count invalid lines"

# Any name, also one that is not UTF-8, whose result is valid JSON.
name=$'caf\xe9 [1],2024-01-01T10:30.jsonl'
printf '{"text": "a"}\n' >"$name"
"$tokenize" --data="$name" --output="$name" --format=json >out 2>err || fail "$name: $(cat err)"
[ -s "$name.bin" ] && python3 -c 'import json; json.load(open("out", encoding="utf-8", errors="strict"))' || fail "JSON of $name"

# The same bytes with any number of threads.
for i in $(seq 3000); do echo "{\"text\": \"document $i has its own words, number $((i * i))\"}"; done >many.jsonl
for threads in 1 3; do
  "$tokenize" --data=many.jsonl --tokenizer=bpe --output=many$threads --threads=$threads >out 2>err || fail "many: $(cat err)"
  grep -q "tokens of 3000 documents" out || fail "says $(cat out)"
done
cmp many1.bin many3.bin && cmp many1.idx many3.idx || fail "threads change the data set"

expect_usage_error() {
  "$tokenize" "${@:2}" >out 2>err
  [ $? = 2 ] && [ "$(wc -l <err)" = 1 ] && grep -q -- "$1" err || fail "${*:2}: $(cat err)"
  grep -q "for example: ./bazelw run //tools/text:tokenize -- --data=" err || fail "${*:2} gives no example: $(cat err)"
}
expect_usage_error "--data=: give files" --output=x
expect_usage_error "--output=: give the name" --data=texts
expect_usage_error "--data=missing: no data file" --data=missing --output=x
expect_usage_error "small.bin has tokens already" --data=small.idx --output=x
expect_usage_error "--tokenizer=texts" --data=texts --tokenizer=texts --output=x
expect_usage_error "tokens.json.*line 2: .input_ids.\[0\] is 999; .*from 0 to 256" --data=tokens.json --output=x
expect_usage_error "line 3: invalid JSON" --data=tokens.json --output=x --max_bad_lines=1
expect_usage_error "--max_bad_lines=-1: expected a number from 0" --data=texts --output=x --max_bad_lines=-1
expect_usage_error "--special_tokens=all: allowed: pairs, ids, text" --data=texts --output=x --special_tokens=all
expect_usage_error "--threads=-1" --data=texts --output=x --threads=-1

# A malformed tokenizer: one line with its file.
head -c 3000 "$tokenizer" >truncated.json
head -c 3000 "$sentencepiece" >truncated.model
printf 'a\0b\377' >garbage.model
echo '{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}' >wrong.json
: >empty.model
mkdir spm && cp truncated.model spm/tokenizer.model
for bad in truncated.json truncated.model garbage.model wrong.json empty.model missing.model; do
  expect_usage_error "--tokenizer=$bad: .*$bad" --data=texts --output=x --tokenizer=$bad
done
expect_usage_error "--tokenizer=spm: .*spm/tokenizer.model" --data=texts --output=x --tokenizer=spm
[ -z "$(ls x.bin x.idx 2>/dev/null)" ] || fail "a bad tokenizer leaves a data set"

echo '{"body": 1}' >bad.jsonl
"$tokenize" --data=bad.jsonl --output=bad >out 2>err
[ $? = 2 ] && [ "$(wc -l <err)" = 1 ] && grep -q "bad.jsonl\", line 1: expected an object" err || fail "bad.jsonl: $(cat err)"
[ -z "$(ls bad.bin bad.idx 2>/dev/null)" ] || fail "a failed run leaves a data set"
"$tokenize" --data=texts --output=/proc/never >out 2>err
[ $? != 0 ] && [ "$(wc -l <err)" = 1 ] && grep -q "/proc/never" err || fail "unwritable: $(cat err)"

exit $((failures > 0))
