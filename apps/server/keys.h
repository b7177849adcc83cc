// KeyTable: finds the caller by the digest of the key in a request.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "message.h"
#include "quire/result.h"

namespace quire::server {

enum class Role : std::uint8_t { kUser, kAdmin };

// Limits of a tenant. Not given: no limit, but for max_sequences.
struct TenantLimits {
  std::optional<std::int64_t> max_inflight;
  std::optional<std::int64_t> rpm;
  std::optional<std::int64_t> tpm;
  std::optional<std::int64_t> max_chunks;
  std::optional<std::int64_t> chunk_bytes;
  std::optional<std::int64_t> hold_tokens;
  std::optional<std::int64_t> max_sequences = 64;
  std::optional<std::int64_t> max_prompt_tokens;
  std::optional<std::int64_t> max_completion_tokens;

  friend bool operator==(const TenantLimits&, const TenantLimits&) = default;
};

// Tenant and role of a key. Plain data.
struct Caller {
  std::string tenant = "default";
  Role role = Role::kAdmin;
  TenantLimits limits = {};
};

// Keys by their SHA-256 digests. No key itself stays in memory.
// Threads: any number of threads may read a table that nobody changes.
class KeyTable {
 public:
  using Digest = std::array<unsigned char, 32>;

  // Returns true if there are no keys: every request is then tenant `default`, role admin.
  [[nodiscard]] bool empty() const { return keys_.empty(); }
  // Returns the caller of `key`, or null. Compares with every digest in constant time.
  [[nodiscard]] std::shared_ptr<const Caller> find(std::string_view key) const;
  // Returns a caller with the limits of a tenant, or null if the table does not name it.
  [[nodiscard]] std::shared_ptr<const Caller> tenant(std::string_view name) const;

  // Adds a plain key: tenant `default`, role admin.
  [[nodiscard]] Status add_key(std::string_view key);
  // Adds the keys of a file with one key per line. `name` is for messages.
  [[nodiscard]] Status add_lines(std::string_view text, const std::string& name);
  // Adds the keys of `{"keys":[{"sha256","tenant","role","limits"}]}`.
  // Errors: kInvalidArgument names the entry; one digest with two tenants is an error.
  [[nodiscard]] Status add_json(std::string_view text, const std::string& name);

 private:
  struct Key {
    Digest digest = {};
    std::shared_ptr<const Caller> caller;
  };

  [[nodiscard]] Status add(const Digest& digest, Caller caller, const std::string& where);

  std::vector<Key> keys_;
};

// Returns the SHA-256 digest of a key as 64 hexadecimal digits.
[[nodiscard]] std::string hash_key(std::string_view key);

// The key in the fields of a request.
struct PresentedKey {
  // Not given where the request has none.
  std::optional<std::string> key;
  // True: two fields name different keys.
  bool ambiguous = false;
};

// Returns the key of `authorization: Bearer`, `x-api-key` and `x-goog-api-key`, or of the query's
// `key` on paths of Gemini.
[[nodiscard]] PresentedKey presented_key(const Request& request);

}  // namespace quire::server
