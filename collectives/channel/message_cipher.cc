#include "collectives/channel/message_cipher.h"

#ifndef TESSERA_HAVE_OPENSSL

namespace tessera::collectives {
namespace {

absl::Status NoOpenSsl() {
  return absl::UnimplementedError(
      "this build has no OpenSSL, which encryption needs; install libssl-dev "
      "and build again");
}

}  // namespace

absl::StatusOr<std::unique_ptr<MessageCipher>> MessageCipher::Create(
    Role, std::span<const std::byte, kKeyBytes>, uint64_t) {
  return NoOpenSsl();
}

absl::StatusOr<std::unique_ptr<KeyExchange>> KeyExchange::Create(
    std::string_view) {
  return NoOpenSsl();
}

}  // namespace tessera::collectives

#else  // TESSERA_HAVE_OPENSSL

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/little_endian.h"
#include "base/status_macros.h"
#include "collectives/channel/job_secret.h"

namespace tessera::collectives {
namespace {

constexpr std::string_view kSalt = "tessera messages 1";

template <auto free>
struct FreeWith {
  template <typename T>
  void operator()(T* object) const {
    free(object);
  }
};
using CipherContext =
    std::unique_ptr<EVP_CIPHER_CTX, FreeWith<EVP_CIPHER_CTX_free>>;
using KeyContext = std::unique_ptr<EVP_PKEY_CTX, FreeWith<EVP_PKEY_CTX_free>>;
using KeyPair = std::unique_ptr<EVP_PKEY, FreeWith<EVP_PKEY_free>>;

unsigned char* Octets(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}
const unsigned char* Octets(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}
unsigned char* Octets(std::string& bytes) {
  return reinterpret_cast<unsigned char*>(bytes.data());
}

absl::Status Check(bool succeeded, std::string_view what) {
  if (succeeded) return absl::OkStatus();
  ERR_clear_error();
  return absl::InternalError(absl::StrCat("OpenSSL cannot ", what));
}

// A secret, which is overwritten at its end.
struct Wiped {
  ~Wiped() { OPENSSL_cleanse(bytes.data(), bytes.size()); }
  std::string bytes;
};

class GcmCipher final : public MessageCipher {
 public:
  GcmCipher(Role role, uint64_t key_lifetime_bytes)
      : is_sealing_(role == Role::kSeal ? 1 : 0),
        key_lifetime_bytes_(key_lifetime_bytes) {}

  absl::Status SetKey(std::string_view key);
  absl::Status NextMessage() override;
  absl::Status Begin(uint32_t text) override;
  absl::Status Add(std::span<const std::byte> bytes, std::byte* out) override;
  absl::Status Seal(Tag& tag) override;
  absl::Status Open(const Tag& tag) override;

 private:
  const int is_sealing_;
  const uint64_t key_lifetime_bytes_;
  CipherContext context_{EVP_CIPHER_CTX_new()};
  Wiped key_;
  uint64_t message_ = 0;
  uint32_t next_text_ = 0;  // Texts below it were begun.
  uint64_t bytes_with_key_ = 0;
};

absl::Status GcmCipher::SetKey(std::string_view key) {
  Wiped next{std::string(key)};
  std::swap(key_.bytes, next.bytes);
  bytes_with_key_ = 0;
  return Check(
      context_ != nullptr &&
          EVP_CipherInit_ex(context_.get(), EVP_aes_256_gcm(), nullptr,
                            Octets(key_.bytes), nullptr, is_sealing_) == 1,
      "use AES-256-GCM");
}

absl::Status GcmCipher::NextMessage() {
  ++message_;
  next_text_ = 0;
  if (bytes_with_key_ < key_lifetime_bytes_) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(
      std::string key, HkdfSha256(key_.bytes, kSalt, "next key", kKeyBytes));
  const Wiped next{std::move(key)};
  return SetKey(next.bytes);
}

absl::Status GcmCipher::Begin(uint32_t text) {
  if (text < next_text_) {
    return absl::InternalError(absl::StrCat(
        "text ", text, " of a message follows text ", next_text_ - 1));
  }
  next_text_ = text + 1;
  std::array<std::byte, 12> nonce;
  StoreLittleEndian(text, nonce.data());
  StoreLittleEndian(message_, nonce.data() + sizeof(text));
  return Check(EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr,
                                 Octets(nonce.data()), is_sealing_) == 1,
               "begin a text");
}

absl::Status GcmCipher::Add(std::span<const std::byte> bytes, std::byte* out) {
  constexpr size_t kMost = size_t{1} << 30;
  bytes_with_key_ += bytes.size();
  while (!bytes.empty()) {
    const std::span<const std::byte> next =
        bytes.first(std::min(bytes.size(), kMost));
    int written = 0;
    TESSERA_RETURN_IF_ERROR(
        Check(EVP_CipherUpdate(context_.get(), Octets(out), &written,
                               Octets(next.data()),
                               static_cast<int>(next.size())) == 1,
              "encrypt or decrypt a text of this size"));
    bytes = bytes.subspan(next.size());
    out += next.size();
  }
  return absl::OkStatus();
}

absl::Status GcmCipher::Seal(Tag& tag) {
  int written = 0;
  return Check(
      EVP_CipherFinal_ex(context_.get(), Octets(tag.data()), &written) == 1 &&
          EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG,
                              static_cast<int>(tag.size()), tag.data()) == 1,
      "seal a text");
}

absl::Status GcmCipher::Open(const Tag& tag) {
  Tag expected = tag;
  int written = 0;
  TESSERA_RETURN_IF_ERROR(
      Check(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG,
                                static_cast<int>(expected.size()),
                                expected.data()) == 1,
            "check a text"));
  if (EVP_CipherFinal_ex(context_.get(), Octets(expected.data()), &written) ==
      1) {
    return absl::OkStatus();
  }
  ERR_clear_error();
  return absl::DataLossError(
      "it was changed, repeated or replaced on its way, or sealed by a rank "
      "with another secret");
}

class X25519Exchange final : public KeyExchange {
 public:
  explicit X25519Exchange(std::string_view secret)
      : secret_{std::string(secret)} {}

  absl::Status Init();
  const std::string& public_key() const override { return public_key_; }
  absl::StatusOr<std::unique_ptr<MessageCipher>> CreateCipher(
      std::string_view peer, MessageCipher::Role role,
      std::string_view channel) const override;

 private:
  // Sets `shared` to the point that both ranks compute, and the secret.
  absl::Status Share(std::string_view peer, std::string& shared) const;

  const Wiped secret_;
  KeyPair pair_;
  std::string public_key_;
};

absl::Status X25519Exchange::Init() {
  pair_.reset(EVP_PKEY_Q_keygen(nullptr, nullptr, "X25519"));
  public_key_.resize(kPublicKeyBytes);
  size_t bytes = kPublicKeyBytes;
  return Check(
      pair_ != nullptr && EVP_PKEY_get_raw_public_key(
                              pair_.get(), Octets(public_key_), &bytes) == 1,
      "make a key of X25519");
}

// Deriving fails if the shared point is zero (RFC 7748, section 6.1).
absl::Status X25519Exchange::Share(std::string_view peer,
                                   std::string& shared) const {
  const KeyPair theirs(EVP_PKEY_new_raw_public_key(
      EVP_PKEY_X25519, nullptr,
      reinterpret_cast<const unsigned char*>(peer.data()), peer.size()));
  const KeyContext context(EVP_PKEY_CTX_new(pair_.get(), nullptr));
  shared.reserve(kPublicKeyBytes + secret_.bytes.size());  // Moved nowhere.
  shared.resize(kPublicKeyBytes);
  size_t bytes = shared.size();
  if (theirs == nullptr || context == nullptr ||
      EVP_PKEY_derive_init(context.get()) != 1 ||
      EVP_PKEY_derive_set_peer(context.get(), theirs.get()) != 1 ||
      EVP_PKEY_derive(context.get(), Octets(shared), &bytes) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError(absl::StrCat(
        "the peer's ", peer.size(),
        " bytes are no public key of X25519, which has ", kPublicKeyBytes));
  }
  shared += secret_.bytes;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<MessageCipher>> X25519Exchange::CreateCipher(
    std::string_view peer, MessageCipher::Role role,
    std::string_view channel) const {
  Wiped shared;
  TESSERA_RETURN_IF_ERROR(Share(peer, shared.bytes));
  const bool is_sealing = role == MessageCipher::Role::kSeal;
  const std::string info =
      absl::StrCat(channel, is_sealing ? public_key_ : peer,
                   is_sealing ? peer : public_key_);
  TESSERA_ASSIGN_OR_RETURN(
      std::string derived,
      HkdfSha256(shared.bytes, kSalt, info, MessageCipher::kKeyBytes));
  const Wiped key{std::move(derived)};
  return MessageCipher::Create(
      role,
      std::as_bytes(std::span(key.bytes)).first<MessageCipher::kKeyBytes>());
}

}  // namespace

absl::StatusOr<std::unique_ptr<MessageCipher>> MessageCipher::Create(
    Role role, std::span<const std::byte, kKeyBytes> key,
    uint64_t key_lifetime_bytes) {
  auto cipher = std::make_unique<GcmCipher>(role, key_lifetime_bytes);
  TESSERA_RETURN_IF_ERROR(
      cipher->SetKey({reinterpret_cast<const char*>(key.data()), key.size()}));
  return cipher;
}

absl::StatusOr<std::unique_ptr<KeyExchange>> KeyExchange::Create(
    std::string_view secret) {
  auto keys = std::make_unique<X25519Exchange>(secret);
  TESSERA_RETURN_IF_ERROR(keys->Init());
  return keys;
}

}  // namespace tessera::collectives

#endif  // TESSERA_HAVE_OPENSSL
