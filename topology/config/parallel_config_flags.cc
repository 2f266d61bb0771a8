#include "topology/config/parallel_config_flags.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/flags/flag.h"
#include "absl/time/time.h"
#include "base/byte_size.h"
#include "base/status_macros.h"
#include "topology/config/options/named_enum.h"
#include "topology/config/parallel_config_json.h"

namespace tessera::topology {
namespace {

// A duration as a flag that can be absent: std::optional<absl::Duration> meets
// a deprecated function of Abseil's.
struct Timeout {
  absl::Duration duration;
};

bool AbslParseFlag(std::string_view text, Timeout* timeout,
                   std::string* error) {
  if (absl::AbslParseFlag(text, &timeout->duration, error)) return true;
  *error = "expected a number with a unit such as 30s, 500ms or 2m, or inf";
  return false;
}

std::string AbslUnparseFlag(Timeout timeout) {
  return absl::AbslUnparseFlag(timeout.duration);
}

}  // namespace
}  // namespace tessera::topology

namespace topology = tessera::topology;

ABSL_FLAG(std::string, parallel_config, "",
          "JSON file with the parallel configuration; the other flags override "
          "what it says");
ABSL_FLAG(std::string, mesh, "",
          "sizes of the parallel axes dp, tp, pp, cp and ep, such as "
          "dp2,pp2,tp2");
ABSL_FLAG(std::string, order, "",
          "order of the axes, fastest-varying first, such as tp-cp-ep-dp-pp");
ABSL_FLAG(std::optional<int64_t>, layers, std::nullopt,
          "number of layers of the model");
ABSL_FLAG(std::optional<int64_t>, micro_batch_size, std::nullopt,
          "samples in a micro-batch");
ABSL_FLAG(std::optional<int64_t>, micro_batches, std::nullopt,
          "micro-batches a step of each data-parallel rank");
ABSL_FLAG(std::optional<topology::MemoryStrategy>, memory_strategy,
          std::nullopt,
          "what becomes of activations: " +
              topology::AllowedNames<topology::MemoryStrategy>());
ABSL_FLAG(std::optional<topology::CommunicationStrategy>, strategy,
          std::nullopt,
          "how gradients are summed: " +
              topology::AllowedNames<topology::CommunicationStrategy>());
ABSL_FLAG(std::optional<topology::ScheduleKind>, schedule, std::nullopt,
          "pipeline schedule: " +
              topology::AllowedNames<topology::ScheduleKind>());
ABSL_FLAG(std::optional<int64_t>, chunks, std::nullopt,
          "virtual stages of each pipeline rank");
ABSL_FLAG(std::optional<topology::Precision>, precision, std::nullopt,
          "numbers of parameters and activations: " +
              topology::AllowedNames<topology::Precision>());
ABSL_FLAG(std::optional<tessera::ByteSize>, device_memory, std::nullopt,
          "most memory a device may use, such as 80GiB; 0 for no limit");
ABSL_FLAG(std::optional<topology::Timeout>, timeout, std::nullopt,
          "how long a rank waits for another, such as 30s");

namespace tessera::topology {
namespace {

template <typename T>
void Override(const absl::Flag<std::optional<T>>& flag, T& field) {
  if (const std::optional<T> given = absl::GetFlag(flag); given.has_value()) {
    field = *given;
  }
}

absl::StatusOr<ParallelConfig> Base() {
  const std::string path = absl::GetFlag(FLAGS_parallel_config);
  if (path.empty()) return ParallelConfig();
  TESSERA_ASSIGN_OR_RETURN(ParallelConfig config, LoadParallelConfig(path),
                           Annotate(_, "--parallel_config"));
  return config;
}

}  // namespace

absl::StatusOr<ParallelConfig> ParallelConfigFromFlags() {
  TESSERA_ASSIGN_OR_RETURN(ParallelConfig config, Base());
  if (const std::string mesh = absl::GetFlag(FLAGS_mesh); !mesh.empty()) {
    TESSERA_RETURN_IF_ERROR(config.SetSizes(mesh), Annotate(_, "--mesh"));
  }
  if (const std::string order = absl::GetFlag(FLAGS_order); !order.empty()) {
    config.order = order;
  }
  Override(FLAGS_layers, config.layers);
  Override(FLAGS_micro_batch_size, config.micro_batch_size);
  Override(FLAGS_micro_batches, config.micro_batches);
  Override(FLAGS_memory_strategy, config.memory_strategy);
  Override(FLAGS_strategy, config.communication_strategy);
  Override(FLAGS_schedule, config.schedule);
  Override(FLAGS_chunks, config.chunks);
  Override(FLAGS_precision, config.precision);
  Override(FLAGS_device_memory, config.device_memory);
  Timeout timeout = {config.timeout};
  Override(FLAGS_timeout, timeout);
  config.timeout = timeout.duration;
  return config;
}

}  // namespace tessera::topology
