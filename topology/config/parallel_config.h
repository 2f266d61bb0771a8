// ParallelConfig: how one training job is spread over ranks.
//
//   TESSERA_ASSIGN_OR_RETURN(auto config,
//                            ParallelConfig::FromSizes("dp2,pp2,tp2"));
//   config.layers = 32;
//   config.micro_batches = 8;
//   TESSERA_RETURN_IF_ERROR(config.ValidateForWorld(8));
//   TESSERA_ASSIGN_OR_RETURN(Mesh mesh, config.MakeMesh());
//
// A plain value; nothing is checked until Validate, which reports every problem
// at once. parallel_config_json.h reads and writes it, parallel_config_flags.h
// takes it from the command line.
#ifndef TESSERA_TOPOLOGY_CONFIG_PARALLEL_CONFIG_H_
#define TESSERA_TOPOLOGY_CONFIG_PARALLEL_CONFIG_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/byte_size.h"
#include "topology/config/options/config_problem.h"
#include "topology/config/options/schedule_kind.h"
#include "topology/config/options/strategies.h"
#include "topology/mesh.h"
#include "topology/rank.h"

namespace tessera::topology {

inline constexpr std::string_view kDefaultOrder = "tp-cp-ep-dp-pp";
inline constexpr absl::Duration kDefaultTimeout = absl::Seconds(30);

struct ParallelConfig {
  // Ranks along each axis: data, tensor, pipeline, context. Experts (ep) are
  // taken out of dp * cp * tp and add no ranks.
  AxisSize dp{1};
  AxisSize tp{1};
  AxisSize pp{1};
  AxisSize cp{1};
  AxisSize ep{1};
  // Fastest-varying axis first.
  std::string order{kDefaultOrder};

  int64_t layers = 1;
  // Samples in a micro-batch, and micro-batches a step of each dp rank.
  int64_t micro_batch_size = 1;
  int64_t micro_batches = 1;
  ScheduleKind schedule = ScheduleKind::k1F1B;
  // Virtual stages that each pp rank holds.
  int64_t chunks = 1;

  MemoryStrategy memory_strategy = MemoryStrategy::kBasic;
  CommunicationStrategy communication_strategy =
      CommunicationStrategy::kAllReduce;
  Precision precision = Precision::kFp32;
  // Most memory that a device may use; 0 for no limit.
  ByteSize device_memory;
  // How long a rank waits for another before it gives up.
  absl::Duration timeout = kDefaultTimeout;

  friend bool operator==(const ParallelConfig&,
                         const ParallelConfig&) = default;

  // A configuration with the sizes of the compact text "dp2,pp2,tp2" or
  // "dp2,tp4,ep4"; sizes not named are 1, everything else is the default.
  // InvalidArgument as ParseAxes, and where an axis is none of dp, tp, pp, cp
  // and ep.
  static absl::StatusOr<ParallelConfig> FromSizes(std::string_view text);

  // Sets all five sizes as FromSizes does. On an error nothing is changed.
  absl::Status SetSizes(std::string_view text);

  // The compact text: dp, pp and tp always, cp and ep where they are not 1.
  std::string Sizes() const;

  // dp * cp * tp * pp, and pp * chunks. InvalidArgument where a size is below 1
  // or the product exceeds 2^63-1.
  absl::StatusOr<int64_t> WorldSize() const;
  absl::StatusOr<int64_t> Stages() const;

  // Everything that is wrong: sizes and order, then the pipeline, then the
  // rest; empty where the configuration is valid. With a world size, first of
  // all where that is not WorldSize().
  std::vector<ConfigProblem> Problems() const;
  std::vector<ConfigProblem> ProblemsForWorld(int64_t world_size) const;

  // OK, or InvalidArgument with one numbered line for each problem.
  absl::Status Validate() const;
  absl::Status ValidateForWorld(int64_t world_size) const;

  // The mesh of dp, tp and pp, and of cp where it is not 1, in `order`, with
  // the expert axes of layout/expert.h where ep is not 1. InvalidArgument with
  // the problems of sizes and order, if any; the rest need not be valid.
  absl::StatusOr<Mesh> MakeMesh() const;
};

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_CONFIG_PARALLEL_CONFIG_H_
