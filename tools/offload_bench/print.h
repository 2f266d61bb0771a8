// Measurements as text, JSON or CSV.
#ifndef TESSERA_TOOLS_OFFLOAD_BENCH_PRINT_H_
#define TESSERA_TOOLS_OFFLOAD_BENCH_PRINT_H_

#include <ostream>
#include <string>
#include <string_view>

#include "tools/cli/output_format.h"
#include "tools/offload_bench/measurement.h"

namespace tessera::offload_bench {

// CSV's first line. The columns are stable; a value that does not apply is
// empty. JSON has the same names, and null.
inline constexpr std::string_view kColumns =
    "what,name,operation,data,threads,block_bytes,bytes,turns,clock,time_us,"
    "GBps,"
    "spread,limit,limit_GBps,limit_spread,share,ratio,error,"
    "bytes_per_parameter,note";

// Prints each as it comes; JSON is one document, {"measurements": [...]}.
class MeasurementPrinter {
 public:
  MeasurementPrinter(tools::OutputFormat format, std::ostream& out)
      : format_(format), out_(out) {}

  void Print(const Measurement& measurement);
  void Finish();

 private:
  void PrintText(const Measurement& measurement);

  const tools::OutputFormat format_;
  std::ostream& out_;
  std::string heading_;  // The part that is being printed, as text.
  bool begun_ = false;
};

}  // namespace tessera::offload_bench

#endif  // TESSERA_TOOLS_OFFLOAD_BENCH_PRINT_H_
