// Needs OpenSSL; skipped if the build has none.
#include "collectives/channel/message_cipher.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::HasSubstr;
using Role = MessageCipher::Role;

constexpr size_t kTagBytes = sizeof(MessageCipher::Tag);

std::unique_ptr<MessageCipher> MakeCipher(
    Role role, std::string_view key,
    uint64_t lifetime = MessageCipher::kKeyLifetimeBytes) {
  auto cipher = MessageCipher::Create(
      role, std::as_bytes(std::span(key)).first<MessageCipher::kKeyBytes>(),
      lifetime);
  EXPECT_THAT(cipher, IsOk());
  return *std::move(cipher);
}

// 0, 1, 2, ...
std::string SomeKey() {
  std::string key;
  for (int i = 0; i < 32; ++i) key.push_back(static_cast<char>(i));
  return key;
}

std::string SomePlain() {
  std::string plain;
  for (int i = 0; i < 1000; ++i) plain.push_back(static_cast<char>(i * 7));
  return plain;
}

// Encrypts or decrypts a text in pieces of 100 bytes.
absl::Status AddPieces(MessageCipher& cipher, std::string_view text,
                       std::string& out) {
  out.resize(text.size());
  for (size_t at = 0; at < text.size(); at += 100) {
    const std::string_view piece = text.substr(at, 100);
    const absl::Status status =
        cipher.Add(std::as_bytes(std::span(piece)),
                   reinterpret_cast<std::byte*>(out.data()) + at);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// The ciphertext and its tag.
std::string SealText(MessageCipher& cipher, uint32_t text,
                     std::string_view plain) {
  std::string sealed;
  MessageCipher::Tag tag;
  EXPECT_THAT(cipher.Begin(text), IsOk());
  EXPECT_THAT(AddPieces(cipher, plain, sealed), IsOk());
  EXPECT_THAT(cipher.Seal(tag), IsOk());
  return sealed.append(reinterpret_cast<const char*>(tag.data()), kTagBytes);
}

std::string SealMessage(MessageCipher& cipher, std::string_view plain) {
  EXPECT_THAT(cipher.NextMessage(), IsOk());
  return SealText(cipher, 0, plain);
}

absl::StatusOr<std::string> OpenText(MessageCipher& cipher, uint32_t text,
                                     std::string_view sealed) {
  MessageCipher::Tag tag = {};
  std::string plain;
  absl::Status status = cipher.Begin(text);
  status.Update(
      AddPieces(cipher, sealed.substr(0, sealed.size() - kTagBytes), plain));
  std::memcpy(tag.data(), sealed.data() + sealed.size() - kTagBytes, kTagBytes);
  status.Update(cipher.Open(tag));
  if (!status.ok()) return status;
  return plain;
}

absl::StatusOr<std::string> OpenMessage(MessageCipher& cipher,
                                        std::string_view sealed) {
  EXPECT_THAT(cipher.NextMessage(), IsOk());
  return OpenText(cipher, 0, sealed);
}

std::string Hex(std::string_view bytes) {
  return absl::BytesToHexString(bytes);
}

// "The Galois/Counter Mode of Operation", test cases 13 and 14: text 0 of
// message 0 has a nonce of zeros.
TEST(MessageCipherTest, MatchesTestCasesOfGcm) {
  const std::string key(32, '\0');
  auto seal = MakeCipher(Role::kSeal, key);
  EXPECT_EQ(Hex(SealText(*seal, 0, "")), "530f8afbc74536b9a963b4f1c4cb738b");
  seal = MakeCipher(Role::kSeal, key);
  EXPECT_EQ(Hex(SealText(*seal, 0, std::string(16, '\0'))),
            "cea7403d4d606b6e074ec5d3baf39d18"
            "d0d1c8a799996bf0265b98b5d48ab919");
}

std::string Ends(const std::string& sealed) {
  return Hex(sealed.substr(0, 8) + sealed.substr(992));
}

// The expected values are those of testdata/make_ciphertexts.py.
TEST(MessageCipherTest, NonceIsNumberOfTextAndMessage) {
  const auto seal = MakeCipher(Role::kSeal, SomeKey());
  for (int i = 0; i < 3; ++i) ASSERT_THAT(seal->NextMessage(), IsOk());
  EXPECT_EQ(Ends(SealText(*seal, 1, SomePlain())),
            "0841d0a94841d28cd5f2bcccd78b1fce"
            "2c3ae53f20a763f69906213be1616d2e");
}

TEST(MessageCipherTest, NextKeyFollowsAtTheEndOfTheLifetime) {
  const auto seal = MakeCipher(Role::kSeal, SomeKey(), /*lifetime=*/1000);
  const auto open = MakeCipher(Role::kOpen, SomeKey(), /*lifetime=*/1000);
  for (int i = 1; i <= 5; ++i) {
    const std::string sealed = SealMessage(*seal, SomePlain());
    if (i == 2) {
      EXPECT_EQ(Ends(sealed),
                "61ee14fe9103fd19707ba1d23be88ff8"
                "42f31901577ee1602df8b9112b147aa7");
    }
    EXPECT_THAT(OpenMessage(*open, sealed), IsOkAndHolds(SomePlain()));
  }
}

TEST(MessageCipherTest, OpensWhatWasSealed) {
  const auto seal = MakeCipher(Role::kSeal, SomeKey());
  const auto open = MakeCipher(Role::kOpen, SomeKey());
  for (const size_t bytes : {0, 1, 15, 16, 17, 100, 999}) {
    const std::string plain = SomePlain().substr(0, bytes);
    const std::string sealed = SealMessage(*seal, plain);
    const std::string second = SealText(*seal, 1, plain);
    EXPECT_NE(sealed, second);
    EXPECT_THAT(OpenMessage(*open, sealed), IsOkAndHolds(plain));
    EXPECT_THAT(OpenText(*open, 1, second), IsOkAndHolds(plain));
  }
}

TEST(MessageCipherTest, EveryChangedBitIsDetected) {
  const std::string plain = SomePlain().substr(0, 130);
  const std::string sealed =
      SealMessage(*MakeCipher(Role::kSeal, SomeKey()), plain);
  for (size_t bit = 0; bit < 8 * sealed.size(); ++bit) {
    std::string changed = sealed;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    EXPECT_THAT(OpenMessage(*MakeCipher(Role::kOpen, SomeKey()), changed),
                StatusIs(absl::StatusCode::kDataLoss));
  }
}

TEST(MessageCipherTest, RejectsRepeatedAndReorderedMessages) {
  const auto seal = MakeCipher(Role::kSeal, SomeKey());
  const std::string first = SealMessage(*seal, "first");
  const std::string second = SealMessage(*seal, "second");
  const std::string text = SealText(*seal, 1, "second");
  const auto rejects = [&](std::vector<std::string> opened,
                           const std::string& rejected) {
    const auto open = MakeCipher(Role::kOpen, SomeKey());
    for (const std::string& sealed : opened) {
      ASSERT_THAT(OpenMessage(*open, sealed), IsOk());
    }
    EXPECT_THAT(OpenMessage(*open, rejected),
                StatusIs(absl::StatusCode::kDataLoss));
  };
  rejects({first}, first);                                // Repeated.
  rejects({}, second);                                    // Omitted, reordered.
  rejects({first}, text);                                 // Another text.
  rejects({first}, second.substr(1));                     // Truncated.
  rejects({first}, second.substr(0, second.size() - 1));  // Its tag.
  rejects({first}, std::string(kTagBytes, '\0'));
}

TEST(MessageCipherTest, ATextCannotBeBegunTwice) {
  const auto seal = MakeCipher(Role::kSeal, SomeKey());
  SealMessage(*seal, "message");
  EXPECT_THAT(seal->Begin(0), StatusIs(absl::StatusCode::kInternal));
  EXPECT_THAT(seal->Begin(1), IsOk());
}

class Pair {
 public:
  Pair(std::string_view secret_a, std::string_view secret_b)
      : a_(*KeyExchange::Create(secret_a)),
        b_(*KeyExchange::Create(secret_b)) {}

  const std::string& public_key() const { return a_->public_key(); }
  std::unique_ptr<MessageCipher> FromA(std::string_view channel) const {
    return *a_->CreateCipher(b_->public_key(), Role::kSeal, channel);
  }
  std::unique_ptr<MessageCipher> AtB(std::string_view channel) const {
    return *b_->CreateCipher(a_->public_key(), Role::kOpen, channel);
  }
  std::unique_ptr<MessageCipher> AtA(std::string_view channel) const {
    return *a_->CreateCipher(b_->public_key(), Role::kOpen, channel);
  }

 private:
  const std::unique_ptr<KeyExchange> a_;
  const std::unique_ptr<KeyExchange> b_;
};

TEST(KeyExchangeTest, BothEndsOfAChannelHaveOneKey) {
  for (const std::string_view secret : {"", "a secret of this job"}) {
    const Pair pair(secret, secret);
    const auto seal = pair.FromA("world/0/1");
    const auto open = pair.AtB("world/0/1");
    EXPECT_THAT(OpenMessage(*open, SealMessage(*seal, "hello")),
                IsOkAndHolds("hello"));
  }
}

TEST(KeyExchangeTest, AnotherChannelDirectionSecretOrGroupHasAnotherKey) {
  const Pair pair("secret", "secret");
  const std::string sealed = SealMessage(*pair.FromA("a"), "hello");
  const absl::StatusCode kLoss = absl::StatusCode::kDataLoss;
  EXPECT_THAT(OpenMessage(*pair.AtB("b"), sealed), StatusIs(kLoss));
  EXPECT_THAT(OpenMessage(*pair.AtA("a"), sealed), StatusIs(kLoss));
  const Pair later("secret", "secret");
  EXPECT_NE(later.public_key(), pair.public_key());
  EXPECT_THAT(OpenMessage(*later.AtB("a"), sealed), StatusIs(kLoss));
  const Pair different("secret", "secreT");
  EXPECT_THAT(OpenMessage(*different.AtB("a"),
                          SealMessage(*different.FromA("a"), "hello")),
              StatusIs(kLoss, HasSubstr("another secret")));
}

TEST(KeyExchangeTest, RejectsInvalidPublicKeys) {
  const auto keys = KeyExchange::Create("");
  ASSERT_THAT(keys, IsOk());
  for (const std::string& peer :
       {std::string(), std::string(31, 'x'), std::string(32, '\0')}) {
    EXPECT_THAT((*keys)->CreateCipher(peer, Role::kSeal, "a"),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("no public key")));
  }
}

}  // namespace
}  // namespace tessera::collectives
