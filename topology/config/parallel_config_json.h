// ParallelConfig as JSON: one object, one key for each field.
//
//   {"dp": 2, "tp": 4, "pp": 2, "layers": 32, "micro_batches": 8,
//    "schedule": "interleaved_1f1b", "chunks": 2, "precision": "bf16",
//    "device_memory": "80GiB", "timeout": "30s"}
//
//   TESSERA_ASSIGN_OR_RETURN(auto config, LoadParallelConfig("job.json"));
//   TESSERA_RETURN_IF_ERROR(config.Validate());
//
// Keys not given keep their defaults. Sizes and counts are integers;
// device_memory is a text with a unit or an integer number of bytes; timeout is
// a text with a unit or a number of seconds. Source: RFC 8259, with the added
// rule that no key comes twice.
#ifndef TESSERA_TOPOLOGY_CONFIG_PARALLEL_CONFIG_JSON_H_
#define TESSERA_TOPOLOGY_CONFIG_PARALLEL_CONFIG_JSON_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "topology/config/parallel_config.h"

namespace tessera::topology {

// A document has at most this many bytes.
inline constexpr size_t kMaxConfigBytes = size_t{1} << 16;

// Reads a document. InvalidArgument where it is no JSON object, too long, or
// nested, where a key is unknown (the nearest known one is named) or comes
// twice, and where a value is of the wrong type. What the values mean is not
// checked: that is Validate's.
absl::StatusOr<ParallelConfig> ParseParallelConfig(std::string_view json);

// Every field, one on a line. ParseParallelConfig reads it back as the same
// configuration, unless an enumeration is outside its table or the order is not
// UTF-8 (its wrong bytes become U+FFFD).
std::string FormatParallelConfig(const ParallelConfig& config);

// The same from and to a file. Saving replaces the file as a whole: readers and
// a crash find the old one or the new. Errors name the file; on an error of
// saving, the old file is untouched.
absl::StatusOr<ParallelConfig> LoadParallelConfig(const std::string& path);
absl::Status SaveParallelConfig(const ParallelConfig& config,
                                const std::string& path);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_CONFIG_PARALLEL_CONFIG_JSON_H_
