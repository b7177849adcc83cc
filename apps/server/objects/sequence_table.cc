#include "objects/sequence_table.h"

#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/call.h"
#include "api/errors.h"
#include "loop.h"
#include "objects/state.h"
#include "quire/result.h"
#include "quire/sequence.h"

namespace quire::server {

SequenceTable::~SequenceTable() {
  *alive_ = nullptr;
  for (const auto& [tenant, entries] : by_tenant_) {
    for (const auto& [id, entry] : entries) {
      loop_.cancel(entry->timer);
    }
  }
}

Checked<SequenceTable::Claim> SequenceTable::claim(const std::string& tenant,
                                                   std::optional<std::int64_t> limit) {
  const auto known = claimed_.find(tenant);
  const std::int64_t used = count(tenant) + (known == claimed_.end() ? 0 : known->second);
  if (limit && used + 1 > *limit) {
    return over_quota("max_sequences", used, 1, *limit);
  }
  ++claimed_[tenant];
  return Claim(new Place{tenant}, [&loop = loop_, alive = alive_](Place* place) {
    loop.post([alive, held = std::shared_ptr<Place>(place)] {
      if (*alive != nullptr) {
        (*alive)->leave(*held);
      }
    });
  });
}

void SequenceTable::leave(Place& place) {
  if (!std::exchange(place.taken, true) && --claimed_[place.tenant] == 0) {
    claimed_.erase(place.tenant);
  }
}

SequencePtr SequenceTable::add(const Claim& place, Sequence sequence, std::string salt,
                               double ttl_seconds, std::vector<SequenceEntry::NamedMark> marks) {
  leave(*place);
  auto entry = std::make_shared<SequenceEntry>(new_id("seq_"), place->tenant, std::move(sequence));
  entry->salt = std::move(salt);
  entry->ttl_seconds = ttl_seconds;
  entry->created_at = unix_seconds();
  entry->marks = std::move(marks);
  by_tenant_[entry->tenant].emplace(entry->id, entry);
  renew(entry);
  return entry;
}

Checked<SequencePtr> SequenceTable::find(std::string_view tenant, std::string_view id) const {
  if (const auto own = by_tenant_.find(tenant); own != by_tenant_.end()) {
    if (const auto found = own->second.find(id); found != own->second.end()) {
      return found->second;
    }
  }
  ApiError error = refusal(404, "sequence_not_found", "no sequence " + std::string(id));
  error.cause = ErrorCode::kNotFound;
  error.retryable = false;
  return error;
}

Checked<SequenceTable::Use> SequenceTable::use(std::string_view tenant, std::string_view id) {
  QUIRE_TRY(const SequencePtr entry, find(tenant, id));
  if (entry->busy) {
    ApiError error =
        refusal(409, "sequence_busy", "another call uses the sequence " + std::string(id));
    error.retry_after_ms = 1000;
    error.retryable = true;
    return error;
  }
  entry->busy = true;
  loop_.cancel(std::exchange(entry->timer, 0));
  return Use(entry.get(), [&loop = loop_, alive = alive_, entry](SequenceEntry*) {
    loop.post([alive, entry] {
      if (*alive != nullptr) {
        (*alive)->end_use(entry);
      }
    });
  });
}

void SequenceTable::end_use(const SequencePtr& entry) {
  entry->busy = false;
  if (find(entry->tenant, entry->id).ok()) {
    renew(entry);
  }
}

void SequenceTable::renew(const SequencePtr& entry) {
  loop_.cancel(entry->timer);
  entry->expires_at = unix_seconds() + static_cast<std::int64_t>(std::ceil(entry->ttl_seconds));
  const auto delay =
      std::chrono::milliseconds(static_cast<std::int64_t>(entry->ttl_seconds * 1000));
  entry->timer = loop_.after(delay, [this, weak = std::weak_ptr(entry)] {
    if (const SequencePtr over = weak.lock()) {
      over->timer = 0;
      remove(over);
    }
  });
}

void SequenceTable::remove(const SequencePtr& entry) {
  loop_.cancel(std::exchange(entry->timer, 0));
  const auto own = by_tenant_.find(entry->tenant);
  if (own != by_tenant_.end()) {
    own->second.erase(entry->id);
    if (own->second.empty()) {
      by_tenant_.erase(own);
    }
  }
}

std::vector<SequencePtr> SequenceTable::list(std::string_view tenant) const {
  std::vector<SequencePtr> entries;
  if (const auto own = by_tenant_.find(tenant); own != by_tenant_.end()) {
    for (const auto& [id, entry] : own->second) {
      entries.push_back(entry);
    }
  }
  return entries;
}

std::int64_t SequenceTable::count(std::string_view tenant) const {
  const auto own = by_tenant_.find(tenant);
  return own == by_tenant_.end() ? 0 : static_cast<std::int64_t>(own->second.size());
}

std::int64_t SequenceTable::size() const {
  std::int64_t sum = 0;
  for (const auto& [tenant, entries] : by_tenant_) {
    sum += static_cast<std::int64_t>(entries.size());
  }
  return sum;
}

std::int64_t SequenceTable::drop_idle() {
  std::vector<SequencePtr> idle;
  for (const auto& [tenant, entries] : by_tenant_) {
    for (const auto& [id, entry] : entries) {
      const double left = static_cast<double>(entry->expires_at - unix_seconds());
      if (!entry->busy && left < entry->ttl_seconds / 2) {
        idle.push_back(entry);
      }
    }
  }
  for (const SequencePtr& entry : idle) {
    remove(entry);
  }
  return static_cast<std::int64_t>(idle.size());
}

}  // namespace quire::server
