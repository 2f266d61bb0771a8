// Every mesh of 1, 2, 4 and 8 ranks, with every stage of ZeRO, with and without
// offload, every schedule, with and without recomputation: 3520 runs of 20
// steps, each within 1e-5 of one rank. The other options vary from run to run.
// It takes an hour; shards and filters are GoogleTest's:
//
//   bazel test //tools/train/parity:whole_matrix_test --test_output=streamed
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/train/parity/testing/covering_array.h"
#include "tools/train/parity/testing/parity_case.h"
#include "tools/train/parity/testing/train_case.h"

namespace tessera::train {
namespace {

using Records = std::vector<StepRecord>;

class WholeMatrixTest
    : public ::testing::TestWithParam<std::tuple<MeshSizes, int, bool>> {
 protected:
  static void SetUpTestSuite() {
    report_ = new ParityReport;
    plain_ = new std::map<std::string, Records>;
  }
  static void TearDownTestSuite() {
    std::cout << *report_;
    delete report_;
    delete plain_;
  }

  static void Set(const std::string& option, const std::string& value,
                  CoveringRow& row) {
    row[static_cast<size_t>(OptionNumber(option))] = ValueNumber(option, value);
  }

  static std::vector<std::string> SchedulesOf(const MeshSizes& mesh) {
    if (mesh.pp == 1) return {"1f1b", "interleaved_1f1b"};
    return ParityOptions()[static_cast<size_t>(OptionNumber("schedule"))]
        .values;
  }

  // Chooses the unspecified options at random.
  CoveringRow Complete(const CoveringRow& row) {
    for (;;) {
      CoveringRow complete = row;
      for (size_t f = 0; f < row.size(); ++f) {
        const auto values = ParityOptions()[f].values.size();
        if (row[f] == kNotChosen) complete[f] = random_() % values;
      }
      const bool offloads = CaseOf(complete).offload != "none";
      if (IsPossible(complete) && offloads == std::get<2>(GetParam())) {
        return complete;
      }
    }
  }

  static const Records& PlainRecords(const ParityCase& run) {
    std::ostringstream plain;
    plain << PlainCase(run);
    Records& records = (*plain_)[plain.str()];
    if (records.empty()) {
      const auto trained = TrainCase(PlainCase(run));
      EXPECT_THAT(trained, IsOk());
      if (trained.ok()) records = *trained;
    }
    return records;
  }

  static void Check(const CoveringRow& row) {
    const ParityCase run = CaseOf(row);
    SCOPED_TRACE(::testing::Message() << run);
    TESSERA_ASSERT_OK_AND_ASSIGN(const Records actual, TrainCase(run));
    const ParityDifference difference = DifferenceOf(actual, PlainRecords(run));
    EXPECT_LT(difference.loss, 1e-5 * RoundingFactor(run));
    EXPECT_LT(difference.gradient_norm, 1e-3 * RoundingFactor(run));
    report_->Add(row, difference);
  }

  static ParityReport* report_;
  // Runs of one rank, by the options on which losses depend.
  static std::map<std::string, Records>* plain_;
  std::mt19937_64 random_;
};

ParityReport* WholeMatrixTest::report_ = nullptr;
std::map<std::string, Records>* WholeMatrixTest::plain_ = nullptr;

TEST_P(WholeMatrixTest, MatchesLossesOfOneRank) {
  const auto& [mesh, zero, offload] = GetParam();
  random_.seed(static_cast<uint64_t>(
      ((mesh.dp * 10 + mesh.pp) * 10 + mesh.cp) * 10 + zero * 2 + offload));
  CoveringRow row(ParityOptions().size(), kNotChosen);
  Set("dp", absl::StrCat(mesh.dp), row);
  Set("pp", absl::StrCat(mesh.pp), row);
  Set("cp", absl::StrCat(mesh.cp), row);
  Set("tp", absl::StrCat(mesh.tp), row);
  Set("zero", absl::StrCat(zero), row);
  for (const std::string& schedule : SchedulesOf(mesh)) {
    Set("schedule", schedule, row);
    for (const char* recompute : {"none", "full"}) {
      Set("recompute", recompute, row);
      Check(Complete(row));
    }
  }
  std::cerr << report_->runs() << " runs, largest differences: loss "
            << report_->largest().loss << ", gradient norm "
            << report_->largest().gradient_norm << std::endl;
}

std::string NameOf(
    const ::testing::TestParamInfo<WholeMatrixTest::ParamType>& info) {
  const auto& [mesh, zero, offload] = info.param;
  return absl::StrCat("dp", mesh.dp, "_pp", mesh.pp, "_cp", mesh.cp, "_tp",
                      mesh.tp, "_zero", zero, offload ? "_offload" : "");
}

INSTANTIATE_TEST_SUITE_P(Runs, WholeMatrixTest,
                         ::testing::Combine(::testing::ValuesIn(EveryMesh()),
                                            ::testing::Range(0, 4),
                                            ::testing::Bool()),
                         NameOf);

}  // namespace
}  // namespace tessera::train
