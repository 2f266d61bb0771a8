// Layers that overlap the communication of some chunks with the products of
// others, compared with only the products and only the collectives in the same
// run. There are two ranks, each a thread with one BLAS thread.
//
//   overlap_ms        the layer's call
//   compute_ms        its products alone, without a group
//   communication_ms  its collectives alone
//   of_sum            overlap / (compute + communication): below 1, something
//                     was hidden
//   hidden            share of the shorter part that was hidden: (compute +
//                     communication - overlap) / min(compute, communication)
//
// Each time is the median of rounds in which the three variants alternate.
// Ranks that share memory copy with the same processors that compute the
// products, so with as many processors as ranks only waiting can be hidden
// (wire:0). With a simulated wire of that number of MB/s
// (collectives/testing/wire_engine.h) collectives need no processor, as with a
// network card. speed_of_compute is the call's speed relative to that of only
// the products.
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "base/tensor/tensor.h"
#include "benchmark/benchmark.h"
#include "collectives/communicator.h"
#include "collectives/in_process/in_process.h"
#include "collectives/testing/wire_engine.h"
#include "tensor_parallel/layers/linear.h"
#include "tensor_parallel/layers/testing/layer_case.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"

namespace tessera::tensor_parallel {
namespace {

constexpr int64_t kRanks = 2;

struct Question {
  bool columns = true;    // All-gather + GEMM; else GEMM + reduce-scatter.
  bool backward = false;  // Both halves of it.
  int64_t tokens = 0;
  int64_t width = 0;   // Elements per communicated token.
  int64_t hidden = 0;  // Sum over all ranks.
  int64_t chunks = 0;
};

using Call = std::function<absl::Status()>;

// One rank's three variants, which work on their own tensors.
struct Ways {
  Call overlap;
  Call compute;
  Call communicate;
};

struct Tensors {
  Tensor mine;           // Tokens of this rank: `width` elements each.
  Tensor mine_gradient;  // And their gradient.
  Tensor all;            // All tokens.
  Tensor hidden;         // All tokens: this rank's part of `hidden`.
  Tensor hidden_gradient;
};

absl::StatusOr<Tensors> MakeTensors(const Question& q) {
  const int64_t share = q.hidden / kRanks;
  const int64_t mine[] = {q.tokens / kRanks, q.width};
  const int64_t all[] = {q.tokens, q.width};
  const int64_t hidden[] = {q.tokens, share};
  TESSERA_ASSIGN_OR_RETURN(Tensor a, RandomTensor(DType::kF32, mine, 1));
  TESSERA_ASSIGN_OR_RETURN(Tensor b, RandomTensor(DType::kF32, mine, 2));
  TESSERA_ASSIGN_OR_RETURN(Tensor c, RandomTensor(DType::kF32, all, 3));
  TESSERA_ASSIGN_OR_RETURN(Tensor d, RandomTensor(DType::kF32, hidden, 4));
  TESSERA_ASSIGN_OR_RETURN(Tensor e, RandomTensor(DType::kF32, hidden, 5));
  return Tensors{std::move(a), std::move(b), std::move(c), std::move(d),
                 std::move(e)};
}

// The layer's products: one in the forward, two in the backward.
absl::Status Compute(const Question& q, Ops& ops, LinearWeights& weights,
                     Tensors& t) {
  // The layer's input and output, with all tokens.
  const TensorView in = q.columns ? t.all.view() : t.hidden.view();
  const TensorView out = q.columns ? t.hidden.view() : t.all.view();
  if (!q.backward) {
    return ops.Run(op::Gemm{{.transpose_b = true}, in, weights.weight(), out});
  }
  TESSERA_RETURN_IF_ERROR(ops.Run(op::Gemm{
      {.transpose_a = true, .beta = 1}, out, in, weights.weight_gradient()}));
  return ops.Run(op::Gemm{{}, out, weights.weight(), in});
}

// The layer's communication: columns gather x and scatter the sums of its
// gradient; rows do the opposite.
absl::Status Communicate(const Question& q, const TensorGroup& group,
                         const Partition& tokens, Tensors& t) {
  const bool gathers = q.columns || q.backward;
  const bool scatters = q.columns == q.backward;
  if (gathers) {
    TESSERA_RETURN_IF_ERROR(
        group.GatherTokens(tokens, t.mine.view(), t.all.view()));
  }
  return scatters
             ? group.ScatterSums(tokens, t.all.view(), t.mine_gradient.view())
             : absl::OkStatus();
}

template <typename Layer>
absl::Status RunLayer(const Question& q, const Partition& tokens, Layer& layer,
                      Tensors& t) {
  const TensorView in = q.columns ? t.mine.view() : t.hidden.view();
  const TensorView in_gradient =
      q.columns ? t.mine_gradient.view() : t.hidden_gradient.view();
  const TensorView out = q.columns ? t.hidden.view() : t.mine.view();
  return q.backward ? layer.Backward(tokens, out, in, in_gradient)
                    : layer.Forward(tokens, in, out);
}

// Seconds from a start that all ranks share to the end of the last rank.
class Stopwatch {
 public:
  absl::StatusOr<double> Time(const Call& call) {
    barrier_.arrive_and_wait();
    const auto start = std::chrono::steady_clock::now();
    const absl::Status status = call();
    barrier_.arrive_and_wait();
    TESSERA_RETURN_IF_ERROR(status);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() -
                                         start)
        .count();
  }

 private:
  std::barrier<> barrier_{kRanks};
};

struct Times {
  std::vector<double> overlap, compute, communicate;
};

absl::Status TimeWays(int64_t rounds, Stopwatch& watch, const Ways& ways,
                      Times& times) {
  for (int64_t i = -1; i < rounds; ++i) {
    TESSERA_ASSIGN_OR_RETURN(const double overlap, watch.Time(ways.overlap));
    TESSERA_ASSIGN_OR_RETURN(const double compute, watch.Time(ways.compute));
    TESSERA_ASSIGN_OR_RETURN(const double communicate,
                             watch.Time(ways.communicate));
    if (i < 0) continue;  // To warm up.
    times.overlap.push_back(overlap);
    times.compute.push_back(compute);
    times.communicate.push_back(communicate);
  }
  return absl::OkStatus();
}

template <typename Layer>
absl::Status RunRank(const Question& q, int64_t rounds, Stopwatch& watch,
                     const TensorGroup& group, Layer& layer, Times& times) {
  TESSERA_ASSIGN_OR_RETURN(Tensors t, MakeTensors(q));
  TESSERA_ASSIGN_OR_RETURN(const Partition tokens,
                           Partition::Balanced(q.tokens, kRanks));
  LinearWeights& weights = layer.weights();
  TESSERA_RETURN_IF_ERROR(weights.FillNormal(group.ops(), {.seed = 1}, 0.02));
  const Ways ways = {
      .overlap = [&] { return RunLayer(q, tokens, layer, t); },
      .compute = [&] { return Compute(q, group.ops(), weights, t); },
      .communicate = [&] { return Communicate(q, group, tokens, t); }};
  return TimeWays(rounds, watch, ways, times);
}

absl::Status RunRankOf(const Question& q, int64_t rounds, Stopwatch& watch,
                       std::unique_ptr<collectives::Engine> engine,
                       Times& times) {
  TESSERA_ASSIGN_OR_RETURN(
      const auto communicator,
      collectives::Communicator::Create(std::move(engine)));
  CpuOps ops({.threads = 1});
  const TensorGroup group = TensorGroup(ops, communicator.get())
                                .WithSequenceParallel()
                                .WithOverlapChunks(q.chunks);
  if (q.columns) {
    TESSERA_ASSIGN_OR_RETURN(
        auto layer,
        ColumnParallelLinear::Create(group, {.in = q.width, .out = q.hidden}));
    return RunRank(q, rounds, watch, group, layer, times);
  }
  const int64_t share = q.hidden / kRanks;
  TESSERA_ASSIGN_OR_RETURN(
      auto layer, RowParallelLinear::Create(
                      group, {.in = q.hidden,
                              .out = q.width,
                              .columns = {group.rank() * share,
                                          (group.rank() + 1) * share}}));
  return RunRank(q, rounds, watch, group, layer, times);
}

double Median(std::vector<double> values) {
  const auto middle =
      values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void Report(benchmark::State& state, const Times& times) {
  const double overlap = Median(times.overlap);
  const double compute = Median(times.compute);
  const double communicate = Median(times.communicate);
  const double sum = compute + communicate;
  state.counters["overlap_ms"] = overlap * 1e3;
  state.counters["compute_ms"] = compute * 1e3;
  state.counters["communication_ms"] = communicate * 1e3;
  state.counters["sum_of_parts_ms"] = sum * 1e3;
  state.counters["max_of_parts_ms"] = std::max(compute, communicate) * 1e3;
  state.counters["of_sum"] = overlap / sum;
  state.counters["hidden"] = (sum - overlap) / std::min(compute, communicate);
  state.counters["speed_of_compute"] = compute / overlap;
}

void BM_Overlap(benchmark::State& state, Question q) {
  q.chunks = state.range(0);
  auto engines = collectives::CreateInProcessEngines(kRanks);
  if (!engines.ok()) return state.SkipWithError("no engines");
  if (state.range(1) > 0) {
    for (auto& engine : *engines) {
      engine = collectives::WireEngine::Wrap(
          std::move(engine), static_cast<double>(state.range(1)) * 1e6);
    }
  }
  const auto rounds = static_cast<int64_t>(state.max_iterations);
  Stopwatch watch;
  std::vector<Times> times(kRanks);
  std::vector<absl::Status> statuses(kRanks);
  for (auto _ : state) {
  }
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      statuses[rank] =
          RunRankOf(q, rounds, watch, std::move((*engines)[rank]), times[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return state.SkipWithError(status.ToString().c_str());
  }
  Report(state, times[0]);
}

void Add(const std::string& name, const Question& question,
         const std::vector<int64_t>& wires) {
  auto* const added = benchmark::RegisterBenchmark(
      name.c_str(),
      [=](benchmark::State& state) { BM_Overlap(state, question); });
  added->ArgNames({"chunks", "wire"})
      ->Iterations(11)
      ->Unit(benchmark::kMillisecond);
  for (const int64_t wire : wires) {
    for (const int64_t chunks : {0, 2, 4, 8}) added->Args({chunks, wire});
  }
}

const bool registered = [] {
  const Question large = {.tokens = 2048, .width = 1024, .hidden = 2048};
  // A case with little computation relative to communication.
  const Question thin = {.tokens = 8192, .width = 1024, .hidden = 128};
  for (const bool columns : {true, false}) {
    for (const bool backward : {false, true}) {
      for (Question question : {large, thin}) {
        const bool is_thin = question.hidden == thin.hidden;
        question.columns = columns;
        question.backward = backward;
        Add(std::string("BM_") + (columns ? "Column" : "Row") +
                (backward ? "Backward" : "Forward") +
                (is_thin ? "/thin" : "/large"),
            question,
            is_thin ? std::vector<int64_t>{0} : std::vector<int64_t>{0, 100});
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace tessera::tensor_parallel
