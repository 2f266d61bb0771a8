#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "offload/codec/byte_planes.h"
#include "offload/codec/checked_codec.h"
#include "offload/codec/codecs.h"
#include "offload/codec/plane_coder.h"

namespace tessera::offload {
namespace {

constexpr size_t kMaxPlanes = 8;
constexpr size_t kFrameElements = kMaxPlaneBytes;
// The interval at which planes that look incompressible are tried nevertheless,
// since they may repeat.
constexpr size_t kTryEvery = 16;

// Precedes each plane: four bits of method, 28 bits of size.
using Descriptor = uint32_t;
constexpr int kMethodShift = 28;

// The working memory of one call.
struct Workspace {
  PlaneCoder coder;
  std::vector<std::byte> bytes;  // The planes of a frame.

  std::byte* Plane(size_t index) {
    const size_t needed = (index + 1) * kMaxPlaneBytes;
    if (bytes.size() < needed) bytes.resize(kMaxPlanes * kMaxPlaneBytes);
    return bytes.data() + index * kMaxPlaneBytes;
  }
};

// Idle workspaces.
class WorkspacePool {
 public:
  std::unique_ptr<Workspace> Take() {
    absl::MutexLock lock(&mutex_);
    if (free_.empty()) return std::make_unique<Workspace>();
    std::unique_ptr<Workspace> workspace = std::move(free_.back());
    free_.pop_back();
    return workspace;
  }
  void Give(std::unique_ptr<Workspace> workspace) {
    absl::MutexLock lock(&mutex_);
    free_.push_back(std::move(workspace));
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> free_ ABSL_GUARDED_BY(mutex_);
};

class Borrowed {
 public:
  explicit Borrowed(WorkspacePool& pool) : pool_(pool), held_(pool.Take()) {}
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  ~Borrowed() { pool_.Give(std::move(held_)); }
  Workspace& operator*() { return *held_; }

 private:
  WorkspacePool& pool_;
  std::unique_ptr<Workspace> held_;
};

bool IsConstant(std::span<const std::byte> plane) {
  return std::memcmp(plane.data(), plane.data() + 1, plane.size() - 1) == 0;
}

// Writes the planes of one array, frame after frame.
class Writer {
 public:
  Writer(PlaneMethod method, Workspace& workspace, std::span<std::byte> room)
      : method_(method), workspace_(workspace), room_(room) {}

  void Frame(PlaneShape shape, const std::byte* values, size_t count) {
    if (shape.planes == 1) {
      Plane(0, {values, count});
    } else {
      std::array<std::byte*, kMaxPlanes> planes;
      for (size_t p = 0; p < shape.planes; ++p) planes[p] = workspace_.Plane(p);
      SplitPlanes(shape, values, count, planes.data());
      for (size_t p = 0; p < shape.planes; ++p) Plane(p, {planes[p], count});
    }
    ++frames_;
  }

  size_t written() const { return written_; }

 private:
  void Plane(size_t index, std::span<const std::byte> plane) {
    const auto body = room_.subspan(written_ + sizeof(Descriptor));
    PlaneMethod method = PlaneMethod::kStored;
    size_t bytes = plane.size();
    if (IsConstant(plane)) {
      method = PlaneMethod::kConstant;
      bytes = 1;
      body[0] = plane[0];
    } else if (const size_t shrunk = Shrink(index, plane, body); shrunk != 0) {
      method = method_;
      bytes = shrunk;
    } else {
      std::copy(plane.begin(), plane.end(), body.begin());
    }
    const auto descriptor = static_cast<Descriptor>(
        bytes | static_cast<size_t>(method) << kMethodShift);
    std::memcpy(&room_[written_], &descriptor, sizeof(descriptor));
    written_ += sizeof(descriptor) + bytes;
  }

  // Returns the bytes written; 0 if this would save less than 1/64.
  size_t Shrink(size_t index, std::span<const std::byte> plane,
                std::span<std::byte> body) {
    const bool is_due = shrank_[index] || frames_ % kTryEvery == 0;
    if (!is_due && LooksIncompressible(plane)) return 0;
    const size_t worth = plane.size() - plane.size() / 64 - 1;
    const size_t bytes =
        workspace_.coder.Compress(method_, plane, body.first(worth));
    shrank_[index] = bytes != 0;
    return bytes;
  }

  PlaneMethod method_;
  Workspace& workspace_;
  std::span<std::byte> room_;
  size_t written_ = 0;
  size_t frames_ = 0;
  std::array<bool, kMaxPlanes> shrank_ = {};
};

// Reads the output of Writer; any bytes are safe.
class Reader {
 public:
  Reader(Workspace& workspace, std::span<const std::byte> payload)
      : workspace_(workspace), left_(payload) {}

  absl::Status Frame(PlaneShape shape, std::byte* values, size_t count) {
    std::array<const std::byte*, kMaxPlanes> planes;
    for (size_t p = 0; p < shape.planes; ++p) {
      // The values are a single plane.
      std::byte* const scratch =
          shape.planes == 1 ? values : workspace_.Plane(p);
      TESSERA_ASSIGN_OR_RETURN(planes[p], Plane({scratch, count}));
    }
    if (planes[0] != values) MergePlanes(shape, planes.data(), count, values);
    return absl::OkStatus();
  }

  size_t left() const { return left_.size(); }

 private:
  // Returns the next plane, in place or in `scratch`.
  absl::StatusOr<const std::byte*> Plane(std::span<std::byte> scratch) {
    Descriptor descriptor = 0;
    if (left_.size() < sizeof(descriptor)) return CutShort();
    std::memcpy(&descriptor, left_.data(), sizeof(descriptor));
    left_ = left_.subspan(sizeof(descriptor));
    const auto method = static_cast<PlaneMethod>(descriptor >> kMethodShift);
    const size_t bytes = descriptor & ((Descriptor{1} << kMethodShift) - 1);
    if (bytes > left_.size()) return CutShort();
    const auto held = left_.first(bytes);
    left_ = left_.subspan(bytes);
    if (method == PlaneMethod::kStored && bytes == scratch.size()) {
      return held.data();
    }
    if (method == PlaneMethod::kConstant && bytes == 1) {
      std::fill(scratch.begin(), scratch.end(), held[0]);
      return scratch.data();
    }
    TESSERA_RETURN_IF_ERROR(workspace_.coder.Decompress(method, held, scratch));
    return scratch.data();
  }

  static absl::Status CutShort() {
    return absl::DataLossError(
        "the encoding is damaged: it ends within a plane");
  }

  Workspace& workspace_;
  std::span<const std::byte> left_;
};

class LosslessCodec final : public CheckedCodec {
 public:
  LosslessCodec(std::string_view name, PlaneMethod method)
      : CheckedCodec(name, CodecFormat::kLossless), method_(method) {}

 private:
  ErrorBound PayloadError(DType) const override { return {}; }

  int64_t MaxPayloadBytes(DType dtype, int64_t elements) const override {
    constexpr int64_t kFrame = kFrameElements;
    const int64_t frames = elements / kFrame + (elements % kFrame != 0);
    constexpr int64_t kDescriptor = sizeof(Descriptor);
    return SizeInBytes(dtype) * (elements + frames * kDescriptor);
  }

  absl::StatusOr<int64_t> EncodePayload(
      DType dtype, std::span<const std::byte> values,
      std::span<std::byte> payload) const override {
    Borrowed workspace(pool_);
    const PlaneShape shape = ShapeOf(dtype);
    const size_t count = values.size() / shape.planes;
    Writer writer(method_, *workspace, payload);
    for (size_t at = 0; at < count; at += kFrameElements) {
      writer.Frame(shape, &values[at * shape.planes],
                   std::min(kFrameElements, count - at));
    }
    return static_cast<int64_t>(writer.written());
  }

  absl::Status DecodePayload(DType dtype, std::span<const std::byte> payload,
                             std::span<std::byte> values) const override {
    Borrowed workspace(pool_);
    const PlaneShape shape = ShapeOf(dtype);
    const size_t count = values.size() / shape.planes;
    Reader reader(*workspace, payload);
    for (size_t at = 0; at < count; at += kFrameElements) {
      TESSERA_RETURN_IF_ERROR(
          reader.Frame(shape, &values[at * shape.planes],
                       std::min(kFrameElements, count - at)),
          Annotate(_, absl::StrCat("codec ", name(), ", frame ",
                                   at / kFrameElements)));
    }
    if (reader.left() == 0) return absl::OkStatus();
    return Damaged(absl::StrCat(reader.left(), " bytes follow the last plane"));
  }

  PlaneMethod method_;
  mutable WorkspacePool pool_;
};

}  // namespace

std::unique_ptr<Codec> MakeLosslessCodec() {
  return std::make_unique<LosslessCodec>(
      "lossless", HasPlaneMethod(PlaneMethod::kZstd) ? PlaneMethod::kZstd
                                                     : PlaneMethod::kWindow);
}

std::unique_ptr<Codec> MakeLosslessFastCodec() {
  return std::make_unique<LosslessCodec>("lossless_fast", PlaneMethod::kWindow);
}

absl::StatusOr<std::unique_ptr<Codec>> MakeLosslessLz4Codec() {
  if (!HasPlaneMethod(PlaneMethod::kLz4)) {
    return absl::UnimplementedError(
        "codec lossless_lz4: this build has no LZ4; install it (lz4.h and "
        "liblz4) and build again, or use lossless");
  }
  return std::make_unique<LosslessCodec>("lossless_lz4", PlaneMethod::kLz4);
}

}  // namespace tessera::offload
