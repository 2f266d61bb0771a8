// PlaneCoder: one plane of bytes made smaller, and back.
//
//   PlaneCoder coder;
//   size_t bytes = coder.Compress(PlaneMethod::kZstd, plane, room);
//   if (bytes == 0) ...  // It did not fit: hold the plane as it is.
//
// Internal to offload/codec. Keeps the libraries' contexts: for one thread at a
// time, and worth keeping.
#ifndef TESSERA_OFFLOAD_CODEC_PLANE_CODER_H_
#define TESSERA_OFFLOAD_CODEC_PLANE_CODER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "absl/status/status.h"

namespace tessera::offload {

// The values are stored: they are stable.
enum class PlaneMethod : uint8_t {
  kStored = 0,
  kConstant = 1,  // One byte, repeated.
  kZstd = 2,      // A Zstandard frame (RFC 8878).
  kLz4 = 3,       // An LZ4 block.
  kWindow = 4,    // offload/codec/window_code.h.
};

inline constexpr size_t kMaxPlaneBytes = size_t{64} << 10;

std::string_view PlaneMethodName(PlaneMethod method);

// Whether this build has the method.
bool HasPlaneMethod(PlaneMethod method);

// A guess from a sample: whether the bytes are so evenly distributed that an
// entropy coder would gain less than about 1.5 %. False for short planes.
bool LooksIncompressible(std::span<const std::byte> plane);

class PlaneCoder {
 public:
  PlaneCoder();
  PlaneCoder(PlaneCoder&&) = delete;
  ~PlaneCoder();

  // Compresses 1 to kMaxPlaneBytes bytes by kZstd, kLz4 or kWindow. Returns the
  // bytes written to `room`, or 0 where they do not fit or the build has no
  // such method.
  size_t Compress(PlaneMethod method, std::span<const std::byte> plane,
                  std::span<std::byte> room);

  // Fills `plane` from any bytes. DataLoss where they are not what Compress
  // makes of that many bytes, Unimplemented where the build has no such method.
  absl::Status Decompress(PlaneMethod method, std::span<const std::byte> held,
                          std::span<std::byte> plane);

 private:
  struct Contexts;
  std::unique_ptr<Contexts> contexts_;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_CODEC_PLANE_CODER_H_
