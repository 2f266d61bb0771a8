// A plot for a terminal: time against size, both logarithmic.
#ifndef TESSERA_TOOLS_COMM_BENCH_TEXT_PLOT_H_
#define TESSERA_TOOLS_COMM_BENCH_TEXT_PLOT_H_

#include <span>
#include <string>

#include "tools/comm_bench/row.h"

namespace tessera::tools {

// One plot for each operation, type and number of ranks, a letter for each
// engine and algorithm, with a legend; "*" where several meet. Lines of at most
// 79 characters.
std::string PlotText(std::span<const Row> rows);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_TEXT_PLOT_H_
