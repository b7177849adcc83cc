// SequenceTable: sequences by tenant and id, with their lifetimes, and a note of which are in use.
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

// A sequence of a tenant. The holder of a Use owns `sequence` and `marks`; the loop's thread owns
// the rest.
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
  // Checkpoints in the order in which they were made.
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

// Finds sequences by tenant and id.
// Threads: the loop's thread, but any thread may destroy the last copy of a Use.
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

  // Claims a place, until the claim is destroyed or add() takes it.
  // Errors: 429 `quota_exceeded` beyond `limit` sequences of the tenant.
  [[nodiscard]] Checked<Claim> claim(const std::string& tenant, std::optional<std::int64_t> limit);
  // Puts a sequence, which nobody uses, into its place.
  SequencePtr add(const Claim& place, Sequence sequence, std::string salt, double ttl_seconds,
                  std::vector<SequenceEntry::NamedMark> marks = {});
  // Returns the sequence of a tenant.
  // Errors: 404 `sequence_not_found`, also for another tenant's sequence.
  [[nodiscard]] Checked<SequencePtr> find(std::string_view tenant, std::string_view id) const;
  // Begins to use a sequence.
  // Errors: those of find(); 409 `sequence_busy`.
  [[nodiscard]] Checked<Use> use(std::string_view tenant, std::string_view id);
  // Forgets a sequence that nobody uses. Its KV is freed with the last reference.
  void remove(const SequencePtr& entry);
  // Returns the sequences of a tenant in the order of their ids.
  [[nodiscard]] std::vector<SequencePtr> list(std::string_view tenant) const;
  [[nodiscard]] std::int64_t count(std::string_view tenant) const;
  [[nodiscard]] std::int64_t size() const;
  // Forgets sequences past half of their lifetime that nobody uses, for want of blocks. Returns how
  // many.
  std::int64_t drop_idle();

 private:
  using ById = std::map<std::string, SequencePtr, std::less<>>;

  void leave(Place& place);
  void renew(const SequencePtr& entry);
  void end_use(const SequencePtr& entry);

  Loop& loop_;
  // Tells uses that end later whether the table still exists. Loop's thread.
  std::shared_ptr<SequenceTable*> alive_;
  std::map<std::string, ById, std::less<>> by_tenant_;
  std::map<std::string, std::int64_t, std::less<>> claimed_;  // by tenant
};

}  // namespace quire::server
