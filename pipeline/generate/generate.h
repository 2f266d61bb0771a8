// The registry of all generators, by name.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       Schedule schedule,
//       Generate("zb_h1", {.ranks = 8, .chunks = 1, .microbatches = 24}));
//
// The schedules have computations only; a pass adds communication
// (pipeline/passes).
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
  // The required number of chunks; 0: any.
  int64_t chunks;
  bool even_ranks;
  absl::StatusOr<Schedule> (*generate)(const PipelineShape&);
};

// All generators, from the simplest to the latest. Static storage.
std::span<const Generator> Generators();
std::vector<std::string_view> GeneratorNames();

// Calls the generator with this name. InvalidArgument if it does not exist (the
// message lists the valid names), or as returned by the generator.
absl::StatusOr<Schedule> Generate(std::string_view name,
                                  const PipelineShape& shape);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_GENERATE_GENERATE_H_
