#include "tools/comm_bench/bench_run.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/byte_size.h"
#include "base/status_macros.h"
#include "tools/cli/cli.h"
#include "tools/comm_bench/bench_case.h"
#include "tools/comm_bench/job.h"
#include "tools/comm_bench/operands.h"
#include "tools/comm_bench/traffic_meter.h"

namespace tessera::tools {
namespace {

using collectives::OpKind;

// What is measured with one number of ranks.
class World {
 public:
  World(const BenchOptions& options, const EngineCatalogue& catalogue,
        const SignalWatch* signals, const BenchEvents& events, int64_t world)
      : options_(options),
        catalogue_(catalogue),
        signals_(signals),
        events_(events),
        world_(world) {}

  absl::Status Run() {
    TESSERA_RETURN_IF_ERROR(Start());
    for (const OpKind op : options_.ops) {
      for (const DType dtype : options_.dtypes) {
        TESSERA_RETURN_IF_ERROR(RunSizes(op, dtype));
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Start() {
    if (options_.bound) {
      // Without memory for it there is no bound, and all else is measured.
      auto meter = TrafficMeter::Start(world_, options_.sizes.back() + 4096);
      if (meter.ok()) meter_ = *std::move(meter);
    }
    for (const std::string& engine : options_.engines) {
      events_.on_progress(absl::StrCat("starting ", engine));
      JobSpec spec;
      spec.catalogue = &catalogue_;
      spec.engine = engine;
      spec.world = world_;
      spec.group_size = options_.group_size;
      spec.bind = options_.bind;
      spec.signals = signals_;
      TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Job> job, Job::Start(spec));
      jobs_.push_back(std::move(job));
    }
    return absl::OkStatus();
  }

  std::vector<Contestant> ContestantsFor(OpKind op) const {
    std::vector<Contestant> contestants;
    for (const std::unique_ptr<Job>& job : jobs_) {
      for (Variant& variant : VariantsFor(options_, job->capabilities(), op)) {
        contestants.push_back({job.get(), std::move(variant)});
      }
    }
    return contestants;
  }

  absl::Status RunSizes(OpKind op, DType dtype) {
    const std::vector<Contestant> contestants = ContestantsFor(op);
    if (contestants.empty()) return absl::OkStatus();
    int64_t last = -1;  // Small sizes may round to the same count.
    for (const int64_t size : options_.sizes) {
      BenchCase bench_case;
      bench_case.op = op;
      bench_case.dtype = dtype;
      bench_case.world = world_;
      bench_case.count = CountFor(op, dtype, size, world_);
      if (std::exchange(last, bench_case.count) == bench_case.count) continue;
      TESSERA_RETURN_IF_ERROR(RunCase(bench_case, contestants));
    }
    return absl::OkStatus();
  }

  absl::Status RunCase(const BenchCase& bench_case,
                       const std::vector<Contestant>& contestants) {
    const int64_t bytes =
        MessageBytes(bench_case.op, bench_case.dtype, bench_case.count, world_);
    const std::string what = absl::StrCat(
        world_, " ranks, ", OpKindName(bench_case.op), " of ",
        ByteSize(bytes).ToString(), " ", DTypeName(bench_case.dtype), ": ");
    TESSERA_ASSIGN_OR_RETURN(
        std::vector<Row> rows,
        MeasureCase(options_, bench_case, contestants,
                    [&](const std::string& who) {
                      events_.on_progress(absl::StrCat(what, who));
                    }));
    if (options_.regret) {
      TESSERA_RETURN_IF_ERROR(
          AddChoices(options_, bench_case, contestants, &rows));
    }
    TESSERA_RETURN_IF_ERROR(AddBound(bench_case.op, bytes, rows));
    events_.on_case(rows);
    return absl::OkStatus();
  }

  absl::Status AddBound(OpKind op, int64_t bytes, std::vector<Row>& rows) {
    if (meter_ == nullptr || op == OpKind::kBarrier) return absl::OkStatus();
    TESSERA_ASSIGN_OR_RETURN(const double bound, meter_->Measure(op, bytes),
                             Annotate(_, "the memory-traffic bound"));
    for (Row& row : rows) row.bound_seconds = bound;
    return absl::OkStatus();
  }

  const BenchOptions& options_;
  const EngineCatalogue& catalogue_;
  const SignalWatch* signals_;
  const BenchEvents& events_;
  int64_t world_;
  std::unique_ptr<TrafficMeter> meter_;
  std::vector<std::unique_ptr<Job>> jobs_;
};

}  // namespace

absl::Status RunBenchmark(const BenchOptions& options,
                          const EngineCatalogue& catalogue,
                          const SignalWatch* signals,
                          const BenchEvents& events) {
  for (const std::string& engine : options.engines) {
    TESSERA_RETURN_IF_ERROR(catalogue.Find(engine).status(),
                            FlagError("engine", engine, _));
  }
  for (const int64_t world : options.worlds) {
    World run(options, catalogue, signals, events, world);
    TESSERA_RETURN_IF_ERROR(run.Run());
  }
  return absl::OkStatus();
}

}  // namespace tessera::tools
