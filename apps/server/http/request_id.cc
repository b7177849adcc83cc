#include "http/request_id.h"

#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace quire::server {
namespace {

constexpr std::string_view kDigits = "0123456789abcdefghjkmnpqrstvwxyz";
constexpr int kTimeDigits = 10;
constexpr int kRandomDigits = 16;

bool is_id_byte(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == ':' || c == '-';
}

}  // namespace

bool is_request_id(std::string_view text) {
  return !text.empty() && text.size() <= 128 && std::ranges::all_of(text, is_id_byte);
}

std::string new_request_id() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  std::array<unsigned char, kRandomDigits> random = {};
  RAND_bytes(random.data(), static_cast<int>(random.size()));
  std::string id = "req_";
  for (int i = kTimeDigits - 1; i >= 0; --i) {
    id += kDigits[static_cast<std::uint64_t>(ms) >> (5 * i) & 31U];
  }
  for (const unsigned char byte : random) {
    id += kDigits[byte & 31U];
  }
  return id;
}

}  // namespace quire::server
