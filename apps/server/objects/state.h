// ObjectState: state of the endpoints of this folder, beside the engine's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "api/admission.h"
#include "api/call.h"
#include "api/errors.h"
#include "api/json.h"
#include "objects/chunk_quotas.h"
#include "objects/objects.h"
#include "objects/request_log.h"
#include "objects/sequence_table.h"
#include "quire/chunks.h"

namespace quire::server {

// State of chunks, sequences and requests. Threads: the loop's thread, but for `quotas`.
class ObjectState final : public Objects {
 public:
  explicit ObjectState(Services& services) : sequences(services.loop) {}

  void run_ended(const GenerationRun& run, const RunReport* report,
                 std::string_view error) override {
    requests.add(run, report, error);
  }
  [[nodiscard]] bool make_room() override { return sequences.drop_idle() > 0; }
  void fill(Gauges& gauges) const override;

  ChunkQuotas quotas;
  SequenceTable sequences;
  RequestLog requests;
};

// Returns the state. Precondition: the engine is there.
[[nodiscard]] ObjectState& object_state(Services& services);

// A body and status that a worker has made.
struct Reply {
  json::value body;
  int status = 200;
};
// Runs `work` on a worker, and sends its reply.
void reply_from_worker(Services& services, CallPtr call,
                       std::function<Checked<Reply>(ChunkedLLM& llm)> work);

// Takes a place of one generation in admission, for work that computes. Any thread may destroy the
// last copy.
// Errors: 429.
[[nodiscard]] Checked<std::shared_ptr<Ticket>> enter_admission(Services& services,
                                                               const Call& call);

// Returns the endpoints of chunks. Each file of this folder has such a function.
[[nodiscard]] std::span<const Endpoint> chunk_endpoints();
[[nodiscard]] std::span<const Endpoint> chunk_item_endpoints();
[[nodiscard]] std::span<const Endpoint> sequence_endpoints();
[[nodiscard]] std::span<const Endpoint> sequence_edit_endpoints();
[[nodiscard]] std::span<const Endpoint> session_endpoints();
[[nodiscard]] std::span<const Endpoint> request_endpoints();
[[nodiscard]] std::span<const Endpoint> operator_endpoints();

// Returns a list in the form that all endpoints use.
[[nodiscard]] json::object list_json(json::array data);
// Returns the refusal for a quota that waiting does not mend.
[[nodiscard]] ApiError over_quota(const char* name, std::int64_t used, std::int64_t wanted,
                                  std::int64_t allowed);
// Reads a flag of the query: "true", "1" and "" are true.
// Errors: 400 for a word other than those, "false" and "0".
[[nodiscard]] Checked<bool> query_flag(const Call& call, const char* name);
// Reads an integer of the query, or returns `otherwise`.
// Errors: 400 for other text, and outside of [min, max].
[[nodiscard]] Checked<std::int64_t> query_integer(const Call& call, const char* name,
                                                  std::int64_t otherwise, std::int64_t min,
                                                  std::int64_t max);

}  // namespace quire::server
