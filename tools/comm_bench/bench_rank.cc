#include "tools/comm_bench/bench_rank.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "collectives/adaptive/create_adaptive.h"
#include "collectives/algorithms/hierarchy.h"
#include "collectives/engine/operation_context.h"

namespace tessera::tools {
namespace {

using collectives::Communicator;
using collectives::Engine;
using collectives::MonotonicNanos;
using collectives::Work;

using Seconds = std::vector<double>;

// Arithmetic in registers and the first cache, about a microsecond a unit.
absl::Status Compute(int64_t units) {
  std::array<double, 64> x;
  x.fill(1.0);
  for (int64_t step = 0; step < 40 * units; ++step) {
    for (double& value : x) value = value * 0.999999 + 1e-6;
  }
  double sum = 0;
  for (const double value : x) sum += value;
  // Uses the result, so that the compiler keeps the loop.
  if (std::isfinite(sum)) return absl::OkStatus();
  return absl::InternalError("the overlapped computation has a wrong result");
}

// The units of a computation that takes so long on this rank.
absl::StatusOr<int64_t> UnitsFor(double seconds) {
  constexpr int64_t kUnits = 200;
  int64_t fastest = std::numeric_limits<int64_t>::max();
  for (int run = 0; run < 5; ++run) {
    const int64_t begin = MonotonicNanos();
    TESSERA_RETURN_IF_ERROR(Compute(kUnits));
    fastest = std::min(fastest, MonotonicNanos() - begin);
  }
  const double unit = 1e-9 * static_cast<double>(fastest) / kUnits;
  return std::max<int64_t>(1, std::llround(seconds / unit));
}

// With --group_size consecutive ranks are near each other.
absl::StatusOr<collectives::CommunicatorOptions> CommunicatorOptionsFor(
    int64_t world, int64_t group_size) {
  collectives::CommunicatorOptions options;
  if (group_size == 0) return options;
  std::vector<int64_t> labels;
  for (int64_t r = 0; r < world; ++r) labels.push_back(r / group_size);
  TESSERA_ASSIGN_OR_RETURN(
      collectives::Hierarchy hierarchy,
      collectives::Hierarchy::FromLabels(std::span(&labels, 1)));
  options.hierarchy =
      std::make_shared<collectives::Hierarchy>(std::move(hierarchy));
  return options;
}

}  // namespace

std::string Variant::Name() const {
  const std::string_view name =
      adaptive
          ? "adaptive"
          : AlgorithmName(algorithm.value_or(collectives::Algorithm::kEngine));
  return absl::StrCat(name, reproducible ? "+reproducible" : "");
}

absl::StatusOr<std::unique_ptr<BenchRank>> BenchRank::Create(
    const BenchOptions& options, const BenchEngine& engine, RankParts parts) {
  std::unique_ptr<BenchRank> rank(new BenchRank(options));
  rank->engine_ = parts.engine.get();
  TESSERA_ASSIGN_OR_RETURN(
      collectives::CommunicatorOptions plain,
      CommunicatorOptionsFor(parts.engine->size(), options.group_size));
  TESSERA_ASSIGN_OR_RETURN(
      rank->plain_,
      Communicator::Create(std::move(parts.engine), std::move(plain)));
  if (parts.device == nullptr) return rank;
  rank->device_ = std::move(parts.device);
  TESSERA_ASSIGN_OR_RETURN(rank->queue_,
                           rank->device_->CreateQueue("operands"));
  TESSERA_ASSIGN_OR_RETURN(
      rank->plain_, engine.OnDevice(std::move(rank->plain_), *rank->device_));
  return rank;
}

Capabilities BenchRank::capabilities() const {
  const bool on_device = device_ != nullptr;
  Capabilities result;
  result.has_transport = !on_device && engine_->transport() != nullptr;
  for (const collectives::OpKind kind : collectives::kCollectiveKinds) {
    if (on_device || engine_->Implements(kind)) {
      result.kinds |= uint32_t{1} << static_cast<int>(kind);
    }
  }
  return result;
}

// A second group of all ranks on the same engine.
absl::StatusOr<std::unique_ptr<Communicator>> BenchRank::MakeCommunicator(
    const Variant& variant) {
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<Engine> engine,
      collectives::Duplicate(*engine_, ++groups_, absl::Minutes(1)));
  collectives::CommunicatorOptions options = plain_->options();
  options.chooser = nullptr;  // Not the one of plain_.
  options.reproducible = variant.reproducible;
  return variant.adaptive
             ? collectives::CreateAdaptiveCommunicator(std::move(engine),
                                                       std::move(options))
             : Communicator::Create(std::move(engine), std::move(options));
}

absl::Status BenchRank::Prepare(const Task& task) {
  communicator_ = plain_.get();
  const Variant& variant = task.variant;
  if (variant.adaptive || variant.reproducible) {
    auto& place = others_[variant.reproducible][variant.adaptive];
    if (place == nullptr) {
      TESSERA_ASSIGN_OR_RETURN(place, MakeCommunicator(variant));
    }
    communicator_ = place.get();
  }
  call_.algorithm = variant.algorithm;
  // Registered memory belongs to a communicator.
  Communicator& owner = options_.registered ? *communicator_ : *plain_;
  // In place every operation of a batch needs its own buffers.
  const int64_t slots = options_.in_place ? task.batch : 1;
  const std::string key = absl::StrCat(
      OpKindName(task.op), DTypeName(task.dtype), ReduceOpName(task.reduction),
      task.bytes, " ", slots, " ", reinterpret_cast<uintptr_t>(&owner));
  if (operands_.has_value() && key == operands_key_) return absl::OkStatus();
  operands_.reset();
  operands_key_ = key;
  TESSERA_ASSIGN_OR_RETURN(
      operands_,
      Operands::Allocate(
          owner,
          {.operation = MakeOperation(task.op, task.dtype,
                                      ReductionFor(task.reduction, task.dtype),
                                      task.bytes, owner.rank(), owner.size(),
                                      topology::Rank(options_.root)),
           .in_place = options_.in_place,
           .registered = options_.registered,
           .slots = slots},
          queue_.get()));
  return absl::OkStatus();
}

absl::StatusOr<double> BenchRank::TimeOne(
    absl::FunctionRef<absl::Status()> body) {
  TESSERA_RETURN_IF_ERROR(communicator_->host().Barrier());
  const int64_t begin = MonotonicNanos();
  TESSERA_RETURN_IF_ERROR(body());
  const int64_t end = MonotonicNanos();
  // If ranks share processors, the next work of this rank would delay the
  // others.
  TESSERA_RETURN_IF_ERROR(communicator_->host().Barrier());
  return static_cast<double>(end - begin) * 1e-9;
}

// On a device, enqueues all operations and waits for the last: they run in the
// order of the calls.
absl::Status BenchRank::RunBatch(int64_t batch) {
  std::optional<Work> last;
  for (int64_t i = 0; i < batch; ++i) {
    const auto& operation = operands_->operation(i % operands_->slots());
    if (device_ != nullptr) {
      TESSERA_ASSIGN_OR_RETURN(last, communicator_->Start(operation, call_));
    } else {
      TESSERA_RETURN_IF_ERROR(communicator_->Run(operation, call_));
    }
  }
  return last.has_value() ? last->Wait() : absl::OkStatus();
}

absl::StatusOr<Seconds> BenchRank::Time(const Task& task) {
  TESSERA_RETURN_IF_ERROR(Prepare(task));
  Seconds seconds;
  const int64_t total = task.warmup + task.iterations;
  for (int64_t i = 0; i < total; ++i) {
    const int64_t iteration = task.first_iteration + i;
    TESSERA_RETURN_IF_ERROR(operands_->Rewrite(iteration));
    TESSERA_ASSIGN_OR_RETURN(const double elapsed,
                             TimeOne([&] { return RunBatch(task.batch); }));
    if (i >= task.warmup) {
      seconds.push_back(elapsed / static_cast<double>(task.batch));
    }
    if (options_.check && (i == 0 || i == total - 1)) {
      TESSERA_RETURN_IF_ERROR(operands_->Check(iteration));
    }
  }
  return seconds;
}

absl::StatusOr<Seconds> BenchRank::TimeOverlap(const Task& task) {
  TESSERA_RETURN_IF_ERROR(Prepare(task));
  TESSERA_ASSIGN_OR_RETURN(const int64_t units, UnitsFor(task.compute_seconds));
  const auto compute = [&] { return Compute(units); };
  const auto both = [&]() -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(
        const Work work, communicator_->Start(operands_->operation(0), call_));
    TESSERA_RETURN_IF_ERROR(compute());
    return work.Wait();
  };
  Seconds seconds(static_cast<size_t>(3 * task.iterations));
  for (size_t i = 0; i < seconds.size(); i += 3) {
    const int64_t iteration = task.first_iteration + static_cast<int64_t>(i);
    TESSERA_RETURN_IF_ERROR(operands_->Rewrite(iteration));
    TESSERA_ASSIGN_OR_RETURN(seconds[i], TimeOne(compute));
    TESSERA_ASSIGN_OR_RETURN(seconds[i + 1],
                             TimeOne([&] { return RunBatch(1); }));
    TESSERA_RETURN_IF_ERROR(operands_->Rewrite(iteration + 1));
    TESSERA_ASSIGN_OR_RETURN(seconds[i + 2], TimeOne(both));
    if (options_.check) {
      TESSERA_RETURN_IF_ERROR(operands_->Check(iteration + 1));
    }
  }
  return seconds;
}

absl::StatusOr<Seconds> BenchRank::Choose(const Task& task) {
  TESSERA_RETURN_IF_ERROR(Prepare(task));
  TESSERA_ASSIGN_OR_RETURN(
      const collectives::Algorithm algorithm,
      communicator_->AlgorithmFor(operands_->operation(0)));
  const auto number = static_cast<double>(algorithm);
  return Seconds{number, kChoices - number};
}

}  // namespace tessera::tools
