// StateDevice: where a rank's model state lives: what its memory counts
// against, who gives it out, and who works on its bytes.
//
// StateOps: what the model state does to bytes: zeros, copies, sums of
// gradients, their norm, the optimizer's step, and messages of fewer bits. The
// rest of ShardedState decides when, and never reaches into memory itself.
//
//   options.ops = DryStateOps();      // a dry run: no byte is touched
//
//   HostStateOps()   on the CPU, in the calling thread
//   DryStateOps()    nothing: for memory that is only counted
//
// Memory of one call does not overlap unless it is the same. Implementations
// are safe for concurrent use by several ranks.
#ifndef TESSERA_ZERO3_STATE_SHARDS_STATE_DEVICE_H_
#define TESSERA_ZERO3_STATE_SHARDS_STATE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/memory.h"
#include "offload/optimizer/adamw.h"
#include "offload/optimizer/gradient_statistics.h"
#include "offload/optimizer/sgd.h"
#include "offload/optimizer/state/parameter_range.h"
#include "offload/optimizer/state/typed_span.h"
#include "offload/optimizer/step_scale.h"
#include "offload/tier/accounting.h"

namespace tessera::zero3 {

class StateOps {
 public:
  virtual ~StateOps() = default;

  // False where memory has no contents: then first values are not asked for.
  virtual bool has_values() const = 0;

  virtual void Zero(std::span<std::byte> bytes) = 0;
  // As many bytes of `to` as `from` has, which `to` has at least.
  virtual void Copy(std::span<const std::byte> from,
                    std::span<std::byte> to) = 0;
  // to += from: `count` elements of a type that can be summed.
  virtual void Add(DType dtype, const std::byte* from, std::byte* to,
                   int64_t count) = 0;

  // Messages in int8 blocks: the functions of zero3/state/wire/int8_blocks.h.
  virtual absl::Status EncodeInt8(DType dtype,
                                  std::span<const std::byte> values,
                                  std::span<std::byte> encoded) = 0;
  virtual absl::Status DecodeInt8(std::span<const std::byte> encoded,
                                  DType dtype, std::span<std::byte> values) = 0;
  virtual absl::Status SumInt8(
      std::span<const std::span<const std::byte>> sources, float divisor,
      DType dtype, std::span<std::byte> values) = 0;
  virtual absl::Status SumInt8Encoded(
      std::span<const std::span<const std::byte>> sources, int64_t elements,
      std::span<std::byte> encoded) = 0;

  virtual absl::StatusOr<offload::GradientStatistics> Measure(
      const offload::ConstTypedSpan& gradient) = 0;

  // Errors are the optimizer's.
  virtual absl::Status Step(offload::AdamW& optimizer, int64_t step,
                            const offload::StepScale& scale,
                            const offload::ParameterRange& range) = 0;
  virtual absl::Status Step(offload::Sgd& optimizer, int64_t step,
                            const offload::StepScale& scale,
                            const offload::ParameterRange& range) = 0;
};

std::shared_ptr<StateOps> HostStateOps();
std::shared_ptr<StateOps> DryStateOps();

struct StateDevice {
  // Memory of the host that counts against `counted_by`.
  StateDevice(std::shared_ptr<offload::Accounting> counted_by = nullptr)
      : accounting(std::move(counted_by)) {}

  std::shared_ptr<offload::Accounting> accounting;
  std::shared_ptr<MemoryResource> memory = HostMemory();
  std::shared_ptr<StateOps> ops = HostStateOps();
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_SHARDS_STATE_DEVICE_H_
