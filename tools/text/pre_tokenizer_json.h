// The "pre_tokenizer" of a tokenizer.json.
#ifndef TESSERA_TOOLS_TEXT_PRE_TOKENIZER_JSON_H_
#define TESSERA_TOOLS_TEXT_PRE_TOKENIZER_JSON_H_

#include "absl/status/status.h"
#include "nlohmann/json.hpp"
#include "tools/text/bpe_tokenizer.h"

namespace tessera::text {

// Sets the rules of `options`. Unimplemented where it has what the table of
// tokenizer_json.h refuses; the message names the key.
absl::Status ReadPreTokenizer(const nlohmann::json& pre_tokenizer,
                              BpeTokenizerOptions& options);

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_PRE_TOKENIZER_JSON_H_
