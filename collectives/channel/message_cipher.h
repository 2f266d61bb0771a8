// Encryption of the messages between the ranks of a group, for connections that
// neither encrypt nor authenticate (AES-256-GCM of OpenSSL).
//
//   TESSERA_ASSIGN_OR_RETURN(const auto keys, KeyExchange::Create(secret));
//   ... send keys->public_key() to the other ranks, receive theirs ...
//   TESSERA_ASSIGN_OR_RETURN(
//       const auto cipher,
//       keys->CreateCipher(theirs, MessageCipher::Role::kSeal, "world/0/1"));
//
// Keys. Every rank has a new X25519 key pair (RFC 7748) for each group. The key
// of a channel is HKDF-SHA256 (RFC 5869) of the shared point and the secret,
// with both public keys and the channel's name as info. So no two channels have
// a key in common, nor has a group that meets again after a failure. Public
// keys must be exchanged over a connection that authenticates, or both ranks
// must know a secret that nobody else knows; then no one can take the place of
// a rank, or read recorded messages after learning the secret.
//
// Nonces. Each end counts the messages of its channel, and a message consists
// of numbered texts. The nonce is both numbers (96 bits) and never repeats
// under a key. A text that was changed, truncated, repeated, omitted, reordered
// or moved from another channel fails to open. After 256 GiB, which limits what
// an attacker can learn from one key, both ends derive the next key and forget
// the last.
#ifndef TESSERA_COLLECTIVES_CHANNEL_MESSAGE_CIPHER_H_
#define TESSERA_COLLECTIVES_CHANNEL_MESSAGE_CIPHER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::collectives {

// One end of a channel: seals the messages of one rank to another, or opens
// them in the order in which they were sealed. Not thread-safe.
//
//   TESSERA_RETURN_IF_ERROR(cipher->NextMessage());
//   TESSERA_RETURN_IF_ERROR(cipher->Begin(/*text=*/0));
//   TESSERA_RETURN_IF_ERROR(cipher->Add(bytes, bytes.data()));
//   TESSERA_RETURN_IF_ERROR(cipher->Seal(tag));  // Or Open.
class MessageCipher {
 public:
  enum class Role { kSeal, kOpen };
  using Tag = std::array<std::byte, 16>;
  static constexpr size_t kKeyBytes = 32;
  static constexpr uint64_t kKeyLifetimeBytes = uint64_t{1} << 38;

  // `key` must not be used for another channel. Unimplemented if the build has
  // no OpenSSL.
  static absl::StatusOr<std::unique_ptr<MessageCipher>> Create(
      Role role, std::span<const std::byte, kKeyBytes> key,
      uint64_t key_lifetime_bytes = kKeyLifetimeBytes);

  virtual ~MessageCipher() = default;

  // Begins the next message.
  virtual absl::Status NextMessage() = 0;
  // Begins the text of this number in the message, which must be greater than
  // the last one's.
  virtual absl::Status Begin(uint32_t text) = 0;
  // Encrypts or decrypts the next bytes of the text. `out` may be the input.
  // Decrypted bytes must not be used before Open has returned OK.
  virtual absl::Status Add(std::span<const std::byte> bytes,
                           std::byte* out) = 0;
  // Ends the text: returns its tag, or checks it. DataLoss if the text is not
  // the one that was sealed.
  virtual absl::Status Seal(Tag& tag) = 0;
  virtual absl::Status Open(const Tag& tag) = 0;
};

// The keys of one rank in one group. Thread-safe.
class KeyExchange {
 public:
  static constexpr size_t kPublicKeyBytes = 32;

  // `secret` may be empty (see above).
  static absl::StatusOr<std::unique_ptr<KeyExchange>> Create(
      std::string_view secret);

  virtual ~KeyExchange() = default;

  virtual const std::string& public_key() const = 0;

  // This rank's end of a channel to (kSeal) or from (kOpen) the rank with the
  // public key `peer`. Both ends give the channel the same name, which no other
  // channel of the two ranks has. InvalidArgument if `peer` is no public key.
  virtual absl::StatusOr<std::unique_ptr<MessageCipher>> CreateCipher(
      std::string_view peer, MessageCipher::Role role,
      std::string_view channel) const = 0;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_CHANNEL_MESSAGE_CIPHER_H_
