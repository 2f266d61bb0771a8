// RunSchedule: measures every case with one number of ranks. Every process of
// the job runs it; all take the same decisions.
//
// All engines are created once and live in the same processes. Within a case
// the variants take turns in short rounds, forwards and backwards, so that
// disturbances of the machine affect all alike. Processes without a rank of the
// engine under test sleep in a collective of a group of their own, on which
// processes also exchange times.
#ifndef TESSERA_TOOLS_COMM_BENCH_BENCH_RUN_H_
#define TESSERA_TOOLS_COMM_BENCH_BENCH_RUN_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "collectives/bootstrap/store.h"
#include "collectives/operation/operation.h"
#include "nlohmann/json_fwd.hpp"
#include "tools/comm_bench/bench_options.h"
#include "tools/comm_bench/bench_rank.h"

namespace tessera::tools {

// The variants of options.algorithms that an engine has for `op`, in that
// order. "all" is the engine's own, if it has one, then every algorithm.
std::vector<Variant> VariantsFor(const BenchOptions& options,
                                 const Capabilities& engine,
                                 collectives::OpKind op);

// The operations of a batch if one takes `seconds`: enough for 40 us, at least
// 1 and at most 64. On a device enough for 2 ms, at most 1024, so that the time
// is not that of launching and waiting.
int64_t BatchFor(double seconds, bool on_device);

// For each of `count` iterations the time of the slowest rank; 0 without ranks.
std::vector<double> SlowestOf(const std::vector<std::vector<double>>& by_rank,
                              size_t count);

// 0 without values.
double Median(std::vector<double> values);

struct BenchEvents {
  // A row, as RowToJson and RowToText give it, of a finished case.
  std::function<void(const nlohmann::ordered_json& row,
                     const std::string& text)>
      on_row;
  // The current measurement, for a progress display and for errors.
  std::function<void(const std::string&)> on_progress;
};

// The number of ranks, and this process's place among those of its host.
struct BenchPlace {
  int64_t world = 1;
  int64_t local_rank = 0;
  int64_t local_world = 1;
};

// `store` connects the processes of the job: a process for each of the ranks,
// or one for all if all engines have threads. `fail` is called, on any
// thread, with the error of a rank, which names engine and rank: Internal for a
// wrong result. It must end the process, because other ranks wait for this one.
// Calls `events` in every process.
absl::Status RunSchedule(const BenchOptions& options, const BenchPlace& place,
                         collectives::Store& store, const BenchEvents& events,
                         const std::function<void(const absl::Status&)>& fail);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_BENCH_RUN_H_
