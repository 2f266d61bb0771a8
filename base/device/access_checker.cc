#include "base/device/access_checker.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tessera {

int AccessChecker::AddQueue(std::string_view name) {
  queues_.push_back({std::string(name), 0, {}});
  return static_cast<int>(queues_.size()) - 1;
}

AccessChecker::Operation AccessChecker::Begin(int queue, std::string_view name,
                                              const SourcePlace& place) {
  QueueState& state = queues_[At(queue)];
  Join(queue, queues_[kHost].clock);
  ++state.operations;
  if (state.clock.size() <= At(queue)) state.clock.resize(At(queue) + 1);
  state.clock[At(queue)] = state.operations;
  return {queue, state.operations, name, place};
}

void AccessChecker::Join(int queue, const Clock& clock) {
  Clock& into = queues_[At(queue)].clock;
  if (into.size() < clock.size()) into.resize(clock.size());
  for (size_t i = 0; i < clock.size(); ++i) {
    into[i] = std::max(into[i], clock[i]);
  }
}

void AccessChecker::ForgetPast() {
  const auto is_past = [this](const Operation& operation) {
    return IsIn(queues_[kHost].clock, operation.queue, operation.number);
  };
  for (auto it = segments_.begin(); it != segments_.end();) {
    const Segment& segment = it->second;
    const bool past =
        (segment.write.number == 0 || is_past(segment.write)) &&
        std::all_of(segment.reads.begin(), segment.reads.end(), is_past);
    it = past ? segments_.erase(it) : std::next(it);
  }
}

void AccessChecker::SetDeviceMemory(const std::byte* begin, size_t size) {
  device_begin_ = reinterpret_cast<uintptr_t>(begin);
  device_end_ = device_begin_ + size;
}

void AccessChecker::Allocate(const std::byte* data, size_t size) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  allocations_[begin] = begin + size;
}

absl::Status AccessChecker::Free(const std::byte* data) {
  const auto found = allocations_.find(reinterpret_cast<uintptr_t>(data));
  if (found == allocations_.end()) {
    return absl::InternalError("device memory is freed that is not allocated");
  }
  const auto [begin, end] = *found;
  const Operation free = {kHost, 0, "free", {}};
  absl::Status status;
  const auto first = SplitAt(begin), last = SplitAt(end);
  for (auto it = first; it != last; ++it) {
    if (!status.ok()) break;
    status = CheckSegment(free, /*writes=*/true, it->second, it->first);
  }
  segments_.erase(first, last);
  allocations_.erase(found);
  return status;
}

// Splits the segment that contains `at`, if any, and returns the first segment
// that begins at or after `at`.
AccessChecker::Segments::iterator AccessChecker::SplitAt(uintptr_t at) {
  auto next = segments_.lower_bound(at);
  if (next == segments_.begin()) return next;
  const auto before = std::prev(next);
  if (before->second.end <= at) return next;
  Segment rest = before->second;
  before->second.end = at;
  return segments_.emplace_hint(next, at, std::move(rest));
}

absl::Status AccessChecker::Access(const Operation& operation,
                                   const MemoryAccess& access) {
  if (access.size == 0) return absl::OkStatus();
  const auto begin = reinterpret_cast<uintptr_t>(access.data);
  const uintptr_t end = begin + access.size;
  absl::Status status = CheckAllocated(operation, begin, end);
  auto it = SplitAt(begin);
  const auto last = SplitAt(end);
  if (access.writes) {
    for (auto at = it; at != last; ++at) {
      if (!status.ok()) break;
      status = CheckSegment(operation, true, at->second, at->first);
    }
    const auto after = segments_.erase(it, last);
    segments_.emplace_hint(after, begin, Segment{end, operation, {}});
    return status;
  }
  for (uintptr_t at = begin; at < end;) {
    // These bytes have no history.
    if (it == last || it->first > at) {
      const uintptr_t until = it == last ? end : it->first;
      it = segments_.emplace_hint(it, at, Segment{until, {}, {}});
    }
    Segment& segment = it->second;
    if (status.ok()) status = CheckSegment(operation, false, segment, at);
    const auto same = std::find_if(
        segment.reads.begin(), segment.reads.end(),
        [&](const Operation& r) { return r.queue == operation.queue; });
    if (same == segment.reads.end()) {
      segment.reads.push_back(operation);
    } else {
      *same = operation;
    }
    at = segment.end;
    ++it;
  }
  return status;
}

absl::Status AccessChecker::HostAccess(std::string_view what,
                                       const SourcePlace& place,
                                       const MemoryAccess& access) {
  if (access.size == 0) return absl::OkStatus();
  const auto begin = reinterpret_cast<uintptr_t>(access.data);
  const uintptr_t end = begin + access.size;
  const Operation host = {kHost, 0, what, place};
  auto it = segments_.upper_bound(begin);
  if (it != segments_.begin()) --it;
  for (; it != segments_.end() && it->first < end; ++it) {
    if (it->second.end <= begin) continue;
    TESSERA_RETURN_IF_ERROR(
        CheckSegment(host, access.writes, it->second, it->first));
  }
  return absl::OkStatus();
}

absl::Status AccessChecker::CheckAllocated(const Operation& operation,
                                           uintptr_t begin,
                                           uintptr_t end) const {
  if (end <= device_begin_ || begin >= device_end_) return absl::OkStatus();
  auto it = allocations_.upper_bound(begin);
  if (it != allocations_.begin() && std::prev(it)->second >= end) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat(
      Describe(operation), " accesses ", end - begin,
      " bytes that are not within one allocation of device memory"));
}

absl::Status AccessChecker::CheckSegment(const Operation& operation,
                                         bool writes, const Segment& segment,
                                         uintptr_t begin) const {
  const Operation* other = nullptr;
  const bool after_write =
      segment.write.number == 0 || ComesAfter(operation, segment.write);
  if (!after_write) other = &segment.write;
  if (writes && other == nullptr) {
    for (const Operation& read : segment.reads) {
      if (!ComesAfter(operation, read)) other = &read;
    }
  }
  if (other == nullptr) return absl::OkStatus();
  const std::string_view mine = queues_[At(operation.queue)].name;
  const std::string_view others = queues_[At(other->queue)].name;
  const bool host = operation.queue == kHost;
  return absl::InternalError(absl::StrCat(
      "missing wait: ", Describe(operation), writes ? " writes " : " reads ",
      segment.end - begin, " bytes that ", Describe(*other),
      after_write ? " reads" : " writes", ", and no event orders them; ",
      host ? "the host" : absl::StrCat("queue ", mine),
      " should wait for an event that queue ", others, " records after it"));
}

std::string AccessChecker::Describe(const Operation& operation) const {
  std::string text = absl::StrCat("\"", operation.name, "\" on ");
  if (operation.queue == kHost) {
    absl::StrAppend(&text, "the host");
  } else {
    absl::StrAppend(&text, "queue ", queues_[At(operation.queue)].name);
  }
  if (operation.place.line() == 0) return text;
  return absl::StrCat(text, " (", operation.place.file_name(), ":",
                      operation.place.line(), ")");
}

}  // namespace tessera
