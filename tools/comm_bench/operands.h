// Operands: the buffers of one rank for one operation, rewritten before every
// run and checked after it; Pattern: their contents.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       Operands operands,
//       Operands::Allocate(communicator, {.operation = operation}));
//   TESSERA_RETURN_IF_ERROR(operands.Rewrite(iteration));
//   TESSERA_RETURN_IF_ERROR(communicator.Run(operands.operation(0)));
//   TESSERA_RETURN_IF_ERROR(operands.Check(iteration));
#ifndef TESSERA_TOOLS_COMM_BENCH_OPERANDS_H_
#define TESSERA_TOOLS_COMM_BENCH_OPERANDS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/dtype/dtype.h"
#include "base/tensor/memory.h"
#include "collectives/communicator.h"
#include "collectives/operation/operation.h"
#include "collectives/reduction/reduction.h"
#include "topology/rank.h"

namespace tessera::tools {

// Contents of buffers that every rank can compute for every other rank, so that
// each checks its results alone and exactly. A rank's input is an endless
// periodic sequence of small whole numbers, different for each rank and
// iteration, chosen so that every reduction is exact in any order. Filling and
// checking run at memory speed.
class Pattern {
 public:
  // InvalidArgument if only 0 has exact results, for example in an average of
  // i8 over a hundred ranks. The scale of a scaled sum is positive.
  static absl::StatusOr<Pattern> Create(DType dtype,
                                        const collectives::Reduction& reduction,
                                        int64_t world);

  // Writes elements `first`, first + 1, ... of the rank's sequence.
  void Fill(collectives::Buffer target, topology::Rank rank, int64_t first,
            int64_t iteration) const;

  // OK if `result` holds these elements of the rank's sequence, or of the
  // reduction of all ranks' sequences; otherwise Internal with the first
  // different element and both values. An average may differ in the last bit,
  // because engines divide or multiply by 1/n.
  absl::Status CheckCopied(collectives::ConstBuffer result,
                           topology::Rank source, int64_t first,
                           int64_t iteration) const;
  absl::Status CheckReduced(collectives::ConstBuffer result, int64_t first,
                            int64_t iteration) const;

 private:
  Pattern() = default;

  absl::Status Check(const std::vector<std::byte>& table, int64_t phase,
                     collectives::ConstBuffer result) const;

  DType dtype_ = DType::kF32;
  double tolerance_ = 0;  // Relative.
  // Two periods each, so that a period from any phase is contiguous.
  std::vector<std::byte> inputs_;
  std::vector<std::byte> reduced_;
};

// The operation of `rank` with a message of at most `bytes`, but at least one
// element in each block unless `bytes` is 0. Its buffers have counts and types,
// but no memory.
collectives::Operation MakeOperation(collectives::OpKind kind, DType dtype,
                                     const collectives::Reduction& reduction,
                                     int64_t bytes, topology::Rank rank,
                                     int64_t world,
                                     topology::Rank root = topology::Rank(0));

struct OperandShape {
  collectives::Operation operation = {};  // From MakeOperation.
  bool in_place = false;
  bool registered = false;  // In memory from AllocateShared.
  int64_t slots = 1;        // Operations with buffers of their own.
};

// An in-place run destroys its input, so a batch needs a slot for each run;
// otherwise one slot serves all. Rewrite poisons the outputs and then writes
// the inputs, which stay in the caches of the writing core, as they do after
// the kernel that computes a gradient.
class Operands {
 public:
  // With a `queue`, which outlives them, the buffers are memory of its device,
  // written and read through staging memory; they are not registered.
  static absl::StatusOr<Operands> Allocate(
      collectives::Communicator& communicator, const OperandShape& shape,
      Queue* queue = nullptr);

  // The host waits for the device.
  absl::Status Rewrite(int64_t iteration);

  int64_t slots() const { return static_cast<int64_t>(operations_.size()); }
  const collectives::Operation& operation(int64_t slot) const {
    return operations_[static_cast<size_t>(slot)];
  }

  // OK if every slot holds the result of that iteration; otherwise Internal
  // with the operation and the first wrong element.
  absl::Status Check(int64_t iteration);

 private:
  Operands(const collectives::Communicator& communicator, Pattern pattern,
           Queue* queue)
      : rank_(communicator.rank()),
        world_(communicator.size()),
        pattern_(std::move(pattern)),
        queue_(queue) {}

  absl::Status AllocateMemory(collectives::Communicator& communicator,
                              bool registered, int64_t bytes);
  absl::Status CheckOne(const collectives::Operation& operation,
                        int64_t iteration) const;
  // The buffer itself, or its image.
  collectives::Buffer OnHost(collectives::ConstBuffer buffer) const;

  topology::Rank rank_;
  int64_t world_;
  Pattern pattern_;
  Queue* queue_;         // Null on the host.
  tessera::Buffer own_;  // Ordinary memory of the host, or
  std::unique_ptr<collectives::SharedMemory> shared_;  // the communicator's.
  std::span<std::byte> memory_;                        // One of these.
  tessera::Buffer image_;  // Of a device's memory, on the host.
  std::vector<collectives::Operation> operations_;
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_OPERANDS_H_
