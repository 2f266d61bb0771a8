// Hugging Face's tokenizer.json, of byte-level BPE kind.
//
//   TESSERA_ASSIGN_OR_RETURN(BpeTokenizer tokenizer,
//                            ParseTokenizerJson(json, "<|endoftext|>"));
//   TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> same,
//                            LoadTokenizer("models/smollm"));
//
//   part            supported                                    refused
//   model           BPE; merges as "a b" or ["a", "b"];          other types,
//   dropout,
//                   ignore_merges                                byte_fallback,
//                   prefix,
//                                                                suffix
//   pre_tokenizer   ByteLevel (use_regex, add_prefix_space),     other types,
//                   or a Sequence that ends in it, of Split      patterns and
//                   (Isolated) by a pattern of word_splitter.h   behaviors
//                   and of Digits
//   normalizer      none                                         NFC and all
//   others added_tokens    special or not, normalized or not single_word,
//   lstrip,
//                                                                rstrip
//   decoder         ByteLevel or none                            others
//   post_processor, truncation, padding: passed over, for they do nothing where
//   special tokens are not added and lengths are the caller's
//
// Source: the tokenizers package, version 0.23.
#ifndef TESSERA_TOOLS_TEXT_TOKENIZER_JSON_H_
#define TESSERA_TOOLS_TEXT_TOKENIZER_JSON_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "tools/text/bpe_tokenizer.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {

// Those of 128 thousand tokens take 9 MB, of 256 thousand up to 34 MB.
inline constexpr int64_t kMaxTokenizerBytes = int64_t{128} << 20;

// `end_of_text` is the text of the token that ends a document; where it is
// empty, the first there is of <|endoftext|>, <|end_of_text|>, </s>, <eos> and
// <|im_end|>, or none. InvalidArgument where the document is not what its
// format demands or a reference in it leads nowhere, Unimplemented where it has
// what the table refuses; the message names the key.
absl::StatusOr<BpeTokenizer> ParseTokenizerJson(std::string_view json,
                                                std::string_view end_of_text);

// From tokenizer.json in the directory `path`, or from the file `path`. The end
// of text is the eos_token of tokenizer_config.json, where that lies beside it
// and has one. Errors name the file.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(
    const std::string& path);

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_TOKENIZER_JSON_H_
