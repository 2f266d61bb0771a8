// TLS 1.3 with a pre-shared key over a socket (OpenSSL). The handshake succeeds
// only if both ends know the same secret.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto tls, TlsContext::Create(TlsContext::Role::kServer, "job 7",
//                                    secret));
//   TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<ByteChannel> channel,
//                            tls->Wrap(std::move(socket)));
//
// The key is HKDF-SHA256 (RFC 5869) of the secret, the salt a constant and the
// info the identity; the identity is sent in clear text. Key exchange is
// psk_dhe_ke (RFC 8446, 4.2.9) with X25519 or P-256, for forward secrecy; the
// cipher is TLS_AES_128_GCM_SHA256. No certificates, tickets, resumption or
// early data.
#ifndef TESSERA_COLLECTIVES_CHANNEL_TLS_CHANNEL_H_
#define TESSERA_COLLECTIVES_CHANNEL_TLS_CHANNEL_H_

#include <cstddef>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"
#include "collectives/channel/byte_channel.h"

namespace tessera::collectives {

inline constexpr size_t kMinSecretBytes = 16;
inline constexpr size_t kMaxSecretBytes = 4096;
inline constexpr size_t kMaxIdentityBytes = 128;  // OpenSSL's limit.

// Thread-safe.
class TlsContext {
 public:
  enum class Role { kServer, kClient };

  // InvalidArgument unless the secret has kMinSecretBytes to kMaxSecretBytes
  // and the identity 1 to kMaxIdentityBytes; Unimplemented if the build has no
  // OpenSSL. No error message contains the secret.
  static absl::StatusOr<std::shared_ptr<TlsContext>> Create(
      Role role, std::string_view identity, std::string_view secret);

  virtual ~TlsContext() = default;

  // A channel over a connected non-blocking socket. Its handshake fails with
  // PermissionDenied if the other end has another secret or identity,
  // InvalidArgument if it does not use TLS 1.3.
  virtual absl::StatusOr<std::unique_ptr<ByteChannel>> Wrap(
      UniqueFd socket) = 0;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_CHANNEL_TLS_CHANNEL_H_
