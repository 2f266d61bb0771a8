#include "offload/codec/testing/arrays.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <type_traits>

#include "base/dtype/convert.h"
#include "base/dtype/convert_value.h"
#include "base/dtype/dtype_traits.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace tessera::offload {
namespace {

// The largest finite magnitude of each run of `length` elements.
std::vector<double> LargestOfRuns(DType dtype, const Bytes& values,
                                  int64_t length) {
  const size_t count = values.size() / static_cast<size_t>(SizeInBytes(dtype));
  const size_t run = length == 0 ? count + 1 : static_cast<size_t>(length);
  std::vector<double> largest(count / run + 1);
  for (size_t i = 0; i < count; ++i) {
    const double value = std::fabs(ValueAt(dtype, values, i));
    if (std::isfinite(value)) {
      largest[i / run] = std::max(largest[i / run], value);
    }
  }
  return largest;
}

}  // namespace

Bytes ArrayOf(DType dtype, const std::vector<double>& values) {
  Bytes bytes(values.size() * static_cast<size_t>(SizeInBytes(dtype)));
  TESSERA_EXPECT_OK(
      Convert(DType::kF64, std::as_bytes(std::span(values)), dtype, bytes));
  return bytes;
}

Bytes NormalArray(DType dtype, size_t count, double deviation, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(
      0, IsInteger(dtype) ? 10000 * deviation : deviation);
  std::vector<double> values(count);
  for (double& value : values) value = normal(random);
  return ArrayOf(dtype, values);
}

Bytes RandomBytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

Bytes AllPatterns() {
  std::vector<uint16_t> patterns(65536);
  for (size_t i = 0; i < patterns.size(); ++i) {
    patterns[i] = static_cast<uint16_t>(i);
  }
  Bytes bytes(2 * patterns.size());
  std::memcpy(bytes.data(), patterns.data(), bytes.size());
  return bytes;
}

double ValueAt(DType dtype, std::span<const std::byte> values, size_t index) {
  return DispatchDType(dtype, [&]<typename T>(std::type_identity<T>) {
    T value;
    std::memcpy(&value, values.data() + index * sizeof(T), sizeof(T));
    return ConvertValue<double>(value);
  });
}

Bytes Encoded(const Codec& codec, DType dtype, const Bytes& values) {
  const int64_t count =
      static_cast<int64_t>(values.size()) / SizeInBytes(dtype);
  const auto room = codec.MaxEncodedBytes(dtype, count);
  EXPECT_THAT(room, IsOk());
  Bytes encoded(static_cast<size_t>(room.value_or(0)));
  const auto bytes = codec.Encode(dtype, values, encoded);
  EXPECT_THAT(bytes, IsOk()) << codec.name() << " of " << dtype;
  EXPECT_LE(bytes.value_or(0), static_cast<int64_t>(encoded.size()));
  encoded.resize(static_cast<size_t>(bytes.value_or(0)));
  return encoded;
}

Bytes Decoded(const Codec& codec, DType dtype, const Bytes& encoded,
              size_t bytes) {
  Bytes values(bytes, std::byte{0xa5});
  EXPECT_THAT(codec.Decode(dtype, encoded, values), IsOk())
      << codec.name() << " of " << dtype;
  return values;
}

double WorstShareOfBound(const Codec& codec, DType dtype, const Bytes& values) {
  const Bytes back =
      Decoded(codec, dtype, Encoded(codec, dtype, values), values.size());
  const ErrorBound bound = codec.MaxError(dtype).value();
  const auto blocks = LargestOfRuns(dtype, values, bound.block);
  const auto groups = LargestOfRuns(dtype, values, bound.group);
  double worst = 0;
  for (size_t i = 0; i < values.size() / SizeInBytes(dtype); ++i) {
    const double value = ValueAt(dtype, values, i);
    const double error = std::fabs(ValueAt(dtype, back, i) - value);
    if (error == 0) continue;
    const double allowed =
        bound.Of(value, bound.block == 0 ? 0 : blocks[i / size_t(bound.block)],
                 bound.group == 0 ? 0 : groups[i / size_t(bound.group)]);
    // A NaN or an error where none is allowed exceeds every limit.
    const double share = error / allowed;
    if (!(share <= worst)) worst = std::isfinite(share) ? share : HUGE_VAL;
  }
  return worst;
}

void ForEachInstructionSet(const std::function<void()>& body) {
  for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0;
       left &= left - 1) {
    hwy::SetSupportedTargetsForTest(left & -left);
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace tessera::offload
