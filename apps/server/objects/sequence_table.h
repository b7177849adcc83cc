// SequenceTable: sequences by tenant and id, with their lifetimes, and which of them are in use
// (rule N5).
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/errors.h"
#include "loop.h"
#include "quire/sequence.h"
#include "quire/types.h"

namespace quire::server {

// A sequence of a tenant. Its `sequence` and `marks` belong to whoever holds a Use of it; the rest
// belongs to the loop's thread.
struct SequenceEntry {
  SequenceEntry(std::string name, std::string whose, Sequence made)
      : id(std::move(name)), tenant(std::move(whose)), sequence(std::move(made)) {}

  // A checkpoint.
  struct NamedMark {
    std::string id;
    Mark mark;
    std::int64_t num_tokens = 0;
  };

  const std::string id;
  const std::string tenant;
  Sequence sequence;
  // In the order in which they were made.
  std::vector<NamedMark> marks;
  // Salt of its requests.
  std::string salt;
  double ttl_seconds = 0;
  // Seconds since 1970.
  std::int64_t created_at = 0;
  std::int64_t expires_at = 0;
  Loop::Timer timer = 0;
  bool busy = false;
};
using SequencePtr = std::shared_ptr<SequenceEntry>;

// Threads: the loop's thread, but for the last copy of a Use, which any thread may destroy.
class SequenceTable {
 public:
  // Keeps others from using a sequence. Its end renews the sequence's lifetime.
  using Use = std::shared_ptr<SequenceEntry>;

  explicit SequenceTable(Loop& loop)
      : loop_(loop), alive_(std::make_shared<SequenceTable*>(this)) {}
  ~SequenceTable();
  SequenceTable(const SequenceTable&) = delete;
  SequenceTable& operator=(const SequenceTable&) = delete;

  // A place for a sequence that is being made. Any thread may destroy the last copy.
  struct Place {
    std::string tenant;
    bool taken = false;
  };
  using Claim = std::shared_ptr<Place>;

  // Claims a place, until the claim is destroyed or add() takes the place.
  // Errors: 429 `quota_exceeded` beyond `limit` sequences of the tenant.
  [[nodiscard]] Checked<Claim> claim(const std::string& tenant, std::optional<std::int64_t> limit);
  // Takes a sequence, which nobody uses, into its place.
  SequencePtr add(const Claim& place, Sequence sequence, std::string salt, double ttl_seconds,
                  std::vector<SequenceEntry::NamedMark> marks = {});
  // Returns the sequence of a tenant.
  // Errors: 404 `sequence_not_found`, the same for another tenant's.
  [[nodiscard]] Checked<SequencePtr> find(std::string_view tenant, std::string_view id) const;
  // Begins to use a sequence.
  // Errors: those of find(); 409 `sequence_busy`.
  [[nodiscard]] Checked<Use> use(std::string_view tenant, std::string_view id);
  // Forgets a sequence that nobody uses; the use that is the last one frees its KV.
  void remove(const SequencePtr& entry);
  // Returns the sequences of a tenant in the order of their ids.
  [[nodiscard]] std::vector<SequencePtr> list(std::string_view tenant) const;
  [[nodiscard]] std::int64_t count(std::string_view tenant) const;
  [[nodiscard]] std::int64_t size() const;
  // Forgets sequences that are beyond half of their lifetime and that nobody uses, for want of
  // blocks (rule Q6). Returns how many.
  std::int64_t drop_idle();

 private:
  using ById = std::map<std::string, SequencePtr, std::less<>>;

  void leave(Place& place);
  void renew(const SequencePtr& entry);
  void end_use(const SequencePtr& entry);

  Loop& loop_;
  // Says to uses that end later whether the table is still there. Loop's thread.
  std::shared_ptr<SequenceTable*> alive_;
  std::map<std::string, ById, std::less<>> by_tenant_;
  std::map<std::string, std::int64_t, std::less<>> claimed_;  // by tenant
};

}  // namespace quire::server
