#include "pipeline/execute/boundary_pool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::pipeline {

void BoundaryPool::SetSpecs(std::vector<TensorSpec> specs,
                            const std::vector<bool>& crossed) {
  specs_ = std::move(specs);
  shelf_of_.clear();
  shelves_.clear();
  all_.clear();
  for (size_t at = 0; at < specs_.size(); ++at) {
    const auto shelf =
        std::find_if(shelves_.begin(), shelves_.end(), [&](const Shelf& other) {
          return other.spec == specs_[at] && other.is_crossed == crossed[at];
        });
    shelf_of_.push_back(static_cast<size_t>(shelf - shelves_.begin()));
    if (shelf == shelves_.end()) {
      shelves_.push_back({specs_[at], crossed[at], specs_[at].bytes(), {}});
    }
  }
}

absl::StatusOr<std::unique_ptr<BoundaryBuffer>> BoundaryPool::Make(
    const Shelf& shelf) {
  const TensorSpec& spec = shelf.spec;
  const int64_t bytes = std::max<int64_t>(spec.bytes(), 1);
  Buffer memory;
  std::unique_ptr<collectives::SharedMemory> shared;
  std::span<std::byte> storage;
  if (memory_ != nullptr || !shelf.is_crossed) {
    TESSERA_ASSIGN_OR_RETURN(
        memory, Buffer::Allocate(memory_ != nullptr ? memory_ : HostMemory(),
                                 static_cast<size_t>(bytes)));
    storage = memory.bytes();
  } else {
    TESSERA_ASSIGN_OR_RETURN(shared, communicator_.AllocateShared(bytes));
    storage = shared->bytes();
  }
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView view,
      TensorView::Create(storage, spec.dtype, spec.shape, memory.kind()));
  return std::make_unique<BoundaryBuffer>(BoundaryBuffer{
      view, view, /*shelf=*/0, std::move(memory), std::move(shared)});
}

absl::StatusOr<BoundaryBuffer*> BoundaryPool::Acquire(int32_t boundary) {
  const size_t index = shelf_of_[static_cast<size_t>(boundary)];
  Shelf& shelf = shelves_[index];
  if (shelf.free.empty()) {
    TESSERA_ASSIGN_OR_RETURN(
        all_.emplace_back(), Make(shelf),
        Annotate(_, absl::StrCat("a tensor ", shelf.spec.ToString(),
                                 " between stages ", boundary, " and ",
                                 boundary + 1)));
    all_.back()->shelf = index;
    shelf.free.push_back(all_.back().get());
  }
  BoundaryBuffer* const buffer = shelf.free.back();
  shelf.free.pop_back();
  trace_.HoldBytes(shelf.bytes);
  return buffer;
}

void BoundaryPool::Release(BoundaryBuffer* buffer) {
  if (buffer == nullptr) return;
  Shelf& shelf = shelves_[buffer->shelf];
  shelf.free.push_back(buffer);
  trace_.HoldBytes(-shelf.bytes);
}

}  // namespace tessera::pipeline
