// ObjectState: what the endpoints of this folder remember beside the engine.
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

// Threads: the loop's thread, but for `quotas`.
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
// Runs `work` on a worker, and sends what it returns.
void reply_from_worker(Services& services, CallPtr call,
                       std::function<Checked<Reply>(ChunkedLLM& llm)> work);

// Returns a place of one generation among the requests that run, for work that computes. Any thread
// may destroy the last copy.
// Errors: 429.
[[nodiscard]] Checked<std::shared_ptr<Ticket>> enter_admission(Services& services,
                                                               const Call& call);

// Endpoints of the files of this folder.
[[nodiscard]] std::span<const Endpoint> chunk_endpoints();
[[nodiscard]] std::span<const Endpoint> chunk_item_endpoints();
[[nodiscard]] std::span<const Endpoint> sequence_endpoints();
[[nodiscard]] std::span<const Endpoint> sequence_edit_endpoints();
[[nodiscard]] std::span<const Endpoint> session_endpoints();
[[nodiscard]] std::span<const Endpoint> request_endpoints();
[[nodiscard]] std::span<const Endpoint> operator_endpoints();

// Returns a list as all endpoints give it.
[[nodiscard]] json::object list_json(json::array data);
// Returns a refusal of a quota that waiting does not mend (rule A5).
[[nodiscard]] ApiError over_quota(const char* name, std::int64_t used, std::int64_t wanted,
                                  std::int64_t allowed);
// Returns the truth of a parameter of a query: "true", "1" and "" are true.
// Errors: 400 for another word than those, "false" and "0".
[[nodiscard]] Checked<bool> query_flag(const Call& call, const char* name);
// Returns an integer of a query, or `otherwise`.
// Errors: 400 for another text, and outside of [min, max].
[[nodiscard]] Checked<std::int64_t> query_integer(const Call& call, const char* name,
                                                  std::int64_t otherwise, std::int64_t min,
                                                  std::int64_t max);

}  // namespace quire::server
