// Random edits of text, for the fuzz tests of parsers.
//
//   std::mt19937_64 random(1);
//   Parse(MutateText("dp2,tp2", "dtp0123,", random));
#ifndef TESSERA_BASE_MUTATE_TEXT_H_
#define TESSERA_BASE_MUTATE_TEXT_H_

#include <random>
#include <string>
#include <string_view>

namespace tessera {

// `text` after one to four edits at random places: a byte of `alphabet` put in
// or written over another, up to three bytes taken out, or up to eight bytes of
// the beginning repeated. The same for the same state of `random`.
inline std::string MutateText(std::string text, std::string_view alphabet,
                              std::mt19937_64& random) {
  for (uint64_t edits = 1 + random() % 4; edits > 0; --edits) {
    const size_t at = text.empty() ? 0 : random() % text.size();
    const char byte = alphabet[random() % alphabet.size()];
    switch (random() % 4) {
      case 0:
        text.insert(at, 1, byte);
        break;
      case 1:
        if (!text.empty()) text[at] = byte;
        break;
      case 2:
        text.erase(at, 1 + random() % 3);
        break;
      default:
        text.insert(at, text.substr(0, random() % 9));
        break;
    }
  }
  return text;
}

}  // namespace tessera

#endif  // TESSERA_BASE_MUTATE_TEXT_H_
