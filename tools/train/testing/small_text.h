// Texts for tests of training: 400 similar lines that a small model can learn.
#ifndef TESSERA_TOOLS_TRAIN_TESTING_SMALL_TEXT_H_
#define TESSERA_TOOLS_TRAIN_TESTING_SMALL_TEXT_H_

#include <cstdint>
#include <memory>

#include "tools/text/corpus.h"

namespace tessera::train::testing {

// The text as bytes, the tokens of text::ByteTokenizer.
std::shared_ptr<const text::Corpus> SmallText();

// The same lines as documents with prompts, whose lengths vary from no letter
// to the whole line. Some short samples therefore have no target.
std::shared_ptr<const text::Corpus> SmallPairs();

// Pairs of completions of the beginnings of such lines, for DPO, as sequences
// of `length` tokens: the end of the line is preferred to that of another one.
std::shared_ptr<const text::Corpus> SmallPreferences(int64_t length);

}  // namespace tessera::train::testing

#endif  // TESSERA_TOOLS_TRAIN_TESTING_SMALL_TEXT_H_
