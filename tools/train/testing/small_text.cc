#include "tools/train/testing/small_text.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "tools/text/tokenizer.h"

namespace tessera::train::testing {

std::shared_ptr<const text::Corpus> SmallText() {
  std::string text;
  for (int i = 0; i < 400; ++i) {
    absl::StrAppend(&text, "the ", i * i % 97, " foxes jump over dog ", i,
                    ".\n");
  }
  const std::string texts[] = {text};
  return *text::Corpus::FromTexts(texts, text::ByteTokenizer());
}

}  // namespace tessera::train::testing
