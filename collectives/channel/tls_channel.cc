#include "collectives/channel/tls_channel.h"

#include "absl/status/status.h"

#ifndef TESSERA_HAVE_OPENSSL

namespace tessera::collectives {

absl::StatusOr<std::shared_ptr<TlsContext>> TlsContext::Create(
    Role, std::string_view, std::string_view) {
  return absl::UnimplementedError(
      "this build has no OpenSSL, which the rendezvous over a socket needs: "
      "install libssl-dev and build again, or start the ranks with a launcher "
      "that passes them connected sockets");
}

}  // namespace tessera::collectives

#else  // TESSERA_HAVE_OPENSSL

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/channel/job_secret.h"

namespace tessera::collectives {
namespace {

// A BIO that reads and writes a socket without blocking and without SIGPIPE
// (OpenSSL's own socket BIO calls write(2), which raises it).
class SocketBioMethod {
 public:
  SocketBioMethod();
  bool valid() const { return method_ != nullptr; }

  // A BIO over `socket`, which the caller keeps. Null if memory is short. This
  // object must outlive it.
  BIO* NewBio(int socket) const;

 private:
  struct Free {
    void operator()(BIO_METHOD* method) const { BIO_meth_free(method); }
  };
  std::unique_ptr<BIO_METHOD, Free> method_;
};

// The BIO's data pointer holds the descriptor.
int SocketOf(BIO* bio) {
  return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio)));
}

bool ForNow() { return errno == EAGAIN || errno == EINTR; }

int Write(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent = send(SocketOf(bio), bytes, static_cast<size_t>(size),
                            MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && ForNow()) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int Read(BIO* bio, char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  BIO_clear_flags(bio, BIO_FLAGS_IN_EOF);
  const ssize_t got =
      recv(SocketOf(bio), bytes, static_cast<size_t>(size), MSG_DONTWAIT);
  if (got < 0 && ForNow()) BIO_set_retry_read(bio);
  if (got == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
  return static_cast<int>(got);
}

long Control(BIO* bio, int command, long, void*) {  // NOLINT: OpenSSL's type.
  switch (command) {
    case BIO_CTRL_FLUSH:
      return 1;
    case BIO_CTRL_EOF:
      return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0 ? 1 : 0;
    default:
      return 0;
  }
}

int Create(BIO* bio) {
  BIO_set_init(bio, 1);
  return 1;
}

SocketBioMethod::SocketBioMethod()
    : method_(BIO_meth_new(BIO_TYPE_SOURCE_SINK, "tessera socket")) {
  if (method_ == nullptr) return;
  if (BIO_meth_set_write(method_.get(), &Write) != 1 ||
      BIO_meth_set_read(method_.get(), &Read) != 1 ||
      BIO_meth_set_ctrl(method_.get(), &Control) != 1 ||
      BIO_meth_set_create(method_.get(), &Create) != 1) {
    method_.reset();
  }
}

BIO* SocketBioMethod::NewBio(int socket) const {
  BIO* bio = BIO_new(method_.get());
  if (bio != nullptr) {
    BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(socket)));
  }
  return bio;
}

constexpr std::string_view kSalt = "tessera rendezvous 1";
constexpr size_t kPskBytes = 32;
constexpr std::array<unsigned char, 2> kAes128GcmSha256 = {0x13, 0x01};

struct FreeContext {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
struct FreeSsl {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};
struct FreeSession {
  void operator()(SSL_SESSION* session) const { SSL_SESSION_free(session); }
};

// The first message of OpenSSL's error queue; clears the queue.
std::string TakeReason() {
  const unsigned long error = ERR_get_error();  // NOLINT: OpenSSL's type.
  ERR_clear_error();
  const char* reason = error == 0 ? nullptr : ERR_reason_error_string(error);
  return reason == nullptr ? "no reason given" : reason;
}

class PskContext final : public TlsContext,
                         public std::enable_shared_from_this<PskContext> {
 public:
  PskContext(Role role, std::string_view identity, std::string key)
      : role_(role), identity_(identity), key_(std::move(key)) {}

  absl::Status Init();
  absl::StatusOr<std::unique_ptr<ByteChannel>> Wrap(UniqueFd socket) override;

 private:
  static int FindSession(SSL* ssl, const unsigned char* identity, size_t size,
                         SSL_SESSION** session);
  static int UseSession(SSL* ssl, const EVP_MD* digest,
                        const unsigned char** identity, size_t* size,
                        SSL_SESSION** session);
  // The key as a session, as OpenSSL requires. Null on error.
  SSL_SESSION* MakeSession(SSL* ssl) const;

  const Role role_;
  const std::string identity_;
  const std::string key_;
  SocketBioMethod bio_method_;
  std::unique_ptr<SSL_CTX, FreeContext> context_;
};

class TlsChannel final : public ByteChannel {
 public:
  TlsChannel(std::shared_ptr<PskContext> context, UniqueFd socket,
             std::unique_ptr<SSL, FreeSsl> ssl)
      : context_(std::move(context)),
        socket_(std::move(socket)),
        ssl_(std::move(ssl)) {}

  int fd() const override { return socket_.get(); }
  absl::StatusOr<Want> Handshake() override;
  absl::StatusOr<Progress> Read(std::span<char> bytes) override;
  absl::StatusOr<Progress> Write(std::string_view bytes) override;
  void Close() override;

 private:
  absl::StatusOr<Want> WantOf(int result);

  const std::shared_ptr<PskContext> context_;
  UniqueFd socket_;
  std::unique_ptr<SSL, FreeSsl> ssl_;
};

absl::Status PskContext::Init() {
  ERR_clear_error();
  context_.reset(SSL_CTX_new(TLS_method()));
  SSL_CTX* context = context_.get();
  const bool ready =
      context != nullptr && bio_method_.valid() &&
      SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
      SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 &&
      SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") == 1 &&
      SSL_CTX_set1_groups_list(context, "X25519:P-256") == 1 &&
      SSL_CTX_set_num_tickets(context, 0) == 1;
  if (!ready) {
    return absl::InternalError(
        absl::StrCat("OpenSSL cannot be set up: ", TakeReason()));
  }
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE |
                                SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  if (role_ == Role::kServer) {
    SSL_CTX_set_psk_find_session_callback(context, &FindSession);
  } else {
    // Trusts no certificates, so a server without the key fails.
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_psk_use_session_callback(context, &UseSession);
  }
  return absl::OkStatus();
}

SSL_SESSION* PskContext::MakeSession(SSL* ssl) const {
  std::unique_ptr<SSL_SESSION, FreeSession> session(SSL_SESSION_new());
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kAes128GcmSha256.data());
  const bool ready =
      session != nullptr && cipher != nullptr &&
      SSL_SESSION_set1_master_key(
          session.get(), reinterpret_cast<const unsigned char*>(key_.data()),
          key_.size()) == 1 &&
      SSL_SESSION_set_cipher(session.get(), cipher) == 1 &&
      SSL_SESSION_set_protocol_version(session.get(), TLS1_3_VERSION) == 1;
  return ready ? session.release() : nullptr;
}

int PskContext::FindSession(SSL* ssl, const unsigned char* identity,
                            size_t size, SSL_SESSION** session) {
  const auto* self = static_cast<const PskContext*>(SSL_get_app_data(ssl));
  *session = nullptr;
  const std::string_view given(reinterpret_cast<const char*>(identity), size);
  // Without a session the handshake fails, because there is no other
  // authentication.
  if (given != self->identity_) return 1;
  *session = self->MakeSession(ssl);
  return *session != nullptr ? 1 : 0;
}

int PskContext::UseSession(SSL* ssl, const EVP_MD* digest,
                           const unsigned char** identity, size_t* size,
                           SSL_SESSION** session) {
  const auto* self = static_cast<const PskContext*>(SSL_get_app_data(ssl));
  *session = nullptr;
  // The key is valid for one hash only.
  if (digest != nullptr && EVP_MD_get_type(digest) != NID_sha256) return 1;
  *session = self->MakeSession(ssl);
  *identity = reinterpret_cast<const unsigned char*>(self->identity_.data());
  *size = self->identity_.size();
  return *session != nullptr ? 1 : 0;
}

absl::StatusOr<std::unique_ptr<ByteChannel>> PskContext::Wrap(UniqueFd socket) {
  ERR_clear_error();
  std::unique_ptr<SSL, FreeSsl> ssl(SSL_new(context_.get()));
  BIO* bio = ssl == nullptr ? nullptr : bio_method_.NewBio(socket.get());
  if (bio == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("OpenSSL cannot make a connection: ", TakeReason()));
  }
  SSL_set_bio(ssl.get(), bio, bio);  // Takes ownership.
  SSL_set_app_data(ssl.get(), this);
  if (role_ == Role::kServer) {
    SSL_set_accept_state(ssl.get());
  } else {
    SSL_set_connect_state(ssl.get());
  }
  return std::make_unique<TlsChannel>(shared_from_this(), std::move(socket),
                                      std::move(ssl));
}

// Maps OpenSSL's reason to a status code.
absl::StatusCode CodeOfReason(int reason) {
  if (reason == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
    return absl::StatusCode::kUnavailable;
  }
  switch (reason) {
    case SSL_R_BINDER_DOES_NOT_VERIFY:  // Another secret.
    case SSL_R_NO_SHARED_CIPHER:        // Another identity, or no key at all.
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
    case SSL_R_NO_SUITABLE_KEY_SHARE:
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
      return absl::StatusCode::kPermissionDenied;
    // The same, reported by the other end's alerts.
    case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
    case SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER:
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
    case SSL_R_TLSV1_ALERT_UNKNOWN_PSK_IDENTITY:
      return absl::StatusCode::kPermissionDenied;
    default:
      return absl::StatusCode::kInvalidArgument;
  }
}

// Interprets the result of a call that moved no bytes.
absl::StatusOr<Want> TlsChannel::WantOf(int result) {
  const int system_error = errno;
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return Want::kRead;
    case SSL_ERROR_WANT_WRITE:
      return Want::kWrite;
    case SSL_ERROR_ZERO_RETURN:
      return absl::UnavailableError("the other end closed the connection");
    case SSL_ERROR_SYSCALL:
      ERR_clear_error();
      return absl::UnavailableError(absl::StrCat(
          "the connection broke: ", system_error == 0
                                        ? "the other end closed it"
                                        : std::strerror(system_error)));
    default: {
      const int reason = ERR_GET_REASON(ERR_peek_error());
      return absl::Status(CodeOfReason(reason),
                          absl::StrCat("TLS: ", TakeReason()));
    }
  }
}

absl::StatusOr<Want> TlsChannel::Handshake() {
  ERR_clear_error();
  errno = 0;
  const int result = SSL_do_handshake(ssl_.get());
  if (result != 1) return WantOf(result);
  // Accept only a handshake that used the key.
  if (SSL_session_reused(ssl_.get()) == 1) return Want::kNothing;
  return absl::PermissionDeniedError("the other end did not use the secret");
}

absl::StatusOr<Progress> TlsChannel::Read(std::span<char> bytes) {
  ERR_clear_error();
  errno = 0;
  const int size = static_cast<int>(std::min<size_t>(bytes.size(), INT_MAX));
  const int got = SSL_read(ssl_.get(), bytes.data(), size);
  if (got > 0) return Progress{static_cast<size_t>(got), Want::kNothing};
  TESSERA_ASSIGN_OR_RETURN(const Want want, WantOf(got));
  return Progress{0, want};
}

absl::StatusOr<Progress> TlsChannel::Write(std::string_view bytes) {
  ERR_clear_error();
  errno = 0;
  const int size = static_cast<int>(std::min<size_t>(bytes.size(), INT_MAX));
  const int sent = SSL_write(ssl_.get(), bytes.data(), size);
  if (sent > 0) return Progress{static_cast<size_t>(sent), Want::kNothing};
  TESSERA_ASSIGN_OR_RETURN(const Want want, WantOf(sent));
  return Progress{0, want};
}

void TlsChannel::Close() {
  ERR_clear_error();
  if (SSL_is_init_finished(ssl_.get()) == 1) SSL_shutdown(ssl_.get());
  ERR_clear_error();
  shutdown(fd(), SHUT_RDWR);
}

}  // namespace

absl::StatusOr<std::shared_ptr<TlsContext>> TlsContext::Create(
    Role role, std::string_view identity, std::string_view secret) {
  if (secret.size() < kMinSecretBytes || secret.size() > kMaxSecretBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the job's secret has ", secret.size(), " bytes; use ",
                     kMinSecretBytes, " to ", kMaxSecretBytes));
  }
  if (identity.empty() || identity.size() > kMaxIdentityBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the job's name has ", identity.size(),
                     " bytes; use 1 to ", kMaxIdentityBytes));
  }
  TESSERA_ASSIGN_OR_RETURN(std::string key,
                           HkdfSha256(secret, kSalt, identity, kPskBytes));
  auto context = std::make_shared<PskContext>(role, identity, std::move(key));
  TESSERA_RETURN_IF_ERROR(context->Init());
  return context;
}

}  // namespace tessera::collectives

#endif  // TESSERA_HAVE_OPENSSL
