#include "tools/train/testing/small_text.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/text/data_files.h"
#include "tools/text/tokenizer.h"

namespace tessera::train::testing {

namespace {

std::string Line(int i) {
  return absl::StrCat("the ", i * i % 97, " foxes jump over dog ", i, ".\n");
}

}  // namespace

std::shared_ptr<const text::Corpus> SmallText() {
  std::string text;
  for (int i = 0; i < 400; ++i) text += Line(i);
  const std::string texts[] = {text};
  return *text::Corpus::FromTexts(texts, text::ByteTokenizer());
}

std::shared_ptr<const text::Corpus> SmallPairs() {
  std::vector<std::string> lines;
  for (int i = 0; i < 400; ++i) lines.push_back(Line(i));
  std::vector<text::Document> documents;
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string_view line = lines[i];
    const size_t prompt = 7 * i % (line.size() + 1);
    documents.push_back({line.substr(0, prompt), line.substr(prompt)});
  }
  return *text::Corpus::FromDocuments(documents, text::ByteTokenizer());
}

}  // namespace tessera::train::testing
