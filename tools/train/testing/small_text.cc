#include "tools/train/testing/small_text.h"

#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/text/data_files.h"
#include "tools/text/preferences.h"
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

std::shared_ptr<const text::Corpus> SmallPreferences(int64_t length) {
  const text::ByteTokenizer tokenizer;
  text::PreferenceCorpus pairs(tokenizer, length);
  for (int i = 0; i < 60; ++i) {
    const std::string text = Line(i), other = Line(i * 7 % 60 + 100);
    const auto prompt = static_cast<size_t>(1 + i % 4);
    // Completions of different lengths, that fit with the end of text.
    const auto most = static_cast<size_t>(length) - prompt - 1;
    const std::string_view begin = std::string_view(text).substr(4, prompt);
    const absl::Status added = pairs.Add(
        {{begin, std::string_view(text).substr(4 + prompt, most), true},
         {begin, std::string_view(other).substr(9, 1 + i % most), true}});
    if (!added.ok()) std::abort();
  }
  return *pairs.Build();
}

}  // namespace tessera::train::testing
