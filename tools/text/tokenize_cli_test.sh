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
