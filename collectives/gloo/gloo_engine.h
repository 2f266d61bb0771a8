// The gloo engine: ranks connected by TCP with Facebook's Gloo.
//
//   TESSERA_ASSIGN_OR_RETURN(Job job, JoinJob(ProcessEnvironment()));
//   TESSERA_ASSIGN_OR_RETURN(
//       auto engine, CreateGlooEngine(*job.store, {.interface = "eth0"}));
//
// Implements every collective except reduce_scatter, which runs as one of
// Tessera's algorithms over Gloo's messages, as all do with encryption. Uses
// Tessera's reduction kernels, so f16 and bf16 accumulate as in other engines.
// Ranks may be threads of one process.
//
// Errors. A rank that dies causes Unavailable at once on its peers; a late rank
// causes DeadlineExceeded. Both, and an abort, close all connections of the
// group, which is how Gloo ends waits and notifies other ranks. Buffers are not
// accessed after that.
//
// A process that does not handle SIGPIPE ignores it from then on.
//
// Threads: Gloo has one thread for all groups of a world. Every channel end on
// which asynchronous messages are started has one more.
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
  // The address on which this rank listens: an interface ("eth0") or, if that
  // is empty, a host name or IP address. Other hosts cannot reach loopback.
  std::string interface = "";
  std::string hostname = "127.0.0.1";

  // Distinguishes this world from others that use the same store. Must be equal
  // on all ranks.
  std::string name = "world";

  // If true, collectives start with an exchange of 32 bytes per rank, so that
  // mismatched calls fail at once with an error that shows both sides.
  // Otherwise they time out. Messages are always checked. Must be equal on all
  // ranks.
  bool check_signatures = false;

  // Encrypts and authenticates all messages with AES-256-GCM, under keys that
  // the ranks exchange through the store (channel/message_cipher.h). All
  // collectives then are Tessera's algorithms. Needs as much memory as the
  // messages being sent. Must be equal on all ranks. Without it connections are
  // neither encrypted nor authenticated.
  bool encrypt = false;

  // The longest time to wait for the other ranks when creating the engine.
  absl::Duration timeout = absl::Seconds(30);
};

// Creates the world of all ranks of `store`, which must outlive the engine and
// its subgroups. Every rank calls it. InvalidArgument if an option is invalid;
// DeadlineExceeded or Unavailable naming the ranks that did not call it or
// died.
absl::StatusOr<std::unique_ptr<Engine>> CreateGlooEngine(
    Store& store, const GlooOptions& options = {});

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_GLOO_GLOO_ENGINE_H_
