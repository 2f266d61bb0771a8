#include "pipeline/generate/sequential.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/generate/every_shape.h"
#include "pipeline/generate/schedule_checker.h"

namespace tessera::pipeline {
namespace {

TEST(SequentialTest, OneMicroBatchIsUnderWayAtATime) {
  for (const PipelineShape& shape : EveryShape(0)) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                                 GenerateSequential(shape));
    const Execution run = Execute(schedule);
    ASSERT_EQ(run.error, "") << shape;
    EXPECT_EQ(run.makespan, 3 * shape.ranks * shape.chunks * shape.microbatches)
        << shape;
    for (const int64_t peak : run.peaks) EXPECT_EQ(peak, shape.chunks) << shape;
  }
}

}  // namespace
}  // namespace tessera::pipeline
