// Every message over a sweep of small configurations: no range is empty, each
// fix removes its problem, and following the fixes ends in a valid
// configuration from which a mesh can be made.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "topology/config/internal/config_fields.h"
#include "topology/config/parallel_config.h"

namespace tessera::topology {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Job {
  ParallelConfig config;
  int64_t world_size;

  std::vector<ConfigProblem> Problems() const {
    return config.ProblemsForWorld(world_size);
  }
};

// Puts the replacement into the field, as a number where it is one.
void Apply(const ConfigProblem& problem, Job& job) {
  ASSERT_TRUE(problem.replacement.has_value()) << problem.ToString();
  internal::Scalar value = *problem.replacement;
  int64_t number = 0;
  if (absl::SimpleAtoi(*problem.replacement, &number)) value = number;
  if (problem.field == "world_size") {
    job.world_size = number;
    return;
  }
  const auto* field = internal::FindConfigField(problem.field);
  ASSERT_NE(field, nullptr) << problem.field;
  TESSERA_ASSERT_OK(field->set(value, job.config));
}

bool Contains(const std::vector<ConfigProblem>& problems,
              const ConfigProblem& wanted) {
  for (const ConfigProblem& problem : problems) {
    if (problem.field == wanted.field && problem.allowed == wanted.allowed) {
      return true;
    }
  }
  return false;
}

// "from 5 to 4" and "from 3 to 3" are no ranges, "at most 0" is no bound.
void ExpectNoEmptyRange(const std::string& text) {
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  for (size_t i = 0; i + 3 < words.size(); ++i) {
    int64_t least = 0;
    int64_t most = 0;
    const bool is_range = words[i] == "from" && words[i + 2] == "to" &&
                          absl::SimpleAtoi(words[i + 1], &least) &&
                          absl::SimpleAtoi(words[i + 3], &most);
    if (is_range) {
      EXPECT_LT(least, most) << text;
    }
  }
  for (const char* bound : {"at most", "exactly", "up to", "multiple of"}) {
    EXPECT_THAT(text, Not(HasSubstr(absl::StrCat(bound, " 0")))) << bound;
    EXPECT_THAT(text, Not(HasSubstr(absl::StrCat(bound, " -")))) << bound;
  }
  EXPECT_THAT(text, AllOf(Not(HasSubstr(": ;")), Not(HasSubstr("  "))));
}

// Follows all fixes round after round.
void ExpectFixesLeadToAValidJob(Job job) {
  const std::string start = absl::StrCat(job.config.Validate().message());
  for (int round = 0; round < 8; ++round) {
    const std::vector<ConfigProblem> problems = job.Problems();
    if (problems.empty()) {
      TESSERA_EXPECT_OK(job.config.ValidateForWorld(job.world_size));
      TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, job.config.MakeMesh());
      EXPECT_EQ(mesh.world_size(), job.world_size);
      return;
    }
    for (const ConfigProblem& problem : problems) Apply(problem, job);
  }
  ADD_FAILURE() << "no end of problems; at first " << start << "\nat last "
                << job.config.Validate();
}

// Returns how many problems there were.
size_t CheckJob(const Job& job) {
  const std::vector<ConfigProblem> problems = job.Problems();
  for (const ConfigProblem& problem : problems) {
    const std::string text = problem.ToString();
    ExpectNoEmptyRange(text);
    Job fixed = job;
    Apply(problem, fixed);
    EXPECT_FALSE(Contains(fixed.Problems(), problem)) << text;
  }
  if (!problems.empty()) ExpectFixesLeadToAValidJob(job);
  return problems.size();
}

TEST(ParallelConfigSweepTest, PipelineSizesWithEverySchedule) {
  size_t problems = 0;
  size_t valid = 0;
  for (const auto& [name, kind] : EnumNames<ScheduleKind>::kTable) {
    for (int64_t pp = -1; pp <= 5; ++pp) {
      for (int64_t chunks = -1; chunks <= 4; ++chunks) {
        for (const int64_t layers : {-1, 0, 1, 2, 3, 4, 5, 7, 8, 20}) {
          for (const int64_t micro_batches : {0, 1, 3, 8, 9}) {
            ParallelConfig config;
            config.schedule = kind;
            config.pp = AxisSize(pp);
            config.chunks = chunks;
            config.layers = layers;
            config.micro_batches = micro_batches;
            const size_t found = CheckJob({config, pp});
            problems += found;
            valid += found == 0 ? 1 : 0;
            if (HasFailure()) return;
          }
        }
      }
    }
  }
  EXPECT_GT(problems, 10'000u);
  EXPECT_GT(valid, 500u);
}

TEST(ParallelConfigSweepTest, MeshSizesWorldsAndOrders) {
  size_t valid = 0;
  for (const char* order :
       {"tp-cp-ep-dp-pp", "pp-tp-dp", "tp-pp-dp", "tp-pp-cp-dp", "dp,cp,pp,tp",
        "", "-", "tp", "tp-tp-dp-pp", "x-tp-dp-pp-cp"}) {
    for (int64_t code = 0; code < 5 * 5 * 3 * 3 * 9; ++code) {
      ParallelConfig config;
      config.order = order;
      config.dp = AxisSize(code % 5);
      config.tp = AxisSize(code / 5 % 5);
      config.pp = AxisSize(code / 25 % 3);
      config.cp = AxisSize(code / 75 % 3);
      config.ep = AxisSize(code / 225 % 9);
      config.layers = 8;
      for (const int64_t world : {0, 1, 7, 8, 24}) {
        valid += CheckJob({config, world}) == 0 ? 1 : 0;
        if (HasFailure()) return;
      }
      // The checks and the mesh agree on what can be made.
      const bool sound = config.Validate().ok();
      EXPECT_EQ(config.MakeMesh().ok(), sound) << config.Validate();
    }
  }
  EXPECT_GT(valid, 50u);
}

TEST(ParallelConfigSweepTest, OtherFields) {
  for (const int64_t bytes : {-1, 0, 1}) {
    for (const int64_t seconds : {-1, 0, 1}) {
      for (const int choice : {-1, 0, 2, 99}) {
        ParallelConfig config;
        config.device_memory = ByteSize(bytes);
        config.timeout = absl::Seconds(seconds);
        config.micro_batch_size = bytes;
        config.memory_strategy = static_cast<MemoryStrategy>(choice);
        config.communication_strategy =
            static_cast<CommunicationStrategy>(choice);
        config.schedule = static_cast<ScheduleKind>(choice);
        config.precision = static_cast<Precision>(choice);
        CheckJob({config, 1});
      }
    }
  }
}

}  // namespace
}  // namespace tessera::topology
