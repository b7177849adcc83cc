#include "objects/chunks.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "api/call.h"
#include "api/errors.h"
#include "api/fields.h"
#include "api/json.h"
#include "api/router.h"
#include "api/sampling.h"
#include "objects/state.h"
#include "quire/chunks.h"
#include "quire/result.h"

namespace quire::server {
namespace {

constexpr std::int64_t kMostChunksAtOnce = 256;
constexpr std::int64_t kListLimit = 100;
constexpr std::int64_t kMostListed = 1000;
constexpr double kMaxTtl = 1e10;
constexpr const char* kTypeWords = "system_prompt|context|query";

constexpr FieldTable kMetadataTable{"ChunkMetadata", "Data of the user.", {}, true};

std::span<const FieldRule> content_rules() {
  static const FieldRule rules[] = {
      {.name = "content",
       .kinds = kString | kArray,
       .help = "a text, which goes through the chunk format, or token ids",
       .required = true,
       .min_size = 1,
       .elements = kInteger},
      {.name = "type", .kinds = kString, .help = "default context", .words = kTypeWords},
      {.name = "metadata",
       .kinds = kObject,
       .help = "data of the user, merged where an equal chunk is there",
       .members = &kMetadataTable},
      {.name = "ttl_seconds",
       .kinds = kNumber,
       .help = "seconds after the last use until the chunk expires",
       .min = 0,
       .max = kMaxTtl,
       .above = true},
      {.name = "pinned", .kinds = kBool, .help = "true: never evicted, never expires"},
      {.name = "priority",
       .kinds = kInteger,
       .help = "lower ones are evicted first",
       .min = -2147483648.0,
       .max = 2147483647},
      {.name = "kv_dtype",
       .kinds = kString,
       .help = "format of its KV; default that of the server's pool",
       .min_size = 1},
      {.name = "keep_hidden",
       .kinds = kInteger,
       .help = "layer at which a context keeps hidden states, for blend.layers",
       .min = 1,
       .max = 2147483647},
      {.name = "anchor",
       .kinds = kString | kArray,
       .help = "system chunk under which a context is computed, or a list of it and contexts; "
               "\"\": none; default: the one registered last",
       .max_size = 256,
       .elements = kString},
  };
  return rules;
}

const FieldTable& content_table() {
  static const FieldTable table{"ChunkRequest", "A chunk to register.", {content_rules()}};
  return table;
}

const FieldTable& chunk_batch_table() {
  static const FieldRule rules[] = {
      {.name = "chunks",
       .kinds = kArray,
       .help = "up to 256 chunks, registered all or none",
       .required = true,
       .min_size = 1,
       .max_size = kMostChunksAtOnce,
       .members = &content_table(),
       .elements = kObject},
  };
  static const FieldTable table{"ChunkBatchRequest", "Chunks to register together.", {rules}};
  return table;
}

const FieldTable& chunk_update_table() {
  static const FieldRule rules[] = {
      {.name = "metadata",
       .kinds = kObject,
       .help = "pairs that replace those of equal keys",
       .members = &kMetadataTable},
      {.name = "ttl_seconds",
       .kinds = kNumber,
       .help = "null: no TTL from now on",
       .min = 0,
       .max = kMaxTtl,
       .above = true},
      {.name = "pinned", .kinds = kBool},
      {.name = "priority", .kinds = kInteger, .min = -2147483648.0, .max = 2147483647},
      {.name = "kv_dtype",
       .kinds = kString,
       .help = "fewer bits for the KV that is there: the chunk gets another id",
       .min_size = 1},
  };
  static const FieldTable table{"ChunkUpdate", "Changes to a chunk.", {rules}};
  return table;
}

const FieldTable& evict_table() {
  static const FieldRule rules[] = {
      {.name = "max_age_seconds",
       .kinds = kNumber,
       .help = "evicts what had no use for so long; default 3600",
       .min = 0},
  };
  static const FieldTable table{"EvictRequest", "Which chunks to evict from memory.", {rules}};
  return table;
}

ChunkType type_of(std::string_view word) {
  for (const ChunkType type : {ChunkType::kSystemPrompt, ChunkType::kContext, ChunkType::kQuery}) {
    if (word == chunk_type_name(type)) {
      return type;
    }
  }
  return ChunkType::kContext;
}

Checked<ChunkContent> read_content(const Services& services, const json::object& object,
                                   std::string_view path) {
  const Members members(object);
  ChunkContent content{.type = type_of(members.text("type").value_or("context"))};
  if (const json::array* const ids = members.array("content")) {
    QUIRE_TRY(content.content,
              read_ids(*ids, member_path(path, "content"), services.engine->facts().vocab_size));
  } else {
    content.content = std::string(members.text("content").value_or(""));
  }
  if (const json::object* const metadata = members.object("metadata")) {
    content.options.metadata_json = json::serialize(*metadata);
  }
  content.options.ttl_seconds = members.number("ttl_seconds");
  content.options.pinned = members.flag("pinned");
  content.options.priority = static_cast<std::int32_t>(members.integer("priority").value_or(0));
  content.options.kv_dtype = members.text("kv_dtype").value_or("");
  if (const auto layer = members.integer("keep_hidden")) {
    content.options.keep_hidden = static_cast<std::int32_t>(*layer);
  }
  if (const json::array* const ids = members.array("anchor")) {
    content.options.anchor = anchor_of(json::value_to<std::vector<std::string>>(json::value(*ids)));
  } else if (const auto anchor = members.text("anchor")) {
    content.options.anchor = std::string(*anchor);
  }
  return content;
}

// Reads `?include=content,token_ids`.
Checked<ChunkIncludes> read_includes(const Call& call) {
  ChunkIncludes includes;
  const std::string given = call.query("include").value_or("");
  std::string_view rest = given;
  while (!rest.empty()) {
    const std::string_view word = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), word.size() + 1));
    if (word == "content") {
      includes.content = true;
    } else if (word == "token_ids") {
      includes.token_ids = true;
    } else {
      return invalid("include", "must list content and token_ids");
    }
  }
  return includes;
}

Checked<std::optional<ChunkType>> read_type(const Call& call) {
  const auto word = call.query("type");
  if (!word) {
    return std::optional<ChunkType>();
  }
  const ChunkType type = type_of(*word);
  if (*word != chunk_type_name(type)) {
    return invalid("type", "must be system_prompt, context or query");
  }
  return std::optional(type);
}

// Returns the chunks that were registered as JSON, with what was done for each.
Checked<json::array> registered_json(ChunkedLLM& llm, const std::string& salt,
                                     std::span<const RegisteredChunk> registered,
                                     const ChunkIncludes& includes) {
  json::array list;
  for (const RegisteredChunk& chunk : registered) {
    QUIRE_TRY(const ChunkInfo info, llm.get_chunk(chunk.chunk_id, salt));
    json::object object = chunk_json(info, includes);
    object["created"] = chunk.created;
    object["tokens_computed"] = chunk.tokens_computed;
    list.push_back(std::move(object));
  }
  return list;
}

int registered_status(std::span<const RegisteredChunk> registered) {
  return std::ranges::any_of(registered, &RegisteredChunk::created) ? 201 : 200;
}

// Registers on a worker, within admission: a registration counts as one generation.
void register_all(Services& services, const CallPtr& call, std::vector<ChunkContent> contents,
                  bool batch) {
  auto includes = read_includes(*call);
  if (!includes.ok()) {
    return send_error(services, *call, std::move(includes).error());
  }
  auto ticket = enter_admission(services, *call);
  if (!ticket.ok()) {
    return send_error(services, *call, std::move(ticket).error());
  }
  reply_from_worker(
      services, call,
      [call, held = std::move(ticket).value(), batch, contents = std::move(contents),
       includes = *includes, objects = services.objects, salt = engine_salt(call->caller->tenant),
       bytes = kv_bytes_per_token(services)](ChunkedLLM& llm) mutable -> Checked<Reply> {
        QUIRE_TRY(const auto registered, register_for(objects, llm, call, contents, bytes));
        held.reset();  // before the answer, so that the client's next call finds the place free
        QUIRE_TRY(json::array list, registered_json(llm, salt, registered, includes));
        const int status = registered_status(registered);
        return batch ? Reply{list_json(std::move(list)), status}
                     : Reply{std::move(list.front()), status};
      });
}

void post_chunk(Services& services, CallPtr call) {
  auto content = read_content(services, call->body, "");
  if (!content.ok()) {
    return send_error(services, *call, std::move(content).error());
  }
  register_all(services, call, {std::move(content).value()}, false);
}

void post_chunks(Services& services, CallPtr call) {
  const json::array& list = *call->members().array("chunks");
  std::vector<ChunkContent> contents;
  for (std::size_t i = 0; i < list.size(); ++i) {
    auto content = read_content(services, list[i].get_object(), element_path("chunks", i));
    if (!content.ok()) {
      return send_error(services, *call, std::move(content).error());
    }
    contents.push_back(std::move(content).value());
  }
  register_all(services, call, std::move(contents), true);
}

// Holds the query of a list.
struct ChunkQuery {
  std::optional<ChunkType> type;
  std::string metadata = "{}";
  std::int64_t limit = kListLimit;
  std::optional<std::string> after;
  ChunkIncludes includes;
};

Checked<ChunkQuery> read_query(const Call& call) {
  ChunkQuery query;
  QUIRE_TRY(query.type, read_type(call));
  QUIRE_TRY(query.includes, read_includes(call));
  QUIRE_TRY(query.limit, query_integer(call, "limit", kListLimit, 1, kMostListed));
  query.after = call.query("after");
  if (auto metadata = call.query("metadata")) {
    const auto read = read_json(*metadata);
    if (!read.ok() || !read->is_object()) {
      return invalid("metadata", "must be a JSON object");
    }
    query.metadata = *std::move(metadata);
  }
  return query;
}

// Returns a page of the chunks in the order of created_at and id.
Checked<Reply> list_page(ChunkedLLM& llm, const ChunkQuery& query, const std::string& salt) {
  QUIRE_TRY(auto all, llm.list_chunks(query.type, query.metadata, salt));
  std::ranges::sort(all, {},
                    [](const ChunkInfo& info) { return std::tie(info.created_at, info.chunk_id); });
  auto begin = all.begin();
  if (query.after) {
    begin = std::ranges::find(all, *query.after, &ChunkInfo::chunk_id);
    if (begin == all.end()) {
      return invalid("after", "no chunk of this list has the id " + *query.after);
    }
    ++begin;
  }
  const auto end = begin + std::min<std::int64_t>(query.limit, all.end() - begin);
  json::array data;
  std::transform(begin, end, std::back_inserter(data),
                 [&](const ChunkInfo& info) { return chunk_json(info, query.includes); });
  json::object list;
  list["has_more"] = end != all.end();
  list["first_id"] = begin == end ? json::value(nullptr) : json::value(begin->chunk_id);
  list["last_id"] = begin == end ? json::value(nullptr) : json::value((end - 1)->chunk_id);
  json::object page = list_json(std::move(data));
  page.insert(list.begin(), list.end());
  return Reply{std::move(page)};
}

void get_chunks(Services& services, CallPtr call) {
  auto query = read_query(*call);
  if (!query.ok()) {
    return send_error(services, *call, std::move(query).error());
  }
  reply_from_worker(services, call,
                    [query = std::move(query).value(), salt = engine_salt(call->caller->tenant)](
                        ChunkedLLM& llm) { return list_page(llm, query, salt); });
}

void get_chunk(Services& services, CallPtr call) {
  auto includes = read_includes(*call);
  if (!includes.ok()) {
    return send_error(services, *call, std::move(includes).error());
  }
  reply_from_worker(services, call,
                    [id = std::string(call->capture("chunk_id")), includes = *includes,
                     salt = engine_salt(call->caller->tenant)](ChunkedLLM& llm) -> Checked<Reply> {
                      const auto info = llm.get_chunk(id, salt);
                      if (!info.ok()) {
                        return chunk_error(info.error(), id);
                      }
                      return Reply{chunk_json(*info, includes)};
                    });
}

// Reads changes. A `ttl_seconds` that is null removes the TTL: the one null that says something.
ChunkUpdate read_update(const Call& call) {
  const Members members = call.members();
  ChunkUpdate update;
  if (const json::object* const metadata = members.object("metadata")) {
    update.metadata_json = json::serialize(*metadata);
  }
  if (const auto ttl = members.number("ttl_seconds")) {
    update.ttl_seconds = std::optional(ttl);
  } else if (const auto raw = read_json(call.request->body); raw.ok() && raw->is_object()) {
    if (raw->get_object().contains("ttl_seconds")) {
      update.ttl_seconds = std::optional<double>();
    }
  }
  update.pinned = members.boolean("pinned");
  if (const auto priority = members.integer("priority")) {
    update.priority = static_cast<std::int32_t>(*priority);
  }
  if (const auto kv_dtype = members.text("kv_dtype")) {
    update.kv_dtype = std::string(*kv_dtype);
  }
  return update;
}

void patch_chunk(Services& services, CallPtr call) {
  reply_from_worker(services, call,
                    [id = std::string(call->capture("chunk_id")), update = read_update(*call),
                     salt = engine_salt(call->caller->tenant)](ChunkedLLM& llm) -> Checked<Reply> {
                      const auto info = llm.update_chunk(id, update, salt);
                      if (!info.ok()) {
                        return chunk_error(info.error(), id);
                      }
                      return Reply{chunk_json(*info)};
                    });
}

// Returns the error of a chunk that a tenant does not have, word for word as for one that never
// was.
Error unknown_chunk(ChunkedLLM& llm, const std::string& id, const std::string& salt) {
  const auto info = llm.get_chunk(id, salt);
  return info.ok() ? Error{ErrorCode::kNotFound, "no chunk " + id} : info.error();
}

void delete_chunk(Services& services, CallPtr call) {
  auto wipe = query_flag(*call, "wipe");
  if (!wipe.ok()) {
    return send_error(services, *call, std::move(wipe).error());
  }
  reply_from_worker(services, call,
                    [id = std::string(call->capture("chunk_id")), wipe = *wipe,
                     salt = engine_salt(call->caller->tenant)](ChunkedLLM& llm) -> Checked<Reply> {
                      const auto deleted = llm.delete_chunk(id, wipe, salt);
                      if (!deleted.ok() || !*deleted) {
                        return chunk_error(
                            deleted.ok() ? unknown_chunk(llm, id, salt) : deleted.error(), id);
                      }
                      json::object body;
                      body["chunk_id"] = id;
                      body["deleted"] = true;
                      return Reply{std::move(body)};
                    });
}

Reply counted_reply(const char* name, std::int64_t count) {
  json::object body;
  body[name] = count;
  return Reply{std::move(body)};
}

void delete_chunks(Services& services, CallPtr call) {
  auto type = read_type(*call);
  if (!type.ok()) {
    return send_error(services, *call, std::move(type).error());
  }
  reply_from_worker(
      services, call,
      [type = *type, salt = engine_salt(call->caller->tenant)](ChunkedLLM& llm) -> Checked<Reply> {
        QUIRE_TRY(const std::int64_t count, llm.clear_chunks(type, salt));
        return counted_reply("deleted", count);
      });
}

void evict_chunks(Services& services, CallPtr call) {
  constexpr double kDefaultAge = 3600;
  const double age = call->members().number("max_age_seconds").value_or(kDefaultAge);
  reply_from_worker(
      services, call,
      [age, salt = engine_salt(call->caller->tenant)](ChunkedLLM& llm) -> Checked<Reply> {
        QUIRE_TRY(const std::int64_t count, llm.evict_unused_chunks(age, salt));
        return counted_reply("evicted", count);
      });
}

void get_chunk_stats(Services& services, CallPtr call) {
  reply_from_worker(services, call,
                    [salt = engine_salt(call->caller->tenant)](ChunkedLLM& llm) -> Checked<Reply> {
                      QUIRE_TRY(const ChunkStats stats, llm.chunk_stats(salt));
                      json::object body;
                      body["total_chunks"] = stats.total_chunks;
                      body["system_chunks"] = stats.system_chunks;
                      body["context_chunks"] = stats.context_chunks;
                      body["query_chunks"] = stats.query_chunks;
                      body["memory_used_bytes"] = stats.memory_used_bytes;
                      body["memory_limit_bytes"] = stats.memory_limit_bytes;
                      body["cache_hits"] = stats.cache_hits;
                      body["cache_misses"] = stats.cache_misses;
                      body["evictions"] = stats.evictions;
                      return Reply{std::move(body)};
                    });
}

void flush_chunks(Services& services, CallPtr call) {
  reply_from_worker(services, call, [](ChunkedLLM& llm) -> Checked<Reply> {
    if (const Status flushed = llm.flush_store(); !flushed.ok()) {
      return api_error(flushed.error());
    }
    json::object body;
    body["flushed"] = true;
    return Reply{std::move(body)};
  });
}

constexpr QueryRule kIncludeQuery[] = {{"include", "content, token_ids, or both"}};
constexpr QueryRule kListQuery[] = {
    {"type", "system_prompt, context or query"},
    {"metadata", "JSON object: chunks whose metadata has all these pairs"},
    {"limit", "1 to 1000; default 100", "integer"},
    {"after", "id behind which the page begins"},
    {"include", "content, token_ids, or both"}};
constexpr QueryRule kWipeQuery[] = {{"wipe", "true: bytes in the store become zeros", "boolean"}};
constexpr QueryRule kTypeQuery[] = {{"type", "system_prompt, context or query; default all"}};

}  // namespace

ApiError chunk_error(const Error& error, const std::string& id, std::string param) {
  ApiError told = api_error(error, std::move(param));
  if (error.code == ErrorCode::kNotFound) {
    told.code = "chunk_not_found";
    told.chunk_id = id;
  }
  return told;
}

std::int64_t kv_bytes_per_token(const Services& services) {
  const ModelFacts& facts = services.engine->facts();
  return facts.block_tokens > 0 ? facts.block_bytes / facts.block_tokens : 0;
}

Checked<std::vector<RegisteredChunk>> register_for(const std::shared_ptr<Objects>& objects,
                                                   ChunkedLLM& llm, const CallPtr& call,
                                                   std::vector<ChunkContent> contents,
                                                   std::int64_t bytes_per_token) {
  const std::string salt = engine_salt(call->caller->tenant);
  for (ChunkContent& content : contents) {
    content.options.salt = salt;
  }
  auto& state = static_cast<ObjectState&>(*objects);
  QUIRE_TRY([[maybe_unused]] const auto claim,
            state.quotas.claim(llm, *call->caller, salt, contents, bytes_per_token));
  auto registered = llm.register_with_details(contents, Call::interrupt(call));
  if (!registered.ok()) {
    const bool lacks_anchor = registered.error().code == ErrorCode::kNotFound;
    return lacks_anchor ? chunk_error(registered.error(), registered.error().chunk_id, "anchor")
                        : api_error(registered.error());
  }
  return std::move(registered).value();
}

std::span<const Endpoint> chunk_endpoints() {
  static const Endpoint endpoints[] = {
      {.method = "POST",
       .pattern = "/v1/chunks",
       .summary = "Registers a chunk, whose KV is computed unless an equal one is there.",
       .uses = Uses::kEngine,
       .body = &content_table(),
       .query = kIncludeQuery,
       .statuses = "200,201",
       .handle = post_chunk},
      {.method = "POST",
       .pattern = "/v1/chunks/batch",
       .summary = "Registers chunks, all or none.",
       .uses = Uses::kEngine,
       .body = &chunk_batch_table(),
       .query = kIncludeQuery,
       .statuses = "200,201",
       .handle = post_chunks},
      {.method = "GET",
       .pattern = "/v1/chunks",
       .summary = "Lists chunks by created_at and id.",
       .query = kListQuery,
       .handle = get_chunks},
      {.method = "DELETE",
       .pattern = "/v1/chunks",
       .summary = "Deletes all chunks that no request uses, of one type or of all.",
       .uses = Uses::kEngine,
       .query = kTypeQuery,
       .handle = delete_chunks},
      {.method = "POST",
       .pattern = "/v1/chunks/evict",
       .summary = "Evicts unused chunks from memory; the store keeps them.",
       .uses = Uses::kEngine,
       .body = &evict_table(),
       .handle = evict_chunks},
      {.method = "GET",
       .pattern = "/v1/chunks/stats",
       .summary = "Counts the tenant's chunks in memory.",
       .handle = get_chunk_stats},
      {.method = "POST",
       .pattern = "/v1/chunks/flush",
       .summary = "Waits until the store has all that was registered.",
       .uses = Uses::kEngine,
       .handle = flush_chunks},
  };
  return endpoints;
}

std::span<const Endpoint> chunk_item_endpoints() {
  static const Endpoint endpoints[] = {
      {.method = "GET",
       .pattern = "/v1/chunks/{chunk_id}",
       .summary = "Describes a chunk; reading is no use.",
       .query = kIncludeQuery,
       .handle = get_chunk},
      {.method = "PATCH",
       .pattern = "/v1/chunks/{chunk_id}",
       .summary = "Changes metadata, TTL, pin, priority or KV format of a chunk.",
       .uses = Uses::kEngine,
       .body = &chunk_update_table(),
       .handle = patch_chunk},
      {.method = "DELETE",
       .pattern = "/v1/chunks/{chunk_id}",
       .summary = "Deletes a chunk, from the store, too.",
       .uses = Uses::kEngine,
       .query = kWipeQuery,
       .handle = delete_chunk},
  };
  return endpoints;
}

}  // namespace quire::server
