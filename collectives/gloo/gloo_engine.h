// What the gloo engine can be told.
#ifndef TESSERA_COLLECTIVES_GLOO_GLOO_ENGINE_H_
#define TESSERA_COLLECTIVES_GLOO_GLOO_ENGINE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/bootstrap/store.h"
#include "collectives/engine/engine.h"

namespace tessera::collectives {

struct GlooOptions {
  // Where this rank listens: an interface ("eth0") or, where that is empty, a
  // host name or address. Loopback serves the ranks of one host and is reached
  // by nobody else; Gloo's connections are neither encrypted nor authenticated.
  std::string interface = "";
  std::string hostname = "127.0.0.1";

  // Tells this world from others that meet at the same store; the same on all
  // ranks.
  std::string name = "world";

  // Every collective begins with an exchange of 32 bytes a rank: calls that do
  // not match are errors at once, which show both sides. Otherwise the ranks
  // wait for each other until the deadline. Messages are always checked: they
  // bring their signature. The same on all ranks.
  bool check_signatures = false;

  // How long the ranks wait for each other when the engine is created.
  absl::Duration timeout = absl::Seconds(30);
};

// gloo: ranks connected by TCP, through Facebook's Gloo.
//
//   TESSERA_ASSIGN_OR_RETURN(Job job, JoinJob(ProcessEnvironment()));
//   TESSERA_ASSIGN_OR_RETURN(
//       auto engine, CreateGlooEngine(*job.store, {.interface = "eth0"}));
//
// Implements every collective but reduce_scatter, with our own reduction, so
// that f16 and bf16 work and accumulate as elsewhere; reduce_scatter is one of
// our algorithms over its messages. Ranks may be threads of one process.
//
// Errors. A rank that dies is Unavailable at once for those that talk to it,
// one that is late a DeadlineExceeded. Either, and an abort, closes all
// connections of the group: that is how Gloo ends a wait, and how the others
// learn of it. Buffers are not touched after that.
//
// Threads: one of Gloo's for all groups of a world, and one more for every
// channel end on which messages are started asynchronously.

// The world of all ranks of `store`, which outlives the engine and its
// subgroups. Called by every rank. InvalidArgument where an option cannot be;
// DeadlineExceeded or Unavailable naming the ranks that did not come.
absl::StatusOr<std::unique_ptr<Engine>> CreateGlooEngine(
    Store& store, const GlooOptions& options = {});

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_GLOO_GLOO_ENGINE_H_
