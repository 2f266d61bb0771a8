#include "tensor_parallel/layers/tensor_pool.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "base/status_macros.h"
#include "base/tensor/layout.h"

namespace tessera::tensor_parallel {
namespace {

constexpr size_t kCacheLine = 64;

// Whole eighths of the power of two below, and whole cache lines.
size_t ClassOf(size_t bytes) {
  const size_t step = std::max(kCacheLine, std::bit_floor(bytes) / 8);
  return (bytes + step - 1) / step * step;
}

}  // namespace

void TensorPool::CountTaken(size_t bytes) {
  taken_bytes_ += static_cast<int64_t>(bytes);
  peak_bytes_ = std::max(peak_bytes_, taken_bytes_);
}

Buffer TensorPool::TakeFrom(FreeBlocks& free, FreeBlocks::iterator block) {
  Buffer buffer = std::move(block->second);
  free.erase(block);
  free_bytes_ -= static_cast<int64_t>(buffer.size());
  CountTaken(buffer.size());
  return buffer;
}

absl::StatusOr<Buffer> TensorPool::Allocate(size_t size) {
  TESSERA_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Allocate(memory_, size));
  ++blocks_made_;
  CountTaken(size);
  return buffer;
}

void TensorPool::GiveTo(FreeBlocks& free, Buffer buffer) {
  if (buffer.size() == 0) return;
  const size_t bytes = buffer.size();
  taken_bytes_ -= static_cast<int64_t>(bytes);
  free_bytes_ += static_cast<int64_t>(bytes);
  free.emplace(bytes, std::move(buffer));
}

absl::StatusOr<Buffer> TensorPool::Take(size_t bytes) {
  if (bytes == 0) return Buffer();
  const size_t size = ClassOf(bytes);
  const auto found = free_.find(size);
  return found == free_.end() ? Allocate(size) : TakeFrom(free_, found);
}

void TensorPool::Give(Buffer buffer) { GiveTo(free_, std::move(buffer)); }

absl::StatusOr<Buffer> TensorPool::TakeVarying(size_t bytes) {
  if (bytes == 0) return Buffer();
  const size_t size = ClassOf(bytes);
  const auto found = free_varying_.lower_bound(size);
  if (found != free_varying_.end()) return TakeFrom(free_varying_, found);
  if (!free_varying_.empty()) {
    if (queue_ != nullptr) TESSERA_RETURN_IF_ERROR(queue_->Synchronize());
    const auto largest = std::prev(free_varying_.end());
    free_bytes_ -= static_cast<int64_t>(largest->first);
    free_varying_.erase(largest);
  }
  return Allocate(size);
}

void TensorPool::GiveVarying(Buffer buffer) {
  GiveTo(free_varying_, std::move(buffer));
}

PooledTensor::PooledTensor(PooledTensor&& other) noexcept
    : pool_(other.pool_),
      buffer_(std::move(other.buffer_)),
      varying_(other.varying_),
      view_(std::exchange(other.view_, std::nullopt)) {}

PooledTensor& PooledTensor::operator=(PooledTensor&& other) noexcept {
  if (this == &other) return *this;
  Release();
  pool_ = other.pool_;
  buffer_ = std::move(other.buffer_);
  varying_ = other.varying_;
  view_ = std::exchange(other.view_, std::nullopt);
  return *this;
}

absl::StatusOr<TensorView> PooledTensor::Reserve(DType dtype,
                                                 std::span<const int64_t> shape,
                                                 bool varying) {
  TESSERA_ASSIGN_OR_RETURN(Layout layout, Layout::RowMajor(shape));
  const auto bytes =
      static_cast<size_t>(layout.element_count() * SizeInBytes(dtype));
  if (buffer_.size() < bytes) {
    Release();
    varying_ = varying;
    TESSERA_ASSIGN_OR_RETURN(
        buffer_, varying ? pool_->TakeVarying(bytes) : pool_->Take(bytes));
  }
  TESSERA_ASSIGN_OR_RETURN(
      view_, TensorView::Create(buffer_.bytes(), dtype, std::move(layout),
                                /*offset=*/0, pool_->kind()));
  return *view_;
}

void PooledTensor::Release() {
  view_.reset();
  Buffer buffer = std::exchange(buffer_, Buffer());
  if (varying_) {
    pool_->GiveVarying(std::move(buffer));
  } else {
    pool_->Give(std::move(buffer));
  }
}

std::optional<ConstTensorView> KeptTensor::value() const {
  if (own->held()) return own->view();
  if (view != nullptr) return *view;
  return std::nullopt;
}

absl::StatusOr<TensorView> KeptTensor::Reserve(
    DType dtype, std::span<const int64_t> shape) const {
  TESSERA_ASSIGN_OR_RETURN(const TensorView reserved,
                           own->Reserve(dtype, shape));
  if (view != nullptr) *view = reserved;
  return reserved;
}

void KeptTensor::Release() const {
  own->Release();
  if (view != nullptr) view->reset();
}

}  // namespace tessera::tensor_parallel
