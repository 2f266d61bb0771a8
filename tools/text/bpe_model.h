// BpeModel: byte-pair encoding of words.
//
//   TESSERA_ASSIGN_OR_RETURN(BpeModel model, BpeModel::Create(options));
//   BpeModel::Scratch scratch;
//   model.AppendWord(" lower", scratch, ids);
//
// A word begins as its bytes; again and again the two neighbours whose merge
// came first when the vocabulary was made become one, the leftmost of equals,
// until none of them merge. O(n log n) for a word of n bytes. Source: Sennrich,
// Haddow and Birch, arXiv 1508.07909; Radford et al., Language Models are
// Unsupervised Multitask Learners, 2019, for bytes.
#ifndef TESSERA_TOOLS_TEXT_BPE_MODEL_H_
#define TESSERA_TOOLS_TEXT_BPE_MODEL_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {

class BpeModel {
 public:
  struct Options {
    // By the bytes that a token stands for. Ids are not negative.
    absl::flat_hash_map<std::string, TokenId> vocabulary = {};
    // The first comes first; of equal pairs the last counts.
    std::vector<std::pair<std::string, std::string>> merges = {};
    // A word that is in the vocabulary is that token, whatever the merges.
    bool whole_words_first = false;
  };

  // InvalidArgument where a part or the result of a merge is not in the
  // vocabulary.
  static absl::StatusOr<BpeModel> Create(Options options);

  // Memory that calls after one another share.
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

  // Appends the tokens of `word`, of less than 2^31 bytes. A byte that has no
  // token is left out, as the tokenizers package does.
  void AppendWord(std::string_view word, Scratch& scratch,
                  std::vector<TokenId>& ids) const;

  // Whether every byte has a token.
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
  void PushCandidate(int32_t position, Scratch& scratch) const;
  void MergeAll(Scratch& scratch) const;

  Options options_;
  std::array<TokenId, 256> byte_ids_;  // -1: none.
  absl::flat_hash_map<uint64_t, Merge> merges_;
};

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_BPE_MODEL_H_
