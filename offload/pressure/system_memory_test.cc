// Recorded trees: cgroup version 2, cgroup version 1, a container.
#include "offload/pressure/system_memory.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::offload {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kMiB = int64_t{1} << 20;

class Tree {
 public:
  Tree() {
    static int count = 0;
    root_ = testing::TempDir() + "/tree" + std::to_string(getpid()) + "." +
            std::to_string(count++);
    Write("/proc/self/statm", "1000 500 10 5 0 700 0\n");
    Write("/proc/self/limits",
          "Max data size unlimited unlimited bytes\n"
          "Max address space unlimited unlimited bytes\n");
    Write("/proc/meminfo",
          "MemTotal: 1048576 kB\nMemFree: 1 kB\nMemAvailable: 786432 kB\n");
  }
  ~Tree() { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(
        std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  MemoryReading Read() { return *SystemMemory(root_, 4096).Read(); }
  const std::string& root() const { return root_; }

 private:
  std::string root_;
};

std::vector<std::string> Sources(const MemoryReading& reading) {
  std::vector<std::string> sources;
  for (const MemoryLimit& limit : reading.limits) {
    sources.push_back(limit.source);
  }
  return sources;
}

TEST(SystemMemoryTest, ReadsTheMachineAndTheProcess) {
  Tree tree;
  const MemoryReading reading = tree.Read();
  EXPECT_THAT(Sources(reading), ElementsAre("machine"));
  EXPECT_EQ(reading.limits[0].limit, 1024 * kMiB);
  EXPECT_EQ(reading.limits[0].used, 256 * kMiB);
  EXPECT_EQ(reading.pressure(), 0.25);
  EXPECT_EQ(reading.resident, 500 * 4096);
  EXPECT_FALSE(reading.stall.has_value());
  EXPECT_THAT(reading.unread, IsEmpty());
}

TEST(SystemMemoryTest, ReadsProcessLimits) {
  Tree tree;
  tree.Write("/proc/self/limits",
             "Max data size 4096000 unlimited bytes\n"
             "Max address space 8192000 unlimited bytes\n");
  const MemoryReading reading = tree.Read();
  EXPECT_THAT(Sources(reading),
              ElementsAre("machine", "RLIMIT_AS", "RLIMIT_DATA"));
  EXPECT_EQ(reading.tightest()->source, "RLIMIT_DATA");
  EXPECT_DOUBLE_EQ(reading.pressure(), 700.0 / 1000);
  EXPECT_DOUBLE_EQ(reading.limits[1].pressure(), 0.5);
}

void WriteV2(Tree& tree) {
  tree.Write("/proc/self/cgroup", "0::/jobs/train\n");
  tree.Write("/proc/self/mountinfo",
             "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 none rw\n");
  const std::string job = "/sys/fs/cgroup/jobs/train/";
  tree.Write(job + "memory.max", "104857600\n");
  tree.Write(job + "memory.high", "max\n");
  tree.Write(job + "memory.current", "94371840\n");
  tree.Write(job + "memory.stat",
             "anon 1\nfile 41943040\nactive_file 20971520\n"
             "inactive_file 20971520\nfile_dirty 1048576\n"
             "file_writeback 0\nslab_reclaimable 2097152\n");
  tree.Write(job + "memory.events",
             "low 0\nhigh 3\nmax 4\noom 1\noom_kill 2\n");
  tree.Write(job + "memory.pressure",
             "some avg10=30.00 avg60=0.00 avg300=0.00 total=1\n"
             "full avg10=4.00 avg60=0.00 avg300=0.00 total=1\n");
  tree.Write("/proc/pressure/memory",
             "some avg10=1.00 avg60=0.00 avg300=0.00 total=1\n");
}

TEST(SystemMemoryTest, ReadsVersionTwoWithoutReclaimableCache) {
  Tree tree;
  WriteV2(tree);
  const MemoryReading reading = tree.Read();
  ASSERT_THAT(
      Sources(reading),
      ElementsAre("machine", "cgroup /sys/fs/cgroup/jobs/train memory.max"));
  EXPECT_EQ(reading.limits[1].reclaimable, 41 * kMiB);
  EXPECT_EQ(reading.limits[1].used, 49 * kMiB);
  EXPECT_DOUBLE_EQ(reading.pressure(), 0.49);
  EXPECT_EQ(reading.stall, (PressureStall{30, 4}));
  EXPECT_EQ(reading.oom_kills, 2);
  EXPECT_EQ(reading.throttled, 7);
}

TEST(SystemMemoryTest, CountsParentGroupsAndMemoryHigh) {
  Tree tree;
  WriteV2(tree);
  tree.Write("/sys/fs/cgroup/jobs/train/memory.high", "52428800\n");
  tree.Write("/sys/fs/cgroup/jobs/memory.max", "209715200\n");
  tree.Write("/sys/fs/cgroup/jobs/memory.current", "207618048\n");
  const MemoryReading reading = tree.Read();
  EXPECT_THAT(
      Sources(reading),
      ElementsAre("machine", "cgroup /sys/fs/cgroup/jobs/train memory.high",
                  "cgroup /sys/fs/cgroup/jobs memory.max"));
  EXPECT_DOUBLE_EQ(reading.limits[1].pressure(), 0.98);
  EXPECT_EQ(reading.tightest()->source,
            "cgroup /sys/fs/cgroup/jobs memory.max");
}

TEST(SystemMemoryTest, ReadsVersionOne) {
  Tree tree;
  tree.Write("/proc/self/cgroup", "4:memory:/jobs\n0::/\n");
  tree.Write("/proc/self/mountinfo",
             "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup "
             "rw,memory\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 "
             "cgroup2 rw\n");
  const std::string top = "/sys/fs/cgroup/memory/";
  tree.Write(top + "memory.limit_in_bytes", "9223372036854771712\n");
  tree.Write(top + "memory.usage_in_bytes", "999999999\n");
  tree.Write(top + "jobs/memory.limit_in_bytes", "104857600\n");
  tree.Write(top + "jobs/memory.usage_in_bytes", "83886080\n");
  tree.Write(top + "jobs/memory.stat",
             "active_file 1\ntotal_active_file 8388608\n"
             "total_inactive_file 4194304\ntotal_dirty 2097152\n"
             "total_writeback 0\n");
  tree.Write("/proc/pressure/memory",
             "some avg10=1.00 avg60=0.00 avg300=0.00 total=1\n");
  const MemoryReading reading = tree.Read();
  ASSERT_THAT(
      Sources(reading),
      ElementsAre("machine",
                  "cgroup /sys/fs/cgroup/memory/jobs memory.limit_in_bytes"));
  EXPECT_EQ(reading.limits[1].used, 70 * kMiB);
  EXPECT_DOUBLE_EQ(reading.pressure(), 0.70);
  EXPECT_EQ(reading.stall, (PressureStall{1, 0}));
}

TEST(SystemMemoryTest, UsesMountAsRootInContainer) {
  for (const char* group :
       {"0::/docker/17/inner\n", "0::/../../else\n", "0::/elsewhere\n"}) {
    Tree tree;
    tree.Write("/proc/self/cgroup", group);
    tree.Write("/proc/self/mountinfo",
               "41 31 0:38 /docker/17 /sys/fs/cgroup rw - cgroup2 none rw\n");
    tree.Write("/sys/fs/cgroup/memory.max", "1000\n");
    tree.Write("/sys/fs/cgroup/memory.current", "999\n");
    const MemoryReading reading = tree.Read();
    EXPECT_EQ(reading.tightest()->source, "cgroup /sys/fs/cgroup memory.max")
        << group;
  }
}

TEST(SystemMemoryTest, ReportsUnreadableFiles) {
  Tree tree;
  WriteV2(tree);
  tree.Write("/sys/fs/cgroup/jobs/train/memory.max", "lots\n");
  const MemoryReading reading = tree.Read();
  EXPECT_THAT(Sources(reading), ElementsAre("machine"));
  EXPECT_THAT(reading.unread,
              ElementsAre(AllOf(HasSubstr("memory.max"), HasSubstr("lots"))));
}

TEST(SystemMemoryTest, ReturnsNotFoundWithoutProc) {
  EXPECT_THAT(
      SystemMemory("/no/such/tree").Read(),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/tree/proc")));
}

TEST(SystemMemoryTest, ThisMachineCanBeRead) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const MemoryReading reading,
                               SystemMemory().Read());
  EXPECT_GT(reading.resident, 0);
  EXPECT_GT(reading.pressure(), 0);
  EXPECT_THAT(reading.unread, IsEmpty());
}

}  // namespace
}  // namespace tessera::offload
