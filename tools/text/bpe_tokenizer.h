// BpeTokenizer: byte-level BPE, as GPT-2, Llama 3, SmolLM and Qwen have it.
//
//   TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer,
//                            LoadTokenizer("models/smollm"));
//
// tokenizer_json.h reads the files of Hugging Face and says what of them is
// supported. Gives the ids that their tokenizers package gives with
// add_special_tokens=False.
#ifndef TESSERA_TOOLS_TEXT_BPE_TOKENIZER_H_
#define TESSERA_TOOLS_TEXT_BPE_TOKENIZER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "tools/text/added_tokens.h"
#include "tools/text/bpe_model.h"
#include "tools/text/tokenizer.h"
#include "tools/text/word_splitter.h"

namespace tessera::text {

struct BpeTokenizerOptions {
  BpeModel::Options model = {};
  // Each cuts the words that the one before it left.
  std::vector<SplitRule> rules = {};
  // A space goes before every word that `rules` leave and that has none, and
  // then `last_rule` cuts.
  bool add_prefix_space = false;
  std::optional<SplitRule> last_rule = {};
  // Looked for in the text, then the second ones in what lies between these.
  std::vector<AddedToken> added_first = {};
  std::vector<AddedToken> added_second = {};
  // Bytes of the ids in neither.
  absl::flat_hash_map<TokenId, std::string> other_texts = {};
  std::optional<TokenId> end_of_text = {};
};

class BpeTokenizer : public Tokenizer {
 public:
  // Refuses what BpeModel refuses. InvalidArgument where an id is negative or
  // above four times the number of tokens and 1024, two tokens have one, an
  // added token is empty, or the end of text is no token.
  static absl::StatusOr<BpeTokenizer> Create(BpeTokenizerOptions options);

  int64_t vocabulary_size() const override {
    return static_cast<int64_t>(texts_.size());
  }
  std::optional<TokenId> end_of_text() const override { return end_of_text_; }
  void AppendTokens(std::string_view text, SpecialTokens special,
                    std::vector<TokenId>& ids) const override;
  // Special tokens are written as their names.
  void AppendText(std::span<const TokenId> ids,
                  std::string& text) const override;

  // Whether any text decodes to itself.
  bool covers_all_bytes() const { return model_.covers_all_bytes(); }

 private:
  class Encoding;

  BpeTokenizer(BpeModel model, BpeTokenizerOptions options,
               std::vector<std::string> texts);

  BpeModel model_;
  std::vector<SplitRule> rules_;
  bool add_prefix_space_;
  std::optional<SplitRule> last_rule_;
  AddedTokens added_first_, added_second_;
  std::vector<std::string> texts_;  // By id.
  std::optional<TokenId> end_of_text_;
};

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_BPE_TOKENIZER_H_
