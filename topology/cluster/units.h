// Bandwidths and latencies as people write them.
//
//   ParseBandwidth("450GB/s");   // 450e9 bytes per second
//   ParseBandwidth("400Gb/s");   // 50e9: a small b is bits
//   ParseLatency("3.4us");       // 3.4e-6 seconds
#ifndef TESSERA_TOPOLOGY_CLUSTER_UNITS_H_
#define TESSERA_TOPOLOGY_CLUSTER_UNITS_H_

#include <string_view>

#include "absl/status/statusor.h"

namespace tessera::topology {

// Bytes per second. A number with a unit of base/byte_size.h, and then "/s",
// "ps" or nothing. A unit that ends in a small b counts bits: 100Gb is 12.5GB.
// InvalidArgument where the text is anything else, or is not above 0.
absl::StatusOr<double> ParseBandwidth(std::string_view text);

// Seconds. A decimal number and one of s, ms, us, ns; at least 0 and at most
// 1000 s. InvalidArgument where the text is anything else.
absl::StatusOr<double> ParseLatency(std::string_view text);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_CLUSTER_UNITS_H_
