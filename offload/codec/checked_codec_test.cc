#include "offload/codec/checked_codec.h"

#include <algorithm>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::offload {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;
using Bytes = std::vector<std::byte>;

// Encodes every array to one byte of payload.
class OneByteCodec final : public CheckedCodec {
 public:
  OneByteCodec() : CheckedCodec("one_byte", CodecFormat::kInt8) {}

 private:
  ErrorBound PayloadError(DType dtype) const override {
    return {.of_value = dtype == DType::kF32 ? 0.5 : 0.0};
  }
  int64_t MaxPayloadBytes(DType, int64_t) const override { return 3; }
  absl::StatusOr<int64_t> EncodePayload(
      DType dtype, std::span<const std::byte> values,
      std::span<std::byte> payload) const override {
    EXPECT_EQ(payload.size(), 3);
    if (values.size() == 12) return CannotHold(dtype, values, 2, "do better");
    payload[0] = std::byte{7};
    return 1;
  }
  absl::Status DecodePayload(DType, std::span<const std::byte> payload,
                             std::span<std::byte> values) const override {
    if (absl::Status s = CheckPayloadBytes(payload, 1); !s.ok()) return s;
    std::fill(values.begin(), values.end(), payload[0]);
    return absl::OkStatus();
  }
};

Bytes EncodeTwo() {
  Bytes encoded(19);
  const auto bytes = OneByteCodec().Encode(DType::kF32, Bytes(8), encoded);
  EXPECT_THAT(bytes, IsOkAndHolds(17));
  encoded.resize(17);
  return encoded;
}

TEST(CheckedCodecTest, WritesDocumentedHeader) {
  const Bytes encoded = EncodeTwo();
  const Bytes header = {std::byte{'T'}, std::byte{'c'}, std::byte{1},
                        std::byte{3},   std::byte{1},   std::byte{0},
                        std::byte{0},   std::byte{0},   std::byte{2}};
  EXPECT_TRUE(std::equal(header.begin(), header.end(), encoded.begin()));
  Bytes values(8);
  TESSERA_EXPECT_OK(OneByteCodec().Decode(DType::kF32, encoded, values));
  EXPECT_EQ(values, Bytes(8, std::byte{7}));
}

TEST(CheckedCodecTest, DetectsEveryFlippedHeaderBit) {
  const Bytes encoded = EncodeTwo();
  for (int bit = 0; bit < 8 * kCodecHeaderBytes; ++bit) {
    Bytes damaged = encoded;
    damaged[bit / 8] ^= std::byte{1} << (bit % 8);
    Bytes values(8);
    const absl::Status status =
        OneByteCodec().Decode(DType::kF32, damaged, values);
    EXPECT_FALSE(status.ok()) << bit;
    EXPECT_THAT(std::string(status.message()), HasSubstr("one_byte"));
  }
}

TEST(CheckedCodecTest, DescribesInvalidHeader) {
  const OneByteCodec codec;
  const auto decode_with = [&](size_t at, int value) {
    Bytes damaged = EncodeTwo();
    damaged[at] = static_cast<std::byte>(value);
    Bytes values(8);
    return codec.Decode(DType::kF32, damaged, values);
  };
  EXPECT_THAT(decode_with(0, 'X'),
              StatusIs(Code::kInvalidArgument, HasSubstr("not an encoding")));
  EXPECT_THAT(decode_with(2, 2),
              StatusIs(Code::kInvalidArgument, HasSubstr("version")));
  EXPECT_THAT(decode_with(3, 6),
              StatusIs(Code::kInvalidArgument, HasSubstr("format 6")));
  EXPECT_THAT(
      decode_with(4, 0),
      StatusIs(Code::kInvalidArgument, HasSubstr("f64 elements; requested")));
  EXPECT_THAT(decode_with(4, 200),
              StatusIs(Code::kInvalidArgument, HasSubstr("invalid elements")));
  EXPECT_THAT(decode_with(8, 9),
              StatusIs(Code::kInvalidArgument, HasSubstr("of 9 elements")));
  EXPECT_THAT(decode_with(6, 1),
              StatusIs(Code::kDataLoss, HasSubstr("bytes 5 to 7")));
}

TEST(CheckedCodecTest, NamesUnrepresentableElement) {
  Bytes encoded(19);
  EXPECT_THAT(OneByteCodec().Encode(DType::kF32, Bytes(12), encoded),
              StatusIs(Code::kInvalidArgument,
                       HasSubstr("codec one_byte: cannot hold element 2 of 3, "
                                 "the f32 0; do better")));
}

TEST(CheckedCodecTest, IsLosslessIfErrorIsZero) {
  EXPECT_FALSE(OneByteCodec().IsLossless(DType::kF32));
  EXPECT_TRUE(OneByteCodec().IsLossless(DType::kF64));
}

}  // namespace
}  // namespace tessera::offload
