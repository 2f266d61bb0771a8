// Links: how fast messages travel between the ranks of a pipeline.
//
//   Links links;
//   links.everywhere = {.latency = 5e-6, .bandwidth = 25e9};
//   links.exceptions[{3, 4}] = {.latency = 2e-5, .bandwidth = 5e9};
//
// A message of n bytes takes latency + n / bandwidth (Hockney, "The
// communication challenge for MPP", 1994). For n / bandwidth of it the link is
// taken: the next message of the same ordered pair of ranks starts after that.
// The two directions between two ranks are two links. Stages of one rank need
// none.
#ifndef TESSERA_PIPELINE_SIMULATE_LINKS_H_
#define TESSERA_PIPELINE_SIMULATE_LINKS_H_

#include <cstdint>
#include <limits>
#include <map>
#include <utility>

#include "absl/status/status.h"

namespace tessera::pipeline {

struct Link {
  double latency = 0;  // In the unit of the other times, seconds as a rule.
  // Bytes in such a unit; infinite: messages take the latency only and never
  // wait for each other.
  double bandwidth = std::numeric_limits<double>::infinity();
};

struct Links {
  Link everywhere;
  // By sender and receiver.
  std::map<std::pair<int32_t, int32_t>, Link> exceptions;

  const Link& Of(int32_t sender, int32_t receiver) const {
    const auto exception = exceptions.find({sender, receiver});
    return exception == exceptions.end() ? everywhere : exception->second;
  }
};

// InvalidArgument where a latency is negative or not finite, a bandwidth is not
// more than 0, or an exception is for a rank that is not one of `ranks`, or for
// a rank and itself.
absl::Status CheckLinks(const Links& links, int64_t ranks);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SIMULATE_LINKS_H_
