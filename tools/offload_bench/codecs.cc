#include "tools/offload_bench/codecs.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/dtype/convert.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/tensor/memory.h"
#include "offload/codec/codec.h"
#include "tools/offload_bench/weights.h"

namespace tessera::offload_bench {
namespace {

using offload::Codec;

constexpr uint64_t kSeed = 1;

// Root of the mean square of `back` - `values`, over that of `values`.
absl::StatusOr<double> RelativeError(DType dtype,
                                     std::span<const std::byte> values,
                                     std::span<const std::byte> back) {
  constexpr size_t kChunk = 4096;
  const auto size = static_cast<size_t>(SizeInBytes(dtype));
  std::vector<double> before(kChunk), after(kChunk);
  double changed = 0, total = 0;
  for (size_t at = 0; at < values.size(); at += kChunk * size) {
    const size_t bytes = std::min(kChunk * size, values.size() - at);
    const size_t n = bytes / size;
    for (auto [from, to] : {std::pair(&values, &before), {&back, &after}}) {
      TESSERA_RETURN_IF_ERROR(
          Convert(dtype, from->subspan(at, bytes), DType::kF64,
                  std::as_writable_bytes(std::span(*to).first(n))));
    }
    for (size_t i = 0; i < n; ++i) {
      changed += (after[i] - before[i]) * (after[i] - before[i]);
      total += before[i] * before[i];
    }
  }
  return std::sqrt(changed / total);
}

// One codec on one array.
class CodecCase {
 public:
  CodecCase(const Codec& codec, DType dtype, Buffer values)
      : codec_(codec), dtype_(dtype), values_(std::move(values)) {}

  // Encodes once, decodes once, compares.
  absl::Status Prepare();
  absl::Status Measure(bool encode, const CodecsOptions& options,
                       const Sink& sink);

 private:
  absl::Status Encode() {
    return codec_.Encode(dtype_, values_.bytes(), room_.bytes()).status();
  }
  absl::Status Decode() {
    return codec_.Decode(dtype_, room_.bytes().first(held_), back_.bytes());
  }

  const Codec& codec_;
  const DType dtype_;
  Buffer values_, room_, back_;
  size_t held_ = 0;
  double error_ = 0;
};

absl::Status CodecCase::Prepare() {
  const int64_t count =
      static_cast<int64_t>(values_.size()) / SizeInBytes(dtype_);
  TESSERA_ASSIGN_OR_RETURN(const int64_t most,
                           codec_.MaxEncodedBytes(dtype_, count));
  TESSERA_ASSIGN_OR_RETURN(
      room_, Buffer::Allocate(HostMemory(), static_cast<size_t>(most)));
  TESSERA_ASSIGN_OR_RETURN(back_,
                           Buffer::Allocate(HostMemory(), values_.size()));
  TESSERA_ASSIGN_OR_RETURN(
      const int64_t held,
      codec_.Encode(dtype_, values_.bytes(), room_.bytes()));
  held_ = static_cast<size_t>(held);
  TESSERA_RETURN_IF_ERROR(Decode());
  const bool same =
      std::memcmp(back_.data(), values_.data(), values_.size()) == 0;
  if (codec_.IsLossless(dtype_) && !same) {
    return absl::InternalError(
        absl::StrCat("codec ", codec_.name(), " changed ", DTypeName(dtype_),
                     " values, which it holds without loss: do not use it, and "
                     "report this"));
  }
  TESSERA_ASSIGN_OR_RETURN(
      error_, RelativeError(dtype_, values_.bytes(), back_.bytes()));
  return absl::OkStatus();
}

absl::Status CodecCase::Measure(bool encode, const CodecsOptions& options,
                                const Sink& sink) {
  Measurement m;
  m.what = "codecs";
  m.name = std::string(codec_.name());
  m.operation = encode ? "encode" : "decode";
  m.data = std::string(DTypeName(dtype_));
  m.bytes = m.block_bytes = static_cast<int64_t>(values_.size());
  m.limit = "memcpy";
  m.time = options.time;
  m.ratio = static_cast<double>(values_.size()) / static_cast<double>(held_);
  m.error = error_;
  TESSERA_ASSIGN_OR_RETURN(
      const Pass limit,
      MemcpyPass(static_cast<int64_t>(values_.size() + held_), options.time));
  const auto work = [this, encode] { return encode ? Encode() : Decode(); };
  TESSERA_ASSIGN_OR_RETURN(m.times, CompareInTurns(Timed(work, options.time),
                                                   limit, options.seconds));
  sink(m);
  return absl::OkStatus();
}

}  // namespace

absl::Status MeasureCodecs(const CodecsOptions& options, const Sink& sink) {
  for (const std::string& name : options.codecs) {
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Codec> codec,
                             offload::CreateCodec(name));
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      TESSERA_ASSIGN_OR_RETURN(
          Buffer values,
          NormalWeights(dtype, options.size / SizeInBytes(dtype), kSeed));
      CodecCase one(*codec, dtype, std::move(values));
      TESSERA_RETURN_IF_ERROR(one.Prepare());
      for (const bool encode : {true, false}) {
        TESSERA_RETURN_IF_ERROR(one.Measure(encode, options, sink));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::offload_bench
