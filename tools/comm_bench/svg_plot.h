// The plot of a report as an SVG document.
#ifndef TESSERA_TOOLS_COMM_BENCH_SVG_PLOT_H_
#define TESSERA_TOOLS_COMM_BENCH_SVG_PLOT_H_

#include <span>
#include <string>

#include "tools/comm_bench/row.h"

namespace tessera::tools {

// Time against size, both logarithmic: a panel for each operation, type and
// number of ranks, a line for each engine and algorithm, with a legend; points
// have tooltips.
std::string PlotSvg(std::span<const Row> rows);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_SVG_PLOT_H_
