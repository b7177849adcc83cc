// Shows chunks as JSON.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "objects/chunks.h"
#include "quire/chunks.h"

namespace quire::server {
namespace {

json::value kv_error_json(const std::optional<KVError>& error) {
  if (!error) {
    return nullptr;
  }
  return json::object{
      {"key", error->key}, {"value", error->value}, {"bits_per_value", error->bits_per_value}};
}

json::value anchor_json(const std::string& anchor) {
  const std::vector<std::string_view> ids = anchor_ids(anchor);
  if (ids.size() > 1) {
    return json::value_from(ids);
  }
  return anchor.empty() ? json::value(nullptr) : json::value(anchor);
}

}  // namespace

json::object chunk_json(const ChunkInfo& info, const ChunkIncludes& includes) {
  json::object object;
  object["object"] = "chunk";
  object["chunk_id"] = info.chunk_id;
  object["type"] = chunk_type_name(info.type);
  object["num_tokens"] = info.token_ids.size();
  object["metadata"] = json::parse(info.metadata_json);
  object["created_at"] = info.created_at;
  object["last_accessed"] = info.last_accessed;
  object["access_count"] = info.access_count;
  object["ttl_seconds"] = info.ttl_seconds ? json::value(*info.ttl_seconds) : json::value(nullptr);
  object["pinned"] = info.pinned;
  object["priority"] = info.priority;
  object["anchor"] = anchor_json(info.anchor);
  object["num_variants"] = info.num_variants;
  object["memory_bytes"] = info.memory_bytes;
  object["kv_dtype"] = info.kv_dtype;
  object["kv_error"] = kv_error_json(info.kv_error);
  object["keep_hidden"] = info.keep_hidden ? json::value(*info.keep_hidden) : json::value(nullptr);
  object["saved"] = info.saved;
  if (includes.content) {
    object["content"] = info.content;
  }
  if (includes.token_ids) {
    object["token_ids"] = json::array(info.token_ids.begin(), info.token_ids.end());
  }
  return object;
}

}  // namespace quire::server
