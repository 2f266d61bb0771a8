// Named strategies of a job: how it saves memory, how it sums gradients,
// and its precision.
//
//   ParseEnum<MemoryStrategy>("aggressive");   // MemoryStrategy::kAggressive
//   EnumName(DType::kBF16);                    // "bf16"
#ifndef TESSERA_TOPOLOGY_CONFIG_STRATEGIES_H_
#define TESSERA_TOPOLOGY_CONFIG_STRATEGIES_H_

#include <array>
#include <string_view>

#include "base/dtype/dtype.h"
#include "topology/config/named_enum.h"

namespace tessera::topology {

// How a job trades time for memory. Each strategy includes those before it.
enum class MemoryStrategy {
  kBasic,       // Nothing is traded.
  kStandard,    // Activations are recomputed from checkpoints.
  kAggressive,  // All state is sharded and offloaded to host memory.
  kExtreme,     // State and activations are offloaded to disk.
};

template <>
struct EnumNames<MemoryStrategy> {
  static constexpr std::string_view kWhat = "memory strategy";
  static constexpr auto kTable = std::to_array<NamedValue<MemoryStrategy>>({
      {"basic", MemoryStrategy::kBasic},
      {"standard", MemoryStrategy::kStandard},
      {"aggressive", MemoryStrategy::kAggressive},
      {"extreme", MemoryStrategy::kExtreme},
  });
};

// How gradients are summed over the data-parallel ranks.
enum class CommunicationStrategy {
  kAllReduce,     // the engine's own all-reduce
  kHierarchical,  // within each node first, then between nodes
  kRing,
  kTree,
  kAdaptive,  // chosen by message size and topology
};

template <>
struct EnumNames<CommunicationStrategy> {
  static constexpr std::string_view kWhat = "communication strategy";
  static constexpr auto kTable =
      std::to_array<NamedValue<CommunicationStrategy>>({
          {"all_reduce", CommunicationStrategy::kAllReduce},
          {"hierarchical", CommunicationStrategy::kHierarchical},
          {"ring", CommunicationStrategy::kRing},
          {"tree", CommunicationStrategy::kTree},
          {"adaptive", CommunicationStrategy::kAdaptive},
      });
};

// The names of types in flags and files.
// The optimizer's state is fp32 in every case.
template <>
struct EnumNames<DType> {
  static constexpr std::string_view kWhat = "precision";
  static constexpr auto kTable = std::to_array<NamedValue<DType>>({
      {"fp32", DType::kF32},
      {"bf16", DType::kBF16},
      {"fp16", DType::kF16},
  });
};

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_CONFIG_STRATEGIES_H_
