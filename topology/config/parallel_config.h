// ParallelConfig: the parallel configuration of a training job: mesh, layers of
// the pipeline stages, schedule, types and limits.
#ifndef TESSERA_TOPOLOGY_CONFIG_PARALLEL_CONFIG_H_
#define TESSERA_TOPOLOGY_CONFIG_PARALLEL_CONFIG_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/byte_size.h"
#include "base/dtype/dtype.h"
#include "topology/config/layer_split.h"
#include "topology/config/mesh_sizes.h"
#include "topology/config/strategies.h"

namespace tessera::topology {

// An invalid value of a configuration, and its remedy.
struct ConfigProblem {
  std::string field = {};    // The name of the field in flags and JSON.
  std::string given = {};    // The value as text.
  std::string allowed = {};  // "must be at least 1".
  std::string fix = {};      // An allowed value; empty if none is known.

  // "micro_batch=0: must be at least 1, such as micro_batch=1".
  std::string ToString() const;
};

// The value of a field in flags and JSON.
using ConfigValue = std::variant<int64_t, std::string>;

// The parallel configuration of a training job: a plain value, which is not
// checked until Validate.
//
//   TESSERA_ASSIGN_OR_RETURN(ParallelConfig config, ParallelConfig::FromJson(
//       R"({"mesh": "dp2,pp2,tp2", "layers": 32, "dtype": "bf16"})"));
//   TESSERA_RETURN_IF_ERROR(config.Validate(/*world_size=*/8));
//   TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, config.mesh.MakeMesh());
//   config.LayersPerStage();                 // 16, 16
struct ParallelConfig {
  MeshSizes mesh = {};
  int64_t layers = 0;     // The layers of the model; 0: unknown.
  LayerSplit split = {};  // Divides the layers among the stages.
  // How the pipeline runs: a generator's name, "auto", or a CSV file. A string,
  // because the names are listed by pipeline::Generators() and topology does
  // not depend on pipeline.
  std::string schedule = "1f1b";
  int64_t chunks = 1;       // Stages of a pipeline rank.
  int64_t micro_batch = 1;  // Sequences that a rank computes with at a time.
  // The least memory-saving strategy that the job uses; it may save more to
  // stay within its limits.
  MemoryStrategy memory_strategy = MemoryStrategy::kBasic;
  CommunicationStrategy strategy = CommunicationStrategy::kAdaptive;
  DType dtype = DType::kF32;  // Type of weights and activations: kF32, kBF16.
  bool fp8 = false;           // Linear layers multiply in fp8; with kBF16 only.
  // Resident memory of all ranks of a machine; 0: no limit.
  ByteSize memory_limit = {};
  // Memory of a rank on its device, for state and activations; 0: no limit.
  ByteSize device_budget = {};
  // How long a rank waits for another.
  absl::Duration timeout = absl::Seconds(60);

  friend bool operator==(const ParallelConfig&,
                         const ParallelConfig&) = default;

  // The number of pipeline stages. This and LayersPerStage require a valid
  // configuration.
  int64_t stages() const { return mesh.pp * chunks; }

  // The layers of each stage, in the order of the model. A split by cost
  // requires the cost of each layer. InvalidArgument as
  // LayerSplit::LayersPerStage.
  absl::StatusOr<std::vector<int64_t>> LayersPerStage(
      std::span<const double> costs = {}) const {
    return split.LayersPerStage(layers, stages(), costs);
  }

  // All problems; empty if the configuration is valid. With `world_size`, the
  // mesh must have as many ranks. With a number of layers, each stage must be
  // able to have one.
  std::vector<ConfigProblem> Problems(
      std::optional<int64_t> world_size = std::nullopt) const;
  // InvalidArgument with one line for each problem.
  absl::Status Validate(std::optional<int64_t> world_size = std::nullopt) const;

  // Flags and files have these fields: mesh, order, layers, layers_per_stage,
  // schedule, chunks, micro_batch, memory_strategy, strategy, dtype (fp8 is one
  // of its values), memory_limit, device_budget, timeout_seconds.
  static std::span<const std::string_view> FieldNames();
  // `name` must be one of them.
  ConfigValue Field(std::string_view name) const;
  // A problem, and no change, if there is no such field, or the value has
  // another type or cannot be parsed. Problems checks ranges.
  std::optional<ConfigProblem> SetField(std::string_view name,
                                        const ConfigValue& value);

  // All fields: "mesh=dp2,pp1,cp1,tp4 order=tp-cp-dp-pp ...".
  std::string ToString() const;
  // One JSON object with a key per field. FromJson restores the configuration
  // (timeouts in whole seconds). Missing keys keep their defaults. FromJson
  // returns InvalidArgument if the text is not such an object, with one line
  // for each unknown key and each value that SetField rejects.
  std::string ToJson() const;
  static absl::StatusOr<ParallelConfig> FromJson(std::string_view json);
};

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_CONFIG_PARALLEL_CONFIG_H_
