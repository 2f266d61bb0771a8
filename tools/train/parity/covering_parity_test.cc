// Tests that every configuration gives the losses of one rank. Every pair of
// options occurs at least once.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/train/parity/testing/covering_array.h"
#include "tools/train/parity/testing/parity_case.h"
#include "tools/train/parity/testing/train_case.h"

namespace tessera::train {
namespace {

constexpr int64_t kSteps = 15;  // Saves time; whole_matrix_test has 20.
constexpr double kLossTolerance = 1e-5;
// Norms are sums of less accurate squares.
constexpr double kNormTolerance = 1e-4;
// In f64: mixtures, and moments that are rounded.
constexpr double kDoubleLossTolerance = 1e-12;
constexpr double kDoubleNormTolerance = 1e-10;

// Models and options to train: tied weights, clipping, kv heads.
class CoveringParityTest
    : public ::testing::TestWithParam<
          std::tuple<std::string, std::string, std::string>> {
 protected:
  static std::vector<CoveringRow> RowsOfModel() {
    const auto& [tied, clip, kv_heads] = GetParam();
    static const auto& all =
        *new std::vector<CoveringRow>(CoveringArray(ParityProblem()));
    std::vector<CoveringRow> rows = all;
    const auto is_other = [&, tied = tied, clip = clip,
                           kv_heads = kv_heads](const CoveringRow& row) {
      return ValueOf(row, "tied") != tied || ValueOf(row, "clip") != clip ||
             ValueOf(row, "kv_heads") != kv_heads;
    };
    rows.erase(std::remove_if(rows.begin(), rows.end(), is_other), rows.end());
    return rows;
  }
  static ParityCase ShortCase(const CoveringRow& row) {
    ParityCase run = CaseOf(row);
    run.steps = kSteps;
    // If two experts have nearly equal scores for a token, f32's rounding
    // decides which one it selects. Mixtures are therefore compared in f64,
    // with smaller tolerances. mesh_parity_test compares them in f32.
    if (IsMixture(run.architecture)) run.dtype = DType::kF64;
    return run;
  }
  static const std::string& ValueOf(const CoveringRow& row,
                                    const std::string& option) {
    const auto place = static_cast<size_t>(OptionNumber(option));
    return ParityOptions()[place].values[static_cast<size_t>(row[place])];
  }
};

TEST_P(CoveringParityTest, EveryPairOfOptionsMatchesLossesOfOneRank) {
  const std::vector<CoveringRow> rows = RowsOfModel();
  ASSERT_FALSE(rows.empty());
  // Runs of one rank, by the options on which losses depend.
  std::map<std::string, std::vector<StepRecord>> alone;
  ParityReport exact, rounded;  // By whether moments are of f32.
  const auto compare = [&](const CoveringRow& row, const ParityCase& run) {
    SCOPED_TRACE(::testing::Message() << run);
    std::ostringstream plain;
    plain << PlainCase(run);
    std::vector<StepRecord>& expected = alone[plain.str()];
    if (expected.empty()) {
      TESSERA_ASSERT_OK_AND_ASSIGN(expected, TrainCase(PlainCase(run)));
      EXPECT_LT(expected.back().loss, 0.8 * expected.front().loss);
    }
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto actual, TrainCase(run));
    const ParityDifference difference = DifferenceOf(actual, expected);
    const bool is_double = run.dtype == DType::kF64;
    EXPECT_LT(difference.loss,
              is_double ? kDoubleLossTolerance : kLossTolerance);
    EXPECT_LT(difference.gradient_norm,
              is_double ? kDoubleNormTolerance : kNormTolerance);
    (run.moments == "f32" ? exact : rounded).Add(row, difference);
  };
  for (const CoveringRow& row : rows) {
    ParityCase run = ShortCase(row);
    if (run.moments != "f32") {
      // A moment that is rounded to the other side changes the run by more than
      // all other rounding. In f64 almost none is.
      ParityCase doubled = run;
      doubled.dtype = DType::kF64;
      compare(row, doubled);
      run.moments = "f32";
    }
    compare(row, run);
  }
  std::cout << "moments of f32:\n" << exact;
  std::cout << "moments that are rounded:\n" << rounded;
}

std::string NameOf(
    const ::testing::TestParamInfo<CoveringParityTest::ParamType>& info) {
  const auto& [tied, clip, kv_heads] = info.param;
  return "Tied_" + tied + "_Clip_" + clip + "_KvHeads_" + kv_heads;
}

INSTANTIATE_TEST_SUITE_P(Models, CoveringParityTest,
                         ::testing::Combine(::testing::Values("off", "on"),
                                            ::testing::Values("off", "on"),
                                            ::testing::Values("1", "2", "3",
                                                              "6")),
                         NameOf);

}  // namespace
}  // namespace tessera::train
