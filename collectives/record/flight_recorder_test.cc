#include "collectives/record/flight_recorder.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

OperationRecord Record(uint64_t sequence, int64_t bytes, int64_t begin_ns,
                       Algorithm algorithm = Algorithm::kRing) {
  OperationRecord record;
  record.signature.sequence = sequence;
  record.signature.algorithm = algorithm;
  record.kind = record.signature.kind = OpKind::kAllReduce;
  record.bytes = bytes;
  record.begin_ns = begin_ns;
  return record;
}

void Finish(FlightRecorder& recorder, uint64_t ticket, OperationRecord record,
            int64_t end_ns, absl::StatusCode code = absl::StatusCode::kOk) {
  record.end_ns = end_ns;
  record.code = code;
  recorder.End(ticket, record);
}

TEST(FlightRecorderTest, KeepsTheLastOperationsOldestFirst) {
  FlightRecorder recorder(3, 4);
  EXPECT_TRUE(recorder.Recent().empty());
  for (uint64_t i = 1; i <= 5; ++i) {
    const OperationRecord record = Record(i, 8, static_cast<int64_t>(i));
    const uint64_t ticket = recorder.Begin(record);
    if (i < 5) Finish(recorder, ticket, record, 100);
  }
  const std::vector<OperationRecord> recent = recorder.Recent();
  ASSERT_EQ(recent.size(), 3u);
  EXPECT_EQ(recent[0].signature.sequence, 3u);
  EXPECT_EQ(recent[2].signature.sequence, 5u);
  EXPECT_EQ(recent[1].end_ns, 100);
  EXPECT_EQ(recent[2].end_ns, 0);  // Still runs.
}

TEST(FlightRecorderTest, TotalsCountEveryOperationAlsoForgottenOnes) {
  FlightRecorder recorder(1, 4);
  const OperationRecord first = Record(1, 1000, 0);
  const uint64_t ticket = recorder.Begin(first);
  const OperationRecord second = Record(2, 3000, 10);
  const uint64_t other = recorder.Begin(second);
  Finish(recorder, other, second, 30);
  Finish(recorder, ticket, first, 60);
  const OperationRecord bad = Record(3, 500, 0);
  Finish(recorder, recorder.Begin(bad), bad, 9,
         absl::StatusCode::kDeadlineExceeded);
  const StatisticsTable table = recorder.Statistics();
  ASSERT_EQ(table.size(), 1u);
  const OperationTotals& totals =
      table.at({OpKind::kAllReduce, Algorithm::kRing});
  EXPECT_EQ(totals.count, 2);
  EXPECT_EQ(totals.failed, 1);
  EXPECT_EQ(totals.bytes, 4000);
  EXPECT_EQ(totals.ns, 80);
  EXPECT_EQ(totals.shortest_ns, 20);
  EXPECT_EQ(totals.longest_ns, 60);
  EXPECT_DOUBLE_EQ(totals.AlgorithmBandwidth(), 50);
  EXPECT_DOUBLE_EQ(totals.BusBandwidth(), 75);  // 2 * 3 / 4 of it.
}

TEST(FlightRecorderTest, AlgorithmsAreCountedApart) {
  FlightRecorder recorder(8, 2);
  for (Algorithm algorithm : {Algorithm::kRing, Algorithm::kTree}) {
    const OperationRecord record = Record(1, 8, 0, algorithm);
    Finish(recorder, recorder.Begin(record), record, 5);
  }
  EXPECT_EQ(recorder.Statistics().size(), 2u);
}

TEST(FlightRecorderTest, ThreadsMayRecordAtOnce) {
  FlightRecorder recorder(16, 2);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (uint64_t i = 1; i <= 1000; ++i) {
        const OperationRecord record = Record(i, 1, 0);
        Finish(recorder, recorder.Begin(record), record, 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(
      recorder.Statistics().at({OpKind::kAllReduce, Algorithm::kRing}).count,
      4000);
  EXPECT_EQ(recorder.Recent().size(), 16u);
}

TEST(BusFactorTest, IsThatOfNcclTests) {
  EXPECT_DOUBLE_EQ(BusFactor(OpKind::kAllReduce, 8), 1.75);
  EXPECT_DOUBLE_EQ(BusFactor(OpKind::kAllGather, 4), 0.75);
  EXPECT_DOUBLE_EQ(BusFactor(OpKind::kBroadcast, 4), 1);
  EXPECT_DOUBLE_EQ(BusFactor(OpKind::kAllReduce, 1), 0);
}

}  // namespace
}  // namespace tessera::collectives
