#include "topology/preset.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "topology/mesh.h"

namespace tessera::topology {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(PresetTest, EveryPresetOrdersEveryUsualAxis) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto axes,
                               ParseAxes("cp2,dp2,ep2,pp2,tp2"));
  for (const Preset& preset : Presets()) {
    EXPECT_THAT(Mesh::Create(axes, preset.order), IsOk()) << preset.name;
    EXPECT_EQ(FindPreset(preset.name)->order, preset.order);
    EXPECT_FALSE(preset.description.empty());
  }
}

TEST(PresetTest, PipelineFastestThenTensorThenData) {
  const int64_t pp = 3, tp = 2;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto axes, ParseAxes("dp4,pp3,tp2"));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Mesh mesh,
      Mesh::Create(axes, FindPreset("pipeline-tensor-data")->order));
  for (int64_t r = 0; r < mesh.world_size(); ++r) {
    EXPECT_THAT(mesh.CoordinateOf(Rank(r), "dp"), IsOkAndHolds(r / (pp * tp)));
    EXPECT_THAT(mesh.CoordinateOf(Rank(r), "tp"), IsOkAndHolds(r / pp % tp));
    EXPECT_THAT(mesh.CoordinateOf(Rank(r), "pp"), IsOkAndHolds(r % pp));
  }
}

TEST(PresetTest, DataPipelineContextTensorHasTensorFastest) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto axes, ParseAxes("dp2,pp3,cp5,tp7"));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Mesh mesh,
      Mesh::Create(axes, FindPreset("data-pipeline-context-tensor")->order));
  const int64_t rank = ((1 * 3 + 2) * 5 + 4) * 7 + 6;
  EXPECT_THAT(mesh.CoordinateOf(Rank(rank), "dp"), IsOkAndHolds(1));
  EXPECT_THAT(mesh.CoordinateOf(Rank(rank), "pp"), IsOkAndHolds(2));
  EXPECT_THAT(mesh.CoordinateOf(Rank(rank), "cp"), IsOkAndHolds(4));
  EXPECT_THAT(mesh.CoordinateOf(Rank(rank), "tp"), IsOkAndHolds(6));
}

TEST(PresetTest, AnUnknownNameListsTheKnown) {
  EXPECT_THAT(FindPreset("mega"),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("\"mega\""), HasSubstr("megatron, "))));
}

}  // namespace
}  // namespace tessera::topology
