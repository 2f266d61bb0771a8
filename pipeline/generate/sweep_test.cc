// Every generator with every shape, end to end: lowered, validated under
// rendezvous, simulated with messages that take time, and compared with the
// peaks published in the papers.
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/generate/generate.h"
#include "pipeline/generate/testing/every_shape.h"
#include "pipeline/passes/add_communication.h"
#include "pipeline/proof/validate.h"
#include "pipeline/schedule/schedule_text.h"
#include "pipeline/simulate/simulate.h"

namespace tessera::pipeline {
namespace {

// The number of activations of a stage that a rank holds at the method's peak.
struct Peak {
  int64_t most = 0;
  bool exact = false;
};
using PeakOf = Peak (*)(const PipelineShape& shape, int64_t rank);

Peak All(const PipelineShape& s, int64_t) {
  return {s.chunks * s.microbatches, true};
}

Peak Interleaved(const PipelineShape& s, int64_t rank) {
  const auto [p, v, m] = s;
  if (v == 1) return {std::min(p - rank, m), true};  // 1F1B.
  return {std::min(2 * (p - 1 - rank) + (v - 1) * p + 1, v * m), m % p == 0};
}

// Peaks by name, from the papers listed by Generators().
const std::map<std::string_view, PeakOf>& Peaks() {
  static const auto* const peaks = new std::map<std::string_view, PeakOf>{
      {"sequential",
       [](const PipelineShape& s, int64_t) {
         return Peak{s.chunks, true};
       }},
      {"gpipe", &All},
      {"round_robin", &All},
      {"looped_bfs", &All},
      {"1f1b",
       [](const PipelineShape& s, int64_t rank) {
         return Peak{std::min(s.ranks - rank, s.microbatches), true};
       }},
      {"interleaved_1f1b", &Interleaved},
      {"zb_h1",
       [](const PipelineShape& s, int64_t) {
         return Peak{std::min(s.ranks, s.microbatches), true};
       }},
      {"zb_h2",
       [](const PipelineShape& s, int64_t) {
         return Peak{std::min(2 * s.ranks - 1, s.microbatches), true};
       }},
      {"zb_v",
       [](const PipelineShape& s, int64_t) {
         return Peak{2 * std::min(s.ranks, s.microbatches),
                     s.microbatches >= 2 * s.ranks};
       }},
      {"v_half",
       [](const PipelineShape& s, int64_t) {
         return Peak{std::min(s.ranks / 2 * 2 + 2, 2 * s.microbatches)};
       }},
      {"v_min",
       [](const PipelineShape& s, int64_t) {
         return Peak{std::min((2 * s.ranks + 8) / 3, 2 * s.microbatches)};
       }},
      {"dualpipe",
       [](const PipelineShape& s, int64_t) {
         return Peak{std::min(s.ranks + 1, s.microbatches)};
       }},
      {"dualpipev",
       [](const PipelineShape& s, int64_t) {
         return Peak{std::min(2 * s.ranks + 1, 2 * s.microbatches)};
       }},
  };
  return *peaks;
}

// Messages that take time and, where required, wait for each other.
Costs SomeCosts(int64_t stages, bool overlap) {
  Costs costs = Costs::Uniform(stages, {.forward = 1,
                                        .backward_input = 1.25,
                                        .backward_weight = 0.75,
                                        .activation_bytes = 2,
                                        .gradient_bytes = 1});
  costs.links.everywhere = {.latency = 0.125, .bandwidth = 4};
  costs.overlap_communication = overlap;
  return costs;
}

class SweepTest : public ::testing::TestWithParam<Generator> {
 protected:
  // Accepts only complete schedules of the shape.
  void Check(const PipelineShape& shape, const Schedule& schedule) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule lowered,
                                 AddCommunication(schedule));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Proof proof, Validate(lowered));
    ASSERT_GE(proof.computations,
              2 * shape.ranks * shape.chunks * shape.microbatches);
    CheckPeaks(shape, proof);
    double plain = 0;
    for (const bool overlap : {true, false}) {
      const Costs costs = SomeCosts(schedule.map.stages(), overlap);
      TESSERA_ASSERT_OK_AND_ASSIGN(const Timeline timeline,
                                   Simulate(lowered, costs, {.traces = false}));
      for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
        ASSERT_EQ(timeline.ranks[rank].peak_activations,
                  proof.peak_activations[rank])
            << "rank " << rank;
        // Uniform costs hold 1 byte for each activation.
        ASSERT_EQ(timeline.ranks[rank].peak_bytes,
                  proof.peak_activations[rank]);
        ASSERT_GE(timeline.makespan, timeline.ranks[rank].busy);
      }
      if (overlap) plain = timeline.makespan;
      ASSERT_GE(timeline.makespan, plain);
    }
  }

  void CheckPeaks(const PipelineShape& shape, const Proof& proof) {
    const PeakOf peak_of = Peaks().at(GetParam().name);
    for (int64_t rank = 0; rank < shape.ranks; ++rank) {
      const Peak peak = peak_of(shape, rank);
      const int64_t found = proof.peak_activations[static_cast<size_t>(rank)];
      if (peak.exact) {
        ASSERT_EQ(found, peak.most) << "rank " << rank;
      } else {
        ASSERT_LE(found, peak.most) << "rank " << rank;
      }
    }
  }
};

TEST_P(SweepTest, IsValidAndMatchesPaper) {
  const Generator& generator = GetParam();
  for (const PipelineShape& shape : EveryShape(generator.chunks)) {
    if (generator.even_ranks && shape.ranks % 2 == 1) continue;
    SCOPED_TRACE(::testing::Message() << generator.name << ": " << shape);
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                                 generator.generate(shape));
    Check(shape, schedule);
    if (HasFatalFailure()) return;
  }
}

// With and without sends and receives.
TEST_P(SweepTest, DocumentsRoundTrip) {
  const Generator& generator = GetParam();
  for (const PipelineShape& shape : EveryShape(generator.chunks)) {
    if (generator.even_ranks && shape.ranks % 2 == 1) continue;
    if (shape.microbatches > 9) continue;
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                                 generator.generate(shape));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule lowered,
                                 AddCommunication(schedule));
    ASSERT_THAT(ReadJson(WriteJson(schedule)), IsOkAndHolds(schedule));
    ASSERT_THAT(ReadJson(WriteJson(lowered)), IsOkAndHolds(lowered));
  }
}

INSTANTIATE_TEST_SUITE_P(EveryGenerator, SweepTest,
                         ::testing::ValuesIn(Generators().begin(),
                                             Generators().end()),
                         [](const auto& test) {
                           return "of_" + std::string(test.param.name);
                         });

}  // namespace
}  // namespace tessera::pipeline
