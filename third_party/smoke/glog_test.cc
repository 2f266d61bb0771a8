// glog links and writes where it is told to.

#include <glog/logging.h>

#include <string>

#include "gtest/gtest.h"

namespace {

class RecordingSink : public google::LogSink {
 public:
  void send(google::LogSeverity severity, const char*, const char*, int,
            const google::LogMessageTime&, const char* message,
            size_t length) override {
    severity_ = severity;
    message_.assign(message, length);
  }

  google::LogSeverity severity_ = -1;
  std::string message_;
};

TEST(GlogTest, MessagesReachASink) {
  RecordingSink sink;
  LOG_TO_SINK_BUT_NOT_TO_LOGFILE(&sink, WARNING) << "rank " << 3 << " is late";
  EXPECT_EQ(sink.severity_, google::GLOG_WARNING);
  EXPECT_EQ(sink.message_, "rank 3 is late");
}

}  // namespace
