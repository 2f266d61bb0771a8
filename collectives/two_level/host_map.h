// HostMap: the hosts of a group's ranks.
#ifndef TESSERA_COLLECTIVES_TWO_LEVEL_HOST_MAP_H_
#define TESSERA_COLLECTIVES_TWO_LEVEL_HOST_MAP_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "topology/rank.h"

namespace tessera::collectives {

using topology::Rank;

// Hosts are numbered in the order of their first ranks. The ranks of a host are
// in the order of the group; the first one is the host's leader.
//
//   const HostMap map({"a", "a", "b", "a"});
//   map.host_of(Rank(3));   // 0: "a".
//   map.place_of(Rank(3));  // 2: the third rank on it.
class HostMap {
 public:
  // `names[r]` is the name of the host of rank r, different for each host.
  explicit HostMap(std::vector<std::string> names) : names_(std::move(names)) {
    std::map<std::string, int64_t> hosts;
    for (size_t r = 0; r < names_.size(); ++r) {
      const auto [found, is_new] =
          hosts.emplace(names_[r], static_cast<int64_t>(hosts.size()));
      if (is_new) ranks_.emplace_back();
      std::vector<Rank>& ranks = ranks_[static_cast<size_t>(found->second)];
      host_of_.push_back(found->second);
      place_of_.push_back(static_cast<int64_t>(ranks.size()));
      in_order_ = in_order_ && (r == 0 || host_of_[r] >= host_of_[r - 1]);
      ranks.push_back(Rank(static_cast<int64_t>(r)));
    }
  }

  // The map of a subgroup.
  HostMap Restrict(std::span<const Rank> members) const {
    std::vector<std::string> names;
    for (const Rank member : members) names.push_back(name_of(member));
    return HostMap(std::move(names));
  }

  int64_t size() const { return static_cast<int64_t>(host_of_.size()); }
  int64_t hosts() const { return static_cast<int64_t>(ranks_.size()); }
  int64_t host_of(Rank rank) const { return host_of_[Index(rank)]; }
  int64_t place_of(Rank rank) const { return place_of_[Index(rank)]; }
  const std::string& name_of(Rank rank) const { return names_[Index(rank)]; }
  std::span<const Rank> ranks_of(int64_t host) const {
    return ranks_[static_cast<size_t>(host)];
  }
  Rank leader_of(int64_t host) const { return ranks_of(host).front(); }
  // True if the ranks of every host are consecutive.
  bool in_order() const { return in_order_; }

 private:
  static size_t Index(Rank rank) { return static_cast<size_t>(rank.value()); }

  std::vector<std::string> names_;
  std::vector<int64_t> host_of_, place_of_;
  std::vector<std::vector<Rank>> ranks_;
  bool in_order_ = true;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_TWO_LEVEL_HOST_MAP_H_
