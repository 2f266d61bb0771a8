#include "zero3/state/first_values.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "absl/synchronization/mutex.h"
#include "base/dtype/convert.h"
#include "base/os/thread_pool.h"
#include "base/status_macros.h"

namespace tessera::zero3 {
namespace {

constexpr int64_t kPart = 4096;  // Elements: its memory fits in a first cache.

DType MasterType(const ModelParameter& parameter) {
  return parameter.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
}

// `count` elements from `at` on; none if `bytes` is empty.
template <typename Byte>
std::span<Byte> Part(std::span<Byte> bytes, DType dtype, int64_t at,
                     int64_t count) {
  if (bytes.empty()) return bytes;
  const int64_t width = SizeInBytes(dtype);
  return bytes.subspan(static_cast<size_t>(at * width),
                       static_cast<size_t>(count * width));
}

// Consecutive elements of a parameter: their values and the master weights,
// which are empty if the values are the master weights.
struct Elements {
  const ModelParameter& parameter;
  int64_t begin = 0;
  int64_t count = 0;
  std::span<std::byte> values = {};
  std::span<std::byte> master = {};

  Elements Range(int64_t at, int64_t size) const {
    return {parameter, begin + at, size,
            Part(values, parameter.dtype(), at, size),
            Part(master, MasterType(parameter), at, size)};
  }
};

// Fills at most kPart elements in host memory.
absl::Status FillPart(const Elements& to, Filler fill) {
  const DType dtype = MasterType(to.parameter);
  alignas(64) std::byte scratch[kPart * sizeof(float)];
  const std::span<std::byte> exact =
      !to.master.empty() ? to.master
      : to.parameter.dtype() == dtype
          ? to.values
          : std::span(scratch).first(static_cast<size_t>(to.count) *
                                     sizeof(float));
  TESSERA_ASSIGN_OR_RETURN(const TensorView first,
                           TensorView::Create(exact, dtype, {{to.count}}));
  TESSERA_RETURN_IF_ERROR(fill(to.parameter, to.begin, first));
  if (exact.data() == to.values.data()) return absl::OkStatus();
  return Convert(dtype, exact, to.parameter.dtype(), to.values);
}

absl::Status FillParts(const Elements& to, Filler fill, ThreadPool& pool) {
  absl::Mutex mutex;
  absl::Status status;
  pool.Run((to.count + kPart - 1) / kPart, [&](int64_t part) {
    const int64_t at = part * kPart;
    const absl::Status own =
        FillPart(to.Range(at, std::min(kPart, to.count - at)), fill);
    if (own.ok()) return;
    absl::MutexLock lock(&mutex);
    status.Update(own);
  });
  return status;
}

// Fills elements in memory of any device. The host writes memory that it can
// access directly. For other memory it alternates between two staging blocks:
// while one is copied, it fills the other.
absl::Status FillMemory(const Elements& all, Queue& queue, Queue& master_queue,
                        StagingPool& staging, Filler fill, ThreadPool& pool) {
  constexpr int64_t kStaged = int64_t{1} << 17;
  const bool stages_values = !queue.is_immediate();
  const bool stages_master =
      !all.master.empty() && !master_queue.is_immediate();
  const int64_t step = stages_values || stages_master ? kStaged : all.count;
  Event previous;
  for (int64_t at = 0; at < all.count; at += step) {
    const Elements range = all.Range(at, std::min(step, all.count - at));
    Elements to = range;
    StagedUpload values, master;
    if (stages_values) {
      TESSERA_ASSIGN_OR_RETURN(values, staging.Stage(range.values.size()));
      to.values = values.bytes();
    }
    if (stages_master) {
      TESSERA_ASSIGN_OR_RETURN(master, staging.Stage(range.master.size()));
      to.master = master.bytes();
    }
    TESSERA_RETURN_IF_ERROR(FillParts(to, fill, pool));
    if (stages_values) {
      TESSERA_RETURN_IF_ERROR(staging.Send(values, range.values));
    }
    if (stages_master) {
      TESSERA_RETURN_IF_ERROR(staging.Send(master, range.master));
    }
    TESSERA_RETURN_IF_ERROR(previous.Wait());
    TESSERA_ASSIGN_OR_RETURN(previous, queue.Record());
  }
  return queue.Synchronize();
}

}  // namespace

absl::Status FillValues(const StateContext& context, ModelWeights& weights,
                        OptimizerShard& optimizer, StagingPool& staging,
                        int threads, Filler fill) {
  ThreadPool pool(threads);
  for (const ModelParameter& parameter : context.model().all()) {
    const ParameterId id = parameter.id;
    const Extent extent = context.OwnExtent(id);
    if (extent.size() == 0) continue;
    TESSERA_ASSIGN_OR_RETURN(const offload::TypedSpan own, weights.OpenOwn(id));
    TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> master,
                             optimizer.Open(StatePart::kMaster, id));
    if (context.device.ops->computes()) {
      const Elements all = {
          parameter, extent.begin, extent.size(),
          std::span(own.data(), static_cast<size_t>(own.size_in_bytes())),
          master};
      TESSERA_RETURN_IF_ERROR(FillMemory(
          all, context.queue(), optimizer.queue(), staging, fill, pool));
    }
    TESSERA_RETURN_IF_ERROR(weights.CloseOwn(id, /*changed=*/true));
    TESSERA_RETURN_IF_ERROR(
        optimizer.Close(StatePart::kMaster, id, /*changed=*/true));
  }
  return optimizer.Settle();
}

}  // namespace tessera::zero3
