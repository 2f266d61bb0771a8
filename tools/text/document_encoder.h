// Encoding of documents: EncodeDocument encodes one, DocumentEncoder writes
// many in parallel to an indexed data set.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto writer, IndexedDatasetWriter::Create("train", 50257));
//   ThreadPool pool(8);
//   DocumentEncoder encoder(tokenizer, pool, std::move(writer));
//   TESSERA_RETURN_IF_ERROR(encoder.Add({.text = "one"}));
//   TESSERA_RETURN_IF_ERROR(encoder.Add({"1 + 1 =", " two"}));
//   TESSERA_RETURN_IF_ERROR(encoder.Finish());
//
// Each thread encodes one document at a time. Documents are written in their
// original order, each followed by the tokenizer's end of text, if it has one.
// The queue uses memory for at most 16 MiB and one further document, and for
// their tokens.
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
#include "tools/text/token_ranges.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {

struct EncodedDocument {
  std::vector<TokenId> ids = {};
  // Tokens that training does not learn, such as the prompt; ascending and
  // disjoint.
  std::vector<TokenRange> masked = {};
};

// Copies the tokens of a document that has tokens. Otherwise appends the end of
// text, if the tokenizer has one and the text does not end with it. The ids
// begin with those of the prompt alone, as in generation: if the encoding of
// the whole document begins with them, it is used; otherwise prompt and text
// are encoded separately. The tokenizer's policy determines the encoding of
// special tokens.
EncodedDocument EncodeDocument(const Tokenizer& tokenizer,
                               const Document& document);

// Not thread-safe. `tokenizer` and `pool` must outlive the encoder.
class DocumentEncoder {
 public:
  // Calls `progress`, unless it is null, after each batch of documents.
  DocumentEncoder(
      const Tokenizer& tokenizer, ThreadPool& pool, IndexedDatasetWriter writer,
      std::function<void(const DocumentEncoder&)> progress = nullptr)
      : tokenizer_(tokenizer),
        pool_(pool),
        writer_(std::move(writer)),
        progress_(std::move(progress)) {}

  // The documents, tokens and bytes written so far.
  int64_t documents() const { return writer_.documents(); }
  int64_t tokens() const { return writer_.tokens(); }
  int64_t bytes() const { return bytes_; }  // Text, and 4 for an id.

  // The errors of IndexedDatasetWriter::AddDocument.
  absl::Status Add(const Document& document);

  // Writes the queued documents and replaces the data set's files. Must be the
  // last call. Without it no file is written.
  absl::Status Finish();

 private:
  struct Waiting {
    std::string prompt, text;
    bool is_pair = false;
    EncodedDocument tokens = {};  // Of a document that has tokens.
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
