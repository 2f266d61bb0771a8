#include "tools/offload_bench/optimizer.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/tensor/memory.h"
#include "offload/optimizer/adamw.h"
#include "offload/optimizer/moment.h"
#include "offload/optimizer/parameter_range.h"
#include "offload/optimizer/sgd.h"
#include "offload/optimizer/triad.h"
#include "offload/optimizer/typed_span.h"
#include "tools/offload_bench/weights.h"

namespace tessera::offload_bench {
namespace {

using offload::AdamW;
using offload::ConstTypedSpan;
using offload::MomentFormat;
using offload::MomentSpan;
using offload::ParameterRange;
using offload::Sgd;
using offload::Triad;
using offload::TypedSpan;

constexpr uint64_t kSeed = 2;

struct StepCase {
  bool adamw = true;  // Else SGD with momentum.
  MomentFormat format;
  bool copy = false;  // In bf16.
  int threads = 1;
};

// The parameters of all cases; the moments of one at a time.
class State {
 public:
  static absl::StatusOr<State> Create(int64_t count) {
    State state;
    state.count_ = count;
    TESSERA_ASSIGN_OR_RETURN(state.parameter_,
                             NormalWeights(DType::kF32, count, kSeed));
    TESSERA_ASSIGN_OR_RETURN(state.gradient_,
                             NormalWeights(DType::kF32, count, kSeed + 1));
    return state;
  }

  int64_t count() const { return count_; }

  absl::StatusOr<ParameterRange> RangeFor(const StepCase& c) {
    ParameterRange range;
    range.name = "weights";
    range.parameter = TypedSpan(parameter_.data(), DType::kF32, count_);
    range.gradient = ConstTypedSpan(gradient_.data(), DType::kF32, count_);
    TESSERA_ASSIGN_OR_RETURN(range.first, Moment(c.format, first_));
    if (c.adamw) {
      TESSERA_ASSIGN_OR_RETURN(range.second, Moment(c.format, second_));
    }
    if (c.copy) {
      TESSERA_RETURN_IF_ERROR(Zeros(2 * count_, copy_));
      range.copy = TypedSpan(copy_.data(), DType::kBF16, count_);
    }
    return range;
  }

  // What a step reads and writes.
  absl::StatusOr<int64_t> MovedBytes(const StepCase& c) const {
    TESSERA_ASSIGN_OR_RETURN(const int64_t moment,
                             offload::MomentBytes(c.format, count_));
    const int64_t moments = c.adamw ? 2 : 1;
    return count_ * (3 * 4 + (c.copy ? 2 : 0)) + 2 * moments * moment;
  }

 private:
  static absl::Status Zeros(int64_t bytes, Buffer& buffer) {
    buffer = Buffer();
    TESSERA_ASSIGN_OR_RETURN(
        buffer, Buffer::Allocate(HostMemory(), static_cast<size_t>(bytes)));
    std::memset(buffer.data(), 0, buffer.size());
    return absl::OkStatus();
  }

  absl::StatusOr<MomentSpan> Moment(const MomentFormat& format,
                                    Buffer& buffer) const {
    TESSERA_ASSIGN_OR_RETURN(const int64_t bytes,
                             offload::MomentBytes(format, count_));
    TESSERA_RETURN_IF_ERROR(Zeros(bytes, buffer));
    return MomentSpan::Over(format, count_, buffer.bytes());
  }

  int64_t count_ = 0;
  Buffer parameter_, gradient_, first_, second_, copy_;
};

// Step after step of the case's optimizer.
absl::StatusOr<std::function<absl::Status()>> StepsOf(const StepCase& c,
                                                      ParameterRange range) {
  auto number = std::make_shared<int64_t>(0);
  const auto steps = [&](auto optimizer) {
    return [optimizer = std::shared_ptr(std::move(optimizer)), number, range] {
      return optimizer->Step(++*number, {}, {&range, 1});
    };
  };
  if (c.adamw) {
    TESSERA_ASSIGN_OR_RETURN(auto adamw, AdamW::Create({.threads = c.threads}));
    return steps(std::move(adamw));
  }
  TESSERA_ASSIGN_OR_RETURN(
      auto sgd, Sgd::Create({.momentum = 0.9, .threads = c.threads}));
  return steps(std::move(sgd));
}

absl::Status MeasureStep(const StepCase& c, State& state,
                         std::shared_ptr<Triad> triad,
                         const OptimizerBenchOptions& options,
                         const Sink& sink) {
  TESSERA_ASSIGN_OR_RETURN(const ParameterRange range, state.RangeFor(c));
  TESSERA_ASSIGN_OR_RETURN(const auto step, StepsOf(c, range));
  Measurement m;
  m.what = "optimizer";
  m.name = c.adamw ? "adamw" : "sgd";
  m.operation = "step";
  m.data = absl::StrCat(c.format.ToString(), " moments",
                        c.copy ? ", bf16 copy" : "");
  m.threads = c.threads;
  m.block_bytes = state.count() * SizeInBytes(DType::kF32);
  TESSERA_ASSIGN_OR_RETURN(m.bytes, state.MovedBytes(c));
  m.bytes_per_parameter =
      static_cast<double>(m.bytes) / static_cast<double>(state.count());
  m.limit = "triad";
  m.time = options.time;
  const Pass limit =
      TriadPass(std::move(triad), static_cast<double>(m.bytes), options.time);
  TESSERA_ASSIGN_OR_RETURN(
      m.times, CompareInTurns(Timed(step, options.time, c.threads), limit,
                              options.seconds));
  sink(m);
  return absl::OkStatus();
}

}  // namespace

absl::Status MeasureOptimizers(const OptimizerBenchOptions& options,
                               const Sink& sink) {
  const int64_t count = options.size / SizeInBytes(DType::kF32);
  TESSERA_ASSIGN_OR_RETURN(State state, State::Create(count));
  for (const int64_t threads : options.threads) {
    // As much memory as AdamW with f32 moments has, or what a triad needs.
    const int64_t bytes = std::max(4 * options.size, threads * 4096);
    TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Triad> triad,
                             Triad::Create(static_cast<int>(threads), bytes));
    for (const bool adamw : {true, false}) {
      for (const MomentFormat& format :
           {MomentFormat::F32(), MomentFormat::BF16(),
            MomentFormat::Blockwise8()}) {
        for (const bool copy : {false, true}) {
          const StepCase c = {adamw, format, copy, static_cast<int>(threads)};
          TESSERA_RETURN_IF_ERROR(MeasureStep(c, state, triad, options, sink));
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::offload_bench
