// Serves the operator: the store, the prefix cache and the counters.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "api/call.h"
#include "api/errors.h"
#include "api/fields.h"
#include "api/json.h"
#include "api/router.h"
#include "objects/state.h"
#include "quire/chunks.h"
#include "quire/result.h"
#include "quire/stats.h"
#include "quire/store.h"

namespace quire::server {
namespace {

const FieldTable& store_entry_table() {
  static const FieldRule rules[] = {
      {.name = "pinned", .kinds = kBool, .help = "true: never evicted, never expires"},
      {.name = "ttl_seconds",
       .kinds = kNumber,
       .help = "seconds after the last use; null: for ever",
       .min = 0,
       .max = 1e10},
  };
  static const FieldTable table{"StoreEntryUpdate", "Changes to an entry of the store.", {rules}};
  return table;
}

// Returns the tenant that a salt of the engine stands for: "3:ada0:" is ada.
std::string tenant_of_salt(const std::string& salt) {
  const std::size_t colon = salt.find(':');
  if (colon == std::string::npos || colon == 0 || colon > 4) {
    return salt;
  }
  const std::size_t length = std::stoul("0" + salt.substr(0, colon));
  return salt.substr(colon + 1, length);
}

json::value text_or_null(const std::string& text) {
  return text.empty() ? json::value(nullptr) : json::value(text);
}

json::object entry_json(const StoreEntry& entry) {
  json::object object;
  object["object"] = "store.entry";
  object["key"] = entry.key;
  object["kind"] = entry.kind;
  object["name"] = entry.name;
  object["tenant"] = tenant_of_salt(entry.tenant);
  const auto metadata = read_json(entry.metadata_json);
  object["metadata"] = metadata.ok() ? *metadata : json::value(json::object());
  object["tokens"] = entry.tokens;
  object["bytes"] = entry.bytes;
  object["ratio"] = entry.ratio;
  object["created_at"] = entry.created_at;
  object["accessed_at"] = entry.accessed_at;
  object["expires_at"] = text_or_null(entry.expires_at);
  object["pinned"] = entry.pinned;
  return object;
}

json::object object_json(const StoreObject& object) {
  json::object row;
  row["hash"] = object.hash;
  row["state"] = object.state;
  row["bytes"] = object.bytes;
  row["entries"] = object.entries;
  row["message"] = object.message;
  return row;
}

Checked<Reply> refuse_without_store() {
  return invalid("", "the server has no store; start it with --store");
}

ApiError no_entry(std::string_view entry) {
  ApiError error = refusal(404, "not_found", "no entry " + std::string(entry));
  error.cause = ErrorCode::kNotFound;
  error.retryable = false;
  return error;
}

// Runs `work` on a worker with the server's store. Without --store: sends what `without` gives.
void with_store(Services& services, const CallPtr& call, std::function<Checked<Reply>()> without,
                std::function<Checked<Reply>(Store& store)> work) {
  const std::string path = services.config->engine.store;
  reply_from_worker(services, call,
                    [path, without = std::move(without),
                     work = std::move(work)](ChunkedLLM& llm) -> Checked<Reply> {
                      if (path.empty()) {
                        return without();
                      }
                      if (const Status flushed = llm.flush_store(); !flushed.ok()) {
                        return api_error(flushed.error());
                      }
                      QUIRE_TRY(Store store, Store::open(path));
                      return work(store);
                    });
}

void list_store(Services& services, CallPtr call) {
  with_store(
      services, call, []() -> Checked<Reply> { return Reply{list_json({})}; },
      [](Store& store) -> Checked<Reply> {
        QUIRE_TRY(const auto entries, store.list());
        return Reply{list_json(array_of(entries, entry_json))};
      });
}

// Runs `work` with the store and the entry that the path names.
void with_entry(Services& services, const CallPtr& call,
                std::function<Checked<Reply>(Store& store, const std::string& key)> work) {
  const std::string key(call->capture("entry"));
  with_store(
      services, call, [key]() -> Checked<Reply> { return no_entry(key); },
      [key, work = std::move(work)](Store& store) { return work(store, key); });
}

Checked<Reply> entry_reply(const Store& store, const std::string& key) {
  QUIRE_TRY(const StoreEntry entry, store.find(key));
  return Reply{entry_json(entry)};
}

void get_entry(Services& services, CallPtr call) {
  with_entry(services, call,
             [](Store& store, const std::string& key) { return entry_reply(store, key); });
}

void patch_entry(Services& services, CallPtr call) {
  const Members members = call->members();
  const auto raw = read_json(call->request->body);
  const bool names_ttl = raw.ok() && raw->is_object() && raw->get_object().contains("ttl_seconds");
  with_entry(services, call,
             [pinned = members.boolean("pinned"), ttl = members.number("ttl_seconds"), names_ttl](
                 Store& store, const std::string& key) -> Checked<Reply> {
               if (pinned) {
                 QUIRE_TRY_STATUS(store.pin(key, *pinned));
               }
               if (names_ttl) {
                 QUIRE_TRY_STATUS(store.set_ttl(key, ttl));
               }
               return entry_reply(store, key);
             });
}

void delete_entry(Services& services, CallPtr call) {
  auto wipe = query_flag(*call, "wipe");
  if (!wipe.ok()) {
    return send_error(services, *call, std::move(wipe).error());
  }
  with_entry(services, call,
             [wipe = *wipe](Store& store, const std::string& key) -> Checked<Reply> {
               QUIRE_TRY_STATUS(store.remove(key, wipe));
               json::object body;
               body["key"] = key;
               body["deleted"] = true;
               return Reply{std::move(body)};
             });
}

void collect_store(Services& services, CallPtr call) {
  with_store(services, call, refuse_without_store, [](Store& store) -> Checked<Reply> {
    QUIRE_TRY(const StoreCleaning done, store.gc());
    json::object body;
    body["expired_entries"] = done.expired_entries;
    body["evicted_entries"] = done.evicted_entries;
    body["removed_objects"] = done.removed_objects;
    body["removed_bytes"] = done.removed_bytes;
    body["removed_temporaries"] = done.removed_temporaries;
    body["removed_weights"] = done.removed_weights;
    body["removed_weight_bytes"] = done.removed_weight_bytes;
    body["objects"] = done.objects;
    body["bytes"] = done.bytes;
    body["kept_objects"] = done.kept_objects;
    body["message"] = done.message;
    return Reply{std::move(body)};
  });
}

void verify_store(Services& services, CallPtr call) {
  with_store(services, call, refuse_without_store, [](Store& store) -> Checked<Reply> {
    QUIRE_TRY(const auto objects, store.verify());
    return Reply{list_json(array_of(objects, object_json))};
  });
}

void clear_cache(Services& services, CallPtr call) {
  reply_from_worker(services, call, [](ChunkedLLM& llm) -> Checked<Reply> {
    QUIRE_TRY(const std::int64_t freed, llm.llm().clear_prefix_cache());
    json::object body;
    body["freed_blocks"] = freed;
    return Reply{std::move(body)};
  });
}

void get_stats(Services& services, CallPtr call) {
  reply_from_worker(services, call, [](ChunkedLLM& llm) -> Checked<Reply> {
    QUIRE_TRY(const Stats stats, llm.llm().stats());
    json::object body;
    for (const auto& [name, value] : stats) {
      const bool whole = !std::string_view(name).ends_with("_seconds");
      body[name] =
          whole ? json::value(static_cast<std::int64_t>(std::llround(value))) : json::value(value);
    }
    return Reply{std::move(body)};
  });
}

constexpr QueryRule kWipeEntryQuery[] = {{"wipe", "true: bytes become zeros", "boolean"}};

}  // namespace

std::span<const Endpoint> operator_endpoints() {
  static const Endpoint endpoints[] = {
      {.method = "GET",
       .pattern = "/v1/store",
       .summary = "Lists what the store has, of all tenants.",
       .access = Access::kAdmin,
       .handle = list_store},
      {.method = "POST",
       .pattern = "/v1/store/gc",
       .summary = "Removes what expired and what nobody names.",
       .access = Access::kAdmin,
       .handle = collect_store},
      {.method = "POST",
       .pattern = "/v1/store/verify",
       .summary = "Reads every file of the store and compares checksums.",
       .access = Access::kAdmin,
       .handle = verify_store},
      {.method = "GET",
       .pattern = "/v1/store/{entry}",
       .summary = "Describes an entry of the store.",
       .access = Access::kAdmin,
       .handle = get_entry},
      {.method = "PATCH",
       .pattern = "/v1/store/{entry}",
       .summary = "Pins an entry, or says how long it is kept.",
       .access = Access::kAdmin,
       .body = &store_entry_table(),
       .handle = patch_entry},
      {.method = "DELETE",
       .pattern = "/v1/store/{entry}",
       .summary = "Removes an entry of the store.",
       .access = Access::kAdmin,
       .query = kWipeEntryQuery,
       .handle = delete_entry},
      {.method = "POST",
       .pattern = "/v1/cache/clear",
       .summary = "Forgets every cached block that nobody uses.",
       .access = Access::kAdmin,
       .uses = Uses::kEngine,
       .handle = clear_cache},
      {.method = "GET",
       .pattern = "/v1/stats",
       .summary = "Counts blocks, tokens, steps and requests of the engine.",
       .handle = get_stats},
  };
  return endpoints;
}

}  // namespace quire::server
