#include "quire/kv_store/store_entry.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "quire/base/str.h"
#include "quire/kv_store/byte_codec.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/kv_file_format.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

constexpr std::array<std::string_view, 4> kKindNames = {"chunk", "sequence", "context",
                                                        "checkpoint"};
constexpr std::size_t kMaxParts = std::size_t{1} << 20;
constexpr std::int64_t kMaxTimeMs = std::numeric_limits<std::int64_t>::max() - kMaxTtlMs;
constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int32_t>::max();

Status refuse(const std::string& message) {
  return {ErrorCode::kInvalidArgument, base::str_cat("store entry: ", message)};
}

// Names go to terminals, file systems of others and C interfaces.
Status check_name(std::string_view field, std::string_view value) {
  if (value.size() > kMaxNameBytes || value.find('\0') != std::string_view::npos) {
    return refuse(base::str_cat(field, " ", base::quoted(value), " has ", value.size(),
                                " bytes; at most ", kMaxNameBytes, ", none of them zero"));
  }
  return {};
}

}  // namespace

std::string_view entry_kind_name(EntryKind kind) {
  return kKindNames[static_cast<std::size_t>(kind)];
}

Result<EntryKind> parse_entry_kind(std::string_view name) {
  for (std::size_t i = 0; i < kKindNames.size(); ++i) {
    if (kKindNames[i] == name) {
      return static_cast<EntryKind>(i);
    }
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat("no kind of store entry is called ", base::quoted(name),
                        "; there are chunk, sequence, context and checkpoint")};
}

bool has_expired(const StoreEntry& entry, std::int64_t now_ms) {
  return entry.ttl_ms && !entry.pinned && expires_ms(entry) <= now_ms;
}

std::vector<std::string> objects_of(const StoreEntry& entry) {
  std::unordered_set<std::string_view> seen;
  std::vector<std::string> hashes;
  for (const ObjectRange& part : entry.parts) {
    if (seen.insert(part.object).second) {
      hashes.push_back(part.object);
    }
  }
  return hashes;
}

std::int64_t tokens_of(const StoreEntry& entry) {
  std::int64_t tokens = 0;
  for (const ObjectRange& part : entry.parts) {
    tokens += part.tokens;
  }
  return tokens;
}

std::int64_t expires_ms(const StoreEntry& entry) {
  return entry.ttl_ms ? entry.accessed_ms + *entry.ttl_ms : 0;
}

std::uint64_t entry_checksum(const StoreEntry& entry) {
  ByteWriter out(256 + entry.metadata_json.size() + 96 * entry.parts.size());
  const auto put_text = [&](std::string_view text) {
    out.put(static_cast<std::uint64_t>(text.size()));
    out.put_text(text);
  };
  for (const std::string_view text :
       {std::string_view(entry.key), std::string_view(entry.tenant), entry_kind_name(entry.kind),
        std::string_view(entry.name), std::string_view(entry.metadata_json)}) {
    put_text(text);
  }
  out.put(entry.tokens);
  out.put(entry.bytes);
  out.put(entry.created_ms);
  for (const ObjectRange& part : entry.parts) {
    put_text(part.object);
    out.put(part.first_token);
    out.put(part.tokens);
  }
  return checksum(out.bytes());
}

std::int64_t possible_time_ms(std::int64_t ms) {
  return std::clamp<std::int64_t>(ms, 1, kMaxTimeMs);  // 0: not known
}

Status check_ttl(std::optional<std::int64_t> ttl_ms) {
  if (!ttl_ms || (*ttl_ms >= 0 && *ttl_ms <= kMaxTtlMs)) {
    return {};
  }
  return refuse(
      base::str_cat("a lifetime of ", *ttl_ms, " ms; give 0 to ", kMaxTtlMs, ", or none"));
}

Status check_entry(const StoreEntry& entry) {
  if (!is_hash(entry.key)) {
    return refuse(base::str_cat("key ", base::quoted(entry.key), " is not 64 hexadecimal digits"));
  }
  QUIRE_TRY_STATUS(check_name("tenant", entry.tenant));
  QUIRE_TRY_STATUS(check_name("name", entry.name));
  QUIRE_TRY_STATUS(check_metadata(entry.metadata_json));
  if (entry.parts.size() > kMaxParts) {
    return refuse(base::str_cat(entry.parts.size(), " parts, at most ", kMaxParts));
  }
  for (const ObjectRange& part : entry.parts) {
    if (!is_hash(part.object)) {
      return refuse(
          base::str_cat("object ", base::quoted(part.object), " is not 64 hexadecimal digits"));
    }
    if (part.first_token < 0 || part.first_token > kMaxTokens || part.tokens < 0 ||
        part.tokens > kMaxTokens) {
      return refuse(base::str_cat(part.tokens, " tokens from token ", part.first_token, " of ",
                                  part.object, " on"));
    }
  }
  if (entry.tokens < 0 || entry.bytes < 0 || entry.created_ms < 0 || entry.accessed_ms < 0 ||
      entry.accessed_ms > kMaxTimeMs) {
    return refuse("a count or time is out of range");
  }
  return check_ttl(entry.ttl_ms);
}

}  // namespace quire::kv_store
