// The conformance suite on threads connected by TCP over loopback.
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "collectives/bootstrap/in_process_store.h"
#include "collectives/gloo/gloo_engine.h"
#include "collectives/testing/conformance_suite.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

// The engines of a world are created together.
absl::StatusOr<std::vector<std::unique_ptr<Engine>>> GlooEngines(
    const std::vector<std::unique_ptr<Store>>& stores,
    const GlooOptions& options) {
  std::vector<absl::StatusOr<std::unique_ptr<Engine>>> created(stores.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < created.size(); ++r) {
    threads.emplace_back(
        [&, r] { created[r] = CreateGlooEngine(*stores[r], options); });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::unique_ptr<Engine>> engines;
  for (auto& engine : created) {
    TESSERA_ASSIGN_OR_RETURN(engines.emplace_back(), std::move(engine));
  }
  return engines;
}

EngineUnderTest Gloo(const std::string& name, bool encrypt) {
  EngineUnderTest engine;
  engine.name = name;
  engine.run = [encrypt](int64_t ranks, const RankBody& body,
                         const CommunicatorOptions& options) {
    const auto stores = MakeInProcessStores(ranks);
    if (!stores.ok()) return std::vector{stores.status()};
    return RunRanksOn(GlooEngines(*stores, {.encrypt = encrypt}), body,
                      options);
  };
  engine.most_ranks = 5;
  engine.largest_count = 20'011;
  engine.random_operations = 100;
  engine.keep_one_case_in = 100;
  return engine;
}

INSTANTIATE_TEST_SUITE_P(Threads, ConformanceTest,
                         ::testing::Values(Gloo("Gloo", false),
                                           Gloo("Encrypted", true)),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace tessera::collectives
