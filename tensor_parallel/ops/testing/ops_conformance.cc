#include "tensor_parallel/ops/testing/ops_conformance.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/device/host_device.h"
#include "base/device/operation.h"
#include "base/device/staging.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"

namespace tessera::tensor_parallel {
namespace {

// Copies of the operands of one operation in other memory. Overlapping operands
// overlap there too.
class Copies {
 public:
  explicit Copies(std::shared_ptr<MemoryResource> memory)
      : memory_(std::move(memory)) {}

  template <typename Byte>
  void Add(const BasicTensorView<Byte>& view) {
    const MemoryAccess access = ReadsFrom(ConstTensorView(view));
    if (access.size > 0) ranges_.push_back({access.data, access.size, {}});
  }

  // Called after the last Add. Copies have the alignment of their originals.
  absl::Status Allocate() {
    std::sort(ranges_.begin(), ranges_.end(),
              [](const Range& a, const Range& b) { return a.begin < b.begin; });
    std::vector<Range> merged;
    for (Range& range : ranges_) {
      if (!merged.empty() && range.begin < merged.back().end()) {
        const std::byte* const end = std::max(range.end(), merged.back().end());
        merged.back().size = static_cast<size_t>(end - merged.back().begin);
      } else {
        merged.push_back(std::move(range));
      }
    }
    ranges_ = std::move(merged);
    for (Range& range : ranges_) {
      TESSERA_ASSIGN_OR_RETURN(
          range.copy,
          Buffer::Allocate(memory_, range.size + kDefaultAlignment));
    }
    return absl::OkStatus();
  }

  // Calls f(original, copy) for each range.
  template <typename Function>
  absl::Status ForEach(const Function& f) {
    for (Range& range : ranges_) {
      TESSERA_RETURN_IF_ERROR(
          f(std::span(const_cast<std::byte*>(range.begin), range.size),
            std::span(range.at(range.begin), range.size)));
    }
    return absl::OkStatus();
  }

  template <typename Byte>
  BasicTensorView<Byte> Of(const BasicTensorView<Byte>& view) {
    for (Range& range : ranges_) {
      if (view.element_count() > 0 && view.data() >= range.begin &&
          view.data() < range.end()) {
        return view.MovedTo(range.at(view.data()), memory_->kind());
      }
    }
    return view.MovedTo(nullptr, memory_->kind());
  }
  std::optional<ConstTensorView> Of(
      const std::optional<ConstTensorView>& view) {
    if (!view.has_value()) return std::nullopt;
    return Of(*view);
  }

  void Add(const std::optional<ConstTensorView>& view) {
    if (view.has_value()) Add(*view);
  }

  // All operands of an operation.
  template <typename Operation>
  void AddOperands(Operation operation) {
    std::apply([&](const auto&... operand) { (Add(operand), ...); },
               operation.operands());
  }
  template <typename Operation>
  Operation WithCopies(Operation operation) {
    std::apply([&](auto&... operand) { ((operand = Of(operand)), ...); },
               operation.operands());
    return operation;
  }

 private:
  struct Range {
    const std::byte* begin;
    size_t size;
    Buffer copy;

    const std::byte* end() const { return begin + size; }
    std::byte* at(const std::byte* original) {
      const size_t shift =
          reinterpret_cast<uintptr_t>(begin) % kDefaultAlignment;
      return copy.data() + shift + (original - begin);
    }
  };

  std::shared_ptr<MemoryResource> memory_;
  std::vector<Range> ranges_;
};

// Executes operations on host memory with the operations of a device.
struct Uploader {
  Ops& ops;
  Ops* same_bits;

  template <typename Operation>
  absl::Status Run(const Operation& operation) {
    Copies expected(HostMemory());
    if (same_bits != nullptr) {
      expected.AddOperands(operation);
      TESSERA_RETURN_IF_ERROR(expected.Allocate());
      TESSERA_RETURN_IF_ERROR(expected.ForEach(
          [](std::span<std::byte> original, std::span<std::byte> copy) {
            std::memcpy(copy.data(), original.data(), copy.size());
            return absl::OkStatus();
          }));
      // Both must return an error.
      same_bits->Run(expected.WithCopies(operation)).IgnoreError();
    }
    TESSERA_RETURN_IF_ERROR(RunOnDevice(operation));
    return expected.ForEach(
        [](std::span<std::byte> original, std::span<std::byte> copy) {
          EXPECT_EQ(std::memcmp(original.data(), copy.data(), copy.size()), 0)
              << "results differ from those on the host";
          return absl::OkStatus();
        });
  }

  template <typename Operation>
  absl::Status RunOnDevice(const Operation& operation) {
    StagingPool staging(ops.queue());
    Copies copies(ops.queue().device().memory());
    copies.AddOperands(operation);
    TESSERA_RETURN_IF_ERROR(copies.Allocate());
    TESSERA_RETURN_IF_ERROR(copies.ForEach(
        [&](std::span<std::byte> original, std::span<std::byte> copy) {
          return staging.Upload(original, copy);
        }));
    // The copies live until the queue is done with them.
    absl::Status status = ops.Run(copies.WithCopies(operation));
    status.Update(ops.queue().Synchronize());
    TESSERA_RETURN_IF_ERROR(status);
    return copies.ForEach([&](std::span<std::byte> original,
                              std::span<std::byte> copy) -> absl::Status {
      TESSERA_ASSIGN_OR_RETURN(const Download download,
                               staging.StartDownload(copy));
      TESSERA_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes,
                               download.Wait());
      // Constant operands are not written.
      if (std::memcmp(original.data(), bytes.data(), bytes.size()) != 0) {
        std::memcpy(original.data(), bytes.data(), bytes.size());
      }
      return absl::OkStatus();
    });
  }
};

const KernelTable<Uploader, LayerOperations>& UploadingKernels() {
  static const auto table = [] {
    KernelTable<Uploader, LayerOperations> result;
    LayerOperations::ForEach([&]<typename Op>(std::type_identity<Op>) {
      result.Add<Op>([](Uploader& uploader, const Op& operation) {
        return uploader.Run(operation);
      });
    });
    return result;
  }();
  return table;
}

}  // namespace

std::unique_ptr<Ops> UploadOperands(Ops& ops, Ops* same_bits) {
  return std::make_unique<Ops>(
      HostQueue(), UploadingKernels(),
      std::make_shared<Uploader>(Uploader{ops, same_bits}));
}

DeviceCopy::DeviceCopy(Queue& queue, const TestTensor& tensor)
    : queue_(queue), view_(tensor.view()) {
  absl::StatusOr<Buffer> memory =
      Buffer::Allocate(queue.device().memory(), tensor.bytes().size());
  TESSERA_EXPECT_OK(memory);
  memory_ = *std::move(memory);
  view_ = view_.MovedTo(memory_.data(), memory_.kind());
  StagingPool staging(queue);
  TESSERA_EXPECT_OK(staging.Upload(tensor.bytes(), memory_.bytes()));
  TESSERA_EXPECT_OK(queue.Synchronize());  // The pool goes.
}

void DeviceCopy::ReadTo(TestTensor& tensor) const {
  StagingPool staging(queue_);
  const absl::StatusOr<Download> download =
      staging.StartDownload(memory_.bytes());
  TESSERA_ASSERT_OK(download);
  const absl::StatusOr<std::span<const std::byte>> bytes = download->Wait();
  TESSERA_ASSERT_OK(bytes);
  std::memcpy(tensor.view().data(), bytes->data(), bytes->size());
}

void OpsConformanceTest::SetUp() {
  absl::StatusOr<TestedOps> tested = GetParam().create();
  if (absl::IsUnavailable(tested.status())) GTEST_SKIP() << tested.status();
  TESSERA_ASSERT_OK(tested);
  tested_ = *std::move(tested);
  ops_ = tested_.ops.get();
  if (!IsHostAccessible(queue().device().memory()->kind())) {
    uploading_ = UploadOperands(*tested_.ops, tested_.same_bits.get());
    ops_ = uploading_.get();
  }
}

}  // namespace tessera::tensor_parallel
