// Preference data: pairs of completions of a prompt, as sequences for Samples.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       std::shared_ptr<const Corpus> corpus,
//       OpenPreferences({{"pairs.jsonl"}}, tokenizer, /*length=*/512));
//   Samples::Create(corpus, {.sequence = 512, .together = 2});
//
// Sample 2k is the prompt and the chosen completion of pair k, sample 2k + 1
// the prompt and the rejected one, each padded to `length` tokens. Prompts and
// padding are masked, so that the targets are the tokens of completions.
#ifndef TESSERA_TOOLS_TEXT_PREFERENCES_H_
#define TESSERA_TOOLS_TEXT_PREFERENCES_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/text/corpus.h"
#include "tools/text/data_files.h"
#include "tools/text/document_encoder.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {

class PreferenceCorpus {
 public:
  // `tokenizer` must outlive it.
  PreferenceCorpus(const Tokenizer& tokenizer, int64_t length)
      : tokenizer_(tokenizer), length_(length) {}

  // Encodes a pair as EncodeDocument does. InvalidArgument if the prompt or a
  // completion has no tokens, or both together have more than `length`.
  absl::Status Add(const Preference& pair);

  // InvalidArgument if there are no pairs.
  absl::StatusOr<std::shared_ptr<const Corpus>> Build() const;

 private:
  absl::Status AddSequence(const Document& document, const char* completion);

  const Tokenizer& tokenizer_;
  const int64_t length_;
  std::vector<EncodedDocument> sequences_;
};

// Reads files of JSON lines. Returns the errors of FindDataFiles,
// ForEachPreference and PreferenceCorpus.
absl::StatusOr<std::shared_ptr<const Corpus>> OpenPreferences(
    std::span<const std::string> paths, const Tokenizer& tokenizer,
    int64_t length);

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_PREFERENCES_H_
