// Reads Hugging Face's tokenizer.json files with BPE of bytes (ByteLevel) or of
// characters with byte fallback, which marks spaces.
//
//   TESSERA_ASSIGN_OR_RETURN(BpeTokenizer tokenizer,
//                            ParseTokenizerJson(json, "<|endoftext|>"));
//
// clang-format off
//   part            supported                                refused
//   model           BPE; merges as "a b" or ["a", "b"];      other types, dropout,
//                   ignore_merges; byte_fallback exactly     prefix, suffix, unknown
//                   without ByteLevel                        tokens
//   pre_tokenizer   ByteLevel (use_regex, add_prefix_space)  other types, patterns
//                   or Metaspace, or a Sequence that ends    and behaviors
//                   in it, of Split (Isolated) by a pattern
//                   of word_splitter.h and of Digits; none
//   normalizer      NFC, Prepend, Replace of strings, none,  others
//                   and without effect: Strip,
//                   BertNormalizer
//   added_tokens    all
//   decoder         ByteLevel, with Fuse; Metaspace, or      others
//                   Replace by a space, ByteFallback, Fuse
//                   and Strip of a leading space; none
//
// Each Sequence may be empty or contain others. Without a decoder, tokens are
// decoded as by ByteLevel, or with U+2581 as a space.
// clang-format on
//
// The special tokens that the post_processor puts before a text are the
// tokenizer's begin of text, which callers add. Its other parts, truncation and
// padding are ignored: callers determine ends and lengths.
//
// Source: the tokenizers package, version 0.23.
#ifndef TESSERA_TOOLS_TEXT_TOKENIZER_JSON_H_
#define TESSERA_TOOLS_TEXT_TOKENIZER_JSON_H_

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "tools/text/bpe_tokenizer.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {

// The largest accepted file. A file with 128 thousand tokens has 9 MB, one with
// 256 thousand up to 34 MB.
inline constexpr int64_t kMaxTokenizerBytes = int64_t{128} << 20;

// `end_of_text` is the text of the token that ends a document. If it is empty,
// the first of <|endoftext|>, <|end_of_text|>, </s>, <eos> and <|im_end|> that
// exists is used, if any. InvalidArgument for a malformed file or a reference
// to an unknown token, Unimplemented for the features that the table lists as
// refused; the message names the key.
absl::StatusOr<BpeTokenizer> ParseTokenizerJson(std::string_view json,
                                                std::string_view end_of_text);

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_TOKENIZER_JSON_H_
