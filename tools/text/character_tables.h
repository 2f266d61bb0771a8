// Tables of Unicode's letters and numbers, generated from its data.
#ifndef TESSERA_TOOLS_TEXT_CHARACTER_TABLES_H_
#define TESSERA_TOOLS_TEXT_CHARACTER_TABLES_H_

#include <cstdint>

namespace tessera::text::internal {

extern const char kUnicodeVersion[];

// Runs of code points as ascending edges: the first code point of each run and
// the code point after its last. Letters are general category L*, numbers N*.
extern const uint32_t kLetterEdges[];
extern const int kLetterEdgeCount;
extern const uint32_t kNumberEdges[];
extern const int kNumberEdgeCount;

}  // namespace tessera::text::internal

#endif  // TESSERA_TOOLS_TEXT_CHARACTER_TABLES_H_
