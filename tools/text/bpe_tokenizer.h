// BPE of bytes, as in GPT-2, Llama 3, SmolLM and Qwen, and of characters, as in
// Llama 2, Mistral, Phi 3 and Gemma: BpeTokenizer, and its parts BpeModel,
// which merges the symbols of a word, and AddedTokens, which finds tokens that
// are never split.
//
//   TESSERA_ASSIGN_OR_RETURN(BpeTokenizer tokenizer,
//                            ParseTokenizerJson(json, "<|endoftext|>"));
//
// tokenizer_json.h reads Hugging Face's files. The ids equal those of Hugging
// Face's tokenizers package with add_special_tokens=False.
#ifndef TESSERA_TOOLS_TEXT_BPE_TOKENIZER_H_
#define TESSERA_TOOLS_TEXT_BPE_TOKENIZER_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "tools/text/tokenizer.h"
#include "tools/text/word_splitter.h"

namespace tessera::text {

// Byte-pair encoding of words.
//
//   TESSERA_ASSIGN_OR_RETURN(BpeModel model, BpeModel::Create(options));
//   BpeModel::Scratch scratch;
//   model.AppendWord(" lower", scratch, ids);
//
// A word starts as a sequence of its bytes or, with `byte_fallback`, of its
// characters. The pair of neighbours with the
// merge of highest priority, the leftmost among equals, is merged repeatedly
// until no merge applies. Takes O(n log n) for a word of n bytes. Source:
// Sennrich, Haddow and Birch, arXiv 1508.07909; Radford et al., Language Models
// are Unsupervised Multitask Learners, 2019, for bytes.
class BpeModel {
 public:
  struct Options {
    // Maps the text of a token to its id, which is not negative.
    absl::flat_hash_map<std::string, TokenId> vocabulary = {};
    // In order of priority, highest first; the last of equal pairs is used.
    std::vector<std::pair<std::string, std::string>> merges = {};
    // Encodes a word that is in the vocabulary as that token, without merging.
    bool whole_words_first = false;
    // Starts with characters. The bytes of a character that is not in the
    // vocabulary are the tokens "<0x00>" to "<0xFF>".
    bool byte_fallback = false;
  };

  // InvalidArgument if an operand or the result of a merge is not in the
  // vocabulary.
  static absl::StatusOr<BpeModel> Create(Options options);

  // Buffers that consecutive calls reuse.
  class Scratch {
   private:
    friend class BpeModel;
    struct Symbol {
      TokenId id;
      int32_t previous, next;  // -1: none.
    };
    struct Candidate {
      int32_t rank, position;
      TokenId left, right;
    };
    std::vector<Symbol> symbols_;
    std::vector<Candidate> heap_;
  };

  // Appends the tokens of `word`, which has less than 2^31 bytes. Skips bytes
  // without a token, as the tokenizers package does for BPE of bytes.
  void AppendWord(std::string_view word, Scratch& scratch,
                  std::vector<TokenId>& ids) const;

  // True if every byte has a token.
  bool covers_all_bytes() const;

 private:
  struct Merge {
    int32_t rank;
    TokenId result;
  };

  explicit BpeModel(Options options);

  static uint64_t Key(TokenId left, TokenId right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }
  void PushSymbol(TokenId id, Scratch& scratch) const;
  void PushSymbols(std::string_view word, Scratch& scratch) const;
  void PushCandidate(int32_t position, Scratch& scratch) const;
  void MergeAll(Scratch& scratch) const;

  Options options_;
  std::array<TokenId, 256> byte_ids_;  // -1: none.
  absl::flat_hash_map<uint64_t, Merge> merges_;
};

// A token that is found in a text before splitting and merging.
struct AddedToken {
  TokenId id = 0;
  std::string content = {};  // Not empty.
  bool special = false;
  // Includes the white space before and behind the token.
  bool strips_left = false, strips_right = false;
  // Is only found where no letter, mark, digit or underscore adjoins it.
  bool is_word = false;
};

// Finds added tokens in a text.
class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);

  struct Match {
    size_t begin = 0;                   // Of its content, without white space.
    const AddedToken* token = nullptr;  // Null: none.
  };

  // Finds the leftmost token in `text` from byte `begin` on, and the longest
  // token at that position. Considers special tokens only if `with_special`.
  Match Find(std::string_view text, size_t begin, bool with_special) const;

  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  // Sorted by first byte, then longest first.
  std::vector<AddedToken> tokens_;
  // For each byte the index of the first token that begins with it; then the
  // end.
  std::array<uint32_t, 257> first_of_ = {};
};

// A step of a normalizer.
struct NormalizerStep {
  enum class Kind {
    kCompose,  // Converts to ComposedForm.
    kPrepend,  // Puts `to` before a text that is not empty.
    kReplace,  // Replaces every `from` by `to`.
  };
  Kind kind = Kind::kCompose;
  std::string from = {}, to = {};
};

// Replaces spaces by a mark, and puts one before a text that has none.
struct Metaspace {
  enum class Prefix { kNever, kFirst, kAlways };
  std::string mark = {};
  // kFirst: only at the beginning of the whole text, not behind added tokens.
  Prefix prefix = Prefix::kAlways;
  bool splits = true;  // Each mark begins a word.
};

struct BpeTokenizerOptions {
  BpeModel::Options model = {};
  // Each rule splits the words that the previous one has produced.
  std::vector<SplitRule> rules = {};
  // Prepends a space to the words of `rules` that have none, before `last_rule`
  // splits them.
  bool add_prefix_space = false;
  std::optional<SplitRule> last_rule = {};
  // Applied to the words of `rules`; excludes the two options above.
  std::optional<Metaspace> metaspace = {};
  // Applied in order to the text between the tokens of `added_first`, and to
  // the content of the tokens of `added_second`.
  std::vector<NormalizerStep> normalizer = {};
  // What decoding replaces by a space; empty: nothing.
  std::string space_mark = {};
  // Decoding drops a space that begins a text.
  bool drops_first_space = false;
  // Tokens to find in the whole text, and those to find between them.
  std::vector<AddedToken> added_first = {};
  std::vector<AddedToken> added_second = {};
  // The bytes of ids that are neither in the vocabulary nor added tokens.
  absl::flat_hash_map<TokenId, std::string> other_texts = {};
  std::optional<TokenId> end_of_text = {};
};

// Finds added tokens, splits the text between them into words, and encodes each
// word with a BpeModel.
class BpeTokenizer : public Tokenizer {
 public:
  // Returns the errors of BpeModel; InvalidArgument if an id is negative or too
  // large (above four times the number of tokens plus 1024), two tokens share
  // an id, an added token is empty, or the end of text is not a token.
  static absl::StatusOr<BpeTokenizer> Create(BpeTokenizerOptions options);

  int64_t vocabulary_size() const override {
    return static_cast<int64_t>(texts_.size());
  }
  std::optional<TokenId> end_of_text() const override { return end_of_text_; }
  void AppendTokens(std::string_view text, SpecialTokens special,
                    std::vector<TokenId>& ids) const override;
  // Special tokens decode to their names.
  void AppendText(std::span<const TokenId> ids,
                  std::string& text) const override;

  // True if every text can be encoded without loss.
  bool covers_all_bytes() const { return model_.covers_all_bytes(); }

 private:
  class Encoding;

  BpeTokenizer(BpeModel model, BpeTokenizerOptions options,
               std::vector<std::string> texts, std::string part_mark);

  BpeModel model_;
  std::vector<SplitRule> rules_;
  bool add_prefix_space_;
  std::optional<SplitRule> last_rule_;
  std::optional<Metaspace> metaspace_;
  std::vector<NormalizerStep> normalizer_;
  bool drops_first_space_;
  // Begins parts of a text that no merge joins, so that they can be cached;
  // empty: none is known.
  std::string part_mark_;
  AddedTokens added_first_, added_second_;
  std::vector<std::string> texts_;  // By id.
  std::optional<TokenId> end_of_text_;
};

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_BPE_TOKENIZER_H_
