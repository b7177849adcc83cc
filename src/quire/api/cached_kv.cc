// The calls of LLM about KV that is cached: what is there of a prompt, and how long it stays.
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "quire/api/llm_impl.h"
#include "quire/base/no_memory.h"
#include "quire/engine/session_service.h"
#include "quire/llm.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire {

Result<std::int64_t> LLM::clear_prefix_cache() try {
  QUIRE_TRY(const auto engine, impl_->open_engine());
  return engine->clear_prefix_cache();
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Status LLM::pause_session(const std::string& session, std::optional<double> expected_return_seconds,
                          const std::string& salt) try {
  QUIRE_TRY(const auto engine, impl_->open_engine());
  return engine->sessions().pause(session, salt, expected_return_seconds);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Status LLM::close_session(const std::string& session, const std::string& salt) try {
  QUIRE_TRY(const auto engine, impl_->open_engine());
  return engine->sessions().close(session, salt);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Status LLM::set_retention(const std::string& session, const SessionRetention& retention,
                          const std::string& salt) try {
  QUIRE_TRY(const auto engine, impl_->open_engine());
  return engine->sessions().set_retention(session, salt, retention);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::vector<ReusePart>> LLM::explain(const Prompt& prompt,
                                            const RequestOptions& options) const try {
  QUIRE_TRY(const auto engine, impl_->open_engine());
  QUIRE_TRY(const std::vector<TokenId> ids, prompt_ids(*engine, prompt, {}));
  QUIRE_TRY_STATUS(engine::SessionService::check_user({.salt = options.salt}));
  return engine->explain(ids, options.salt);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::vector<CachedPart>> LLM::explain_across_salts(const Prompt& prompt) const try {
  QUIRE_TRY(const auto engine, impl_->open_engine());
  QUIRE_TRY(const std::vector<TokenId> ids, prompt_ids(*engine, prompt, {}));
  QUIRE_TRY(const std::vector<std::int32_t> lengths, engine->cached_prefixes(ids));
  std::vector<CachedPart> parts;
  std::int64_t position = 0;
  for (std::size_t left = lengths.size(); left > 0; --left) {  // the shortest first
    if (const std::int64_t end = lengths[left - 1]; end > position) {
      parts.push_back({.position = position,
                       .tokens = end - position,
                       .num_salts = static_cast<std::int64_t>(left)});
      position = end;
    }
  }
  if (position < std::ssize(ids)) {
    parts.push_back({.position = position, .tokens = std::ssize(ids) - position});
  }
  return parts;
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

}  // namespace quire
