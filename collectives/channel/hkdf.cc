#include "collectives/channel/hkdf.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#ifdef TESSERA_HAVE_OPENSSL
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <array>
#include <memory>
#endif

namespace tessera::collectives::bootstrap {

#ifdef TESSERA_HAVE_OPENSSL
namespace {

struct FreeKdf {
  void operator()(EVP_KDF* kdf) const { EVP_KDF_free(kdf); }
  void operator()(EVP_KDF_CTX* context) const { EVP_KDF_CTX_free(context); }
};

OSSL_PARAM Octets(const char* name, std::string_view bytes) {
  return OSSL_PARAM_construct_octet_string(
      name, const_cast<char*>(bytes.data()), bytes.size());
}

}  // namespace
#endif

absl::StatusOr<std::string> HkdfSha256([[maybe_unused]] std::string_view secret,
                                       [[maybe_unused]] std::string_view salt,
                                       [[maybe_unused]] std::string_view info,
                                       size_t bytes) {
  if (bytes < 1 || bytes > 255 * 32) {
    return absl::InvalidArgumentError(
        absl::StrCat("HKDF-SHA256 gives 1 to 8160 bytes, not ", bytes));
  }
#ifdef TESSERA_HAVE_OPENSSL
  char digest[] = "SHA256";
  std::array<OSSL_PARAM, 5> params = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      Octets(OSSL_KDF_PARAM_KEY, secret), Octets(OSSL_KDF_PARAM_SALT, salt),
      Octets(OSSL_KDF_PARAM_INFO, info), OSSL_PARAM_construct_end()};
  std::unique_ptr<EVP_KDF, FreeKdf> kdf(
      EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  std::unique_ptr<EVP_KDF_CTX, FreeKdf> context(EVP_KDF_CTX_new(kdf.get()));
  std::string key(bytes, '\0');
  if (context != nullptr &&
      EVP_KDF_derive(context.get(),
                     reinterpret_cast<unsigned char*>(key.data()), key.size(),
                     params.data()) == 1) {
    return key;
  }
  ERR_clear_error();
  return absl::InternalError("OpenSSL has no HKDF with SHA-256");
#else
  return absl::UnimplementedError(
      "this build has no OpenSSL; install libssl-dev and build again");
#endif
}

}  // namespace tessera::collectives::bootstrap
