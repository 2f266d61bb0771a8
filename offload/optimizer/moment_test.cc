#include "offload/optimizer/moment.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype/bfloat16.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::offload {
namespace {

using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(MomentFormat, IsFoundByItsName) {
  EXPECT_THAT(ParseMomentFormat("f32"), IsOkAndHolds(MomentFormat::F32()));
  EXPECT_THAT(ParseMomentFormat("bf16"), IsOkAndHolds(MomentFormat::BF16()));
  EXPECT_THAT(ParseMomentFormat("int8"),
              IsOkAndHolds(MomentFormat::Blockwise8()));
  for (const char* name : {"", "fp32", "f64", "int8\n"}) {
    EXPECT_THAT(
        ParseMomentFormat(name),
        StatusIs(kInvalid, HasSubstr("must be one of f32, bf16, int8")));
  }
}

TEST(MomentBytes, AreExact) {
  EXPECT_THAT(MomentBytes(MomentFormat::F64(), 7), IsOkAndHolds(56));
  EXPECT_THAT(MomentBytes(MomentFormat::F32(), 7), IsOkAndHolds(28));
  EXPECT_THAT(MomentBytes(MomentFormat::BF16(), 7), IsOkAndHolds(14));
  EXPECT_THAT(MomentBytes(MomentFormat::Blockwise8(), 0), IsOkAndHolds(0));
  EXPECT_THAT(MomentBytes(MomentFormat::Blockwise8(), 1), IsOkAndHolds(5));
  EXPECT_THAT(MomentBytes(MomentFormat::Blockwise8(), 2048),
              IsOkAndHolds(2052));
  EXPECT_THAT(MomentBytes(MomentFormat::Blockwise8(), 2049),
              IsOkAndHolds(2057));
  EXPECT_THAT(MomentBytes(MomentFormat::Blockwise8(256), int64_t{1} << 40),
              IsOkAndHolds((int64_t{1} << 40) + (int64_t{1} << 34)));
}

TEST(MomentBytes, RefusesWhatIsNotValid) {
  EXPECT_THAT(MomentBytes(MomentFormat::F32(), -1),
              StatusIs(kInvalid, HasSubstr("moments of -1 elements")));
  EXPECT_THAT(
      MomentBytes(MomentFormat::F32(), std::numeric_limits<int64_t>::max()),
      StatusIs(kInvalid));
  for (int64_t block : {-2048, 0, 32, 100, 4096}) {
    EXPECT_THAT(MomentBytes(MomentFormat::Blockwise8(block), 1),
                StatusIs(kInvalid, HasSubstr("power of two from 64 to 2048")))
        << block;
  }
  EXPECT_THAT(MomentBytes({MomentType::kF32, 64}, 1), StatusIs(kInvalid));
  EXPECT_THAT(MomentBytes({static_cast<MomentType>(9), 0}, 1),
              StatusIs(kInvalid, HasSubstr("moment type 9")));
}

TEST(MomentFormat, Prints) {
  EXPECT_EQ(MomentFormat::F64().ToString(), "f64");
  EXPECT_EQ(MomentFormat::F32().ToString(), "f32");
  EXPECT_EQ(MomentFormat::BF16().ToString(), "bf16");
  EXPECT_EQ(MomentFormat::Blockwise8(256).ToString(), "8-bit/256");
}

TEST(MomentSpan, LiesOverStorageOfItsSizeAlone) {
  alignas(8) std::byte storage[64 + 64] = {};
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const MomentSpan codes,
      MomentSpan::Over(MomentFormat::Blockwise8(64), 100, {storage, 108}));
  EXPECT_EQ(codes.largest.size(), 2u);
  EXPECT_EQ(codes.values, storage + 8);
  EXPECT_EQ(codes.size, 100);
  EXPECT_THAT(
      MomentSpan::Over(MomentFormat::Blockwise8(64), 100, {storage, 107}),
      StatusIs(kInvalid, HasSubstr("take 108 bytes, and the storage has 107")));
  EXPECT_THAT(
      MomentSpan::Over(MomentFormat::Blockwise8(64), 100, {storage + 2, 108}),
      StatusIs(kInvalid, HasSubstr("no multiple of 4")));
  EXPECT_THAT(MomentSpan::Over(MomentFormat::BF16(), 3, {storage + 2, 6}),
              IsOk());
  EXPECT_THAT(MomentSpan::Over(MomentFormat::BF16(), 3, {storage + 1, 6}),
              StatusIs(kInvalid, HasSubstr("no multiple of 2")));
  EXPECT_THAT(MomentSpan::Over(MomentFormat::F32(), 0, {}), IsOk());
}

TEST(MomentSpan, HasPiecesAtBlocks) {
  std::vector<float> values(10);
  const MomentSpan f32 = MomentSpan::Of(std::span(values));
  TESSERA_ASSERT_OK_AND_ASSIGN(MomentSpan piece, f32.Piece(3, 7));
  EXPECT_EQ(piece.values, reinterpret_cast<std::byte*>(&values[3]));
  EXPECT_EQ(piece.size, 7);
  EXPECT_THAT(f32.Piece(4, 7), StatusIs(kInvalid, HasSubstr("4 on, of 10")));
  EXPECT_THAT(f32.Piece(-1, 1), StatusIs(kInvalid));
  EXPECT_THAT(f32.Piece(11, 0), StatusIs(kInvalid));
  EXPECT_THAT(f32.Piece(1, std::numeric_limits<int64_t>::max()),
              StatusIs(kInvalid));

  std::vector<std::byte> storage(200 + 4 * 4);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const MomentSpan codes,
      MomentSpan::Over(MomentFormat::Blockwise8(64), 200, storage));
  TESSERA_ASSERT_OK_AND_ASSIGN(piece, codes.Piece(128, 72));
  EXPECT_EQ(piece.values, codes.values + 128);
  EXPECT_EQ(piece.largest.data(), codes.largest.data() + 2);
  EXPECT_EQ(piece.largest.size(), 2u);
  EXPECT_THAT(
      codes.Piece(100, 10),
      StatusIs(kInvalid, HasSubstr("nearest boundaries are 64 and 128")));
}

TEST(MomentSpan, IsSetToZero) {
  std::vector<std::byte> storage(70 + 4 * 2, std::byte{77});
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const MomentSpan codes,
      MomentSpan::Over(MomentFormat::Blockwise8(64), 70, storage));
  SetToZero(codes);
  EXPECT_EQ(storage, std::vector<std::byte>(78));
  std::vector<BF16> values(3, BF16(1.0f));
  SetToZero(MomentSpan::Of(std::span(values)));
  for (BF16 value : values) EXPECT_EQ(static_cast<float>(value), 0.0f);
  std::vector<double> wide(2, 1.0);
  SetToZero(MomentSpan::Of(std::span(wide)));
  EXPECT_EQ(wide, std::vector<double>(2));
  SetToZero(MomentSpan());
}

}  // namespace
}  // namespace tessera::offload
