// Operands: the buffers of one rank for one operation, rewritten before every
// run and checked after it.
//
//   TESSERA_ASSIGN_OR_RETURN(Operands operands,
//                            Operands::Allocate(communicator, shape));
//   operands.Rewrite(iteration);
//   TESSERA_RETURN_IF_ERROR(communicator.Run(operands.operation(0)));
//   TESSERA_RETURN_IF_ERROR(operands.Check(iteration));
//
// In place a run destroys its input, so a batch needs a slot for each run;
// otherwise one slot serves them all. Rewriting poisons the outputs, then
// writes the inputs: what fits stays in the caches of the writing core, as
// after the kernel that computes a gradient.
#ifndef TESSERA_TOOLS_COMM_BENCH_OPERANDS_H_
#define TESSERA_TOOLS_COMM_BENCH_OPERANDS_H_

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "tools/comm_bench/pattern.h"

namespace tessera::tools {

struct OperandShape {
  collectives::OpKind kind = collectives::OpKind::kAllReduce;
  DType dtype = DType::kF32;
  collectives::Reduction reduction = {};
  // Elements: of the whole buffer, or of one rank's block for the kinds whose
  // buffers are parted.
  int64_t count = 0;
  bool in_place = false;
  bool registered = false;  // In memory from AllocateShared.
  int64_t slots = 1;
};

// Whether a message of this kind consists of a block for each rank.
bool IsParted(collectives::OpKind kind);

// The count that makes a message of `bytes` (all blocks together): at least one
// element; and the bytes that it makes.
int64_t CountFor(collectives::OpKind kind, DType dtype, int64_t bytes,
                 int64_t world);
int64_t MessageBytes(collectives::OpKind kind, DType dtype, int64_t count,
                     int64_t world);

class Operands {
 public:
  // The root of rooted kinds is rank 0.
  static absl::StatusOr<Operands> Allocate(
      collectives::Communicator& communicator, const OperandShape& shape);

  void Rewrite(int64_t iteration);

  int64_t slots() const { return static_cast<int64_t>(operations_.size()); }
  const collectives::Operation& operation(int64_t slot) const {
    return operations_[static_cast<size_t>(slot)];
  }

  // OK where every slot holds the result of that iteration; Internal with rank
  // and element.
  absl::Status Check(int64_t iteration) const;

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  Operands(OperandShape shape, topology::Rank rank, int64_t world,
           Pattern pattern)
      : shape_(shape),
        rank_(rank),
        world_(world),
        pattern_(std::move(pattern)) {}

  absl::Status TakeMemory(collectives::Communicator& communicator);
  void MakeOperations();
  absl::Status CheckOne(const collectives::Operation& operation,
                        int64_t iteration) const;
  std::byte* memory() const;

  OperandShape shape_;
  topology::Rank rank_;
  int64_t world_;
  Pattern pattern_;
  std::unique_ptr<std::byte[], Free> own_;
  std::unique_ptr<collectives::SharedMemory> shared_;
  std::vector<collectives::Operation> operations_;
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_OPERANDS_H_
