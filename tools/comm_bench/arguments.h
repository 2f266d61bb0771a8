// The short flags of nccl-tests, as the long ones of this tool.
#ifndef TESSERA_TOOLS_COMM_BENCH_ARGUMENTS_H_
#define TESSERA_TOOLS_COMM_BENCH_ARGUMENTS_H_

#include <string>
#include <vector>

namespace tessera::tools {

// "-b 8", "-b8" and "-b=8" become "--min_bytes=8"; likewise -e, -f, -n, -w, -d,
// -o and -c (max_bytes, factor, iterations, warmup, dtype, reduction, check).
// What is no such flag stays as it is.
std::vector<std::string> LongArguments(
    const std::vector<std::string>& arguments);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_ARGUMENTS_H_
