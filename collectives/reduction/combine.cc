#include "collectives/reduction/combine.h"

#include "collectives/reduction/combine_job.h"
#include "collectives/reduction/copy.h"

namespace tessera::collectives {
namespace {

internal::Fold FoldOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kProduct:
      return internal::Fold::kMultiply;
    case ReduceOp::kMin:
      return internal::Fold::kMin;
    case ReduceOp::kMax:
      return internal::Fold::kMax;
    case ReduceOp::kBitAnd:
      return internal::Fold::kAnd;
    case ReduceOp::kBitOr:
      return internal::Fold::kOr;
    case ReduceOp::kBitXor:
      return internal::Fold::kXor;
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
    case ReduceOp::kScaledSum:
      return internal::Fold::kAdd;
  }
  return internal::Fold::kAdd;
}

void CopyToEach(const void* source, std::span<void* const> destinations,
                int64_t bytes, StoreMode mode) {
  for (void* const destination : destinations) {
    if (destination != source) CopyBytes(destination, source, bytes, mode);
  }
}

}  // namespace

Combination Combination::Whole(const Reduction& reduction, DType dtype,
                               int64_t world) {
  Combination whole = ScaleInput(reduction, dtype);
  whole.divisor = DivideResult(reduction, dtype, world).divisor;
  return whole;
}

Combination Combination::ScaleInput(const Reduction& reduction, DType dtype) {
  Combination scaling = Partial(reduction, dtype);
  if (reduction.op == ReduceOp::kScaledSum) {
    scaling.input_scale = reduction.scale;
  }
  return scaling;
}

Combination Combination::Partial(const Reduction& reduction, DType dtype) {
  return {.dtype = dtype, .op = reduction.op};
}

Combination Combination::DivideResult(const Reduction& reduction, DType dtype,
                                      int64_t world) {
  Combination dividing = Partial(reduction, dtype);
  if (reduction.op == ReduceOp::kAverage) dividing.divisor = world;
  return dividing;
}

void Combine(const Combination& combination,
             std::span<const void* const> sources,
             std::span<void* const> destinations, int64_t count) {
  if (count <= 0 || !IsReducible(combination.dtype, combination.op)) return;
  if (sources.size() == 1 && combination.KeepsSingleSource()) {
    CopyToEach(sources[0], destinations, count * SizeInBytes(combination.dtype),
               combination.stores);
    return;
  }
  const internal::CombineJob job = {
      .dtype = combination.dtype,
      .fold = FoldOf(combination.op),
      .stream = combination.stores == StoreMode::kStreaming,
      .scale = combination.input_scale,
      .divisor = combination.divisor,
      .sources = sources.data(),
      .source_count = sources.size(),
      .destinations = destinations.data(),
      .destination_count = destinations.size(),
      .count = count,
  };
  if (IsInteger(combination.dtype)) {
    internal::CombineIntegers(job);
  } else {
    internal::CombineFloats(job);
  }
  if (job.stream) FenceStreamingStores();
}

}  // namespace tessera::collectives
