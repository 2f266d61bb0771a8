// Texts become tokens, samples and a step's batch.
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "tools/text/corpus.h"
#include "tools/text/samples.h"
#include "tools/text/tokenizer.h"

absl::Status Run() {
  using namespace tessera::text;
  const ByteTokenizer tokenizer;
  const std::vector<std::string> texts = {"Loss goes down.", "Ranks go on."};
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<const Corpus> corpus,
                           Corpus::FromTexts(texts, tokenizer));
  TESSERA_ASSIGN_OR_RETURN(const Samples samples,
                           Samples::Create(corpus, {.sequence = 6, .seed = 1}));
  TESSERA_ASSIGN_OR_RETURN(
      const BatchPartition batch,
      BatchPartition::Create(/*batch=*/4, /*data_ranks=*/2, /*micro_batch=*/2));
  std::cout << corpus->token_count() << " tokens, "
            << samples.samples_per_epoch() << " samples an epoch\n";
  std::vector<TokenId> tokens(7);
  for (int64_t rank = 0; rank < batch.data_ranks(); ++rank) {
    const int64_t first = batch.FirstIndex(/*step=*/0, rank, 0);
    for (int64_t i = first; i < first + batch.micro_batch(); ++i) {
      TESSERA_RETURN_IF_ERROR(samples.ReadTraining(i, tokens));
      std::cout << "rank " << rank << ", sample " << i << ": \""
                << tokenizer.Decode(tokens) << "\"\n";
    }
  }
  return absl::OkStatus();
}

int main() { return Run().ok() ? 0 : 1; }
