#include "keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "message.h"
#include "quire/result.h"

namespace quire::server {
namespace {

constexpr std::size_t kMaxTenantBytes = 256;

struct LimitField {
  const char* name;
  std::optional<std::int64_t> TenantLimits::* member;
};
constexpr LimitField kLimitFields[] = {
    {"max_inflight", &TenantLimits::max_inflight},
    {"rpm", &TenantLimits::rpm},
    {"tpm", &TenantLimits::tpm},
    {"max_chunks", &TenantLimits::max_chunks},
    {"chunk_bytes", &TenantLimits::chunk_bytes},
    {"hold_tokens", &TenantLimits::hold_tokens},
    {"max_sequences", &TenantLimits::max_sequences},
    {"max_prompt_tokens", &TenantLimits::max_prompt_tokens},
    {"max_completion_tokens", &TenantLimits::max_completion_tokens}};

Status ill_formed(const std::string& where, const std::string& what) {
  return {ErrorCode::kInvalidArgument, where + ": " + what};
}

KeyTable::Digest digest_of(std::string_view key) {
  KeyTable::Digest digest = {};
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  if (c >= 'a' && c <= 'f') {
    return c - 'a' + 10;
  }
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

std::optional<KeyTable::Digest> parse_digest(std::string_view text) {
  KeyTable::Digest digest = {};
  if (text.size() != 2 * digest.size()) {
    return {};
  }
  for (std::size_t i = 0; i < digest.size(); ++i) {
    const int high = hex_value(text[2 * i]);
    const int low = hex_value(text[2 * i + 1]);
    if (high < 0 || low < 0) {
      return {};
    }
    digest[i] = static_cast<unsigned char>(16 * high + low);
  }
  return digest;
}

std::string_view text_of_value(const boost::json::value& value) {
  const boost::json::string* const text = value.if_string();
  return text == nullptr ? std::string_view() : std::string_view(text->data(), text->size());
}

Status read_limits(const boost::json::value& value, const std::string& where,
                   TenantLimits& limits) {
  if (!value.is_object()) {
    return ill_formed(where, "limits: want an object");
  }
  for (const auto& [name, number] : value.get_object()) {
    const auto field = std::ranges::find_if(
        kLimitFields, [&](const LimitField& each) { return name == each.name; });
    if (field == std::end(kLimitFields)) {
      return ill_formed(where, "unknown key limits." + std::string(name));
    }
    if (number.is_null()) {
      continue;
    }
    if (!number.is_int64() || number.get_int64() < 0) {
      return ill_formed(where, std::string("limits.") + field->name + ": want a whole number");
    }
    limits.*field->member = number.get_int64();
  }
  return {};
}

// Reads an entry of `keys`.
Status read_key(const boost::json::value& value, const std::string& where, KeyTable::Digest& digest,
                Caller& caller) {
  if (!value.is_object()) {
    return ill_formed(where, "want an object");
  }
  bool has_digest = false;
  caller.tenant.clear();
  caller.role = Role::kUser;
  for (const auto& [name, member] : value.get_object()) {
    const std::string_view text = text_of_value(member);
    if (name == "sha256") {
      const auto parsed = parse_digest(text);
      if (!parsed) {
        return ill_formed(where,
                          "sha256: want 64 hexadecimal digits; quire serve --hash-key "
                          "prints them");
      }
      digest = *parsed;
      has_digest = true;
    } else if (name == "tenant") {
      caller.tenant = text;
    } else if (name == "role") {
      if (text != "user" && text != "admin") {
        return ill_formed(where, "role: want user or admin");
      }
      caller.role = text == "admin" ? Role::kAdmin : Role::kUser;
    } else if (name == "limits") {
      QUIRE_TRY_STATUS(read_limits(member, where, caller.limits));
    } else {
      return ill_formed(where, "unknown key " + std::string(name));
    }
  }
  if (!has_digest) {
    return ill_formed(where, "sha256 is missing");
  }
  if (caller.tenant.empty() || caller.tenant.size() > kMaxTenantBytes) {
    return ill_formed(where, "tenant: want 1 to 256 bytes");
  }
  return {};
}

bool is_bearer(std::string_view value) {
  constexpr std::string_view kScheme = "bearer ";
  return value.size() > kScheme.size() &&
         std::ranges::equal(value.substr(0, kScheme.size()), kScheme, {}, [](char c) {
           return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
         });
}

std::string_view without_blanks(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(" \t\r"), text.size());
  text.remove_prefix(begin);
  return text.substr(0, text.find_last_not_of(" \t\r") + 1);
}

// Undoes percent-encoding. Bytes that are none stay as they are.
std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? hex_value(text[i + 1]) : -1;
    const int low = high < 0 ? -1 : hex_value(text[i + 2]);
    if (low < 0) {
      decoded += text[i];
    } else {
      decoded += static_cast<char>(16 * high + low);
      i += 2;
    }
  }
  return decoded;
}

void add_query_keys(std::string_view query, std::vector<std::string>& keys) {
  while (!query.empty()) {
    const std::size_t end = std::min(query.find('&'), query.size());
    const std::string_view pair = query.substr(0, end);
    if (pair.starts_with("key=")) {
      keys.push_back(percent_decoded(pair.substr(4)));
    }
    query.remove_prefix(std::min(end + 1, query.size()));
  }
}

}  // namespace

std::shared_ptr<const Caller> KeyTable::find(std::string_view key) const {
  const Digest digest = digest_of(key);
  std::shared_ptr<const Caller> found;
  for (const Key& each : keys_) {
    if (CRYPTO_memcmp(each.digest.data(), digest.data(), digest.size()) == 0) {
      found = each.caller;
    }
  }
  return found;
}

std::shared_ptr<const Caller> KeyTable::tenant(std::string_view name) const {
  for (const Key& each : keys_) {
    if (each.caller->tenant == name) {
      return each.caller;
    }
  }
  return nullptr;
}

Status KeyTable::add(const Digest& digest, Caller caller, const std::string& where) {
  for (const Key& each : keys_) {
    const bool same_tenant = each.caller->tenant == caller.tenant;
    if (each.digest == digest) {
      if (same_tenant && each.caller->role == caller.role && each.caller->limits == caller.limits) {
        return {};
      }
      return ill_formed(where, "the key is given twice, for tenant \"" + each.caller->tenant +
                                   "\" and for tenant \"" + caller.tenant +
                                   "\", or with another role or other limits");
    }
    if (same_tenant && each.caller->limits != caller.limits) {
      return ill_formed(where, "tenant \"" + caller.tenant +
                                   "\" has other limits in another entry; limits are the tenant's");
    }
  }
  keys_.push_back({digest, std::make_shared<const Caller>(std::move(caller))});
  return {};
}

Status KeyTable::add_key(std::string_view key) {
  if (key.empty()) {
    return {ErrorCode::kInvalidArgument, "a key is empty"};
  }
  return add(digest_of(key), Caller{}, "key");
}

Status KeyTable::add_lines(std::string_view text, const std::string& name) {
  std::size_t added = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = without_blanks(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty()) {
      continue;
    }
    if (line.find_first_of(" \t") != std::string_view::npos || line.find('\0') != line.npos) {
      return ill_formed(name, "want one key a line, without spaces");
    }
    QUIRE_TRY_STATUS(add(digest_of(line), Caller{}, name));
    ++added;
  }
  return added > 0 ? Status() : ill_formed(name, "it has no key");
}

Status KeyTable::add_json(std::string_view text, const std::string& name) {
  boost::system::error_code error;
  const boost::json::value value = boost::json::parse({text.data(), text.size()}, error);
  if (error) {
    return ill_formed(name, "not JSON: " + error.message());
  }
  const boost::json::object* const object = value.if_object();
  const boost::json::value* const keys = object == nullptr ? nullptr : object->if_contains("keys");
  if (keys == nullptr || !keys->is_array() || object->size() != 1) {
    return ill_formed(name, R"(want {"keys": [{"sha256", "tenant", "role", "limits"}]})");
  }
  std::size_t index = 0;
  for (const boost::json::value& each : keys->get_array()) {
    const std::string where = name + ": keys[" + std::to_string(index++) + "]";
    Digest digest = {};
    Caller caller;
    QUIRE_TRY_STATUS(read_key(each, where, digest, caller));
    QUIRE_TRY_STATUS(add(digest, std::move(caller), where));
  }
  return index > 0 ? Status() : ill_formed(name, "it has no key");
}

std::string hash_key(std::string_view key) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : digest_of(key)) {
    text += kHex[byte >> 4U];
    text += kHex[byte & 15U];
  }
  return text;
}

PresentedKey presented_key(const Request& request) {
  std::vector<std::string> keys;
  for (const HeaderField& field : request.headers) {
    if (field.name == "authorization" && is_bearer(field.value)) {
      keys.emplace_back(without_blanks(std::string_view(field.value).substr(7)));
    } else if (field.name == "x-api-key" || field.name == "x-goog-api-key") {
      keys.emplace_back(without_blanks(field.value));
    }
  }
  if (request.path.starts_with("/v1beta/")) {
    add_query_keys(request.query, keys);
  }
  std::erase(keys, std::string());
  if (keys.empty()) {
    return {};
  }
  const bool differ = std::ranges::any_of(keys, [&](const auto& key) { return key != keys[0]; });
  return {.key = keys[0], .ambiguous = differ};
}

}  // namespace quire::server
