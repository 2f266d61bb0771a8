// Series: the rows of a report as lines over the size, for plots.
#ifndef TESSERA_TOOLS_COMM_BENCH_SERIES_H_
#define TESSERA_TOOLS_COMM_BENCH_SERIES_H_

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tools/comm_bench/row.h"

namespace tessera::tools {

// log10 of bytes and of microseconds.
struct Point {
  double x = 0;
  double y = 0;
};

struct Series {
  std::string name;           // "shared_memory", "mpi ring".
  std::vector<Point> points;  // In the order of the rows.
};

// One operation, type and number of ranks.
struct Panel {
  std::string title;
  std::vector<Series> series;
  Point lowest;
  Point highest;  // Above `lowest` in both coordinates.
};

// Rows without bytes or time are left out.
std::vector<Panel> MakePanels(std::span<const Row> rows);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_SERIES_H_
