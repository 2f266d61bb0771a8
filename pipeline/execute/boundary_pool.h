// BoundaryPool: the tensors that stages hand to each other, used again and
// again.
//
//   TESSERA_RETURN_IF_ERROR(pool.SetSpecs(specs));
//   TESSERA_ASSIGN_OR_RETURN(BoundaryBuffer* buffer, pool.Acquire(2));
//   ...
//   pool.Release(buffer);
//
// Boundaries of the same spec share their buffers, those that messages cross
// and those between stages of one rank apart: the former lie in memory on which
// the communicator is fastest. Not thread-safe.
#ifndef TESSERA_PIPELINE_EXECUTE_BOUNDARY_POOL_H_
#define TESSERA_PIPELINE_EXECUTE_BOUNDARY_POOL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor_view.h"
#include "collectives/communicator.h"
#include "pipeline/execute/step_trace.h"
#include "pipeline/execute/tensor_spec.h"

namespace tessera::pipeline {

struct BoundaryBuffer {
  TensorView view;
  ConstTensorView read;  // The same.
  size_t shelf = 0;      // Where it goes when it is given back.
  Buffer memory;         // One of these two owns the bytes.
  std::unique_ptr<collectives::SharedMemory> shared;

  collectives::Buffer message() const {
    return {view.data(), view.element_count(), view.dtype()};
  }
};

class BoundaryPool {
 public:
  // `memory` null: the communicator's. All outlive the pool.
  BoundaryPool(collectives::Communicator& communicator,
               std::shared_ptr<MemoryResource> memory, StepTrace& trace)
      : communicator_(communicator),
        memory_(std::move(memory)),
        trace_(trace) {}

  // Of each boundary; checked (CheckSpec). `crossed`, by boundary, says whether
  // messages cross it. Frees all buffers: none is out.
  void SetSpecs(std::vector<TensorSpec> specs,
                const std::vector<bool>& crossed);
  const std::vector<TensorSpec>& specs() const { return specs_; }
  int64_t BytesOf(int32_t boundary) const {
    return shelves_[shelf_of_[static_cast<size_t>(boundary)]].bytes;
  }

  // A buffer with any contents. An error is the memory's.
  absl::StatusOr<BoundaryBuffer*> Acquire(int32_t boundary);
  // Of null nothing.
  void Release(BoundaryBuffer* buffer);

 private:
  // Buffers of one spec.
  struct Shelf {
    TensorSpec spec;
    bool is_crossed = false;
    int64_t bytes = 0;
    std::vector<BoundaryBuffer*> free;
  };

  absl::StatusOr<std::unique_ptr<BoundaryBuffer>> Make(const Shelf& shelf);

  collectives::Communicator& communicator_;
  const std::shared_ptr<MemoryResource> memory_;
  StepTrace& trace_;
  std::vector<TensorSpec> specs_;
  std::vector<size_t> shelf_of_;  // By boundary.
  std::vector<Shelf> shelves_;
  std::vector<std::unique_ptr<BoundaryBuffer>> all_;
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_EXECUTE_BOUNDARY_POOL_H_
