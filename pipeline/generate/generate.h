// Every generator, by name.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       Schedule schedule,
//       Generate("zb_h1", {.ranks = 8, .chunks = 1, .microbatches = 24}));
//
// Schedules compute only: communication is put in by a pass (pipeline/passes).
#ifndef TESSERA_PIPELINE_GENERATE_GENERATE_H_
#define TESSERA_PIPELINE_GENERATE_GENERATE_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "pipeline/generate/draft.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

struct Generator {
  std::string_view name;
  // The paper, "arXiv 2401.10241"; "" if there is none.
  std::string_view paper;
  // The only number of chunks that the method has; 0: any.
  int64_t chunks;
  bool even_ranks;
  absl::StatusOr<Schedule> (*generate)(const PipelineShape&);
};

// From the simplest to the latest. Lives as long as the program.
std::span<const Generator> Generators();
std::vector<std::string_view> GeneratorNames();

// The schedule of the generator of that name. InvalidArgument if there is
// none (the message names those there are), or as the generator.
absl::StatusOr<Schedule> Generate(std::string_view name,
                                  const PipelineShape& shape);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_GENERATE_GENERATE_H_
