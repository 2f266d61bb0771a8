// TextMutator: corrupts valid texts at random, for fuzz tests of parsers.
//
//   TextMutator mutator({"dp2,pp2,tp2"}, {",", "=", "ep8"}, /*seed=*/1);
//   Parse(mutator.Next());
//
// The same seed gives the same texts.
#ifndef TESSERA_BASE_TESTING_TEXT_MUTATOR_H_
#define TESSERA_BASE_TESTING_TEXT_MUTATOR_H_

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

class TextMutator {
 public:
  // `corpus` holds valid texts, and `tokens` pieces of the format to insert.
  TextMutator(std::vector<std::string> corpus, std::vector<std::string> tokens,
              uint64_t seed)
      : corpus_(std::move(corpus)), tokens_(std::move(tokens)), random_(seed) {}

  // A text of the corpus with one to four random changes.
  std::string Next() {
    std::string text = corpus_[Below(corpus_.size())];
    const size_t more = Below(2) == 0 ? 0 : Below(4);
    for (size_t i = 0; i <= more; ++i) Damage(text);
    return text;
  }

 private:
  size_t Below(size_t bound) { return random_() % bound; }

  void Damage(std::string& text) {
    const size_t at = Below(text.size() + 1);
    // Usually short, so that some of the format remains.
    const size_t longest = Below(4) == 0 ? text.size() : 12;
    const size_t length = Below(std::min(text.size() - at, longest) + 1);
    switch (Below(7)) {
      case 0:  // A byte becomes any other.
        if (at < text.size()) text[at] = static_cast<char>(random_());
        break;
      case 1:  // A bit flips.
        if (at < text.size()) {
          text[at] = static_cast<char>(text[at] ^ (1 << Below(8)));
        }
        break;
      case 2:
        text.resize(at);
        break;
      case 3:
        text.erase(at, length);
        break;
      case 4:
        text.insert(at, text.substr(at, length));
        break;
      case 5:
        text.insert(at, tokens_[Below(tokens_.size())]);
        break;
      default:  // A digit run becomes a huge number.
        text.insert(at, std::string(1 + Below(30), '9'));
    }
  }

  std::vector<std::string> corpus_;
  std::vector<std::string> tokens_;
  std::mt19937_64 random_;
};

}  // namespace tessera

#endif  // TESSERA_BASE_TESTING_TEXT_MUTATOR_H_
