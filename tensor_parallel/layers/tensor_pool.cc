#include "tensor_parallel/layers/tensor_pool.h"

#include <algorithm>
#include <bit>
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

absl::StatusOr<Buffer> TensorPool::Take(size_t bytes) {
  if (bytes == 0) return Buffer();
  const size_t size = ClassOf(bytes);
  const auto found = free_.find(size);
  if (found != free_.end()) {
    Buffer buffer = std::move(found->second);
    free_.erase(found);
    free_bytes_ -= static_cast<int64_t>(size);
    CountTaken(size);
    return buffer;
  }
  TESSERA_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Allocate(memory_, size));
  ++blocks_made_;
  CountTaken(size);
  return buffer;
}

void TensorPool::Give(Buffer buffer) {
  if (buffer.size() == 0) return;
  const size_t bytes = buffer.size();
  taken_bytes_ -= static_cast<int64_t>(bytes);
  free_bytes_ += static_cast<int64_t>(bytes);
  free_.emplace(bytes, std::move(buffer));
}

PooledTensor::PooledTensor(PooledTensor&& other) noexcept
    : pool_(other.pool_),
      buffer_(std::move(other.buffer_)),
      view_(std::exchange(other.view_, std::nullopt)) {}

PooledTensor& PooledTensor::operator=(PooledTensor&& other) noexcept {
  if (this == &other) return *this;
  Release();
  pool_ = other.pool_;
  buffer_ = std::move(other.buffer_);
  view_ = std::exchange(other.view_, std::nullopt);
  return *this;
}

absl::StatusOr<TensorView> PooledTensor::Reserve(
    DType dtype, std::span<const int64_t> shape) {
  TESSERA_ASSIGN_OR_RETURN(Layout layout, Layout::RowMajor(shape));
  const auto bytes =
      static_cast<size_t>(layout.element_count() * SizeInBytes(dtype));
  if (buffer_.size() < bytes) {
    Release();
    TESSERA_ASSIGN_OR_RETURN(buffer_, pool_->Take(bytes));
  }
  TESSERA_ASSIGN_OR_RETURN(
      view_, TensorView::Create(buffer_.bytes(), dtype, std::move(layout),
                                /*offset=*/0, pool_->kind()));
  return *view_;
}

void PooledTensor::Release() {
  view_.reset();
  pool_->Give(std::exchange(buffer_, Buffer()));
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
