// EncodeDocument: the tokens of a document. DocumentEncoder: many documents at
// a time to an indexed data set.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto writer, IndexedDatasetWriter::Create("train", 50257));
//   ThreadPool pool(8);
//   DocumentEncoder encoder(tokenizer, pool, std::move(writer));
//   TESSERA_RETURN_IF_ERROR(encoder.Add({.text = "one"}));
//   TESSERA_RETURN_IF_ERROR(encoder.Add({"1 + 1 =", " two"}));
//   TESSERA_RETURN_IF_ERROR(encoder.Finish());
//
// Each thread encodes a document at a time; the documents are written in their
// order, each followed by the tokenizer's end of text, if it has one. Special
// tokens that are written out in a text are text. Waiting documents take at
// most 16 MiB and one document, and their tokens.
#ifndef TESSERA_TOOLS_TEXT_DOCUMENT_ENCODER_H_
#define TESSERA_TOOLS_TEXT_DOCUMENT_ENCODER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/os/thread_pool.h"
#include "tools/text/data_files.h"
#include "tools/text/indexed_dataset.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {

struct EncodedDocument {
  std::vector<TokenId> ids;
  int64_t prompt = 0;  // As many of them, at the beginning, are the prompt's.
};

// With the end of text behind, if the tokenizer has one. Begins with the tokens
// of the prompt alone, as generation does: the tokens of the whole text if
// these begin so, else those of the prompt and of the text.
EncodedDocument EncodeDocument(const Tokenizer& tokenizer,
                               const Document& document);

// Use it on one thread. `tokenizer` and `pool` outlive it.
class DocumentEncoder {
 public:
  // Calls `progress` now and then, if it is not null.
  DocumentEncoder(
      const Tokenizer& tokenizer, ThreadPool& pool, IndexedDatasetWriter writer,
      std::function<void(const DocumentEncoder&)> progress = nullptr)
      : tokenizer_(tokenizer),
        pool_(pool),
        writer_(std::move(writer)),
        progress_(std::move(progress)) {}

  // What is written so far.
  int64_t documents() const { return writer_.documents(); }
  int64_t tokens() const { return writer_.tokens(); }
  int64_t bytes() const { return bytes_; }  // Text.

  // The errors of IndexedDatasetWriter::AddDocument.
  absl::Status Add(const Document& document);

  // Writes what is waiting and replaces the data set's files. Call it once,
  // last; without it nothing is left.
  absl::Status Finish();

 private:
  struct Waiting {
    std::string prompt, text;
  };

  absl::Status Flush();

  const Tokenizer& tokenizer_;
  ThreadPool& pool_;
  IndexedDatasetWriter writer_;
  std::function<void(const DocumentEncoder&)> progress_;
  std::vector<Waiting> waiting_;
  int64_t waiting_bytes_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_DOCUMENT_ENCODER_H_
