#include "zero3/state/state_device.h"

#include <algorithm>

#include "base/status_macros.h"

namespace tessera::zero3 {

absl::StatusOr<QueuePoint> StateDevice::Mark() const {
  if (queue->is_immediate()) return QueuePoint();
  TESSERA_ASSIGN_OR_RETURN(Event event, queue->Record());
  return QueuePoint{++*marks_, std::move(event)};
}

AccountedMemory& AccountedMemory::operator=(AccountedMemory&& other) {
  if (this == &other) return *this;
  AwaitWork();
  memory_ = std::move(other.memory_);
  reservation_ = std::move(other.reservation_);
  queue_ = other.queue_;
  last_use_ = std::move(other.last_use_);
  return *this;
}

// An error belongs to the queue's work, and the queue's next call returns it.
void AccountedMemory::AwaitWork() {
  if (memory_.size() == 0 || queue_->is_immediate()) return;
  queue_->Synchronize().IgnoreError();
}

absl::StatusOr<AccountedMemory> AccountedMemory::Allocate(
    const StateDevice& device, std::string_view key, int64_t bytes,
    offload::Purpose purpose) {
  AccountedMemory memory;
  if (device.accounting != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(
        memory.reservation_,
        offload::Accounting::Reserve(device.accounting, key, bytes, purpose));
  }
  TESSERA_ASSIGN_OR_RETURN(
      memory.memory_,
      Buffer::Allocate(device.memory, static_cast<size_t>(bytes)));
  memory.queue_ = device.queue;
  return memory;
}

absl::StatusOr<AccountedMemory> BufferPool::Take(std::string_view key,
                                                 int64_t bytes) {
  SizeClass& blocks = blocks_[bytes];
  const auto free = static_cast<int64_t>(blocks.free.size());
  const bool late = reuse_ == Reuse::kDoubleBuffered;
  const bool wants_another =
      late && steps_ < 2 && blocks.ready == 0 && free < blocks.most_used;
  AccountedMemory block;
  if (free > 0 && !wants_another) {
    block = TakeFree(blocks, /*oldest=*/late);
  } else {
    absl::StatusOr<AccountedMemory> allocated = Allocate(key, bytes);
    if (!allocated.ok() && blocks.free.empty()) return allocated.status();
    block = allocated.ok() ? *std::move(allocated) : TakeFree(blocks, late);
  }
  blocks.most_used = std::max(blocks.most_used, ++blocks.used);
  used_bytes_ += bytes;
  most_used_bytes_ = std::max(most_used_bytes_, used_bytes_);
  return block;
}

AccountedMemory BufferPool::TakeFree(SizeClass& blocks, bool oldest) {
  AccountedMemory block =
      std::move(oldest ? blocks.free.front() : blocks.free.back());
  oldest ? blocks.free.pop_front() : blocks.free.pop_back();
  blocks.ready = std::max<int64_t>(blocks.ready - 1, 0);
  free_bytes_ -= static_cast<int64_t>(block.bytes().size());
  return block;
}

absl::StatusOr<AccountedMemory> BufferPool::AllocateNow(std::string_view key,
                                                        int64_t bytes) {
  return AccountedMemory::Allocate(device_, key, bytes,
                                   offload::Purpose::kBuffers);
}

absl::StatusOr<AccountedMemory> BufferPool::Allocate(std::string_view key,
                                                     int64_t bytes) {
  if (device_.queue->is_immediate()) {
    const int64_t room = std::max(most_used_bytes_, used_bytes_ + bytes);
    DropFree(free_bytes_ + used_bytes_ + bytes - room);
  }
  auto block = AllocateNow(key, bytes);
  if (!absl::IsResourceExhausted(block.status()) || free_bytes_ == 0 ||
      !blocks_[bytes].free.empty()) {
    return block;
  }
  DropAll();
  return AllocateNow(key, bytes);
}

void BufferPool::Give(AccountedMemory block) {
  if (!block.bytes().empty()) GiveWith(std::move(block), device_.Mark());
}

void BufferPool::Give(AccountedMemory block, Event last_use) {
  if (block.bytes().empty()) return;
  absl::StatusOr<QueuePoint> now = device_.Mark();
  if (now.ok()) now->event = std::move(last_use);
  GiveWith(std::move(block), std::move(now));
}

void BufferPool::GiveWith(AccountedMemory block,
                          absl::StatusOr<QueuePoint> last_use) {
  const auto bytes = static_cast<int64_t>(block.bytes().size());
  SizeClass& blocks = blocks_[bytes];
  --blocks.used;
  used_bytes_ -= bytes;
  if (!last_use.ok()) return;  // The queue returns its error to later calls.
  block.last_use_ = *std::move(last_use);
  free_bytes_ += bytes;
  blocks.free.push_back(std::move(block));
}

void BufferPool::BeginStep() {
  ++steps_;
  for (auto& [bytes, blocks] : blocks_) {
    blocks.ready = static_cast<int64_t>(blocks.free.size());
  }
}

void BufferPool::Trim() {
  if (!device_.queue->is_immediate()) return;
  DropAll();
  most_used_bytes_ = used_bytes_;
}

void BufferPool::DropAll() {
  for (auto& [bytes, blocks] : blocks_) {
    blocks.free.clear();
    blocks.ready = 0;
  }
  free_bytes_ = 0;
}

// Frees the largest blocks first, until at least this many bytes are free.
void BufferPool::DropFree(int64_t bytes) {
  for (auto it = blocks_.rbegin(); it != blocks_.rend() && bytes > 0;) {
    if (it->second.free.empty()) {
      ++it;
      continue;
    }
    it->second.free.pop_back();
    bytes -= it->first;
    free_bytes_ -= it->first;
  }
}

}  // namespace tessera::zero3
