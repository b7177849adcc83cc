#include "quire/base/sha256.h"

#include <openssl/evp.h>
#include <openssl/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>

namespace quire::base {

struct FieldHasher::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { EVP_MD_CTX_free(context); }
};

FieldHasher::FieldHasher() : state_(std::make_unique<State>()) {
  if (state_->context == nullptr ||
      EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) != 1) {
    throw std::bad_alloc();  // there is no other reason
  }
}

FieldHasher::~FieldHasher() = default;

FieldHasher& FieldHasher::add(std::string_view field) {
  return add_bytes(std::as_bytes(std::span(field.data(), field.size())));
}

FieldHasher& FieldHasher::add_bytes(std::span<const std::byte> field) {
  std::array<std::uint8_t, 8> length{};
  for (std::size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<std::uint8_t>(field.size() >> (8 * i));
  }
  EVP_DigestUpdate(state_->context, length.data(), length.size());
  EVP_DigestUpdate(state_->context, field.data(), field.size());
  return *this;
}

FieldHasher& FieldHasher::add_int(std::int64_t value) {
  return add_bytes(std::as_bytes(std::span(&value, 1)));
}

std::array<std::uint8_t, 32> FieldHasher::finish() {
  std::array<std::uint8_t, 32> digest{};
  EVP_DigestFinal_ex(state_->context, digest.data(), nullptr);
  return digest;
}

std::string to_hex(std::span<const std::uint8_t> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const std::uint8_t byte : bytes) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

}  // namespace quire::base
