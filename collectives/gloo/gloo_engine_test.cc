// Ranks are threads connected by TCP over loopback.
#include "collectives/gloo/gloo_engine.h"

#include <csignal>
#include <functional>
#include <latch>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/bootstrap/in_process_store.h"
#include "collectives/engine/engine_registry.h"
#include "collectives/testing/engine_checks.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Runs the body on every rank of a world.
void OnRanks(int64_t ranks, const std::function<void(Engine&)>& body,
             const GlooOptions& options = {}) {
  TESSERA_ASSERT_OK_AND_ASSIGN(auto stores, MakeInProcessStores(ranks));
  std::vector<std::thread> threads;
  for (int64_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      Store& store = *stores[static_cast<size_t>(r)];
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto engine,
                                   CreateGlooEngine(store, options));
      body(*engine);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The parameter is GlooOptions::encrypt.
class GlooTest : public ::testing::TestWithParam<bool> {
 protected:
  const GlooOptions options_ = {.encrypt = GetParam()};
};

INSTANTIATE_TEST_SUITE_P(All, GlooTest, ::testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "Encrypted" : "Clear";
                         });

TEST_P(GlooTest, CollectivesOnWorldsOfEverySize) {
  for (int64_t ranks = 1; ranks <= 5; ++ranks) {
    OnRanks(
        ranks,
        [](Engine& engine) {
          CheckCollectives(engine,
                           {.counts = {0, 1, 77}, .large_counts = {20'001}});
        },
        options_);
  }
}

TEST_P(GlooTest, MessagesOnWorldsOfEverySize) {
  for (int64_t ranks = 1; ranks <= 5; ++ranks) {
    OnRanks(
        ranks, [](Engine& engine) { CheckMessages(engine); }, options_);
  }
}

TEST(GlooEngineTest, CheckedCallsGiveTheSame) {
  GlooOptions options;
  options.check_signatures = true;
  OnRanks(
      3,
      [](Engine& engine) {
        CheckCollectives(engine, {.counts = {0, 7}, .large_counts = {}});
      },
      options);
}

TEST_P(GlooTest, SubgroupsHaveTheirOwnRanksAndTraffic) {
  const auto check = [](Engine& engine) {
    const bool odd = engine.rank().value() % 2 == 1;
    const std::vector<Rank> members = odd ? std::vector<Rank>{Rank(3), Rank(1)}
                                          : std::vector<Rank>{Rank(0), Rank(2)};
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const auto part,
        engine.CreateSubgroup(members, 7, MonotonicNanos() + 30'000'000'000));
    EXPECT_EQ(part->size(), 2);
    EXPECT_EQ(members[static_cast<size_t>(part->rank().value())],
              engine.rank());
    CheckCollectives(*part, {.counts = {7}, .large_counts = {}});
    // A group of a group, and a group of one rank.
    const std::vector<Rank> alone = {part->rank()};
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const auto one,
        part->CreateSubgroup(alone, 8, MonotonicNanos() + 30'000'000'000));
    CheckMessages(*one);
    ASSERT_THAT(Caller(engine).Run(BarrierOf()), IsOk());
  };
  OnRanks(4, check, options_);
}

TEST(GlooEngineTest, NamesSeparateWorldsOfOneStore) {
  TESSERA_ASSERT_OK_AND_ASSIGN(auto stores, MakeInProcessStores(2));
  std::vector<std::thread> threads;
  for (const auto& store : stores) {
    threads.emplace_back([&store] {
      GlooOptions options;
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto a,
                                   CreateGlooEngine(*store, options));
      options.name = "second";
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto b,
                                   CreateGlooEngine(*store, options));
      EXPECT_THAT(Caller(*b).Run(BarrierOf()), IsOk());
      EXPECT_THAT(Caller(*a).Run(BarrierOf()), IsOk());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(GlooEngineTest, MessagesRunConcurrentlyWithCollectives) {
  OnRanks(3, [](Engine& engine) {
    std::thread beside([&engine] { CheckMessages(engine); });
    Caller caller(engine);
    for (int i = 0; i < 200; ++i) ASSERT_THAT(caller.Run(BarrierOf()), IsOk());
    beside.join();
  });
}

TEST_P(GlooTest, LateRankTimesOutAtDeadline) {
  for (const bool collective : {false, true}) {
    OnRanks(
        3, [collective](Engine& engine) { CheckLateRank(engine, collective); },
        options_);
  }
}

TEST_P(GlooTest, AbortUnblocksEveryRank) {
  for (const bool collective : {false, true}) {
    OnRanks(
        3,
        [collective](Engine& engine) {
          CheckAbort(engine, collective, /*reaches_peers=*/true);
        },
        options_);
  }
}

// Rank 1 has lost its connection to rank 0 when it aborts, but not that to rank
// 2, which waits for it. The ranks stay until rank 2 has noticed.
TEST(GlooEngineTest, SecondAbortUnblocksTheOtherRanks) {
  std::latch noticed(1);
  OnRanks(3, [&](Engine& engine) {
    const int64_t rank = engine.rank().value();
    if (rank > 0) {
      std::vector<std::byte> bytes(1);
      Scratch scratch;
      const Signature signature = Caller::MessageSignature(1, 1);
      OperationContext context(signature, DeadlineAfter(absl::Seconds(20)),
                               scratch);
      const auto request = engine.transport()->StartReceive(
          Rank(rank - 1), Lane::kCollective, signature, bytes);
      ASSERT_THAT(request, IsOk());
      EXPECT_THAT(engine.transport()->Wait({&*request, 1}, context),
                  StatusIs(absl::StatusCode::kUnavailable, HasSubstr("lost")));
    }
    if (rank == 2) noticed.count_down();
    engine.Abort(absl::AbortedError("test"));
    noticed.wait();
  });
}

TEST_P(GlooTest, MismatchErrorShowsBothSides) {
  GlooOptions options = options_;
  options.check_signatures = true;
  for (const bool collective : {false, true}) {
    // With algorithms over messages a rank may first see that its neighbour,
    // which got another call's message, closes the connection.
    if (collective && options.encrypt) continue;
    OnRanks(
        3, [collective](Engine& engine) { CheckMismatch(engine, collective); },
        options);
  }
}

// A message longer than expected that exceeds one frame.
TEST_P(GlooTest, SizeMismatchErrorShowsBothSizes) {
  const auto check = [](Engine& engine) {
    std::vector<std::byte> bytes(engine.rank() == Rank(0) ? 90'000 : 80'000);
    Scratch scratch;
    const Signature signature = Caller::MessageSignature(1, 1);
    OperationContext context(signature, Caller(engine).Deadline(), scratch);
    context.Enter(Phase::kReceiving);
    const auto request =
        engine.rank() == Rank(0)
            ? engine.transport()->StartSend(Rank(1), Lane::kCollective,
                                            signature, bytes)
            : engine.transport()->StartReceive(Rank(0), Lane::kCollective,
                                               signature, bytes);
    ASSERT_THAT(request, IsOk());
    const absl::Status status =
        engine.transport()->Wait({&*request, 1}, context);
    if (engine.rank() == Rank(1)) {
      EXPECT_THAT(status,
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           AllOf(HasSubstr("90000"), HasSubstr("80000"))));
    } else {
      EXPECT_FALSE(status.ok());
    }
    engine.Abort(absl::AbortedError("done"));
  };
  OnRanks(2, check, options_);
}

TEST_P(GlooTest, DetectsDepartedRankImmediately) {
  const auto check = [](Engine& engine) {
    ASSERT_THAT(Caller(engine).Run(BarrierOf()), IsOk());
    if (engine.rank() == Rank(2)) return;  // Its connections close.
    const int64_t begin = MonotonicNanos();
    const absl::Status status = Caller(engine).Run(BarrierOf());
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_LT(MonotonicNanos() - begin, int64_t{10'000'000'000});
    engine.Abort(status);
  };
  OnRanks(3, check, options_);
}

// Payloads of one piece and of several, with and without a rest.
TEST(GlooEngineTest, EncryptedMessagesOfSeveralPieces) {
  const auto check = [](Engine& engine) {
    for (const int64_t bytes : {4096, 4097, 262'144, 262'145, 1'000'003}) {
      std::vector<std::byte> out(static_cast<size_t>(bytes));
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] = static_cast<std::byte>(i % 251);
      }
      std::vector<std::byte> in(out.size());
      Scratch scratch;
      const Signature signature = Caller::MessageSignature(1, bytes);
      OperationContext context(signature, Caller(engine).Deadline(), scratch);
      Transport& transport = *engine.transport();
      const Rank peer(1 - engine.rank().value());
      std::vector<Request> requests;
      for (int i = 0; i < 3; ++i) {
        TESSERA_ASSERT_OK_AND_ASSIGN(
            requests.emplace_back(),
            transport.StartReceive(peer, Lane::kCollective, signature, in));
        TESSERA_ASSERT_OK_AND_ASSIGN(
            requests.emplace_back(),
            transport.StartSend(peer, Lane::kCollective, signature, out));
        ASSERT_THAT(transport.Wait(requests, context), IsOk());
        EXPECT_EQ(in, out);
        std::fill(in.begin(), in.end(), std::byte{0});
        requests.clear();
      }
    }
  };
  OnRanks(2, check, {.encrypt = true});
}

TEST(GlooEngineTest, EncryptsOnAllRanksOrOnNone) {
  TESSERA_ASSERT_OK_AND_ASSIGN(auto stores, MakeInProcessStores(2));
  std::vector<std::thread> threads;
  for (const auto& store : stores) {
    threads.emplace_back([&store] {
      const GlooOptions options = {.encrypt = store->rank() == Rank(1)};
      EXPECT_THAT(
          CreateGlooEngine(*store, options),
          StatusIs(absl::StatusCode::kFailedPrecondition,
                   AllOf(HasSubstr("rank 1 (host "),
                         HasSubstr(") encrypts its messages and rank 0"),
                         HasSubstr("on all ranks or on none"))));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(GlooEngineTest, BrokenConnectionsDoNotEndTheProcess) {
  std::signal(SIGPIPE, SIG_DFL);
  OnRanks(1, [](Engine&) { EXPECT_EQ(raise(SIGPIPE), 0); });
}

TEST(GlooEngineTest, CreateNamesMissingRank) {
  TESSERA_ASSERT_OK_AND_ASSIGN(auto stores, MakeInProcessStores(2));
  GlooOptions options;
  options.timeout = absl::Milliseconds(100);
  EXPECT_THAT(
      CreateGlooEngine(*stores[0], options),
      StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 1")));
}

TEST(GlooEngineTest, RejectsInvalidOptions) {
  TESSERA_ASSERT_OK_AND_ASSIGN(auto stores, MakeInProcessStores(1));
  GlooOptions options;
  options.interface = "nosuch0";
  EXPECT_THAT(CreateGlooEngine(*stores[0], options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("no interface \"nosuch0\"")));
  options = {};
  options.timeout = absl::ZeroDuration();
  EXPECT_THAT(
      CreateGlooEngine(*stores[0], options),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("timeout is 0")));
  options = {};
  options.name = "";
  EXPECT_THAT(CreateGlooEngine(*stores[0], options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the name has 0 bytes")));
}

TEST(GlooEngineTest, IsCreatedByName) {
  EXPECT_THAT(
      CreateEngine("gloo", {}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("needs a store")));
  TESSERA_ASSERT_OK_AND_ASSIGN(auto stores, MakeInProcessStores(1));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto engine,
      CreateEngine("gloo", {.store = stores[0].get(),
                            .options = {{"check_signatures", "true"}}}));
  EXPECT_THAT(Caller(*engine).Run(BarrierOf()), IsOk());
}

TEST(GlooEngineTest, ReportsPeers) {
  OnRanks(2, [](Engine& engine) {
    EXPECT_EQ(engine.name(), "gloo");
    EXPECT_FALSE(engine.Implements(OpKind::kReduceScatter));
    EXPECT_TRUE(engine.Implements(OpKind::kAllReduce));
    for (const PeerReport& peer : engine.Peers()) EXPECT_GT(peer.pid, 0);
    EXPECT_THAT(engine.AllocateShared(100), IsOk());
  });
}

}  // namespace
}  // namespace tessera::collectives
