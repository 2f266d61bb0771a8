// TensorPool: reusable memory for activations. PooledTensor and KeptTensor are
// tensors in it; ReusableTensor is working memory outside of it.
//
//   TensorPool pool(group.memory(), &group.queue());  // one per rank
//   PooledTensor hidden(pool);
//   TESSERA_ASSIGN_OR_RETURN(TensorView x, hidden.Reserve(dtype, shape));
//   hidden.Release();            // for the next user
//
// Micro-batches that are in flight in a pipeline hold different tensors at
// different times and reuse each other's memory, so that nothing is allocated
// after the first step. One thread at a time.
//
// All work on a pool's tensors must be on one queue, or that queue must have
// waited for it before the tensors are released: a memory block may be reused
// while work of its previous user is still queued. All work on the memory must
// be done before the pool, or a ReusableTensor, is destroyed.
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_TENSOR_POOL_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_TENSOR_POOL_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/tensor/layout.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor_view.h"

namespace tessera::tensor_parallel {

class TensorPool {
 public:
  // `queue` does the work on the tensors and must outlive the pool; null if all
  // work is done when a call returns.
  explicit TensorPool(std::shared_ptr<MemoryResource> memory,
                      Queue* queue = nullptr)
      : memory_(std::move(memory)), queue_(queue) {}
  TensorPool(const TensorPool&) = delete;
  TensorPool& operator=(const TensorPool&) = delete;

  // Returns a free block of the size class, or else a new one. Sizes in a class
  // differ by at most an eighth (or 64 bytes) and are rounded up to the
  // largest, so a step with the same order of calls as the previous one
  // allocates nothing. ResourceExhausted if memory is exhausted.
  absl::StatusOr<Buffer> Take(size_t bytes);
  void Give(Buffer buffer);

  // The same for sizes that depend on values and therefore differ from step to
  // step: returns the smallest sufficient free block that was returned by
  // GiveVarying. If there is none, the host waits for the queue, the largest
  // such free block is freed, and a new block of the size class is allocated.
  // So there are never more blocks than were in use at once, and none larger
  // than the largest request.
  absl::StatusOr<Buffer> TakeVarying(size_t bytes);
  void GiveVarying(Buffer buffer);

  MemoryKind kind() const { return memory_->kind(); }
  // The bytes of blocks in use and of free blocks, and the number of
  // allocations so far, which stops growing once the pool reuses its blocks.
  int64_t taken_bytes() const { return taken_bytes_; }
  int64_t free_bytes() const { return free_bytes_; }
  int64_t blocks_made() const { return blocks_made_; }
  // The maximum of taken_bytes() since the last ResetPeak.
  int64_t peak_bytes() const { return peak_bytes_; }
  void ResetPeak() { peak_bytes_ = taken_bytes_; }

 private:
  using FreeBlocks = std::multimap<size_t, Buffer>;  // By size.

  Buffer TakeFrom(FreeBlocks& free, FreeBlocks::iterator block);
  absl::StatusOr<Buffer> Allocate(size_t size);
  void GiveTo(FreeBlocks& free, Buffer buffer);
  void CountTaken(size_t bytes);

  std::shared_ptr<MemoryResource> memory_;
  Queue* queue_;
  FreeBlocks free_;
  FreeBlocks free_varying_;
  int64_t taken_bytes_ = 0;
  int64_t free_bytes_ = 0;
  int64_t blocks_made_ = 0;
  int64_t peak_bytes_ = 0;
};

// A tensor in memory of a pool, or no tensor. Move-only.
class PooledTensor {
 public:
  explicit PooledTensor(TensorPool& pool) : pool_(&pool) {}
  ~PooledTensor() { Release(); }
  PooledTensor(PooledTensor&& other) noexcept;
  PooledTensor& operator=(PooledTensor&& other) noexcept;

  // Returns a row-major, uninitialised tensor; previous contents are lost.
  // Takes memory from the pool only if the present memory is too small.
  absl::StatusOr<TensorView> Reserve(DType dtype,
                                     std::span<const int64_t> shape) {
    return Reserve(dtype, shape, /*varying=*/false);
  }
  // For shapes that depend on values (TensorPool::TakeVarying). A tensor must
  // always be reserved by the same one of the two functions.
  absl::StatusOr<TensorView> ReserveVarying(DType dtype,
                                            std::span<const int64_t> shape) {
    return Reserve(dtype, shape, /*varying=*/true);
  }
  void Release();

  bool held() const { return view_.has_value(); }
  // Requires held().
  TensorView view() const { return *view_; }
  // The bytes of the elements; 0 if there is no tensor.
  int64_t bytes() const { return held() ? view_->size_in_bytes() : 0; }
  TensorPool& pool() const { return *pool_; }

 private:
  absl::StatusOr<TensorView> Reserve(DType dtype,
                                     std::span<const int64_t> shape,
                                     bool varying);

  TensorPool* pool_;
  Buffer buffer_;
  bool varying_ = false;
  std::optional<TensorView> view_;
};

// Base class of structs of tensors: the sum of their bytes, and their release.
// `Whole` has a function parts(), a tuple of references to PooledTensors and to
// other such structs.
template <typename Whole>
class TensorParts {
 public:
  int64_t bytes() const {
    return std::apply(
        [](const auto&... part) { return (part.bytes() + ...); },
        const_cast<Whole*>(static_cast<const Whole*>(this))->parts());
  }
  void Clear() {
    std::apply([](auto&... part) { (ClearPart(part), ...); },
               static_cast<Whole*>(this)->parts());
  }

 private:
  static void ClearPart(PooledTensor& part) { part.Release(); }
  template <typename Part>
  static void ClearPart(Part& part) {
    part.Clear();
  }
};

// One of the tensors that a layer keeps for a micro-batch between its passes,
// for callers that offload them in the meantime. It is in memory of a pool
// (`own`) or borrowed from the caller (`view`, which is null for tensors that
// are never borrowed). Neither is owned.
struct KeptTensor {
  PooledTensor* own = nullptr;
  std::optional<ConstTensorView>* view = nullptr;

  // nullopt if no tensor is held.
  std::optional<ConstTensorView> value() const;
  // Reserves memory of the pool for the tensor; the layer then uses it as the
  // kept tensor.
  absl::StatusOr<TensorView> Reserve(DType dtype,
                                     std::span<const int64_t> shape) const;
  void Release() const;
};

// The working memory of an operation, which grows to the largest requested
// shape. Copies share the memory.
//
//   ReusableTensor all_tokens(group.memory(), group.queue());
//   TESSERA_ASSIGN_OR_RETURN(TensorView x, all_tokens.Get(dtype, shape));
class ReusableTensor {
 public:
  // `queue` does the work on the tensor and must outlive it.
  ReusableTensor(std::shared_ptr<MemoryResource> memory, Queue& queue)
      : memory_(std::move(memory)),
        queue_(&queue),
        buffer_(std::make_shared<Buffer>()) {}

  // Returns a row-major, uninitialised tensor that is valid until the next
  // call. The host waits for the queue if existing memory must grow, which does
  // not happen after the first step.
  absl::StatusOr<TensorView> Get(DType dtype, std::span<const int64_t> shape) {
    TESSERA_ASSIGN_OR_RETURN(Layout layout, Layout::RowMajor(shape));
    const auto bytes =
        static_cast<size_t>(layout.element_count() * SizeInBytes(dtype));
    if (buffer_->size() < bytes) {
      if (buffer_->size() > 0) TESSERA_RETURN_IF_ERROR(queue_->Synchronize());
      *buffer_ = Buffer();
      TESSERA_ASSIGN_OR_RETURN(*buffer_, Buffer::Allocate(memory_, bytes));
    }
    return TensorView::Create(buffer_->bytes().first(bytes), dtype,
                              std::move(layout), /*offset=*/0, memory_->kind());
  }

 private:
  std::shared_ptr<MemoryResource> memory_;
  Queue* queue_;
  std::shared_ptr<Buffer> buffer_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_TENSOR_POOL_H_
