// PrintableText: text that a model wrote, as a terminal may show it.
#ifndef TESSERA_TOOLS_TRAIN_SAMPLE_PRINTABLE_TEXT_H_
#define TESSERA_TOOLS_TRAIN_SAMPLE_PRINTABLE_TEXT_H_

#include <string>
#include <string_view>

namespace tessera::train {

// UTF-8 whose only control characters are line ends and tabs. Other control
// characters, and bytes that are no character, become "\x1b"; the bytes of a
// character that the end cuts off are left out.
std::string PrintableText(std::string_view text);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SAMPLE_PRINTABLE_TEXT_H_
