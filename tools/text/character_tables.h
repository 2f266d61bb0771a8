// The letters and numbers of Unicode, generated from its data.
#ifndef TESSERA_TOOLS_TEXT_CHARACTER_TABLES_H_
#define TESSERA_TOOLS_TEXT_CHARACTER_TABLES_H_

#include <cstdint>

namespace tessera::text::internal {

extern const char kUnicodeVersion[];

// Ascending edges of runs: the first code point of a run, then the one past its
// last, and so on. Letters are general category L*, numbers N*.
extern const uint32_t kLetterEdges[];
extern const int kLetterEdgeCount;
extern const uint32_t kNumberEdges[];
extern const int kNumberEdgeCount;

}  // namespace tessera::text::internal

#endif  // TESSERA_TOOLS_TEXT_CHARACTER_TABLES_H_
