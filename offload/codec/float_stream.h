// Arrays of any floating-point type, read and written as floats by the chunk.
//
//   FloatSource source(dtype, values, kChunk);
//   TESSERA_ASSIGN_OR_RETURN(const float* floats, source.Read(at, count));
//
// Internal to offload/codec. f32 that is aligned is used in place, all else
// goes through a buffer of one chunk.
#ifndef TESSERA_OFFLOAD_CODEC_FLOAT_STREAM_H_
#define TESSERA_OFFLOAD_CODEC_FLOAT_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "offload/codec/codec_interface.h"

namespace tessera::offload {

class FloatSource {
 public:
  FloatSource(DType dtype, std::span<const std::byte> values, int64_t chunk);

  // Elements at .. at + count as floats, rounded to nearest, with zeros behind
  // them up to a whole chunk where count is less than one. Until the next call.
  absl::StatusOr<const float*> Read(int64_t at, int64_t count);

 private:
  DType dtype_;
  std::span<const std::byte> values_;
  std::vector<float> buffer_;
};

class FloatSink {
 public:
  FloatSink(DType dtype, std::span<std::byte> values, int64_t chunk);

  // Where to write a chunk of floats, of which the first `count` become
  // elements at .. at + count, in Finish. What is finite stays so.
  float* Place(int64_t at, int64_t count);
  absl::Status Finish(int64_t at, int64_t count);

 private:
  DType dtype_;
  std::span<std::byte> values_;
  std::vector<float> buffer_;
  bool in_place_ = false;
};

// The bound where values that go to `dtype` and come from it through float have
// the bound `floats` between these two steps.
ErrorBound ThroughFloat(DType dtype, const ErrorBound& floats);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_CODEC_FLOAT_STREAM_H_
