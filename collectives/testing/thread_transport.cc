#include "collectives/engine/testing/thread_transport.h"

#include <algorithm>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "collectives/engine/testing/thread_channels.h"

namespace tessera::collectives {

ThreadWorld::ThreadWorld(int64_t ranks, const ThreadWorldOptions& options)
    : impl_(std::make_unique<Impl>(ranks, options)) {}

ThreadWorld::~ThreadWorld() = default;

int64_t ThreadWorld::size() const { return impl_->size; }

Transport& ThreadWorld::transport(int64_t rank) {
  return impl_->ports[static_cast<size_t>(rank)];
}

std::vector<absl::Status> ThreadWorld::Run(
    const std::function<absl::Status(Transport&)>& body) {
  std::vector<absl::Status> statuses(static_cast<size_t>(size()));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size(); ++rank) {
    threads.emplace_back([&, rank] {
      absl::Status& status = statuses[static_cast<size_t>(rank)];
      status = body(transport(rank));
      if (!status.ok()) Abort(absl::AbortedError(status.ToString()));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

void ThreadWorld::Abort(const absl::Status& reason) { impl_->Abort(reason); }

absl::Status ThreadWorld::CheckIdle(int64_t rank) const {
  const std::lock_guard lock(impl_->mutex);
  const size_t open = impl_->open[static_cast<size_t>(rank)].size();
  if (open == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "rank ", rank, " has ", open, " requests that it has not waited for"));
}

Traffic ThreadWorld::sent(int64_t rank) const {
  return impl_->sent[static_cast<size_t>(rank)];
}

double ThreadWorld::clock(int64_t rank) const {
  return impl_->clock[static_cast<size_t>(rank)];
}

void ThreadWorld::ResetCounts() {
  for (auto* times : {&impl_->clock, &impl_->send_port, &impl_->receive_port}) {
    std::fill(times->begin(), times->end(), 0);
  }
  std::fill(impl_->sent.begin(), impl_->sent.end(), Traffic());
}

}  // namespace tessera::collectives
