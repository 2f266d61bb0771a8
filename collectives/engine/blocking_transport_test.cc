// BlockingTransport over a wire whose messages tests read and change. Sends are
// complete at once, so that one thread plays both ranks.
#include "collectives/engine/blocking_transport.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/bootstrap/in_process_store.h"
#include "collectives/operation/operation.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// One piece that a library sends.
struct Part {
  Rank from;
  uint64_t slot;
  std::string bytes;
};
using Wire = std::deque<Part>;

class WireGroup final : public BlockingGroup {
 public:
  static absl::StatusOr<std::shared_ptr<WireGroup>> Connect(
      Store& store, Wire& wire, std::unique_ptr<KeyExchange> keys) {
    const std::shared_ptr<WireGroup> group(new WireGroup(store, wire));
    const absl::Status status =
        group->Meet(DeadlineAfter(absl::Seconds(30)), std::move(keys));
    if (!status.ok()) return status;
    return group;
  }

  std::unique_ptr<Message> Send(Rank, uint64_t slot, const void* data,
                                size_t bytes) override {
    wire_.push_back(
        {rank(), slot, std::string(static_cast<const char*>(data), bytes)});
    return std::make_unique<Sent>();
  }
  std::unique_ptr<Message> Receive(Rank from, uint64_t slot, void* data,
                                   size_t bytes) override {
    return std::make_unique<Received>(wire_, from, slot, data, bytes);
  }

 private:
  class Sent : public Message {
   public:
    void Wait(std::chrono::milliseconds) override {}
    void Interrupt() override {}
  };
  class Received : public Message {
   public:
    Received(Wire& wire, Rank from, uint64_t slot, void* data, size_t bytes)
        : wire_(wire), from_(from), slot_(slot), data_(data), bytes_(bytes) {}

    void Wait(std::chrono::milliseconds) override {
      const auto part =
          std::find_if(wire_.begin(), wire_.end(), [this](const Part& part) {
            return part.from == from_ && part.slot == slot_;
          });
      if (part == wire_.end()) throw std::runtime_error("nothing arrives");
      std::memcpy(data_, part->bytes.data(),
                  std::min(bytes_, part->bytes.size()));
      wire_.erase(part);
    }
    void Interrupt() override {}

   private:
    Wire& wire_;
    const Rank from_;
    const uint64_t slot_;
    void* const data_;
    const size_t bytes_;
  };

  WireGroup(Store& store, Wire& wire)
      : BlockingGroup(store, AllRanks(store.size()), "world"), wire_(wire) {}

  Wire& wire_;
};

enum class Keys { kNone, kSame, kDifferent };

// Two ranks and their wire.
class Ranks {
 public:
  explicit Ranks(Keys keys) {
    stores_ = *MakeInProcessStores(2);
    std::vector<std::shared_ptr<WireGroup>> groups(2);
    std::vector<std::thread> threads;
    for (size_t r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] {
        std::unique_ptr<KeyExchange> mine;
        if (keys != Keys::kNone) {
          mine = *KeyExchange::Create(
              keys == Keys::kDifferent && r == 1 ? "another" : "secret");
        }
        groups[r] = *WireGroup::Connect(*stores_[r], wire, std::move(mine));
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (auto& group : groups) {
      transports_.push_back(
          std::make_unique<BlockingTransport>(std::move(group)));
    }
  }

  void Send(std::string_view text, size_t from = 0) {
    const auto bytes = std::as_bytes(std::span(text));
    ASSERT_THAT(transports_[from]->StartSend(PeerOf(from), Lane::kCollective,
                                             SignatureFor(text.size()), bytes),
                IsOk());
  }
  absl::StatusOr<std::string> Receive(size_t bytes, size_t at = 1) {
    std::string text(bytes, '\0');
    Transport& transport = *transports_[at];
    const auto request = transport.StartReceive(
        PeerOf(at), Lane::kCollective, SignatureFor(bytes),
        std::as_writable_bytes(std::span(text)));
    if (!request.ok()) return request.status();
    Scratch scratch;
    OperationContext context(SignatureFor(bytes),
                             DeadlineAfter(absl::Seconds(30)), scratch);
    const absl::Status status = transport.Wait({&*request, 1}, context);
    if (!status.ok()) return status;
    return text;
  }

  // The signature of the next message to rank 1, once it has arrived.
  absl::StatusOr<Signature> Peek() {
    while (true) {
      const auto next = transports_[1]->Peek(Rank(0), Lane::kCollective);
      if (!next.ok()) return next.status();
      if (next->has_value()) return **next;
      std::this_thread::yield();
    }
  }

  // Waits for the next message to rank 1 alone.
  absl::Status WaitForMessage() {
    const Request end = {.peer = Rank(0), .direction = Direction::kReceive};
    Scratch scratch;
    OperationContext context(SignatureFor(0), DeadlineAfter(absl::Seconds(30)),
                             scratch);
    const auto has_message = [&] {
      const auto next = transports_[1]->Peek(Rank(0), Lane::kCollective);
      return !next.ok() || next->has_value();
    };
    return transports_[1]->WaitUntil(
        context, has_message, [](std::vector<int64_t>&) {}, &end);
  }

  Wire wire;

 private:
  static Rank PeerOf(size_t rank) { return Rank(rank == 0 ? 1 : 0); }
  static Signature SignatureFor(size_t bytes) {
    Signature signature;
    signature.kind = OpKind::kSend;
    signature.count = static_cast<int64_t>(bytes);
    return signature;
  }

  std::vector<std::unique_ptr<Store>> stores_;
  std::vector<std::unique_ptr<BlockingTransport>> transports_;
};

// Without a repeated word.
std::string SomeText(size_t bytes) {
  std::string text;
  for (uint32_t i = 0; text.size() < bytes; ++i) {
    const uint32_t word = i * 2654435761U;
    text.append(reinterpret_cast<const char*>(&word), sizeof(word));
  }
  text.resize(bytes);
  return text;
}

bool IsReadable(const Wire& wire, const std::string& text) {
  constexpr size_t kWindow = 8;
  for (const Part& part : wire) {
    for (size_t at = 0; at + kWindow <= text.size(); at += 4) {
      if (part.bytes.find(text.substr(at, kWindow)) != std::string::npos) {
        return true;
      }
      if (at > 5000) break;
    }
  }
  return false;
}

// In a frame, of one piece, and of five.
constexpr size_t kSizes[] = {40, 5000, 600'000};

TEST(BlockingTransportTest, EncryptedMessagesArriveAndCannotBeRead) {
  for (const Keys keys : {Keys::kNone, Keys::kSame}) {
    Ranks ranks(keys);
    for (const size_t bytes : kSizes) {
      const std::string text = SomeText(bytes);
      for (const size_t from : {0, 1, 0}) {
        ranks.Send(text, from);
        EXPECT_EQ(IsReadable(ranks.wire, text), keys == Keys::kNone);
        EXPECT_THAT(ranks.Receive(bytes, 1 - from), IsOkAndHolds(text));
      }
    }
  }
}

TEST(BlockingTransportTest, PeekedMessagesArrive) {
  for (const Keys keys : {Keys::kNone, Keys::kSame}) {
    Ranks ranks(keys);
    for (const size_t bytes : kSizes) {
      const std::string text = SomeText(bytes);
      ranks.Send(text);
      const auto next = ranks.Peek();
      ASSERT_THAT(next, IsOk());
      EXPECT_EQ(next->count, static_cast<int64_t>(bytes));
      EXPECT_THAT(ranks.Receive(bytes), IsOkAndHolds(text));
    }
  }
}

TEST(BlockingTransportTest, WaitForOneChannelStartsNoThread) {
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                         std::filesystem::directory_iterator());
  };
  Ranks ranks(Keys::kSame);
  const auto before = threads();
  for (const size_t bytes : kSizes) {
    const std::string text = SomeText(bytes);
    ranks.Send(text);
    EXPECT_THAT(ranks.WaitForMessage(), IsOk());
    EXPECT_THAT(ranks.Receive(bytes), IsOkAndHolds(text));
  }
  // A thread that was joined may be listed a little longer.
  EXPECT_LE(threads(), before);
}

TEST(BlockingTransportTest, PeekRejectsImpossibleSizes) {
  for (const int64_t bytes : {int64_t{-8}, int64_t{1} << 62}) {
    Ranks ranks(Keys::kNone);
    ranks.Send(SomeText(kSizes[0]));
    std::memcpy(ranks.wire[0].bytes.data() + offsetof(MessageHeader, bytes),
                &bytes, sizeof(bytes));
    EXPECT_THAT(ranks.Peek(), StatusIs(absl::StatusCode::kDataLoss,
                                       HasSubstr(absl::StrCat(bytes))));
  }
}

TEST(BlockingTransportTest, AnEmptyMessageArrives) {
  Ranks ranks(Keys::kSame);
  ranks.Send("");
  EXPECT_THAT(ranks.Receive(0), IsOkAndHolds(""));
}

// Sends two messages, changes what is on the wire, and receives them.
absl::Status Attack(size_t bytes, const std::function<void(Wire&)>& change) {
  Ranks ranks(Keys::kSame);
  ranks.Send(SomeText(bytes));
  std::string second = SomeText(bytes);
  std::reverse(second.begin(), second.end());
  ranks.Send(second);
  change(ranks.wire);
  const absl::Status first = ranks.Receive(bytes).status();
  return first.ok() ? ranks.Receive(bytes).status() : first;
}

auto IsNotAuthentic() {
  return StatusIs(absl::StatusCode::kDataLoss,
                  AllOf(HasSubstr("a message of rank 0 (host "),
                        HasSubstr(") is not authentic: it was changed")));
}

TEST(BlockingTransportTest, AcceptsUnchangedMessage) {
  for (const size_t bytes : kSizes) {
    EXPECT_THAT(Attack(bytes, [](Wire&) {}), IsOk());
  }
}

// Each byte of a frame: its size, tag, header and payload.
TEST(BlockingTransportTest, DetectsEveryChangedByteOfAFrame) {
  const size_t frame_bytes = 8 + 16 + 40 + kSizes[0];
  for (size_t at = 0; at < frame_bytes; ++at) {
    const auto flip = [&](Wire& wire) {
      ASSERT_EQ(wire[0].bytes.size(), frame_bytes);
      wire[0].bytes[at] = static_cast<char>(wire[0].bytes[at] ^ (1 << at % 8));
    };
    EXPECT_THAT(Attack(kSizes[0], flip), IsNotAuthentic()) << at;
  }
}

TEST(BlockingTransportTest, DetectsChangedBytesOfEveryPiece) {
  for (const size_t bytes : {kSizes[1], kSizes[2]}) {
    const size_t parts = bytes == kSizes[1] ? 2 : 6;
    for (size_t part = 0; part < parts; ++part) {
      for (const double share : {0.0, 0.3, 0.99, 1.0}) {  // 0.99: its tag.
        const auto flip = [&](Wire& wire) {
          ASSERT_EQ(wire.size(), 2 * parts);
          std::string& text = wire[part].bytes;
          const auto at =
              static_cast<size_t>(share * static_cast<double>(text.size() - 1));
          text[at] = static_cast<char>(text[at] ^ 0x10);
        };
        EXPECT_THAT(Attack(bytes, flip), IsNotAuthentic()) << part;
      }
    }
  }
}

TEST(BlockingTransportTest, DetectsRepeatedOmittedAndSwappedMessages) {
  for (const size_t bytes : kSizes) {
    const size_t parts = bytes == kSizes[0] ? 1 : bytes == kSizes[1] ? 2 : 6;
    // Repeats the first message in the place of the second.
    const auto repeat = [&](Wire& wire) {
      for (size_t i = 0; i < parts; ++i) wire[parts + i] = wire[i];
    };
    const auto swap = [&](Wire& wire) {
      for (size_t i = 0; i < parts; ++i) std::swap(wire[i], wire[parts + i]);
    };
    const auto omit = [&](Wire& wire) {
      for (size_t i = 0; i < parts; ++i) wire.pop_front();
    };
    const auto truncate = [&](Wire& wire) { wire[parts - 1].bytes.resize(20); };
    for (const std::function<void(Wire&)>& change :
         {std::function<void(Wire&)>(repeat), std::function<void(Wire&)>(swap),
          std::function<void(Wire&)>(omit),
          std::function<void(Wire&)>(truncate)}) {
      EXPECT_THAT(Attack(bytes, change), IsNotAuthentic());
    }
  }
  // The payload of the second message in the first one.
  EXPECT_THAT(
      Attack(kSizes[1], [](Wire& wire) { std::swap(wire[1], wire[3]); }),
      IsNotAuthentic());
  // The pieces of one message in another order.
  EXPECT_THAT(
      Attack(kSizes[2], [](Wire& wire) { std::swap(wire[1], wire[2]); }),
      IsNotAuthentic());
}

TEST(BlockingTransportTest, DetectsReflectedMessages) {
  Ranks ranks(Keys::kSame);
  ranks.Send("hello");
  ranks.wire[0].from = Rank(1);
  EXPECT_THAT(ranks.Receive(5, 0),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank 1 (host")));
}

TEST(BlockingTransportTest, RanksNeedTheSameSecret) {
  Ranks ranks(Keys::kDifferent);
  ranks.Send("hello");
  EXPECT_THAT(ranks.Receive(5), IsNotAuthentic());
}

}  // namespace
}  // namespace tessera::collectives
