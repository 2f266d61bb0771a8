#include "tools/train/report/event_file.h"

#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

// A reader of the format that shares nothing with the writer: checksums bit by
// bit, fields of any number.

uint32_t BitwiseCrc32c(std::string_view bytes) {
  uint32_t crc = ~0U;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) {
      crc = crc & 1 ? crc >> 1 ^ 0x82F63B78U : crc >> 1;
    }
  }
  return ~crc;
}

uint64_t Number(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  }
  return value;
}

bool ChecksumFits(std::string_view data, std::string_view checksum) {
  const auto unmasked =
      static_cast<uint32_t>(Number(checksum)) - uint32_t{0xA282EAD8};
  return (unmasked >> 17 | unmasked << 15) == BitwiseCrc32c(data);
}

// The data of the records; nullopt if a length or a checksum is wrong.
std::optional<std::vector<std::string>> RecordsIn(std::string_view file) {
  std::vector<std::string> records;
  while (!file.empty()) {
    if (file.size() < 16 || !ChecksumFits(file.substr(0, 8), file.substr(8, 4)))
      return std::nullopt;
    const uint64_t length = Number(file.substr(0, 8));
    if (file.size() - 16 < length) return std::nullopt;
    const std::string_view data = file.substr(12, length);
    if (!ChecksumFits(data, file.substr(12 + length, 4))) return std::nullopt;
    records.emplace_back(data);
    file.remove_prefix(16 + length);
  }
  return records;
}

struct Field {
  uint64_t number = 0;
  uint64_t value = 0;      // Of numbers.
  std::string bytes = {};  // Of texts and messages.
};

std::vector<Field> FieldsOf(std::string_view message) {
  std::vector<Field> fields;
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0; !message.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(message[0]);
      message.remove_prefix(1);
      value |= uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) break;
    }
    return value;
  };
  while (!message.empty()) {
    const uint64_t key = varint();
    Field field = {.number = key >> 3};
    size_t width = key % 8 == 1 ? 8 : key % 8 == 5 ? 4 : 0;
    if (key % 8 == 0) {
      field.value = varint();
    } else if (key % 8 == 2) {
      width = varint();
      EXPECT_LE(width, message.size());
      field.bytes = std::string(message.substr(0, width));
    } else {
      EXPECT_TRUE(width > 0 && width <= message.size()) << key;
      field.value = Number(message.substr(0, width));
    }
    message.remove_prefix(std::min(width, message.size()));
    fields.push_back(field);
  }
  return fields;
}

struct ReadEvent {
  double seconds = 0;
  int64_t step = 0;
  std::string version = {};
  std::optional<uint64_t> status = {};
  std::map<std::string, float> scalars = {};
};

ReadEvent ReadEventOf(std::string_view data) {
  ReadEvent event;
  for (const Field& field : FieldsOf(data)) {
    if (field.number == 1) event.seconds = std::bit_cast<double>(field.value);
    if (field.number == 2) event.step = static_cast<int64_t>(field.value);
    if (field.number == 3) event.version = field.bytes;
    if (field.number == 7) event.status = FieldsOf(field.bytes).at(0).value;
    if (field.number != 5) continue;
    for (const Field& value : FieldsOf(field.bytes)) {
      const auto parts = FieldsOf(value.bytes);
      EXPECT_EQ(value.number, 1u);
      EXPECT_EQ(parts.size(), 2u);
      event.scalars[parts[0].bytes] =
          std::bit_cast<float>(static_cast<uint32_t>(parts[1].value));
    }
  }
  return event;
}

std::vector<ReadEvent> EventsIn(const std::string& path) {
  const std::string file = ReadFile(path, 1 << 20).value_or("?");
  std::vector<ReadEvent> events;
  const auto records = RecordsIn(file);
  EXPECT_TRUE(records.has_value());
  for (const std::string& record :
       records.value_or(std::vector<std::string>())) {
    events.push_back(ReadEventOf(record));
  }
  return events;
}

std::string NewDirectory(std::string_view name) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/", name);
  std::filesystem::remove_all(path);
  return path;
}

StepMetrics StepAt(int64_t step) {
  return {.record = {.step = step,
                     .loss = 3.25,
                     .gradient_norm = std::numeric_limits<double>::infinity(),
                     .learning_rate = 0.125},
          .tokens_per_second = 9000,
          .memory_bytes = 1 << 20,
          .shares = {.compute = 0.5,
                     .communication = 0.25,
                     .bubble = 0.125,
                     .offload = 0.125}};
}

TEST(EventRecordTest, TheReaderChecksChecksums) {
  EXPECT_EQ(BitwiseCrc32c("123456789"), 0xE3069283U);  // RFC 3720.
  std::mt19937_64 random(1);
  for (const size_t size : {0u, 1u, 5u, 300u}) {
    std::string data(size, ' ');
    for (char& c : data) c = static_cast<char>(random());
    std::string record = EventRecord(data);
    EXPECT_EQ(record.size(), size + 16);
    ASSERT_TRUE(RecordsIn(record).has_value());
    EXPECT_THAT(*RecordsIn(record), ElementsAre(data));
    for (char& c : record) {
      c ^= 4;
      EXPECT_FALSE(RecordsIn(record).has_value());
      c ^= 4;
    }
  }
}

TEST(EventMessageTest, KeepsNumbersOfEverySize) {
  for (const int64_t step :
       {int64_t{0}, int64_t{1}, int64_t{127}, int64_t{128}, int64_t{1} << 35,
        std::numeric_limits<int64_t>::max(), int64_t{-1}}) {
    EXPECT_EQ(ReadEventOf(StartEvent(1.5, step)).step, step);
    EXPECT_EQ(ReadEventOf(ScalarEvent(1.5, step, {})).step, step);
  }
  const ReadEvent start = ReadEventOf(StartEvent(1e9 + 0.25, 7));
  EXPECT_EQ(start.seconds, 1e9 + 0.25);
  EXPECT_EQ(start.status, 1u);
  EXPECT_EQ(ReadEventOf(VersionEvent(0)).version, "brain.Event:2");
  const std::string tag(200, 't');
  const EventScalar scalars[] = {{tag, -0.5F}, {"", 3e38F}};
  EXPECT_THAT(ReadEventOf(ScalarEvent(0, 1, scalars)).scalars,
              UnorderedElementsAre(Pair(tag, -0.5F), Pair("", 3e38F)));
  const EventScalar nan[] = {{"x", std::nanf("")}};
  EXPECT_TRUE(std::isnan(ReadEventOf(ScalarEvent(0, 1, nan)).scalars["x"]));
}

TEST(EventFileTest, EveryStepIsAnEventAtOnce) {
  const std::string directory = NewDirectory("deep/events");
  const absl::Time now = absl::FromUnixMillis(1'700'000'000'500);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto file, EventFile::Create(directory, 0, [&] { return now; }));
  EXPECT_THAT(file->path(), HasSubstr("/events.out.tfevents.1700000000."));
  EXPECT_EQ(EventsIn(file->path()).size(), 2u);
  TESSERA_EXPECT_OK(file->Add(StepAt(0)));
  StepMetrics validated = StepAt(1);
  validated.record.eval_loss = 2.5;
  validated.record.expert_imbalance = 1.25;
  validated.record.max_attention_score = 75;
  TESSERA_EXPECT_OK(file->Add(validated));
  const std::vector<ReadEvent> events = EventsIn(file->path());
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_EQ(events[1].status, 1u);
  EXPECT_EQ(events[1].step, 0);
  EXPECT_EQ(events[2].seconds, 1'700'000'000.5);
  EXPECT_EQ(events[2].step, 0);
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_THAT(
      events[2].scalars,
      UnorderedElementsAre(
          Pair("loss", 3.25F), Pair("grad_norm", infinity), Pair("lr", 0.125F),
          Pair("tokens_per_second", 9000.0F), Pair("memory_bytes", 1048576.0F),
          Pair("compute", 0.5F), Pair("communication", 0.25F),
          Pair("bubble", 0.125F), Pair("offload", 0.125F)));
  EXPECT_EQ(events[3].step, 1);
  EXPECT_EQ(events[3].scalars.at("eval_loss"), 2.5F);
  EXPECT_EQ(events[3].scalars.at("expert_imbalance"), 1.25F);
  EXPECT_EQ(events[3].scalars.at("max_attention_score"), 75.0F);
  EXPECT_EQ(events[3].scalars.size(), 12u);
}

TEST(EventFileTest, AResumedRunHasALaterFileThatDropsTheStepsThatItRepeats) {
  const std::string directory = NewDirectory("resumed");
  // Clocks may stand still or run backwards between runs.
  absl::Time now = absl::FromUnixSeconds(1'700'000'000);
  std::vector<std::string> names;
  for (const int64_t first_step : {0, 4, 2}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const auto file,
        EventFile::Create(directory, first_step, [&] { return now; }));
    const auto events = EventsIn(file->path());
    ASSERT_EQ(events.size(), 2u);
    EXPECT_EQ(events[1].step, first_step);
    EXPECT_EQ(events[1].status, 1u);
    if (!names.empty()) {
      EXPECT_GT(file->path(), names.back());
    }
    names.push_back(file->path());
    now -= absl::Seconds(5);
  }
  // Files of others do not matter.
  TESSERA_ASSERT_OK(WriteFile(directory + "/events.out.tfevents.x", ""));
  TESSERA_ASSERT_OK(WriteFile(directory + "/notes", ""));
  TESSERA_EXPECT_OK(EventFile::Create(directory, 0).status());
}

TEST(EventFileTest, NamesTheFlagIfTheDirectoryCannotBeWritten) {
  const std::string file = absl::StrCat(::testing::TempDir(), "/plain");
  TESSERA_ASSERT_OK(WriteFile(file, ""));
  for (const std::string& path : {file, file + "/below"}) {
    const absl::Status status = EventFile::Create(path, 0).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("--tensorboard: " + path));
  }
}

}  // namespace
}  // namespace tessera::train
