#include "offload/codec/plane_coder.h"

#include <array>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#ifdef TESSERA_HAVE_LZ4
#include <lz4.h>
#endif
#ifdef TESSERA_HAVE_ZSTD
#include <zstd.h>
#endif

namespace tessera::offload {
namespace {

[[maybe_unused]] absl::Status NotBuilt(PlaneMethod method) {
  return absl::UnimplementedError(absl::StrCat(
      "this build has no ", PlaneMethodName(method),
      ", which the encoding of a plane needs; install it and build again"));
}

absl::Status Damaged(PlaneMethod method, size_t held, size_t plane) {
  return absl::DataLossError(absl::StrCat(
      "the encoding is damaged: ", held, " bytes of ", PlaneMethodName(method),
      " do not decode to a plane of ", plane, " bytes"));
}

}  // namespace

std::string_view PlaneMethodName(PlaneMethod method) {
  constexpr std::array<std::string_view, 5> kNames = {"stored", "constant",
                                                      "zstd", "lz4", "window"};
  const auto index = static_cast<size_t>(method);
  return index < kNames.size() ? kNames[index] : "unknown";
}

bool HasPlaneMethod(PlaneMethod method) {
  switch (method) {
    case PlaneMethod::kStored:
    case PlaneMethod::kConstant:
    case PlaneMethod::kWindow:
      return true;
    case PlaneMethod::kZstd:
#ifdef TESSERA_HAVE_ZSTD
      return true;
#else
      return false;
#endif
    case PlaneMethod::kLz4:
#ifdef TESSERA_HAVE_LZ4
      return true;
#else
      return false;
#endif
  }
  return false;
}

bool LooksIncompressible(std::span<const std::byte> plane) {
  constexpr size_t kRuns = 8, kRunBytes = 256, kSample = kRuns * kRunBytes;
  if (plane.size() < kSample) return false;
  // Two tables, so that equal neighbours do not depend on each other.
  std::array<std::array<uint32_t, 256>, 2> counts = {};
  const size_t stride = (plane.size() - kRunBytes) / (kRuns - 1);
  for (size_t run = 0; run < kRuns; ++run) {
    const std::byte* const from = plane.data() + run * stride;
    for (size_t i = 0; i < kRunBytes; i += 2) {
      ++counts[0][static_cast<uint8_t>(from[i])];
      ++counts[1][static_cast<uint8_t>(from[i + 1])];
    }
  }
  // Pearson's statistic: 255 for a uniform distribution, plus 2 ln 2 for each
  // bit that an ideal coder saves on the sample.
  uint64_t squares = 0;
  for (size_t i = 0; i < 256; ++i) {
    const uint64_t count = counts[0][i] + counts[1][i];
    squares += count * count;
  }
  constexpr uint64_t kEven = kSample / 256;
  const uint64_t statistic = squares / kEven - kSample;
  return statistic < 600;
}

#ifdef TESSERA_HAVE_ZSTD

struct PlaneCoder::Contexts {
  struct Free {
    void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };

  // Planes of weights hardly repeat, so the entropy coder matters most. Few and
  // long matches, searched in the smallest table, make it three times as fast
  // as level 1, and smaller, because fewer matches interrupt the literals.
  Contexts() : compress(ZSTD_createCCtx()), decompress(ZSTD_createDCtx()) {
    if (compress == nullptr) return;
    const std::pair<ZSTD_cParameter, int> parameters[] = {
        {ZSTD_c_compressionLevel, 1}, {ZSTD_c_strategy, ZSTD_fast},
        {ZSTD_c_hashLog, 6},          {ZSTD_c_minMatch, 7},
        {ZSTD_c_checksumFlag, 0},
    };
    for (const auto& [parameter, value] : parameters) {
      ZSTD_CCtx_setParameter(compress.get(), parameter, value);
    }
  }

  size_t Compress(std::span<const std::byte> plane, std::span<std::byte> room) {
    if (compress == nullptr) return 0;
    const size_t bytes = ZSTD_compress2(
        compress.get(), room.data(), room.size(), plane.data(), plane.size());
    return ZSTD_isError(bytes) ? 0 : bytes;
  }

  absl::Status Decompress(std::span<const std::byte> held,
                          std::span<std::byte> plane) {
    if (decompress == nullptr) {
      return absl::ResourceExhaustedError("no memory for a zstd context");
    }
    const size_t bytes = ZSTD_decompressDCtx(
        decompress.get(), plane.data(), plane.size(), held.data(), held.size());
    if (bytes == plane.size()) return absl::OkStatus();
    return Damaged(PlaneMethod::kZstd, held.size(), plane.size());
  }

  std::unique_ptr<ZSTD_CCtx, Free> compress;
  std::unique_ptr<ZSTD_DCtx, Free> decompress;
};

#else

struct PlaneCoder::Contexts {
  size_t Compress(std::span<const std::byte>, std::span<std::byte>) {
    return 0;
  }
  absl::Status Decompress(std::span<const std::byte>, std::span<std::byte>) {
    return NotBuilt(PlaneMethod::kZstd);
  }
};

#endif  // TESSERA_HAVE_ZSTD

#ifdef TESSERA_HAVE_LZ4

static size_t CompressLz4(std::span<const std::byte> plane,
                          std::span<std::byte> room) {
  return static_cast<size_t>(LZ4_compress_default(
      reinterpret_cast<const char*>(plane.data()),
      reinterpret_cast<char*>(room.data()), static_cast<int>(plane.size()),
      static_cast<int>(room.size())));
}

static absl::Status DecompressLz4(std::span<const std::byte> held,
                                  std::span<std::byte> plane) {
  const int bytes = LZ4_decompress_safe(
      reinterpret_cast<const char*>(held.data()),
      reinterpret_cast<char*>(plane.data()), static_cast<int>(held.size()),
      static_cast<int>(plane.size()));
  if (bytes == static_cast<int>(plane.size())) return absl::OkStatus();
  return Damaged(PlaneMethod::kLz4, held.size(), plane.size());
}

#else

static size_t CompressLz4(std::span<const std::byte>, std::span<std::byte>) {
  return 0;
}
static absl::Status DecompressLz4(std::span<const std::byte>,
                                  std::span<std::byte>) {
  return NotBuilt(PlaneMethod::kLz4);
}

#endif  // TESSERA_HAVE_LZ4

PlaneCoder::PlaneCoder() : contexts_(std::make_unique<Contexts>()) {}
PlaneCoder::~PlaneCoder() = default;

size_t PlaneCoder::Compress(PlaneMethod method,
                            std::span<const std::byte> plane,
                            std::span<std::byte> room) {
  if (method == PlaneMethod::kZstd) return contexts_->Compress(plane, room);
  if (method == PlaneMethod::kLz4) return CompressLz4(plane, room);
  if (method == PlaneMethod::kWindow) return EncodeWindow(plane, room);
  return 0;
}

absl::Status PlaneCoder::Decompress(PlaneMethod method,
                                    std::span<const std::byte> held,
                                    std::span<std::byte> plane) {
  if (method == PlaneMethod::kZstd) return contexts_->Decompress(held, plane);
  if (method == PlaneMethod::kLz4) return DecompressLz4(held, plane);
  if (method == PlaneMethod::kWindow && DecodeWindow(held, plane)) {
    return absl::OkStatus();
  }
  return Damaged(method, held.size(), plane.size());
}

}  // namespace tessera::offload
