#include <string>
#include <vector>

#include "collectives/record/flight_recorder.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tessera::collectives {
namespace {

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
}

TEST(DumpTest, NoErrorIsNull) {
  const auto json = nlohmann::json::parse(
      RecordsToJson(kGroup, {}, StatisticsTable(), absl::OkStatus()));
  EXPECT_TRUE(json["error"].is_null());
  EXPECT_TRUE(json["operations"].empty());
}

TEST(DumpTest, TraceHoldsFinishedOperationsOfAllRanks) {
  RecordedGroup other = kGroup;
  other.world_rank = 6;
  const std::vector<OperationRecord> records = SomeRecords();
  const auto trace = nlohmann::json::parse(TraceOf(std::vector<std::string>{
      RecordsToTraceEvents(kGroup, records), RecordsToTraceEvents(kGroup, {}),
      RecordsToTraceEvents(other, records)}));
  ASSERT_EQ(trace["traceEvents"].size(), 2u);
  const auto& event = trace["traceEvents"][0];
  EXPECT_EQ(event["name"], "reduce");
  EXPECT_EQ(event["ph"], "X");
  EXPECT_DOUBLE_EQ(event["ts"], 5.0);
  EXPECT_DOUBLE_EQ(event["dur"], 2.5);
  EXPECT_EQ(event["pid"], 5);
  EXPECT_EQ(event["tid"], "tp_group");
  EXPECT_EQ(trace["traceEvents"][1]["pid"], 6);
}

}  // namespace
}  // namespace tessera::collectives
