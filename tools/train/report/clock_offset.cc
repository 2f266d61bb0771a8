#include "tools/train/report/clock_offset.h"

#include <limits>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/status_macros.h"

namespace tessera::train {
namespace {

using collectives::Buffer;
using collectives::Communicator;
using collectives::ConstBuffer;
using collectives::Rank;

constexpr int kRoundTrips = 8;

// FNV-1a (Fowler, Noll, Vo), 64 bits, without the sign.
int64_t HashOf(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return static_cast<int64_t>(hash >> 1);
}

absl::Status Answer(Communicator& world, Rank asker,
                    const std::function<int64_t()>& now) {
  for (int i = 0; i < kRoundTrips; ++i) {
    int64_t word = 0;
    TESSERA_RETURN_IF_ERROR(world.Receive(Buffer(std::span(&word, 1)), asker));
    word = now();
    TESSERA_RETURN_IF_ERROR(
        world.Send(ConstBuffer(std::span<const int64_t>(&word, 1)), asker));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Ask(Communicator& world,
                            const std::function<int64_t()>& now) {
  int64_t offset = 0;
  int64_t shortest = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < kRoundTrips; ++i) {
    int64_t word = 0;
    const int64_t begin = now();
    TESSERA_RETURN_IF_ERROR(
        world.Send(ConstBuffer(std::span<const int64_t>(&word, 1)), Rank(0)));
    TESSERA_RETURN_IF_ERROR(
        world.Receive(Buffer(std::span(&word, 1)), Rank(0)));
    const int64_t took = now() - begin;
    if (took >= shortest) continue;
    shortest = took;
    offset = word - (begin + took / 2);
  }
  return offset;
}

}  // namespace

std::string_view BootId() {
  static const std::string id =
      ReadFile("/proc/sys/kernel/random/boot_id", 4096).value_or("");
  return id;
}

absl::StatusOr<int64_t> ClockOffset(Communicator& world,
                                    std::string_view system,
                                    const std::function<int64_t()>& now) {
  const int64_t mine = HashOf(system);
  std::vector<int64_t> all(static_cast<size_t>(world.size()));
  TESSERA_RETURN_IF_ERROR(
      world.AllGather(ConstBuffer(std::span<const int64_t>(&mine, 1)),
                      Buffer(std::span(all))),
      Annotate(_, "the ranks' clocks"));
  for (int64_t rank = 1; rank < world.size(); ++rank) {
    if (all[static_cast<size_t>(rank)] == all[0]) continue;
    if (world.rank() == Rank(rank)) return Ask(world, now);
    if (world.rank() != Rank(0)) continue;
    TESSERA_RETURN_IF_ERROR(Answer(world, Rank(rank), now));
  }
  return 0;
}

}  // namespace tessera::train
