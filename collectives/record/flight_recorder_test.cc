#include "collectives/record/flight_recorder.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

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
  EXPECT_EQ(recent[2].end_ns, 0);  // Still running.
}

TEST(FlightRecorderTest, TotalsIncludeEvictedOperations) {
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

TEST(FlightRecorderTest, CountsRunsThatDidNotWait) {
  FlightRecorder recorder(4, 2);
  FlightRecorder::Runs* const runs = recorder.AddRuns();
  const OperationRecord before = Record(1, 8, 5);
  Finish(recorder, recorder.Begin(before), before, 6);
  constexpr int64_t kRuns = 2 * FlightRecorder::Runs::kRunsPerTime + 10;
  for (int64_t i = 0; i < kRuns; ++i) {
    const bool is_timed = i % FlightRecorder::Runs::kRunsPerTime == 0;
    EXPECT_EQ(runs->IsNextTimed(), is_timed) << i;
    OperationRecord record =
        Record(static_cast<uint64_t>(2 + i), 100, is_timed ? 10 + i : 0);
    if (is_timed) record.end_ns = record.begin_ns + 30 + i;
    recorder.Pass(*runs, record);
  }
  const OperationRecord after = Record(500, 8, 1000);
  static_cast<void>(recorder.Begin(after));

  const std::vector<OperationRecord> recent = recorder.Recent();
  ASSERT_EQ(recent.size(), 3u);  // In the order of their times.
  EXPECT_EQ(recent[0].runs, 1);
  EXPECT_EQ(recent[1].runs, kRuns);
  EXPECT_EQ(recent[1].signature.sequence, static_cast<uint64_t>(1 + kRuns));
  EXPECT_EQ(recent[2].end_ns, 0);
  const auto json = nlohmann::json::parse(
      RecordsToJson({}, recent, recorder.Statistics(), absl::OkStatus()));
  EXPECT_FALSE(json["operations"][0].contains("runs"));
  EXPECT_EQ(json["operations"][1]["runs"], kRuns);
  EXPECT_EQ(json["operations"][1]["status"], "OK");

  const auto check = [&] {
    const OperationTotals totals = Total(recorder.Statistics());
    EXPECT_EQ(totals.count, 1 + kRuns);
    EXPECT_EQ(totals.bytes, 8 + 100 * kRuns);
    // The timed runs took 30, 94 and 158 ns.
    EXPECT_EQ(totals.ns, 1 + 94 * kRuns);
    EXPECT_EQ(totals.shortest_ns, 1);
    EXPECT_EQ(totals.longest_ns, 158);
  };
  check();
  recorder.EndRuns(runs);
  check();
  EXPECT_EQ(recorder.Recent().size(), 2u);
}

TEST(OperationTotalsTest, MeanIsTotalOverCount) {
  FlightRecorder recorder(8, 4);
  int64_t ns = 0, bytes = 0;
  for (int64_t i = 1; i <= 7; ++i) {
    const OperationRecord record =
        Record(1, 100 * i, 0, i % 2 == 0 ? Algorithm::kRing : Algorithm::kTree);
    Finish(recorder, recorder.Begin(record), record, i * i);
    ns += i * i;
    bytes += 100 * i;
  }
  const OperationTotals total = Total(recorder.Statistics());
  EXPECT_EQ(total.count, 7);
  EXPECT_EQ(total.bytes, bytes);
  EXPECT_EQ(total.busy_bytes, bytes * 3 / 2);
  EXPECT_EQ(total.largest_bytes, 700);
  EXPECT_EQ(total.shortest_ns, 1);
  EXPECT_EQ(total.longest_ns, 49);
  EXPECT_DOUBLE_EQ(total.MeanNanos(), static_cast<double>(ns) / 7);
  EXPECT_DOUBLE_EQ(total.AlgorithmBandwidth(),
                   static_cast<double>(bytes) / static_cast<double>(ns));
}

TEST(OperationTotalsTest, LaterOperationsAreTheDifference) {
  FlightRecorder recorder(8, 2);
  const OperationRecord record = Record(1, 10, 0);
  Finish(recorder, recorder.Begin(record), record, 5);
  const OperationTotals before = Total(recorder.Statistics());
  const OperationRecord next = Record(2, 4, 0);
  Finish(recorder, recorder.Begin(next), next, 7);
  Finish(recorder, recorder.Begin(next), next, 7, absl::StatusCode::kAborted);
  const OperationTotals later = Total(recorder.Statistics()).Since(before);
  EXPECT_EQ(later.count, 1);
  EXPECT_EQ(later.failed, 1);
  EXPECT_EQ(later.bytes, 4);
  EXPECT_EQ(later.busy_bytes, 4);
  EXPECT_EQ(later.MeanNanos(), 7);
  EXPECT_EQ(Total(recorder.Statistics()).Since({}).count, 2);
}

TEST(OperationTotalsTest, EmptyTableHasNoMeanAndNoBandwidth) {
  const OperationTotals total = Total(FlightRecorder(1, 2).Statistics());
  EXPECT_EQ(total.count, 0);
  EXPECT_EQ(total.MeanNanos(), 0);
  EXPECT_EQ(total.AlgorithmBandwidth(), 0);
  EXPECT_EQ(total.BusBandwidth(), 0);
}

TEST(OperationTotalsTest, FailedOperationsDoNotShortenTheShortest) {
  FlightRecorder recorder(8, 2);
  const OperationRecord record = Record(1, 8, 0);
  Finish(recorder, recorder.Begin(record), record, 5,
         absl::StatusCode::kAborted);
  Finish(recorder, recorder.Begin(record), record, 9);
  Finish(recorder, recorder.Begin(record), record, 2,
         absl::StatusCode::kAborted);
  const OperationTotals total = Total(recorder.Statistics());
  EXPECT_EQ(total.count, 1);
  EXPECT_EQ(total.failed, 2);
  EXPECT_EQ(total.shortest_ns, 9);
  EXPECT_EQ(total.ns, 9);
}

TEST(FlightRecorderTest, CountsDestroyedSubgroups) {
  const auto count = [](const StatisticsTable& table) {
    return Total(table).count;
  };
  const auto run = [](FlightRecorder& recorder) {
    const OperationRecord record = Record(1, 8, 0);
    Finish(recorder, recorder.Begin(record), record, 1);
  };
  auto whole = std::make_unique<FlightRecorder>(4, 4);
  auto half = std::make_unique<FlightRecorder>(4, 2, whole.get());
  auto other = std::make_unique<FlightRecorder>(4, 2, whole.get());
  auto quarter = std::make_unique<FlightRecorder>(4, 2, half.get());
  for (FlightRecorder* recorder :
       {whole.get(), half.get(), other.get(), quarter.get()}) {
    run(*recorder);
  }
  EXPECT_EQ(count(whole->Statistics()), 1);
  EXPECT_EQ(count(whole->StatisticsWithSubgroups()), 4);
  EXPECT_EQ(count(half->StatisticsWithSubgroups()), 2);
  EXPECT_EQ(count(other->StatisticsWithSubgroups()), 1);
  // Subgroups may outlive the group between.
  half.reset();
  run(*quarter);
  EXPECT_EQ(count(whole->StatisticsWithSubgroups()), 5);
  quarter.reset();
  EXPECT_EQ(count(whole->StatisticsWithSubgroups()), 5);
  whole.reset();
  run(*other);
  EXPECT_EQ(count(other->StatisticsWithSubgroups()), 2);
}

TEST(FlightRecorderTest, CountsAlgorithmsSeparately) {
  FlightRecorder recorder(8, 2);
  for (Algorithm algorithm : {Algorithm::kRing, Algorithm::kTree}) {
    const OperationRecord record = Record(1, 8, 0, algorithm);
    Finish(recorder, recorder.Begin(record), record, 5);
  }
  EXPECT_EQ(recorder.Statistics().size(), 2u);
}

TEST(FlightRecorderTest, ThreadsMayReadWhileSubgroupsComeAndGo) {
  FlightRecorder whole(16, 4);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        FlightRecorder part(2, 2, &whole);
        const OperationRecord record = Record(1, 1, 0);
        Finish(part, part.Begin(record), record, 1);
      }
    });
  }
  for (int64_t last = 0; last < 600;) {
    const int64_t now = Total(whole.StatisticsWithSubgroups()).count;
    ASSERT_GE(now, last);
    last = now;
  }
  for (std::thread& thread : threads) thread.join();
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

TEST(BusFactorTest, MatchesNcclTests) {
  EXPECT_DOUBLE_EQ(BusFactor(OpKind::kAllReduce, 8), 1.75);
  EXPECT_DOUBLE_EQ(BusFactor(OpKind::kAllGather, 4), 0.75);
  EXPECT_DOUBLE_EQ(BusFactor(OpKind::kBroadcast, 4), 1);
  EXPECT_DOUBLE_EQ(BusFactor(OpKind::kAllReduce, 1), 0);
}

std::vector<OperationRecord> SomeRecords() {
  OperationRecord done;
  done.kind = done.signature.kind = OpKind::kReduce;
  done.signature.sequence = 7;
  done.signature.count = 16;
  done.signature.root = 2;
  done.signature.dtype = DType::kBF16;
  done.signature.reduce = ReduceOp::kMax;
  done.bytes = 32;
  done.begin_ns = 5000;
  done.end_ns = 7500;
  OperationRecord running;
  running.kind = OpKind::kReceive;
  running.peer = 3;
  running.begin_ns = 8000;
  return {done, running};
}

const RecordedGroup kGroup{"tp_group", "shared_memory", 1, 4, 5};

TEST(DumpTest, JsonHoldsOperationsTotalsAndTheError) {
  FlightRecorder recorder(4, 4);
  for (const OperationRecord& record : SomeRecords()) {
    const uint64_t ticket = recorder.Begin(record);
    if (record.end_ns != 0) recorder.End(ticket, record);
  }
  const auto json = nlohmann::json::parse(
      RecordsToJson(kGroup, recorder.Recent(), recorder.Statistics(),
                    absl::UnavailableError("rank 3 is dead \xff")));
  EXPECT_EQ(json["group"], "tp_group");
  EXPECT_EQ(json["rank"], 1);
  EXPECT_EQ(json["error"]["code"], "UNAVAILABLE");
  ASSERT_EQ(json["operations"].size(), 2u);
  EXPECT_EQ(json["operations"][0]["operation"], "reduce");
  EXPECT_EQ(json["operations"][0]["root"], 2);
  EXPECT_EQ(json["operations"][0]["reduction"], "max");
  EXPECT_EQ(json["operations"][0]["status"], "OK");
  EXPECT_EQ(json["operations"][1]["status"], "RUNNING");
  EXPECT_TRUE(json["operations"][1]["end_ns"].is_null());
  EXPECT_EQ(json["operations"][1]["peer"], 3);
  ASSERT_EQ(json["statistics"].size(), 1u);
  EXPECT_EQ(json["statistics"][0]["bytes"], 32);
  EXPECT_EQ(json["statistics"][0]["ns"], 2500);
  EXPECT_EQ(json["statistics"][0]["mean_ns"], 2500);
}

TEST(DumpTest, NoErrorIsNull) {
  const auto json = nlohmann::json::parse(
      RecordsToJson(kGroup, {}, StatisticsTable(), absl::OkStatus()));
  EXPECT_TRUE(json["error"].is_null());
  EXPECT_TRUE(json["operations"].empty());
}

TEST(DumpTest, TraceHoldsTheEventsOfAllTexts) {
  const auto trace = nlohmann::json::parse(TraceOf(std::vector<std::string>{
      R"({"name": "a", "pid": 5},{"name": "b"})", "", R"({"name": "c"})"}));
  ASSERT_EQ(trace["traceEvents"].size(), 3u);
  EXPECT_EQ(trace["traceEvents"][0]["pid"], 5);
  EXPECT_EQ(trace["traceEvents"][2]["name"], "c");
}

}  // namespace

}  // namespace tessera::collectives
