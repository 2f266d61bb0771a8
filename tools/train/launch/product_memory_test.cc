#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/model_files/model_config.h"
#include "tools/model_files/presets.h"
#include "tools/train/launch/memory_check.h"
#include "tools/train/loop/memory_watch.h"

namespace tessera::train {
namespace {

RunOptions RunOf(const char* model, int64_t length) {
  RunOptions options;
  options.model = *model_files::PresetConfig(model);
  options.length = length;
  return options;
}

// Counts only OpenBLAS's buffers, not the operands.
TEST(MeasureProductsTest, CountsOnlyBuffers) {
  const RunOptions small = RunOf("llama-1m", 16);
  const int64_t before = ReadResidentMemory().resident;
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const int64_t large, MeasureProducts(small, RunOf("llama-125m", 512), 1));
  EXPECT_GT(large, 0);
  EXPECT_LT(large, 64 << 20);
  EXPECT_LT(ReadResidentMemory().resident - before, 128 << 20);
  // Buffers persist, so the second call needs no more memory.
  TESSERA_ASSERT_OK_AND_ASSIGN(const int64_t again,
                               MeasureProducts(small, small, 1));
  EXPECT_LT(again, 1 << 20);
}

TEST(MeasureProductsTest, RejectsIncompatibleMeshes) {
  RunOptions options = RunOf("llama-1m", 16);
  options.mesh.tp = 5;
  EXPECT_THAT(MeasureProducts(RunOf("llama-1m", 16), options, 1),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace tessera::train
