// The conformance suite on hosts that are groups of threads, which share memory
// within a host and are connected by Gloo over loopback.
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/in_process_store.h"
#include "collectives/gloo/gloo_engine.h"
#include "collectives/in_process/in_process.h"
#include "collectives/testing/conformance_suite.h"
#include "collectives/two_level/two_level_engine.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using Engines = std::vector<std::unique_ptr<Engine>>;

// The engines of a world are created together.
absl::StatusOr<Engines> GlooEngines(
    const std::vector<std::unique_ptr<Store>>& stores, bool encrypt) {
  std::vector<absl::StatusOr<std::unique_ptr<Engine>>> created(stores.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < created.size(); ++r) {
    threads.emplace_back([&, r] {
      created[r] = CreateGlooEngine(*stores[r], {.encrypt = encrypt});
    });
  }
  for (std::thread& thread : threads) thread.join();
  Engines engines;
  for (auto& engine : created) {
    TESSERA_ASSIGN_OR_RETURN(engines.emplace_back(), std::move(engine));
  }
  return engines;
}

absl::StatusOr<Engines> TwoLevelEngines(
    const HostMap& map, const std::vector<std::unique_ptr<Store>>& stores,
    bool encrypt) {
  TESSERA_ASSIGN_OR_RETURN(Engines engines, GlooEngines(stores, encrypt));
  for (int64_t host = 0; host < map.hosts(); ++host) {
    const std::span<const Rank> ranks = map.ranks_of(host);
    TESSERA_ASSIGN_OR_RETURN(
        Engines within,
        CreateInProcessEngines(static_cast<int64_t>(ranks.size())));
    for (size_t i = 0; i < ranks.size(); ++i) {
      auto& engine = engines[static_cast<size_t>(ranks[i].value())];
      TESSERA_ASSIGN_OR_RETURN(
          engine, JoinEngines(map, std::move(within[i]), std::move(engine)));
    }
  }
  return engines;
}

using HostOfRank = std::function<int64_t(int64_t rank, int64_t ranks)>;

EngineUnderTest Hosts(const std::string& name, const HostOfRank& host_of,
                      bool encrypt = false) {
  EngineUnderTest engine;
  engine.name = name;
  engine.run = [host_of, encrypt](int64_t ranks, const RankBody& body,
                                  const CommunicatorOptions& options) {
    const auto stores = MakeInProcessStores(ranks);
    if (!stores.ok()) return std::vector{stores.status()};
    std::vector<std::string> hosts;
    for (int64_t r = 0; r < ranks; ++r) {
      hosts.push_back(absl::StrCat("host", host_of(r, ranks)));
    }
    return RunRanksOn(
        TwoLevelEngines(HostMap(std::move(hosts)), *stores, encrypt), body,
        options);
  };
  engine.most_ranks = 6;
  engine.largest_count = 100'003;
  engine.random_operations = 100;
  engine.keep_one_case_in = 100;
  return engine;
}

INSTANTIATE_TEST_SUITE_P(
    Threads, ConformanceTest,
    ::testing::Values(
        Hosts("Pairs", [](int64_t r, int64_t) { return r / 2; }),
        Hosts(
            "Encrypted", [](int64_t r, int64_t) { return r / 2; }, true),
        Hosts("LastAlone", [](int64_t r, int64_t n) { return r + 1 == n; }),
        Hosts("FirstAlone", [](int64_t r, int64_t) { return r > 0; }),
        Hosts("Alternating", [](int64_t r, int64_t) { return r % 2; })),
    ::testing::PrintToStringParamName());

}  // namespace
}  // namespace tessera::collectives
