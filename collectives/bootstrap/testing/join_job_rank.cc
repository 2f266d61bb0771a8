// One rank of a job started by a real launcher: it joins and gathers.
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "collectives/bootstrap/join_job.h"

int main() {
  using namespace tessera::collectives;  // NOLINT: a program of one function.
  const auto job =
      JoinJob(ProcessEnvironment(), {.timeout = absl::Seconds(20)});
  if (!job.ok()) {
    std::fprintf(stderr, "%s\n", job.status().ToString().c_str());
    return 1;
  }
  const auto all =
      AllGather(*job->store, "ranks", absl::StrCat(job->rank.value()),
                absl::Now() + absl::Seconds(20));
  if (!all.ok()) return 1;
  if (job->rank == Rank(0)) {
    std::printf("ranks %s\n", absl::StrJoin(*all, " ").c_str());
  }
  return 0;
}
