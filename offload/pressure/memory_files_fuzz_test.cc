// Damaged texts through every parser: each is rejected with an error, or gives
// a value that survives a round trip.
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/testing/text_mutator.h"
#include "gtest/gtest.h"
#include "offload/pressure/system_memory.h"

namespace tessera::offload {
namespace {

constexpr int kRounds = 60'000;

const std::vector<std::string>& Tokens() {
  static const auto* const tokens =
      new std::vector<std::string>{"max",       " ",
                                   "\n",        ":",
                                   "-",         "/",
                                   "/..",       "kB",
                                   "avg10=",    "100.00",
                                   "some",      "full",
                                   "unlimited", "memory",
                                   "cgroup2",   " - ",
                                   "\\040",     "\\777",
                                   "0",         "nan",
                                   "MemTotal:", std::string(1, '\0')};
  return *tokens;
}

// `write` formats a value as the kernel does.
template <typename Parse, typename Write>
void Fuzz(std::vector<std::string> corpus, Parse parse, Write write) {
  for (const std::string& text : corpus) {
    const auto value = parse(text);
    ASSERT_TRUE(value.ok()) << value.status();
    const auto again = parse(write(*value));
    ASSERT_TRUE(again.ok()) << again.status();
    ASSERT_EQ(*again, *value);
  }
  TextMutator mutator(std::move(corpus), Tokens(), 21);
  int accepted = 0;
  for (int i = 0; i < kRounds; ++i) {
    const std::string text = mutator.Next();
    const auto value = parse(text);
    if (!value.ok()) {
      ASSERT_EQ(value.status().code(), absl::StatusCode::kInvalidArgument);
      ASSERT_FALSE(value.status().message().empty());
      ASSERT_LT(value.status().message().size(), 600u);
      continue;
    }
    ++accepted;
    const auto again = parse(write(*value));
    ASSERT_TRUE(again.ok()) << absl::CHexEscape(text) << again.status();
    ASSERT_EQ(*again, *value) << absl::CHexEscape(text);
  }
  EXPECT_GT(accepted, 100);
  EXPECT_LT(accepted, kRounds - 100);
}

TEST(MemoryFilesFuzzTest, MemoryInfo) {
  Fuzz({"MemTotal: 24684084 kB\nMemFree: 1138 kB\nMemAvailable: 19819 kB\n",
        "MemTotal: 100 kB\nMemFree: 30 kB\nCached: 20 kB\n"},
       ParseMemoryInfo, [](const MemoryInfo& m) {
         return absl::StrCat("MemTotal: ", m.total >> 10,
                             " kB\nMemAvailable: ", m.available >> 10, " kB\n");
       });
}

TEST(MemoryFilesFuzzTest, PressureStall) {
  Fuzz({"some avg10=12.34 avg60=0.10 avg300=0.00 total=123\n"
        "full avg10=5.00 avg60=0.00 avg300=0.00 total=42\n"},
       ParsePressureStall, [](const PressureStall& s) {
         return absl::StrFormat("some avg10=%.17g\nfull avg10=%.17g\n",
                                s.some_avg10, s.full_avg10);
       });
}

TEST(MemoryFilesFuzzTest, MemoryLimit) {
  Fuzz({"max\n", "1073741824\n", "0\n", "9223372036854771712\n"},
       ParseMemoryLimit, [](int64_t limit) {
         return limit == kNoLimit ? "max" : absl::StrCat(limit, "\n");
       });
}

TEST(MemoryFilesFuzzTest, KeyedNumbers) {
  Fuzz({"anon 5307559936\nfile 7973568512\nslab_reclaimable 9\n", "low 0\n"},
       ParseKeyedNumbers, [](const KeyedNumbers& numbers) {
         std::string text;
         for (const auto& [key, value] : numbers) {
           absl::StrAppend(&text, key, " ", value, "\n");
         }
         return text;
       });
}

TEST(MemoryFilesFuzzTest, Process) {
  Fuzz(
      {"765 446 418 5 0 123 0\n"},
      [](std::string_view text) { return ParseProcessMemory(text, 4096); },
      [](const ProcessMemory& m) {
        return absl::StrCat(m.address_space >> 12, " ", m.resident >> 12,
                            " 0 0 0 ", m.data >> 12, " 0\n");
      });
  Fuzz({"Max data size    unlimited    unlimited     bytes\n"
        "Max address space   8589934592   unlimited     bytes\n"},
       ParseProcessLimits, [](const ProcessLimits& l) {
         const auto show = [](int64_t limit) {
           return limit == kNoLimit ? "unlimited" : absl::StrCat(limit);
         };
         return absl::StrCat("Max data size ", show(l.data),
                             "\nMax address space ", show(l.address_space),
                             "\n");
       });
}

TEST(MemoryFilesFuzzTest, Cgroups) {
  Fuzz({"4:cpu,memory:/jobs/a:b\n1:name=systemd:/\n0::/user.slice/x\n"},
       ParseCgroupMembership, [](const CgroupMembership& m) {
         std::string text = "9:cpu:/\n";
         if (m.v1.has_value()) absl::StrAppend(&text, "4:memory:", *m.v1, "\n");
         if (m.v2.has_value()) absl::StrAppend(&text, "0::", *m.v2, "\n");
         return text;
       });
  const auto escape = [](const std::string& path) {
    std::string out;
    for (const char c : path) {
      absl::StrAppendFormat(&out, "\\%03o", static_cast<unsigned char>(c));
    }
    return out;
  };
  Fuzz({"35 31 0:32 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup "
        "rw,memory\n41 31 0:38 /a\\040b /sys/fs/cgroup rw - cgroup2 none rw\n"},
       ParseCgroupMounts, [&](const std::vector<CgroupMount>& mounts) {
         std::string text = "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n";
         for (const CgroupMount& m : mounts) {
           absl::StrAppend(&text, "1 1 0:1 ", "/", escape(m.root).substr(4),
                           " /", escape(m.point).substr(4), " rw - ",
                           m.v2 ? "cgroup2 none rw" : "cgroup none rw,memory",
                           "\n");
         }
         return text;
       });
}

}  // namespace
}  // namespace tessera::offload
