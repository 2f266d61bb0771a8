// Domain: ranks that can reach memory of each other: the threads of a process,
// or the processes of a host that map one segment.
//
// Memory that all ranks reach is named by its place: an offset that is the same
// for all of them.
#ifndef TESSERA_COLLECTIVES_HOST_MEMORY_DOMAIN_H_
#define TESSERA_COLLECTIVES_HOST_MEMORY_DOMAIN_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/host_memory/layout.h"

namespace tessera::collectives::direct {

// How a rank finds the block of a group that another one made: a small table of
// each rank, written by that rank alone but for the count of who has looked.
struct alignas(64) Announcement {
  std::atomic<uint64_t> key;  // 0: free.
  std::atomic<Place> block;
  std::atomic<uint32_t> readers_left;
};
inline constexpr int kAnnouncements = 32;

class Domain {
 public:
  virtual ~Domain() = default;

  // This rank's number among the ranks of the domain, and how many there are.
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;

  // The place of memory that all ranks reach; nothing where they do not.
  std::optional<Place> PlaceOf(const void* memory, int64_t bytes) const {
    const auto address = reinterpret_cast<uintptr_t>(memory);
    if (address < base_ || address >= end_ ||
        static_cast<uint64_t>(bytes) > end_ - address) {
      return std::nullopt;
    }
    return address - base_;
  }
  // The same for a user's buffer, which the domain may be told to leave alone.
  std::optional<Place> UserPlaceOf(const void* memory, int64_t bytes) const {
    if (!reaches_user_memory_) return std::nullopt;
    return PlaceOf(memory, bytes);
  }
  std::byte* At(Place place) const {
    return reinterpret_cast<std::byte*>(base_ + place);
  }

  // Zeroed memory that all ranks reach, aligned to 64 bytes, and its return. A
  // rank returns what it allocated, once no rank uses it. Thread-safe.
  virtual absl::StatusOr<std::byte*> Allocate(int64_t bytes) = 0;
  virtual void Free(std::byte* memory) = 0;

  // Frees `memory`, and `block` where this rank allocated it, once every rank
  // of the block's group has left, for others may still read it: at once, or at
  // the next Reclaim. This rank has left. Thread-safe.
  void Retire(const GroupBlock& block, bool owns_block,
              std::vector<std::byte*> memory);

  // Frees what is retired and read by nobody any more. Thread-safe.
  void Reclaim();

  // The announcements of a rank of the domain.
  virtual Announcement* AnnouncementsOf(int64_t rank) = 0;

  // Whether the process of a rank has ended. Takes a system call.
  virtual bool IsDead(int64_t rank) = 0;

  // Whether every rank may read every other's memory; the same on all of them.
  virtual bool ReadsPeers() const { return false; }
  // Copies what is at `address` of a rank's process to `to`. Unavailable where
  // it is gone, or not as long as that. Only where ReadsPeers().
  virtual absl::Status ReadPeer(int64_t /*rank*/, uintptr_t /*address*/,
                                std::byte* /*to*/, int64_t /*bytes*/) {
    return absl::UnimplementedError("ranks do not read each other's memory");
  }

  // Host and process of a rank, for messages.
  virtual std::string HostOf(int64_t rank) const = 0;
  virtual int64_t PidOf(int64_t rank) const = 0;

  // Processors that the ranks of this domain may use at once; the same on all
  // of them.
  virtual int64_t processors() const = 0;

 private:
  // What a rank had in a group that it has left.
  struct Retired {
    GroupBlock block;
    bool owns_block = false;
    bool released = false;  // The memory is freed; the block is not yet.
    std::vector<std::byte*> memory;
  };
  bool TryFree(Retired& retired);

  std::mutex retired_mutex_;
  std::vector<Retired> retired_;

 protected:
  uintptr_t base_ = 0;
  uintptr_t end_ = 0;
  bool reaches_user_memory_ = true;
};

}  // namespace tessera::collectives::direct

#endif  // TESSERA_COLLECTIVES_HOST_MEMORY_DOMAIN_H_
