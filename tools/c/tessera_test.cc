#include "tools/c/tessera.h"

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TesseraTest, MeshHasGroupsAndCoordinates) {
  tessera_mesh* mesh = nullptr;
  ASSERT_EQ(tessera_mesh_create("dp2,pp2,tp2", "tp-pp-dp", &mesh), TESSERA_OK);
  EXPECT_EQ(tessera_mesh_world_size(mesh), 8);
  int64_t coordinate = -1, size = 0;
  EXPECT_EQ(tessera_mesh_coordinate(mesh, 5, "dp", &coordinate), TESSERA_OK);
  EXPECT_EQ(coordinate, 1);
  std::array<int64_t, 3> ranks = {-1, -1, -1};
  EXPECT_EQ(tessera_mesh_group(mesh, 5, "dp,tp", ranks.data(), 3, &size),
            TESSERA_OK);
  EXPECT_EQ(size, 4);
  EXPECT_THAT(ranks, ElementsAre(0, 1, 4));
  EXPECT_EQ(tessera_mesh_coordinate(mesh, 8, "dp", &coordinate),
            TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(tessera_mesh_group(mesh, 0, nullptr, ranks.data(), 3, &size),
            TESSERA_INVALID_ARGUMENT);
  EXPECT_THAT(tessera_error_message(), HasSubstr("axes is NULL"));
  tessera_mesh_destroy(mesh);
  tessera_mesh_destroy(nullptr);
}

TEST(TesseraTest, FailureKeepsResultAndSetsMessageOfThread) {
  tessera_mesh* mesh = nullptr;
  EXPECT_EQ(tessera_mesh_create("dp0", nullptr, &mesh),
            TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(mesh, nullptr);
  EXPECT_THAT(tessera_error_message(), HasSubstr("dp"));
  std::thread([] { EXPECT_STREQ(tessera_error_message(), ""); }).join();
}

// Runs `body` on the threads of `size` ranks.
void OnRanks(int64_t size, void (*body)(tessera_communicator*)) {
  std::vector<tessera_communicator*> communicators(size_t(size), nullptr);
  ASSERT_EQ(tessera_communicators_create_in_process(size, communicators.data()),
            TESSERA_OK);
  std::vector<std::thread> threads;
  for (tessera_communicator* communicator : communicators) {
    threads.emplace_back([=] {
      body(communicator);
      tessera_communicator_destroy(communicator);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(TesseraTest, CollectivesMatchBruteForce) {
  OnRanks(3, [](tessera_communicator* c) {
    const int64_t rank = tessera_communicator_rank(c);
    ASSERT_EQ(tessera_communicator_size(c), 3);
    const auto x = static_cast<double>(rank);
    const std::vector<double> mine = {x, x + 10, x + 20};
    std::vector<double> all(9);
    ASSERT_EQ(tessera_all_gather(c, mine.data(), all.data(), 3, TESSERA_F64),
              TESSERA_OK);
    EXPECT_THAT(all, ElementsAre(0, 10, 20, 1, 11, 21, 2, 12, 22));
    std::vector<double> out(3);
    ASSERT_EQ(tessera_all_reduce(c, mine.data(), out.data(), 3, TESSERA_F64,
                                 TESSERA_MAX),
              TESSERA_OK);
    EXPECT_THAT(out, ElementsAre(2, 12, 22));
    ASSERT_EQ(tessera_reduce_scatter(c, mine.data(), out.data(), 1, TESSERA_F64,
                                     TESSERA_SUM),
              TESSERA_OK);
    EXPECT_EQ(out[0], 3 + 30 * x);
    ASSERT_EQ(tessera_all_to_all(c, mine.data(), out.data(), 1, TESSERA_F64),
              TESSERA_OK);
    EXPECT_THAT(out, ElementsAre(10 * x, 10 * x + 1, 10 * x + 2));
    ASSERT_EQ(tessera_broadcast(c, out.data(), 3, TESSERA_F64, 2), TESSERA_OK);
    EXPECT_THAT(out, ElementsAre(20, 21, 22));
    ASSERT_EQ(tessera_barrier(c), TESSERA_OK);
  });
}

TEST(TesseraTest, MessagesAndGroups) {
  OnRanks(4, [](tessera_communicator* c) {
    const int64_t rank = tessera_communicator_rank(c);
    std::vector<int32_t> values(5, int32_t(rank));
    if (rank == 1) {
      ASSERT_EQ(tessera_send(c, values.data(), 5, TESSERA_I32, 2), TESSERA_OK);
    } else if (rank == 2) {
      ASSERT_EQ(tessera_receive(c, values.data(), 5, TESSERA_I32, 1),
                TESSERA_OK);
      EXPECT_THAT(values, Each(1));
    }
    tessera_communicator* group = nullptr;
    ASSERT_EQ(
        tessera_communicator_split(c, rank == 3 ? -1 : rank % 2, 0, &group),
        TESSERA_OK);
    EXPECT_EQ(group == nullptr, rank == 3);
    if (group != nullptr) {
      EXPECT_EQ(tessera_communicator_size(group), rank == 1 ? 1 : 2);
    }
    tessera_communicator_destroy(group);
    ASSERT_EQ(tessera_barrier(c), TESSERA_OK);
  });
}

TEST(TesseraTest, RejectsInvalidOperations) {
  OnRanks(1, [](tessera_communicator* c) {
    float x = 1;
    EXPECT_EQ(tessera_all_reduce(c, &x, &x, 1, 99, TESSERA_SUM),
              TESSERA_INVALID_ARGUMENT);
    EXPECT_THAT(tessera_error_message(), HasSubstr("dtype 99"));
    EXPECT_EQ(tessera_all_reduce(c, &x, &x, 1, TESSERA_F32, 5),
              TESSERA_INVALID_ARGUMENT);
    EXPECT_THAT(tessera_error_message(), HasSubstr("reduction 5"));
    EXPECT_EQ(tessera_all_reduce(c, &x, &x, -1, TESSERA_F32, TESSERA_SUM),
              TESSERA_INVALID_ARGUMENT);
    EXPECT_EQ(tessera_all_reduce(nullptr, &x, &x, 1, TESSERA_F32, TESSERA_SUM),
              TESSERA_INVALID_ARGUMENT);
    EXPECT_EQ(x, 1);
  });
}

TEST(TesseraTest, AbortReachesOtherRanks) {
  OnRanks(2, [](tessera_communicator* c) {
    if (tessera_communicator_rank(c) == 0) {
      tessera_communicator_abort(c, "no more data");
      return;
    }
    EXPECT_EQ(tessera_barrier(c), TESSERA_ABORTED);
    EXPECT_THAT(tessera_error_message(), HasSubstr("no more data"));
  });
}

TEST(TesseraTest, SchedulesAreGeneratedAndSimulated) {
  char* csv = nullptr;
  ASSERT_EQ(tessera_schedule_generate("gpipe", 4, 8, 1, &csv), TESSERA_OK);
  double duration = 0, bubble = 0;
  ASSERT_EQ(tessera_schedule_simulate(csv, 1, 1, 1, &duration, &bubble),
            TESSERA_OK);
  tessera_free_text(csv);
  // (m + p - 1) (f + b), of which p - 1 idle.
  EXPECT_DOUBLE_EQ(duration, 11 * 3);
  EXPECT_NEAR(bubble, 3.0 / 11, 1e-12);
  EXPECT_EQ(tessera_schedule_generate("2f2b", 4, 8, 1, &csv),
            TESSERA_INVALID_ARGUMENT);
  EXPECT_THAT(tessera_error_message(), HasSubstr("1f1b"));
}

TEST(TesseraTest, PlansAreFound) {
  char* json = nullptr;
  ASSERT_EQ(tessera_plan_find("llama-7b", "hosts=1,gpus=8,memory=80GB", 64,
                              2048, &json),
            TESSERA_OK);
  EXPECT_THAT(std::string(json), HasSubstr("\"step_seconds\""));
  tessera_free_text(json);
  EXPECT_EQ(tessera_plan_find("llama-7b", "gpus=1,memory=1GB", 64, 2048, &json),
            TESSERA_RESOURCE_EXHAUSTED);
}

TEST(TesseraTest, MissingCheckpointIsNamed) {
  tessera_checkpoint* checkpoint = nullptr;
  EXPECT_EQ(tessera_checkpoint_open("/nowhere", &checkpoint),
            TESSERA_NOT_FOUND);
  EXPECT_THAT(tessera_error_message(), HasSubstr("/nowhere"));
}

TEST(TesseraTest, JoinRequiresJob) {
  tessera_communicator* world = nullptr;
  EXPECT_EQ(tessera_communicator_join(nullptr, 0, &world),
            TESSERA_INVALID_ARGUMENT);
  EXPECT_THAT(tessera_error_message(), HasSubstr("timeout 0"));
}

}  // namespace
