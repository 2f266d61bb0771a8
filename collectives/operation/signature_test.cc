#include "collectives/operation/signature.h"

#include <functional>
#include <set>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Signature Base() {
  const Buffer buffer(nullptr, 1024, DType::kF32);
  return SignatureOf(AllReduceOf(buffer, buffer, Reduction::Sum()), 4, 9, 17,
                     Algorithm::kRing);
}

TEST(SignatureTest, DescribesTheCall) {
  EXPECT_EQ(DescribeSignature(Base()), "all_reduce #17 of 1024 f32, sum, ring");
}

TEST(SignatureTest, FingerprintCoversAllButSequence) {
  Signature later = Base();
  later.sequence = 18;
  EXPECT_EQ(Fingerprint(later), Fingerprint(Base()));
  const std::vector<std::function<void(Signature&)>> changes = {
      [](Signature& s) { s.count++; },
      [](Signature& s) { s.group++; },
      [](Signature& s) { s.details++; },
      [](Signature& s) { s.root = 0; },
      [](Signature& s) { s.kind = OpKind::kReduce; },
      [](Signature& s) { s.dtype = DType::kI32; },
      [](Signature& s) { s.reduce = ReduceOp::kMax; },
      [](Signature& s) { s.algorithm = Algorithm::kTree; },
  };
  std::set<uint32_t> seen = {Fingerprint(Base())};
  for (const auto& change : changes) {
    Signature other = Base();
    change(other);
    EXPECT_TRUE(seen.insert(Fingerprint(other)).second);
    EXPECT_NE(Fingerprint(other), 0);
  }
}

TEST(SignatureTest, FingerprintsRarelyCollide) {
  std::set<uint32_t> seen;
  Signature signature = Base();
  for (int64_t count = 0; count < 20000; ++count) {
    signature.count = count;
    seen.insert(Fingerprint(signature));
  }
  // 2^-32 * 20000^2 / 2 = 0.05 collisions are expected.
  EXPECT_GE(seen.size(), 19998u);
}

TEST(SignatureTest, RanksOfOneCallAgree) {
  const Buffer two(nullptr, 2, DType::kF32);
  const Buffer eight(nullptr, 8, DType::kF32);
  // The root passes input and output, other ranks only one of them.
  EXPECT_EQ(
      SignatureOf(ScatterOf(eight, two, Rank(1)), 4, 1, 1, Algorithm::kEngine),
      SignatureOf(ScatterOf(ConstBuffer(), two, Rank(1)), 4, 1, 1,
                  Algorithm::kEngine));
  // Each rank has its own counts in an uneven all-to-all.
  EXPECT_EQ(SignatureOf(AllToAllOf(eight, two, {8, 0}, {8, 0}), 2, 1, 1,
                        Algorithm::kBruck),
            SignatureOf(AllToAllOf(two, eight, {1, 1}, {1, 7}), 2, 1, 1,
                        Algorithm::kBruck));
  // The two ends of a message.
  EXPECT_EQ(SignatureOf(SendOf(two, Rank(1)), 2, 1, 5, Algorithm::kEngine),
            SignatureOf(ReceiveOf(two, Rank(0)), 2, 1, 5, Algorithm::kEngine));
}

TEST(SignatureTest, SignatureCoversUnevenCountsAndScale) {
  const Buffer two(nullptr, 2, DType::kF32);
  const Buffer eight(nullptr, 8, DType::kF32);
  EXPECT_NE(
      SignatureOf(AllGatherOf(two, eight, {2, 6}), 2, 1, 1, Algorithm::kRing),
      SignatureOf(AllGatherOf(two, eight, {6, 2}), 2, 1, 1, Algorithm::kRing));
  EXPECT_NE(SignatureOf(AllReduceOf(two, two, Reduction::ScaledSum(2)), 2, 1, 1,
                        Algorithm::kRing),
            SignatureOf(AllReduceOf(two, two, Reduction::ScaledSum(3)), 2, 1, 1,
                        Algorithm::kRing));
}

TEST(SignatureTest, MismatchNamesBothSidesAndTheDifference) {
  Signature theirs = Base();
  theirs.count = 1000;
  EXPECT_THAT(MismatchError(Base(), Rank(0), theirs, Rank(3)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("rank 0 called all_reduce #17 of 1024"),
                             HasSubstr("rank 3 called all_reduce #17 of 1000"),
                             HasSubstr("differ in count"))));
  theirs = Base();
  theirs.sequence = 18;
  EXPECT_THAT(MismatchError(Base(), Rank(0), theirs, Rank(3)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("differ in order")));
}

TEST(AlgorithmTest, NamesRoundTrip) {
  for (Algorithm algorithm : kAllAlgorithms) {
    EXPECT_THAT(ParseAlgorithm(AlgorithmName(algorithm)),
                IsOkAndHolds(algorithm));
  }
  EXPECT_THAT(ParseAlgorithm("rings"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("engine, ring, tree")));
  EXPECT_EQ(AlgorithmName(static_cast<Algorithm>(99)), "invalid");
}

}  // namespace
}  // namespace tessera::collectives
